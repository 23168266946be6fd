"""The certificate of a trained decoder: assumptions, accuracy at longer lengths from pieces, and a verdict."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

from lengthwise.core.confidence_intervals import wilson_interval
from lengthwise.core.errors import LengthwiseError, SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.evaluation.forecast.assumptions import (
    ACCURACY_THRESHOLD,
    MAX_ACCURACY_CHANGE,
    RequiredTokens,
    check_training_fit,
    count_required_tokens,
    measure_assumptions,
)
from lengthwise.evaluation.forecast.probed_model import (
    NUM_QUERIES,
    AnswerQueries,
    ProbedModel,
    SubsampleAccuracy,
    mark_answers,
    measure_subsample_accuracy,
)
from lengthwise.evaluation.forecast.subsampling import split_into_pieces, upweight_distractors
from lengthwise.tasks import HasFixedLengths, NaturalText, PlantedCorrelations, Task
from lengthwise.theory.risk.bayes import BayesPredictor
from lengthwise.theory.task_certificate import AssumptionCheck

# Margin of an interval: a constant, a factor of the subsampling error at the longest training length, and a factor of
# the change if the sequence is cut differently. Tuned on runs not in benchmarks/forecast.md.
MARGIN, ERROR_FACTOR, CUT_FACTOR = 0.03, 3.0, 2.0
# Number of subsamples of each query about a response.
NUM_RESPONSE_SUBSAMPLES = 4
# Margin of the range of exact match, for examples of a new sample.
EXACT_MARGIN = 0.05
# Maximum number of pieces per sequence, and the fraction of the sequence that they must cover.
MAX_PIECES, MIN_COVERAGE = 64, 0.9
# Maximum width of a reported interval.
MAX_WIDTH = 0.5
# In 95% of cases, two sample means differ by less than this number of standard deviations of one mean.
TWO_SAMPLE_Z = 2.77
# Number of queries that measure the required tokens.
NUM_PROBE_QUERIES = 48
# Causes of a lower accuracy.
UNTRAINED_IDS, DILUTED_ATTENTION = "IDs or distances not seen in training", "attention diluted by more tokens"
MISLEADING_TOKENS = "single misleading tokens"
# The horizon is searched up to this many doublings of the longest training length.
NUM_DOUBLINGS = 4


class InconclusiveError(LengthwiseError):
    """Error for a length at which the pieces do not determine the accuracy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyForecast:
    """Predicted accuracy per answer token at a length, with the 90% interval ``low`` to ``high``.

    Accuracy is teacher-forced, includes predicted IDs, and excludes the end token. ``mean`` uses the mean
    log-probability over the ``num_pieces`` pieces of a sequence. ``every_piece`` also requires a correct answer in each
    unweighted piece, so a misleading token in any piece counts as an error. ``single_tokens`` is the accuracy with
    subsamples of single tokens instead of blocks of neighbors, which differs if the run reads the context of tokens.
    ``coverage`` is the fraction of the sequence that the pieces cover.

    ``ids_only`` is the accuracy with the IDs of this length but few tokens. ``token_count_only`` is the accuracy with
    the number of tokens of this length but training IDs (None if answers require all tokens of a training sequence).
    ``leakage`` is the attention weight outside the needed tokens, in the layer and head with the least leakage.

    ``exact_low`` to ``exact_high`` is the range of exact match for examples with ``num_answers`` answer tokens and one
    end token, whose accuracy is ``end_accuracy``. ``exact_part`` is the share of examples in which ``num_queried``
    tokens, spread over the response, are all right.
    """

    length: int
    accuracy: float
    low: float
    high: float
    mean: float
    every_piece: float
    single_tokens: float
    num_pieces: int
    coverage: float
    ids_only: float
    token_count_only: float | None
    leakage: float
    num_answers: int
    end_accuracy: float
    num_queried: int
    exact_part: float
    exact_low: float
    exact_high: float


