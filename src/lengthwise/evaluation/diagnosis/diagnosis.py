"""Diagnosis of the failures of a run at a length."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from lengthwise.core.confidence_intervals import wilson_interval
from lengthwise.core.defaults import DIAGNOSIS_EXAMPLES
from lengthwise.core.errors import SettingError
from lengthwise.evaluation.diagnosis.failure_attribution import (
    FailureCause,
    SubsamplingControl,
    build_interventions,
    describe_limiting_cause,
    measure_id_and_end_causes,
    measure_intervention_causes,
)
from lengthwise.evaluation.diagnosis.failures import (
    NUM_ANSWERS,
    FailureBatch,
    FailureCounts,
    RangeShift,
    collect_failures,
    count_failures,
    mean_needed_attention,
    measure_range_shifts,
    needed_attention_at_errors,
)
from lengthwise.evaluation.exact_match import count_examples
from lengthwise.evaluation.forecast.assumptions import ACCURACY_THRESHOLD
from lengthwise.evaluation.forecast.probed_model import AnswerQueries, ProbedModel
from lengthwise.tasks import GradedByLoss, HasFixedLengths, Task, nearest_length

# Maximum number of queries per intervention.
MAX_QUERIES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSummary:
    """Exact match at a length with its 95% interval, and the mean attention of ``Diagnosis.heads`` on needed tokens.

    ``needed_mass`` is the mean attention weight from the token before an answer to the needed tokens of the answer.
    """

    length: int
    num_examples: int
    exact_match: float
    low: float
    high: float
    needed_mass: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Failures of a run at a length, with their causes.

    ``by_length`` covers the longest training length, its doublings (or the nearest available lengths) and ``length``.
    ``heads`` contains the (layer, head) pairs, counted from 0, with at least half the attention on the needed tokens of
    the best head at the longest training length. If no example fails, ``failures`` is None, and there are no range
    shifts and causes. ``skip_reason`` is the reason why there are no interventions and no ``subsampling_control``.
    ``limited_by`` is a sentence with the result.
    """

    length: int
    num_examples: int
    train_lengths: tuple[int, int]
    by_length: tuple[LengthSummary, ...]
    heads: tuple[tuple[int, int], ...]
    needed_mass_at_errors: tuple[float, ...] = ()
    failures: FailureCounts | None = None
    range_shifts: tuple[RangeShift, ...] = ()
    causes: tuple[FailureCause, ...] = ()
    subsampling_control: SubsamplingControl | None = None
    skip_reason: str | None = None
    limited_by: str = ""

    @property
    def fits(self) -> bool:
        """True if exact match at the longest training length reaches ``ACCURACY_THRESHOLD``."""
        return self.by_length[0].exact_match >= ACCURACY_THRESHOLD


def diagnose(
    model: ProbedModel,
    length: int,
    *,
    num_examples: int = DIAGNOSIS_EXAMPLES,
    report: Callable[[str], None] = lambda stage: None,
) -> Diagnosis:
    """Find the causes of failures at a length, on the examples of ``evaluate_by_length`` with the same seed.

    Each intervention reevaluates the first errors of at most ``MAX_QUERIES`` failed examples. An intervention that
    repairs an error identifies the cause of the error. For a task without depends_on, the function skips the
    interventions that need it. ``report`` receives the name of each stage, once per batch; its exceptions end the
    diagnosis.
    """
    lengths, doubled_length = {model.max_train_length, length}, 2 * model.max_train_length
    while doubled_length < length:
        lengths.add(nearest_length(model.task, doubled_length))
        doubled_length *= 2
    num_answers = min(NUM_ANSWERS, num_examples)
    mass_by_length = {
        tested: mean_needed_attention(model, tested, num_answers, partial(report, f"attention at length {tested:,}"))
        for tested in sorted(lengths)
    }
    train_mass = mass_by_length[model.max_train_length]
    is_reported = (train_mass > 0) & (train_mass >= train_mass.max() / 2)
    heads = tuple((int(layer), int(head)) for layer, head in np.argwhere(is_reported))
    by_length: list[LengthSummary] = []
    failures: list[FailureBatch] = []
    correct_answers: list[AnswerQueries] = []
    for tested, masses in mass_by_length.items():
        stage = partial(report, f"examples of length {tested:,}")
        failures, correct_answers = collect_failures(model, tested, num_examples, stage)
        total = count_examples(model.task, tested, num_examples)
        exact = total - sum(len(batch.kinds) for batch in failures)
        low, high = wilson_interval(exact, total)
        head_masses = tuple(float(masses[head]) for head in heads)
        summary = LengthSummary(
            length=tested, num_examples=total, exact_match=exact / total, low=low, high=high, needed_mass=head_masses
        )
        by_length.append(summary)
    last = by_length[-1]
    interval_text = f"exact match {last.exact_match:.3f} ({last.low:.3f} to {last.high:.3f})"
    diagnosis = Diagnosis(
        length=length,
        num_examples=last.num_examples,
        train_lengths=model.train_lengths,
        by_length=tuple(by_length),
        heads=heads,
        limited_by=f"no failures at length {length}: {interval_text}",
    )
    return _with_causes(diagnosis, model, failures, correct_answers, report) if failures else diagnosis


