"""What can be said of a trained decoder at longer lengths: which assumptions it keeps, and how accurate it will be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from lengthwise.errors import LengthwiseError, SettingError
from lengthwise.forecast.asking import Questions
from lengthwise.forecast.assumptions import REACHED, TOLERANCE, measured_assumptions
from lengthwise.forecast.probes import Needs, probe
from lengthwise.forecast.subject import QUESTIONS, Fidelity, Subject, measure_fidelity
from lengthwise.forecast.thinning import crowd
from lengthwise.intervals import wilson_interval
from lengthwise.randomness import stream
from lengthwise.theory.certificate import Assumption

# Questions that the probes are asked of.
PROBED = 48
# What is added to both ends of an interval: this, and so many times what thinning is off at the longest trained length;
# chosen on runs of docs/which.md, judged on others in benchmarks/forecast.md.
SLACK, PER_DIFFERENCE = 0.03, 3.0
# What a run can be limited by.
UNSHOWN, DILUTED = "IDs or distances that training did not show", "attention diluted by more tokens"
# Doublings of the trained length in which a horizon is looked for.
DOUBLINGS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The accuracy per answer at a length, foretold; ``low`` to ``high`` is meant to hold nine times of ten.

    ``single`` is what one thinning alone makes of it, which errs more often, ``half`` what thinnings of half as many
    tokens do; ``positions`` is what the IDs of that length do by themselves, ``crowd`` what its number of tokens does,
    None where answers need all of a trained length; ``leakage`` the attention off what an answer needs, of the layer
    and head where it is least. Answers are tokens, and IDs where these are due; the end token is left out.
    """

    length: int
    accuracy: float
    low: float
    high: float
    single: float
    half: float
    positions: float
    crowd: float | None
    leakage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCertificate:
    """All of it; ``forecasts`` is empty where ``refused`` says why, ``beyond`` says why of single lengths.

    ``horizon``: of the lengths asked about and the doublings of the trained one, the longest with a foretold accuracy
    of ``REACHED`` at it and at all shorter ones of these; None where nothing is foretold. ``limited_by`` says what the
    next one fails by.
    """

    trained: tuple[int, int]
    needs: Needs
    assumptions: tuple[Assumption, ...]
    fidelity: Fidelity
    forecasts: tuple[Forecast, ...]
    beyond: dict[int, str]
    horizon: int | None
    limited_by: str
    refused: str | None


def certify_decoder(subject: Subject, lengths: Sequence[int]) -> RunCertificate:
    """Foretell the accuracy at ``lengths`` from passes of about as many tokens as the longest training length has.

    A pass reads a sequence of the length asked about with most tokens left out, those that stay at their own IDs and
    with the weight of those that they stand for (``thin``). ``SettingError`` for a length within training, for a task
    that does not say what its answers depend on, and for a decoder whose attention is no softmax of one score per key.
    """
    _check(subject, lengths)
    subject.decoder.eval()
    home = subject.questions(subject.longest)
    room = home.batch.tokens.shape[1]
    fidelity = measure_fidelity(subject, home, room)
    needs = probe(subject.decoder, subject.questions(subject.longest, PROBED))
    refused = _refusal(fidelity)
    # A horizon asks about some of the same lengths.
    look = cache(_looking(subject, home, room, fidelity))
    tested = sorted(set(lengths))
    horizon, limited_by = (None, refused) if refused is not None else _horizon(subject, look, tested)
    forecasts, beyond = [], {}
    for length in tested if refused is None else ():
        try:
            forecasts.append(look(length))
        except LengthwiseError as error:
            # An encoding may end before this length, and not before others.
            beyond[length] = str(error)
    farthest = max((subject.longest, *(length for length in tested if length not in beyond)))
    return RunCertificate(
        trained=subject.trained,
        needs=needs,
        assumptions=tuple(measured_assumptions(subject, home, needs, fidelity, farthest)),
        fidelity=fidelity,
        forecasts=tuple(forecasts),
        beyond=beyond,
        horizon=horizon,
        limited_by=limited_by,
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
            f"task {task.name} does not say which tokens its answers depend on (support), so nothing can be foretold "
            "of it; use a task that does"
        )
    if (refused := subject.unthinnable) is not None:
        raise SettingError(refused)


def _refusal(fidelity: Fidelity) -> str | None:
    if fidelity.whole < REACHED:
        return f"{fidelity.whole:.2f} of the answers are right at the longest trained length: train until it fits"
    if fidelity.difference > TOLERANCE:
        return (
            f"thinning does not tell what this decoder does: at the longest trained length it makes "
            f"{min(fidelity.half, fidelity.quarter):.2f} out of {fidelity.whole:.2f}; evaluate it at the lengths "
            "themselves"
        )
    return None


def _looking(subject: Subject, home: Questions, room: int, fidelity: Fidelity) -> Callable[[int], Forecast]:
    """What foretells one length."""

    def look(length: int) -> Forecast:
        questions = subject.questions(length)
        thinned = subject.thinned(questions, length, room)
        asked = subject.ask(questions, thinned)
        half = subject.ask(questions, subject.thinned(questions, length, room // 2))
        plain = subject.ask(questions, thinned.alone())
        crowded = crowd(home.needed, home.answer - 1, questions.batch.tokens.shape[1] / room)
        in_crowd = subject.ask(home, crowded).right[(crowded.stands_for > 1).any(axis=1)]
        right, single, fewer = (float(each.mean()) for each in (asked.right, asked.single, half.right))
        # Where the mean over thinnings answers otherwise than one of them, or than smaller ones, their noise decides.
        margin = SLACK + PER_DIFFERENCE * fidelity.difference + abs(right - single) + abs(right - fewer)
        low, high = wilson_interval(round(right * QUESTIONS), QUESTIONS)
        return Forecast(
            length=length,
            accuracy=right,
            low=max(0.0, low - margin),
            high=min(1.0, high + margin),
            single=single,
            half=fewer,
            positions=float(plain.right.mean()),
            crowd=float(in_crowd.mean()) if len(in_crowd) else None,
            leakage=float(asked.leakage.min()),
        )

    return look


def _horizon(subject: Subject, look: Callable[[int], Forecast], tested: Sequence[int]) -> tuple[int, str]:
    """The last length that is reached with all before it, and what the next one fails by."""
    reached = subject.longest
    for length in sorted({*tested, *(subject.longest << doubling for doubling in range(1, DOUBLINGS + 1))}):
        try:
            ahead = look(length)
        except LengthwiseError as error:
            return reached, str(error)
        if ahead.accuracy < REACHED:
            return reached, _limit(ahead)
        reached = length
    return reached, f"nothing was found up to {reached}, the longest length looked at"


def _limit(ahead: Forecast) -> str:
    if ahead.crowd is None:
        return f"at {ahead.length}: {ahead.positions:.2f} by its IDs alone"
    told = f"at {ahead.length}: {ahead.positions:.2f} by its IDs alone, {ahead.crowd:.2f} by its number of tokens alone"
    if min(ahead.positions, ahead.crowd) >= REACHED:
        return f"IDs and number of tokens together ({told})"
    if ahead.positions < ahead.crowd:
        return f"{UNSHOWN} ({told})"
    return f"{DILUTED} ({told})"