def predict_accuracy(
    model: ProbedModel, train_queries: AnswerQueries, budget: int, fidelity: SubsampleAccuracy, length: int
) -> AccuracyForecast:
    """Predict the accuracy at a length from pieces of ``budget`` tokens, or raise ``InconclusiveError``."""
    queries = model.sample_answer_queries(length)
    rng = random_stream(model.seed, "forecast pieces", length, budget)
    pieces, coverage = split_into_pieces(queries.depends_on, queries.last_index, budget, rng, MAX_PIECES)
    num_pieces = len(pieces.last_column) // len(queries.answer)
    if coverage < MIN_COVERAGE:
        raise InconclusiveError(
            f"cannot predict the accuracy at length {length}: {MAX_PIECES} pieces, each with as many tokens as a "
            f"training sequence, cover only {coverage:.2f} of a sequence; evaluate the run at this length"
        )
    weighted, unweighted = model.query(queries, pieces), model.query(queries, pieces.unweighted())
    recut = model.subsample(queries, length, budget, as_blocks=False)
    single_tokens = float(model.query(queries, recut).correct.mean())
    mean = float(weighted.correct.mean())
    every_piece = float((weighted.correct & unweighted.correct_each.all(axis=1)).mean())
    margin = MARGIN + ERROR_FACTOR * fidelity.max_subsampling_change + CUT_FACTOR * abs(mean - single_tokens)
    every_piece_low, _ = wilson_interval(round(every_piece * NUM_QUERIES), NUM_QUERIES)
    _, mean_high = wilson_interval(round(max(mean, single_tokens) * NUM_QUERIES), NUM_QUERIES)
    # Tokens outside all pieces can also mislead, so the error rate at the lower end is divided by the coverage.
    low = max(0.0, 1 - (1 - every_piece_low + margin) / coverage)
    high = min(1.0, mean_high + margin, attainable_accuracy(model.task, queries))
    if high - low > MAX_WIDTH:
        raise InconclusiveError(
            f"cannot predict the accuracy at length {length}: {mean:.2f} of the answers are right by the mean of "
            f"{num_pieces} pieces and {every_piece:.2f} in every piece, so its interval is {low:.2f} to {high:.2f}; "
            "evaluate the run at this length"
        )
    length_ratio = queries.batch.tokens.shape[1] / budget
    upweighted = upweight_distractors(train_queries.depends_on, train_queries.last_index, length_ratio)
    diluted = model.query(train_queries, upweighted).correct[(upweighted.weights > 1).any(axis=1)]
    num_answers = int(mark_answers(model.task, queries.batch).sum(axis=1).max())
    response = _query_responses(model, length, budget)
    exact_low, exact_high = response.exact_interval(
        num_answers + 1, low, high, error=1 - mean, misled=mean - every_piece, shift=margin - MARGIN
    )
    return AccuracyForecast(
        length=length,
        accuracy=min((mean + every_piece) / 2, high),
        low=low,
        high=high,
        mean=mean,
        every_piece=every_piece,
        single_tokens=single_tokens,
        num_pieces=num_pieces,
        coverage=coverage,
        ids_only=float(unweighted.correct.mean()),
        token_count_only=float(diluted.mean()) if len(diluted) else None,
        leakage=float(weighted.leakage.min()),
        num_answers=num_answers,
        end_accuracy=response.end_accuracy,
        num_queried=response.num_queried,
        exact_part=response.exact_part,
        exact_low=exact_low,
        exact_high=exact_high,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Responses:
    """Results of several tokens of each example: the number of examples, and of tokens per example.

    ``exact_part`` is the share of examples whose queried tokens are all right. ``end_accuracy`` is the accuracy of the
    last token.
    """

    num_examples: int
    num_queried: int
    exact_part: float
    end_accuracy: float

    def exact_interval(
        self, num_tokens: int, low: float, high: float, *, error: float, misled: float, shift: float
    ) -> tuple[float, float]:
        """Return the range of exact match for examples with ``num_tokens`` scored tokens.

        ``low`` to ``high`` is the interval of the accuracy per token, ``error`` the error rate by the mean of pieces,
        ``misled`` the rate of answers that are wrong in single pieces only, and ``shift`` the possible difference
        between pieces and full sequences.
        """
        if self.num_queried == 1:
            return low, high
        part_low, part_high = wilson_interval(round(self.exact_part * self.num_examples), self.num_examples)
        shift = max(0.0, shift - MARGIN)
        # If error rates differ between examples, E[q^n] >= E[q^k]^(n/k) for n >= k (Jensen).
        exact_low = part_low ** max(1.0, num_tokens / self.num_queried) - EXACT_MARGIN - num_tokens * (misled + shift)
        # All queried tokens of an exact example are right. Fewer errors raise the share of such examples.
        fewer_errors = max(0.0, 1 - shift / error) if error > 0 else 1.0
        exact_high = min(high, part_high**fewer_errors + EXACT_MARGIN)
        return min(exact_high, max(0.0, exact_low)), exact_high


def _query_responses(model: ProbedModel, length: int, budget: int) -> _Responses:
    queries, num_queried = model.response_queries(length)
    subsample = model.subsample(queries, length, budget, num_subsamples=NUM_RESPONSE_SUBSAMPLES)
    correct = model.query(queries, subsample).correct.reshape(-1, num_queried)
    return _Responses(
        num_examples=len(correct),
        num_queried=num_queried,
        exact_part=float(correct.all(axis=1).mean()),
        end_accuracy=float(correct[:, -1].mean()),
    )


def attainable_accuracy(task: Task, queries: AnswerQueries) -> float:
    """Return an upper limit of the accuracy that the best predictor reaches on a new sample of as many queries.

    The best predictor of a planted law returns the most probable label given the full prompt. The limit is 1 for other
    tasks, subclasses of ``PlantedCorrelations`` (which may sample differently), laws without a span (too many sets) and
    natural texts (unknown probabilities).
    """
    if (
        type(task) is not PlantedCorrelations
        or task.placement.max_span is None
        or isinstance(task.background, NaturalText)
    ):
        return 1.0
    tokens = queries.batch.tokens[:, : queries.batch.length].numpy()
    label_probabilities = BayesPredictor(task).predict(tokens).max(axis=1)
    _, high = wilson_interval(float(label_probabilities.sum()), len(label_probabilities), TWO_SAMPLE_Z)
    return high


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliableLengthLimit:
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
    assumptions: tuple[AssumptionCheck, ...]
    forecasts: tuple[AccuracyForecast, ...]
    abstentions: dict[int, str]
    horizon: ReliableLengthLimit | None
    refusal: str | None


def certify_decoder(model: ProbedModel, lengths: Sequence[int]) -> RunCertificate:
    """Predict the accuracy at ``lengths`` from forward passes with about as many tokens as a training sequence.

    ``split_into_pieces`` divides a long sequence into pieces. Raises ``SettingError`` for a length within the training
    lengths, a task without depends_on, or attention that does not allow subsampling. If a run does not fit its training
    lengths, the certificate contains no other assumptions and no predictions.
    """
    for length in lengths:
        if length <= model.max_train_length:
            raise SettingError(
                f"length {length} is not beyond the longest training length {model.max_train_length}; use longer "
                "lengths, or measure this length with lengthwise evaluate"
            )
    if (obstacle := model.subsampling_obstacle) is not None:
        raise SettingError(obstacle)
    model.decoder.eval()
    train_queries = model.sample_answer_queries(model.max_train_length)
    budget = train_queries.batch.tokens.shape[1]
    fidelity = measure_subsample_accuracy(model, train_queries, budget)
    fit = check_training_fit(model, fidelity)
    queries = model.sample_answer_queries(model.max_train_length, NUM_PROBE_QUERIES) if fit.holds else None
    needs = None if queries is None else count_required_tokens(model.decoder, queries)
    refusal = _refusal_reason(fidelity) if fit.holds else f"the run does not fit its training lengths ({fit.found})"
    test_lengths = sorted(set(lengths))
    # The search for the horizon repeats some of these lengths.
    predict_length = cache(partial(predict_accuracy, model, train_queries, budget, fidelity))
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


def _refusal_reason(fidelity: SubsampleAccuracy) -> str | None:
    if fidelity.max_subsampling_change > MAX_ACCURACY_CHANGE:
        return (
            "this run reads more tokens than its answers depend on; at the longest training length, "
            f"{fidelity.whole:.2f} of the answers are right on all tokens and "
            f"{min(fidelity.half, fidelity.quarter):.2f} on a part of them, so pieces do not predict accuracy; "
            "use lengthwise evaluate at these lengths"
        )
    return None


def _find_longest_accurate_length(
    model: ProbedModel, predict_length: Callable[[int], AccuracyForecast], test_lengths: Sequence[int]
) -> ReliableLengthLimit:
    """Find the horizon among ``test_lengths`` and the doublings of the longest training length, in ascending order.

    A task file has records of some lengths only.
    """
    longest, longest_exact, all_exact = model.max_train_length, model.max_train_length, True
    doublings = [model.max_train_length << exponent for exponent in range(1, NUM_DOUBLINGS + 1)]
    if isinstance(model.task, HasFixedLengths):
        doublings = [length for length in doublings if length in model.task.available_lengths]
    for length in sorted({*test_lengths, *doublings}):
        try:
            forecast = predict_length(length)
        except LengthwiseError as error:
            return ReliableLengthLimit(tokens=longest, exact=longest_exact, limited_by=f"at length {length}: {error}")
        if forecast.low < ACCURACY_THRESHOLD:
            return ReliableLengthLimit(tokens=longest, exact=longest_exact, limited_by=_describe_limit(forecast))
        longest, all_exact = length, all_exact and forecast.exact_low >= ACCURACY_THRESHOLD
        longest_exact = length if all_exact else longest_exact
    return ReliableLengthLimit(
        tokens=longest, exact=longest_exact, limited_by=f"{longest} is the longest length predicted"
    )


def _describe_limit(forecast: AccuracyForecast) -> str:
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


def describe_run_certificate(certificate: RunCertificate) -> str:
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


def _exact_match_sentence(forecasts: tuple[AccuracyForecast, ...], exact_length: int, max_train_length: int) -> str:
    reached = ""
    if exact_length > max_train_length:
        reached = f"Predicted exact match is at least {ACCURACY_THRESHOLD} up to length {exact_length}"
    first = next((row for row in forecasts if row.exact_low < ACCURACY_THRESHOLD <= row.exact_high), None)
    if first is None:
        return f"{reached or f'Predicted exact match is below {ACCURACY_THRESHOLD} at all tested lengths'}."
    return (
        f"{reached}{'. ' if reached else ''}Exact match at length {first.length} is undecided ({first.exact_low:.2f} "
        f"to {first.exact_high:.2f}): all {first.num_answers} answer tokens must be right, and the accuracy per token "
        f"is {first.low:.2f} to {first.high:.2f}; use lengthwise evaluate."
    )