def check_diagnosis(task: Task, max_train_length: int, length: int) -> None:
    """Raise ``SettingError`` for a task graded by loss, a length not beyond training, or a file without records."""
    if isinstance(task, GradedByLoss):
        raise SettingError(
            f"task {task.name} is graded by loss and has no wrong answers to diagnose; use lengthwise evaluate"
        )
    if length <= max_train_length:
        raise SettingError(
            f"length {length} is not beyond the longest training length {max_train_length}; use a larger length or "
            "lengthwise evaluate"
        )
    if isinstance(task, HasFixedLengths) and max_train_length not in task.available_lengths:
        raise SettingError(
            f"the task file has no records of length {max_train_length}, the longest training length, which a "
            "diagnosis requires; add records of that length"
        )


def _with_causes(
    diagnosis: Diagnosis,
    model: ProbedModel,
    failures: list[FailureBatch],
    correct_answers: list[AnswerQueries],
    report: Callable[[str], None],
) -> Diagnosis:
    report("kinds of first errors")
    errors = [batch.errors for batch in failures]
    failure_counts, skip_reason, control = count_failures(model, failures), model.subsampling_obstacle, None
    range_shifts = tuple(measure_range_shifts(model, errors))
    id_and_end_causes = tuple(measure_id_and_end_causes(model, failures, failure_counts))
    causes: tuple[FailureCause, ...] = ()
    if skip_reason is None:
        interventions = build_interventions(model)
        on_errors = interventions.apply_to_batches(errors, MAX_QUERIES, partial(report, "changes of first errors"))
        control = SubsamplingControl(
            repair_rate=float(on_errors.subsample_only.mean()),
            retention=interventions.measure_retention(),
            short_fraction=float(on_errors.within_budget.mean()),
        )
        correct_answers = [batch for batch in correct_answers if len(batch.answer)]
        stage = partial(report, "changes of right answers")
        on_correct = interventions.apply_to_batches(correct_answers, MAX_QUERIES, stage) if correct_answers else None
        beyond = any(shift.fraction_beyond > 0 for shift in range_shifts)
        causes = tuple(measure_intervention_causes(on_errors, on_correct, diagnosis.length, beyond_training=beyond))
    limited_by = describe_limiting_cause(failure_counts, id_and_end_causes, causes, control)
    if not diagnosis.fits:
        trained = diagnosis.by_length[0]
        limited_by = (
            f"limited by training: exact match is {trained.exact_match:.3f} at the training length {trained.length}; "
            "train until the run fits"
        )
    masses = needed_attention_at_errors(model, errors)
    return replace(
        diagnosis,
        needed_mass_at_errors=tuple(float(masses[head]) for head in diagnosis.heads),
        failures=failure_counts,
        range_shifts=range_shifts,
        causes=causes + id_and_end_causes,
        subsampling_control=control,
        skip_reason=skip_reason,
        limited_by=limited_by,
    )
