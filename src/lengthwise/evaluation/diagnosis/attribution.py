"""Attribution of failures to causes, from the first errors that each intervention repairs."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from lengthwise.evaluation.diagnosis.failures import FailureBatch, FailureCounts, grade_with_known_end
from lengthwise.evaluation.diagnosis.interventions import InterventionResults
from lengthwise.evaluation.forecast.assumptions import ACCURACY_THRESHOLD
from lengthwise.evaluation.forecast.certificate import DILUTED, UNTRAINED_IDS
from lengthwise.evaluation.forecast.probed_model import ProbedModel

# The cause that replaces ``UNTRAINED_IDS`` if no ID and no distance exceeds the training maximum.
MORE_IDS = "more distinct IDs than in training"
EITHER = "the number of tokens and the IDs, each sufficient for the failure"
ID_ERRORS, END_ERRORS = "wrong predicted IDs", "ending too early or too late"
# A change that repairs at least this fraction of first errors explains the failures.
MAIN_FRACTION = 0.5
UNDECIDED = "undecided between IDs and the number of tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A cause, the intervention that removes it, and the fraction of ``num_errors`` first errors that it repairs.

    ``break_rate`` is the fraction of right answers of the same examples that the intervention makes wrong; None if not
    measured. With two possible answers, noise repairs half of the errors and breaks half of the right answers.
    ``exact_match`` is the exact match of the same examples under the intervention; None if not measured.
    """

    name: str
    intervention: str
    num_errors: int
    repair_rate: float
    break_rate: float | None = None
    exact_match: float | None = None

    @property
    def effect(self) -> float:
        """Repair rate in excess of the noise level."""
        return max(0.0, self.repair_rate - (0.0 if self.break_rate is None else self.break_rate))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsamplingControl:
    """The effect of subsampling without an intervention.

    ``repair_rate`` is the fraction of first errors that become right. ``retention`` is the fraction of right answers at
    the longest training length that stay right on half of the tokens. ``short_fraction`` is the fraction of first
    errors whose subsamples do not exceed the training size.
    """

    repair_rate: float
    retention: float
    short_fraction: float


def intervention_causes(
    errors: InterventionResults, correct: InterventionResults | None, length: int, *, beyond_training: bool
) -> Iterator[Cause]:
    """Yield three causes (number of tokens, IDs, both), measured on first errors, with right answers as a control.

    ``beyond_training`` is True if some IDs or distances exceed the training maximum. First errors that subsampling
    repairs do not count as repaired, and right answers that it breaks do not count as broken.
    """
    repair_rates = _rates(errors, ~errors.subsample_only)
    break_rates = (None,) * 3 if correct is None else _rates(correct, correct.subsample_only, negate=True)
    interventions = {
        DILUTED: f"as many tokens as in training, IDs of length {length}",
        UNTRAINED_IDS if beyond_training else MORE_IDS: "training IDs, weight of all tokens",
        EITHER: "both changes, if neither one is sufficient",
    }
    for (name, text), repair_rate, break_rate in zip(interventions.items(), repair_rates, break_rates, strict=True):
        num_errors = len(errors.both)
        yield Cause(name=name, intervention=text, num_errors=num_errors, repair_rate=repair_rate, break_rate=break_rate)


def _rates(
    results: InterventionResults, mask: Bool[np.ndarray, " answers"], *, negate: bool = False
) -> tuple[float, float, float]:
    """Return the fractions of masked answers that are right with fewer tokens, with training IDs, and only with both.

    ``negate`` counts wrong answers instead.
    """
    parts = (results.fewer_tokens, results.trained_ids, results.both)
    fewer_tokens, trained_ids, both = ((~part if negate else part) & mask for part in parts)
    return float(fewer_tokens.mean()), float(trained_ids.mean()), float((both & ~fewer_tokens & ~trained_ids).mean())


def error_kind_causes(model: ProbedModel, failures: list[FailureBatch], counts: FailureCounts) -> Iterator[Cause]:
    """Yield wrong IDs as a cause if the decoder predicts IDs, and wrong ends as a cause if there are end errors."""
    number = counts.num_failures
    if model.decoder.predicts_ids:
        yield Cause(
            name=ID_ERRORS,
            intervention="right IDs",
            num_errors=number,
            repair_rate=counts.id / number,
            exact_match=sum(int(each.tokens_correct.sum()) for each in failures) / number,
        )
    if counts.end_too_early + counts.end_too_late:
        end = model.task.vocabulary.index("end")
        masks = [grade_with_known_end(model.decoder, each, end) for each in failures]
        repaired, exact = (sum(int(mask[part].sum()) for mask in masks) / number for part in range(2))
        yield Cause(
            name=END_ERRORS, intervention="right ends", num_errors=number, repair_rate=repaired, exact_match=exact
        )


def attribute(
    counts: FailureCounts,
    kind_causes: tuple[Cause, ...],
    causes: tuple[Cause, ...],
    control: SubsamplingControl | None,
) -> str:
    """Return the limiting cause in a sentence; ``control`` is None without interventions."""
    kind = _main_kind(counts, kind_causes)
    if control is None:
        return f"limited by {kind}; the effect of IDs and of the number of tokens is unknown"
    if control.repair_rate > MAIN_FRACTION:
        return f"limited by {kind}; {UNDECIDED}: subsampling alone repairs {control.repair_rate:.2f} of them"
    diluted, untrained_ids, both = (cause.repair_rate for cause in causes)
    break_rates = [f"{cause.break_rate:.2f}" for cause in causes if cause.break_rate is not None]
    rates = (
        f"{diluted:.2f} of the first errors are right with fewer tokens, {untrained_ids:.2f} with training IDs, "
        f"{both:.2f} only with both"
        + (f"; these changes make {', '.join(break_rates)} of the right answers wrong" if break_rates else "")
    )
    if sum(cause.effect for cause in causes) >= MAIN_FRACTION:
        return f"limited by {_main_cause(causes)} ({rates})"
    if diluted + untrained_ids + both >= MAIN_FRACTION:
        return f"limited by {kind}; {UNDECIDED}: noise may repair as many errors ({rates})"
    if min(control.retention, control.short_fraction) < ACCURACY_THRESHOLD:
        return (
            f"limited by {kind}; {UNDECIDED}: {control.short_fraction:.2f} of the first errors fit into a training "
            f"sequence, and subsampling leaves {control.retention:.2f} of the right answers right"
        )
    return f"limited by {kind}, and neither by IDs nor by the number of tokens ({rates})"


def _main_cause(causes: tuple[Cause, ...]) -> str:
    diluted, untrained_ids, _ = causes
    if min(diluted.effect, untrained_ids.effect) >= MAIN_FRACTION:
        return "the combination of more tokens and IDs not seen in training"
    largest = max(causes, key=lambda cause: cause.effect)
    return largest.name if largest.effect >= MAIN_FRACTION else "several causes"


def _main_kind(counts: FailureCounts, kind_causes: tuple[Cause, ...]) -> str:
    """Return the most frequent kind of first error, with the effect of its repair."""
    ends = counts.end_too_early + counts.end_too_late
    most = max(counts.token, counts.id, ends)
    if most == counts.token:
        return f"wrong tokens ({counts.token} of {counts.num_failures} first errors)"
    name = ID_ERRORS if most == counts.id else END_ERRORS
    cause = next(cause for cause in kind_causes if cause.name == name)
    return (
        f"{name} ({most} of {counts.num_failures} first errors; exact match {cause.exact_match:.2f} with "
        f"{cause.intervention})"
    )
