"""The certificate of a trained decoder: its assumptions, predicted accuracy, horizon and verdict."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

from lengthwise.core.errors import LengthwiseError, SettingError
from lengthwise.evaluation.forecast.assumptions import (
    ACCURACY_THRESHOLD,
    MAX_ACCURACY_CHANGE,
    check_fit,
    measure_assumptions,
)
from lengthwise.evaluation.forecast.prediction import Forecast, InconclusiveError, predict
from lengthwise.evaluation.forecast.probed_model import ProbedModel, SubsampleAccuracy, measure_subsample_accuracy
from lengthwise.evaluation.forecast.probes import RequiredTokens, measure_required_tokens
from lengthwise.tasks import HasLengths
from lengthwise.theory.planted_law_certificate import Assumption

# Number of queries that measure the required tokens.
NUM_PROBE_QUERIES = 48
# Causes of a lower accuracy.
UNTRAINED_IDS, DILUTED_ATTENTION = "IDs or distances not seen in training", "attention diluted by more tokens"
MISLEADING_TOKENS = "single misleading tokens"
# The horizon is searched up to this many doublings of the longest training length.
NUM_DOUBLINGS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """Longest length up to which all tested lengths reach ``ACCURACY_THRESHOLD``.

    ``tokens`` uses the lower bound of accuracy per answer token, ``exact`` uses the lower bound of exact match, and
    ``limited_by`` is the reason why ``tokens`` is not larger.
    """

    tokens: int
    exact: int
    limited_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCertificate:
    """Assumptions and predictions of one run; ``refusal`` is the reason why there are no predictions at all.

    ``abstentions`` maps each length without a prediction to the reason. ``needs``, ``fidelity`` and ``fitted`` (exact
    match, None if unknown) are values at the longest training length.
    """

    train_lengths: tuple[int, int]
    fitted: float | None
    fidelity: SubsampleAccuracy
    needs: RequiredTokens | None
    assumptions: tuple[Assumption, ...]
    forecasts: tuple[Forecast, ...]
    abstentions: dict[int, str]
    horizon: Horizon | None
    refusal: str | None


def certify_decoder(model: ProbedModel, lengths: Sequence[int]) -> RunCertificate:
    """Predict the accuracy at ``lengths`` from forward passes with about as many tokens as a training sequence.

    ``split_into_pieces`` divides a long sequence into pieces. Raises ``SettingError`` for a length within the training
    lengths, a task without support, or attention that does not allow subsampling. If a run does not fit its training
    lengths, the certificate contains no other assumptions and no predictions.
    """
    _check_request(model, lengths)
    model.decoder.eval()
    train_queries = model.queries(model.max_train_length)
    budget = train_queries.batch.tokens.shape[1]
    fidelity = measure_subsample_accuracy(model, train_queries, budget)
    fit = check_fit(model, fidelity)
    queries = model.queries(model.max_train_length, NUM_PROBE_QUERIES) if fit.holds else None
    needs = None if queries is None else measure_required_tokens(model.decoder, queries)
    refusal = _refusal_reason(fidelity) if fit.holds else f"the run does not fit its training lengths ({fit.found})"
    test_lengths = sorted(set(lengths))
    # The search for the horizon repeats some of these lengths.
    predict_length = cache(partial(predict, model, train_queries, budget, fidelity))
    forecasts, abstentions, supported_lengths = [], {}, list(test_lengths)
    for length in test_lengths if refusal is None else ():
        try:
            forecasts.append(predict_length(length))
        except LengthwiseError as error:
            abstentions[length] = str(error)
            if not isinstance(error, InconclusiveError):
                # The scheme or the encoding does not support this length.
                supported_lengths.remove(length)
    longest = max([model.max_train_length, *supported_lengths])
    assumptions = () if needs is None else measure_assumptions(model, train_queries, needs, fidelity, longest)
    return RunCertificate(
        train_lengths=model.train_lengths,
        fitted=model.fitted,
        fidelity=fidelity,
        needs=needs,
        assumptions=(fit, *assumptions),
        forecasts=tuple(forecasts),
        abstentions=abstentions,
        horizon=_find_longest_accurate_length(model, predict_length, test_lengths) if refusal is None else None,
        refusal=refusal,
    )


def _check_request(model: ProbedModel, lengths: Sequence[int]) -> None:
    for length in lengths:
        if length <= model.max_train_length:
            raise SettingError(
                f"length {length} is not beyond the longest training length {model.max_train_length}; use longer "
                "lengths, or measure this length with lengthwise evaluate"
            )
    if (obstacle := model.subsampling_obstacle) is not None:
        raise SettingError(obstacle)


def _refusal_reason(fidelity: SubsampleAccuracy) -> str | None:
    if fidelity.max_accuracy_change > MAX_ACCURACY_CHANGE:
        return (
            "this run reads more tokens than its answers depend on; at the longest training length, "
            f"{fidelity.whole:.2f} of the answers are right on all tokens and "
            f"{min(fidelity.half, fidelity.quarter):.2f} on a part of them, so pieces do not predict accuracy; "
            "use lengthwise evaluate at these lengths"
        )
    return None


def _find_longest_accurate_length(
    model: ProbedModel, predict_length: Callable[[int], Forecast], test_lengths: Sequence[int]
) -> Horizon:
    """Find the horizon among ``test_lengths`` and the doublings of the longest training length, in ascending order.

    A task file has records of some lengths only.
    """
    longest, longest_exact, all_exact = model.max_train_length, model.max_train_length, True
    doublings = [model.max_train_length << exponent for exponent in range(1, NUM_DOUBLINGS + 1)]
    if isinstance(model.task, HasLengths):
        doublings = [length for length in doublings if length in model.task.available_lengths]
    for length in sorted({*test_lengths, *doublings}):
        try:
            forecast = predict_length(length)
        except LengthwiseError as error:
            return Horizon(tokens=longest, exact=longest_exact, limited_by=f"at length {length}: {error}")
        if forecast.low < ACCURACY_THRESHOLD:
            return Horizon(tokens=longest, exact=longest_exact, limited_by=_describe_limit(forecast))
        longest, all_exact = length, all_exact and forecast.exact_low >= ACCURACY_THRESHOLD
        longest_exact = length if all_exact else longest_exact
    return Horizon(tokens=longest, exact=longest_exact, limited_by=f"{longest} is the longest length predicted")


def _describe_limit(forecast: Forecast) -> str:
    """Return the reason for a low accuracy: new IDs, more tokens or misleading tokens, whichever lowers it most."""
    accuracy_text, diluted_accuracy = f"at length {forecast.length}: {forecast.ids_only:.2f} with its IDs only", 1.0
    if forecast.token_count_only is not None:
        diluted_accuracy = forecast.token_count_only
        accuracy_text += f", {diluted_accuracy:.2f} with its number of tokens only"
    if min(forecast.ids_only, diluted_accuracy) < ACCURACY_THRESHOLD:
        return f"{UNTRAINED_IDS if forecast.ids_only < diluted_accuracy else DILUTED_ATTENTION} ({accuracy_text})"
    if forecast.every_piece < min(forecast.mean, ACCURACY_THRESHOLD):
        return f"{MISLEADING_TOKENS} ({accuracy_text}; {forecast.every_piece:.2f} in every piece)"
    if forecast.mean < ACCURACY_THRESHOLD:
        return f"IDs and number of tokens together ({accuracy_text})"
    return f"the interval {forecast.low:.2f} to {forecast.high:.2f} is too wide ({accuracy_text})"


def run_verdict(certificate: RunCertificate) -> str:
    """Return sentences about the predictions of a certificate, or the reason why there are none."""
    if certificate.refusal is not None:
        return f"Nothing is predicted: {certificate.refusal}."
    return " ".join(_verdict_sentences(certificate))


def _verdict_sentences(certificate: RunCertificate) -> Iterator[str]:
    horizon, max_train_length = certificate.horizon, certificate.train_lengths[1]
    assert horizon is not None
    if horizon.tokens > max_train_length:
        yield f"Predicted accuracy per answer token is at least {ACCURACY_THRESHOLD} up to length {horizon.tokens}."
    else:
        yield f"No length beyond the training maximum {max_train_length} is predicted to reach {ACCURACY_THRESHOLD}."
    yield f"Limit: {horizon.limited_by}."
    if any(forecast.num_answers > 1 for forecast in certificate.forecasts):
        yield _exact_match_sentence(certificate.forecasts, horizon.exact, max_train_length)
    if certificate.abstentions:
        lengths = ", ".join(map(str, certificate.abstentions))
        yield f"There is no prediction at {lengths}; use lengthwise evaluate."


def _exact_match_sentence(forecasts: tuple[Forecast, ...], exact_length: int, max_train_length: int) -> str:
    reached = ""
    if exact_length > max_train_length:
        reached = f"Predicted exact match is at least {ACCURACY_THRESHOLD} up to length {exact_length}"
    first = next((each for each in forecasts if each.exact_low < ACCURACY_THRESHOLD <= each.exact_high), None)
    if first is None:
        return f"{reached or f'Predicted exact match is below {ACCURACY_THRESHOLD} at all tested lengths'}."
    return (
        f"{reached}{'. ' if reached else ''}Exact match at length {first.length} is undecided ({first.exact_low:.2f} "
        f"to {first.exact_high:.2f}): all {first.num_answers} answer tokens must be right, and the accuracy per token "
        f"is {first.low:.2f} to {first.high:.2f}; use lengthwise evaluate."
    )
