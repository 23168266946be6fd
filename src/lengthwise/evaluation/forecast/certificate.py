"""The certificate of a trained decoder: the assumptions it keeps, its predicted accuracy, and its horizon."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

from lengthwise.core.errors import LengthwiseError, SettingError
from lengthwise.core.randomness import stream
from lengthwise.evaluation.forecast.assumptions import REACHED, TOLERANCE, fits_training, measured_assumptions
from lengthwise.evaluation.forecast.prediction import CannotTellError, Forecast, predict
from lengthwise.evaluation.forecast.probed_model import Fidelity, Subject, measure_fidelity
from lengthwise.evaluation.forecast.probes import Needs, probe
from lengthwise.theory.law_certificate import Assumption

# Questions that the probes are asked of.
PROBED = 48
# Reasons why accuracy falls.
UNSHOWN, DILUTED = "IDs or distances that training did not show", "attention diluted by more tokens"
MISLED = "single tokens that mislead it"
# Doublings of the trained length in which a horizon is looked for.
DOUBLINGS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """The longest length with a good prediction at it and at all shorter ones that were looked at.

    ``tokens``: the lower end of the accuracy per answer token is at least ``REACHED``; ``exact``: that of exact match.
    ``limited_by``: the reason why ``tokens`` ends there.
    """

    tokens: int
    exact: int
    limited_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCertificate:
    """The assumptions and predictions of one run; where ``refused`` gives a reason, nothing is predicted.

    ``beyond`` gives the reason why nothing is predicted at a length. ``needs`` and ``fidelity`` are measured at the
    longest trained length; ``fitted`` is exact match there, None where it is not known.
    """

    trained: tuple[int, int]
    fitted: float | None
    fidelity: Fidelity
    needs: Needs | None
    assumptions: tuple[Assumption, ...]
    forecasts: tuple[Forecast, ...]
    beyond: dict[int, str]
    horizon: Horizon | None
    refused: str | None


def certify_decoder(subject: Subject, lengths: Sequence[int]) -> RunCertificate:
    """Predict the accuracy at ``lengths`` from passes of about as many tokens as the longest training length has.

    A sequence of the tested length is read in pieces that cover it, each token at its own ID and each piece with the
    weight of the whole (``split``). ``SettingError`` for a length within training, for a task that does not say which
    tokens its answers depend on, and for a decoder whose attention is no softmax of one score per key. A run that does
    not fit its training lengths gets neither assumptions nor predictions.
    """
    _check(subject, lengths)
    subject.decoder.eval()
    home = subject.questions(subject.longest)
    room = home.batch.tokens.shape[1]
    fidelity = measure_fidelity(subject, home, room)
    fits = fits_training(subject, fidelity)
    needs = probe(subject.decoder, subject.questions(subject.longest, PROBED)) if fits.holds else None
    refused = _refusal(fidelity) if fits.holds else f"the run does not fit its training: {fits.found}"
    tested = sorted(set(lengths))
    # A horizon asks about some of the same lengths.
    look = cache(partial(predict, subject, home, room, fidelity))
    forecasts, beyond = [], {}
    # Lengths that the scheme and the encoding can have.
    possible = [subject.longest, *(tested if refused is not None else ())]
    for length in tested if refused is None else ():
        try:
            forecasts.append(look(length))
            possible.append(length)
        except CannotTellError as error:
            beyond[length] = str(error)
            possible.append(length)
        except LengthwiseError as error:
            # An encoding may end before this length, and not before others.
            beyond[length] = str(error)
    assumed = () if needs is None else measured_assumptions(subject, home, needs, fidelity, max(possible))
    return RunCertificate(
        trained=subject.trained,
        fitted=subject.fitted,
        fidelity=fidelity,
        needs=needs,
        assumptions=(fits, *assumed),
        forecasts=tuple(forecasts),
        beyond=beyond,
        horizon=_horizon(subject, look, tested) if refused is None else None,
        refused=refused,
    )


def _check(subject: Subject, lengths: Sequence[int]) -> None:
    for length in lengths:
        if length <= subject.longest:
            raise SettingError(
                f"length {length} is no longer than the {subject.longest} of training; use larger ones, or lengthwise "
                "evaluate"
            )
    task = subject.task
    if task.sample(length=subject.longest, size=1, rng=stream(0)).support is None:
        raise SettingError(
            f"task {task.name} does not say which tokens its answers depend on (support), so its accuracy cannot be "
            "predicted; use a task that does"
        )
    if (refused := subject.unthinnable) is not None:
        raise SettingError(refused)


def _refusal(fidelity: Fidelity) -> str | None:
    if fidelity.difference > TOLERANCE:
        return (
            "this run reads more than its answers need: at the longest trained length, part of the tokens gives "
            f"{min(fidelity.half, fidelity.quarter):.2f} of the answers right and all of them {fidelity.whole:.2f}, so "
            "pieces of a sequence predict nothing; evaluate the run at the lengths themselves"
        )
    return None


def _horizon(subject: Subject, look: Callable[[int], Forecast], tested: Sequence[int]) -> Horizon:
    """Look at the tested lengths and the doublings of the trained one until one is not reached."""
    reached, exact, whole = subject.longest, subject.longest, True
    for length in sorted({*tested, *(subject.longest << doubling for doubling in range(1, DOUBLINGS + 1))}):
        try:
            ahead = look(length)
        except LengthwiseError as error:
            return Horizon(tokens=reached, exact=exact, limited_by=f"at {length}: {error}")
        if ahead.low < REACHED:
            return Horizon(tokens=reached, exact=exact, limited_by=_limit(ahead))
        reached, whole = length, whole and ahead.exact_low >= REACHED
        exact = length if whole else exact
    return Horizon(tokens=reached, exact=exact, limited_by=f"{reached} is the longest length looked at")


def _limit(ahead: Forecast) -> str:
    """The reason why a length is not reached: the change that alone does most harm."""
    found, crowd = f"at {ahead.length}: {ahead.positions:.2f} by its IDs alone", 1.0
    if ahead.crowd is not None:
        found, crowd = f"{found}, {ahead.crowd:.2f} by its number of tokens alone", ahead.crowd
    if min(ahead.positions, crowd) < REACHED:
        return f"{UNSHOWN if ahead.positions < crowd else DILUTED} ({found})"
    if ahead.every < min(ahead.mean, REACHED):
        return f"{MISLED} ({found}; {ahead.every:.2f} in every piece)"
    if ahead.mean < REACHED:
        return f"IDs and number of tokens together ({found})"
    return f"the interval, {ahead.low:.2f} to {ahead.high:.2f}, is too wide to tell ({found})"


def run_verdict(certificate: RunCertificate) -> str:
    """Return what the certificate says about longer lengths, in a few sentences."""
    if certificate.refused is not None:
        return f"Nothing is predicted: {certificate.refused}."
    return " ".join(_sentences(certificate))


def _sentences(certificate: RunCertificate) -> Iterator[str]:
    horizon, longest = certificate.horizon, certificate.trained[1]
    assert horizon is not None
    if horizon.tokens > longest:
        yield f"At least {REACHED} of the answer tokens are predicted to be right up to length {horizon.tokens}."
    else:
        yield f"No length beyond the trained {longest} is predicted to have {REACHED} of its answer tokens right."
    yield f"The limit: {horizon.limited_by}."
    if any(each.answers > 1 for each in certificate.forecasts):
        yield _of_whole_answers(certificate.forecasts, horizon.exact, longest)
    if certificate.beyond:
        lengths = ", ".join(map(str, certificate.beyond))
        yield f"Nothing is predicted at {lengths}: run lengthwise evaluate there."


def _of_whole_answers(forecasts: tuple[Forecast, ...], exact: int, longest: int) -> str:
    """Exact match is what evaluate reports first, and follows only loosely from a share of right tokens."""
    told = f"Exact match of {REACHED} is predicted up to length {exact}" if exact > longest else ""
    open_at = [each for each in forecasts if each.exact_low < REACHED <= each.exact_high]
    if not open_at:
        return f"{told}." if told else f"Exact match is predicted to be below {REACHED} at every tested length."
    first = open_at[0]
    told = f"{told}; whether" if told else "Whether"
    return (
        f"{told} whole examples are exact at {first.length} is open ({first.exact_low:.2f} to {first.exact_high:.2f}): "
        f"all of their {first.answers} answer tokens have to be right, and {first.low:.2f} to {first.high:.2f} of "
        "single ones are; run lengthwise evaluate."
    )
