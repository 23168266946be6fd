"""Attribution of failures to causes, from the first errors that each intervention repairs."""

from collections.abc import Iterator
from dataclasses import dataclass

from lengthwise.evaluation.diagnosis.failures import FailureBatch, FailureCounts, grade_with_known_end
from lengthwise.evaluation.diagnosis.interventions import InterventionResults
from lengthwise.evaluation.forecast.assumptions import ACCURACY_THRESHOLD
from lengthwise.evaluation.forecast.certificate import DILUTED_ATTENTION, UNTRAINED_IDS
from lengthwise.evaluation.forecast.probed_model import ProbedModel

# The cause that replaces ``UNTRAINED_IDS`` if no ID and no distance exceeds the training maximum.
MORE_IDS = "more distinct IDs than in training"
TOKENS_OR_IDS = "the number of tokens and the IDs, each sufficient for the failure"
COMPETING_MATCHES = "competing matches"
ID_ERRORS, END_ERRORS = "wrong predicted IDs", "ending too early or too late"
# A change that repairs at least this fraction of first errors explains the failures.
MAIN_FRACTION = 0.5
UNDECIDED = "undecided between IDs and the number of tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Cause of failures, the intervention that removes it, and the fraction of first errors that it repairs.

    ``break_rate`` is the fraction of correct answers at the same length that the intervention makes wrong.
    ``exact_match`` is the exact match of the failed examples under the intervention. Both are None if not measured.
    ``effect`` subtracts the break rate, because noise also repairs errors: with two possible answers, it repairs half
    of the errors and breaks half of the correct answers.
    """

    name: str
    intervention: str
    num_errors: int
    repair_rate: float
    break_rate: float | None = None
    exact_match: float | None = None

    @property
    def effect(self) -> float:
        """Repair rate minus break rate, at least 0."""
        return max(0.0, self.repair_rate - (0.0 if self.break_rate is None else self.break_rate))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsamplingControl:
    """Effect of subsampling without an intervention.

    ``repair_rate`` is the fraction of first errors that become correct. ``retention`` is the fraction of correct
    answers at the longest training length that stay correct on half of the tokens. ``short_fraction`` is the fraction
    of first errors whose subsamples are not longer than a training sequence.
    """

    repair_rate: float
    retention: float
    short_fraction: float


def measure_intervention_causes(
    error_results: InterventionResults,
    correct_results: InterventionResults | None,
    length: int,
    *,
    beyond_training: bool,
) -> Iterator[Cause]:
    """Yield one cause per intervention: fewer tokens, training IDs, both together, and no competing tokens.

    ``error_results`` are results on first errors, and ``correct_results`` on correct answers, as a control. The repair
    and break rates exclude answers that the control of an intervention changes: subsampling alone, or hiding random
    tokens instead of competing ones. Fewer tokens are also fewer competing tokens, so they explain no error that hiding
    only the competing tokens repairs. ``beyond_training`` is True if some IDs or distances exceed the largest ones in
    training.
    """
    repair_rates = _changed_fractions(error_results, to_correct=True)
    break_rates: tuple[float | None, ...] = (None,) * len(repair_rates)
    if correct_results is not None:
        break_rates = _changed_fractions(correct_results, to_correct=False)
    interventions_by_cause = {
        DILUTED_ATTENTION: f"as many tokens as in training, IDs of length {length}",
        UNTRAINED_IDS if beyond_training else MORE_IDS: "training IDs, weight of all tokens",
        TOKENS_OR_IDS: "both changes, if neither one is sufficient",
        COMPETING_MATCHES: "competing tokens hidden, if hiding as many random tokens has no effect",
    }
    total = len(error_results.both_changes)
    rates = zip(interventions_by_cause.items(), repair_rates, break_rates, strict=True)
    for (name, change), repair_rate, break_rate in rates:
        yield Cause(name=name, intervention=change, num_errors=total, repair_rate=repair_rate, break_rate=break_rate)


def _changed_fractions(results: InterventionResults, *, to_correct: bool) -> tuple[float, float, float, float]:
    """Return the fraction of answers that each intervention makes correct (or else wrong) and its control does not."""
    masks = (
        results.subsample_only,
        results.fewer_tokens,
        results.trained_ids,
        results.both_changes,
        results.without_competitors,
        results.without_random,
    )
    control, fewer, ids, both, competitors, random_control = (mask == to_correct for mask in masks)
    only_competitors = competitors & ~random_control
    fewer, ids, both = (mask & ~control for mask in (fewer & ~only_competitors, ids, both & ~only_competitors))
    return float(fewer.mean()), float(ids.mean()), float((both & ~fewer & ~ids).mean()), float(only_competitors.mean())


def measure_id_and_end_causes(
    model: ProbedModel, failures: list[FailureBatch], counts: FailureCounts
) -> Iterator[Cause]:
    """Yield the cause "wrong IDs" if the decoder predicts IDs, and the cause "wrong end" if there are end errors."""
    total = counts.num_failures
    if model.decoder.predicts_ids:
        rate, exact = counts.id / total, sum(int(batch.tokens_correct.sum()) for batch in failures) / total
        yield Cause(name=ID_ERRORS, intervention="right IDs", num_errors=total, repair_rate=rate, exact_match=exact)
    if counts.end_too_early + counts.end_too_late:
        end_token = model.task.vocabulary.index("end")
        mask_pairs = [grade_with_known_end(model.decoder, batch, end_token) for batch in failures]
        rate, exact = (sum(int(mask.sum()) for mask in masks) / total for masks in zip(*mask_pairs, strict=True))
        yield Cause(name=END_ERRORS, intervention="right ends", num_errors=total, repair_rate=rate, exact_match=exact)


def describe_limiting_cause(
    counts: FailureCounts,
    id_and_end_causes: tuple[Cause, ...],
    causes: tuple[Cause, ...],
    control: SubsamplingControl | None,
) -> str:
    """Return a sentence about the limiting cause; ``control`` is None if there are no interventions."""
    error_kind = _describe_main_error_kind(counts, id_and_end_causes)
    if control is None:
        return f"limited by {error_kind}; the effect of IDs and of the number of tokens is unknown"
    token_rate, id_rate, both_rate, competing_rate = (cause.repair_rate for cause in causes)
    break_rates = [f"{cause.break_rate:.2f}" for cause in causes if cause.break_rate is not None]
    rates_text = (
        f"{token_rate:.2f} of the first errors are right with fewer tokens, {id_rate:.2f} with training IDs, "
        f"{both_rate:.2f} only with both, {competing_rate:.2f} only without competing tokens"
        + (f"; these changes make {', '.join(break_rates)} of the right answers wrong" if break_rates else "")
    )
    # The control of competing matches is not subsampling.
    if control.repair_rate > MAIN_FRACTION > causes[-1].effect:
        return f"limited by {error_kind}; {UNDECIDED}: subsampling alone repairs {control.repair_rate:.2f} of them"
    if sum(cause.effect for cause in causes) >= MAIN_FRACTION:
        return f"limited by {_main_cause(causes)} ({rates_text})"
    if token_rate + id_rate + both_rate + competing_rate >= MAIN_FRACTION:
        return f"limited by {error_kind}; {UNDECIDED}: noise may repair as many errors ({rates_text})"
    if min(control.retention, control.short_fraction) < ACCURACY_THRESHOLD:
        return (
            f"limited by {error_kind}; {UNDECIDED}: {control.short_fraction:.2f} of the first errors fit into a "
            f"training sequence, and subsampling leaves {control.retention:.2f} of the right answers right"
        )
    return f"limited by {error_kind}, and not by IDs, the number of tokens or competing matches ({rates_text})"


def _main_cause(causes: tuple[Cause, ...]) -> str:
    token_cause, id_cause, _, competing_cause = causes
    if competing_cause.effect >= MAIN_FRACTION:
        return COMPETING_MATCHES
    if min(token_cause.effect, id_cause.effect) >= MAIN_FRACTION:
        return "the combination of more tokens and IDs not seen in training"
    main_cause = max(causes, key=lambda cause: cause.effect)
    return main_cause.name if main_cause.effect >= MAIN_FRACTION else "several causes"


def _describe_main_error_kind(counts: FailureCounts, id_and_end_causes: tuple[Cause, ...]) -> str:
    num_end_errors = counts.end_too_early + counts.end_too_late
    max_count = max(counts.token, counts.id, num_end_errors)
    if max_count == counts.token:
        return f"wrong tokens ({counts.token} of {counts.num_failures} first errors)"
    error_name = ID_ERRORS if max_count == counts.id else END_ERRORS
    cause = next(cause for cause in id_and_end_causes if cause.name == error_name)
    return (
        f"{error_name} ({max_count} of {counts.num_failures} first errors; exact match {cause.exact_match:.2f} "
        f"with {cause.intervention})"
    )
