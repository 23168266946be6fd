"""From what repairs first errors to a sentence that says what limits a run."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Bool

from lengthwise.evaluation.diagnosis.failures import Failed, Failures, with_known_end
from lengthwise.evaluation.diagnosis.interventions import Readings
from lengthwise.evaluation.forecast.assumptions import REACHED
from lengthwise.evaluation.forecast.certificate import DILUTED, UNSHOWN
from lengthwise.evaluation.forecast.probed_model import Subject

# The IDs lie within those of training, and so do their distances.
MORE_IDS = "more different IDs than training showed"
TOGETHER = "the number of tokens and the IDs, each of which is enough to fail by"
ID_ERRORS, END_ERRORS = "IDs that it predicts wrong", "ending too early or too late"
# From this share on a change accounts for the failures.
MOST = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What a change repairs: ``repaired`` is the share of ``asked`` first errors that are right with it.

    ``broken``: of right answers of the same examples, the share that it makes wrong, None where it was not asked of
    any. Where two answers are possible, noise repairs half of the errors and breaks half of the right answers.
    ``whole``: the share of the same examples that are right from beginning to end, where the change can tell.
    """

    name: str
    change: str
    asked: int
    repaired: float
    broken: float | None = None
    whole: float | None = None

    @property
    def effect(self) -> float:
        """What it repairs beyond what noise would."""
        return max(0.0, self.repaired - (0.0 if self.broken is None else self.broken))


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinning:
    """What leaving tokens out does by itself.

    ``unchanged``: the share of first errors that are right in thinned sequences with nothing else changed. ``kept``:
    of the right answers at the longest trained length, the share that stay right when half of it is left out.
    ``short``: the share of first errors that could be asked again in no more than a trained sequence.
    """

    unchanged: float
    kept: float
    short: float


def causes_of_readings(errors: Readings, right: Readings | None, length: int, *, beyond: bool) -> Iterator[Cause]:
    """Number of tokens, IDs, both, asked of first errors and, as a control, of answers that are right.

    ``beyond``: some IDs or distances are larger than any of training. A first error that is right in thinned sequences
    without any change is none of them, nor is a right answer broken that is wrong in these.
    """
    repaired = _changed(errors, ~errors.unchanged)
    broken = (None,) * len(repaired) if right is None else _changed(_negated(right), right.unchanged)
    unshown = UNSHOWN if beyond else MORE_IDS
    changes = (
        (DILUTED, f"as many tokens as in training, at the IDs of {length}"),
        (unshown, "IDs of training, all tokens weighing as much"),
        (TOGETHER, "both, and neither alone"),
    )
    for (name, change), of_errors, of_right in zip(changes, repaired, broken, strict=True):
        yield Cause(name=name, change=change, asked=len(errors.unchanged), repaired=of_errors, broken=of_right)


def _changed(readings: Readings, counted: Bool[np.ndarray, " asked"]) -> tuple[float, float, float]:
    """The shares of all that are among ``counted`` and true with fewer tokens, with trained IDs, only with both."""
    fewer, trained = readings.fewer_tokens & counted, readings.trained_ids & counted
    together = readings.both & counted & ~fewer & ~trained
    return float(fewer.mean()), float(trained.mean()), float(together.mean())


def _negated(readings: Readings) -> Readings:
    """Wrong where these are right."""
    return Readings(**{part.name: ~getattr(readings, part.name) for part in fields(Readings)})


def causes_of_kinds(subject: Subject, failed: list[Failed], failures: Failures) -> Iterator[Cause]:
    """What the right IDs repair, where the decoder predicts them, and what the right end does."""
    if subject.decoder.predicts_ids:
        yield Cause(
            name=ID_ERRORS,
            change="the right IDs given",
            asked=failures.number,
            repaired=failures.id / failures.number,
            whole=sum(int(each.tokens_right.sum()) for each in failed) / failures.number,
        )
    if failures.end_too_early + failures.end_too_late:
        end = subject.task.vocabulary.index("end")
        found = [with_known_end(subject.decoder, each, end) for each in failed]
        first, whole = (sum(int(each[part].sum()) for each in found) / failures.number for part in range(2))
        yield Cause(name=END_ERRORS, change="the end known", asked=failures.number, repaired=first, whole=whole)


def limited_by(
    failures: Failures, of_kinds: tuple[Cause, ...], of_readings: tuple[Cause, ...], thinning: Thinning | None
) -> str:
    """The last sentence; ``thinning`` is None where nothing was asked again."""
    kind = _kind(failures, of_kinds)
    if thinning is None:
        return f"limited by {kind}; what of it is due to IDs or to the number of tokens is not told"
    if thinning.unchanged > MOST:
        return (
            f"limited by {kind}; whether IDs or the number of tokens is not told: {thinning.unchanged:.2f} of the "
            "first errors are right in thinned sequences with nothing else changed"
        )
    diluted, unshown, together = (cause.repaired for cause in of_readings)
    broken = [cause.broken for cause in of_readings if cause.broken is not None]
    told = (
        f"{diluted:.2f} of its first errors are right with fewer tokens, {unshown:.2f} with the IDs of training, "
        f"{together:.2f} only with both"
        + (
            f"; of answers that are right, these make {', '.join(f'{each:.2f}' for each in broken)} wrong"
            if broken
            else ""
        )
    )
    if sum(cause.effect for cause in of_readings) >= MOST:
        return f"limited by {_larger(of_readings)} ({told})"
    if diluted + unshown + together >= MOST:
        return (
            f"limited by {kind}; whether IDs or the number of tokens is not told: noise might repair as many ({told})"
        )
    if min(thinning.kept, thinning.short) < REACHED:
        return (
            f"limited by {kind}; whether IDs or the number of tokens is not told: {thinning.short:.2f} of the first "
            f"errors fit into a trained sequence, of which {thinning.kept:.2f} of the right answers stay right thinned"
        )
    return f"limited by {kind}, and neither by IDs nor by the number of tokens ({told})"


def _larger(of_readings: tuple[Cause, ...]) -> str:
    diluted, unshown, _ = of_readings
    if min(diluted.effect, unshown.effect) >= MOST:
        return "the number of tokens together with the IDs, and right with either of them as in training"
    largest = max(of_readings, key=lambda cause: cause.effect)
    return largest.name if largest.effect >= MOST else "several causes"


def _kind(failures: Failures, of_kinds: tuple[Cause, ...]) -> str:
    """The most frequent kind of first error, with what a right ID or a right end repairs."""
    ends = failures.end_too_early + failures.end_too_late
    most = max(failures.token, failures.id, ends)
    if most == failures.token:
        return f"wrong tokens ({failures.token} of {failures.number} first errors)"
    name = ID_ERRORS if most == failures.id else END_ERRORS
    cause = next(cause for cause in of_kinds if cause.name == name)
    return f"{cause.name} ({most} of {failures.number} first errors; {cause.whole:.2f} are right with {cause.change})"
