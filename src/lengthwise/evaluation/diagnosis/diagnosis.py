"""What a run fails by at a length, as data."""

from dataclasses import dataclass, replace

import numpy as np

from lengthwise.core.errors import SettingError
from lengthwise.core.intervals import wilson_interval
from lengthwise.evaluation.diagnosis.attribution import Cause, Thinning, causes_of_kinds, causes_of_readings, limited_by
from lengthwise.evaluation.diagnosis.failures import Answers, Failures, Tested, count_failures, find_failures
from lengthwise.evaluation.diagnosis.interventions import ask_again, reader_of
from lengthwise.evaluation.diagnosis.range_shift import Shown, compare_with_training
from lengthwise.evaluation.diagnosis.support_mass import mass_at_errors, mass_at_length
from lengthwise.evaluation.exact_match import count_examples
from lengthwise.evaluation.forecast.assumptions import REACHED
from lengthwise.evaluation.forecast.probed_model import Subject
from lengthwise.tasks import GradedByLoss, HasLengths, Task, nearest_length

# Examples by default; first errors that are asked again.
EXAMPLES, ASKED = 256, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class AtLength:
    """Exact match at a length with its 95% interval, and the attention on what answers need, of each of ``heads``."""

    length: int
    num_examples: int
    exact_match: float
    low: float
    high: float
    mass: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why a run fails at a length.

    ``by_length``: the longest trained length, its doublings below the tested one (of a file, the nearest below), and
    that. ``heads``: layer and head,
    from 0, of those that attend to what answers need, at the longest trained length at least half as much as the one
    that does most; ``mass_at_errors``: what they do where an example first goes wrong. Where nothing fails,
    ``failures`` is None, ``shown`` and ``causes`` are empty. ``unasked`` says why no first error was asked again, and
    ``thinning`` is None then.
    """

    length: int
    num_examples: int
    trained: tuple[int, int]
    by_length: tuple[AtLength, ...]
    heads: tuple[tuple[int, int], ...]
    mass_at_errors: tuple[float, ...]
    failures: Failures | None
    shown: tuple[Shown, ...]
    causes: tuple[Cause, ...]
    thinning: Thinning | None
    unasked: str | None
    limited_by: str

    @property
    def fits(self) -> bool:
        """Whether the longest trained length is fitted at all."""
        return self.by_length[0].exact_match >= REACHED


def diagnose(subject: Subject, length: int, *, num_examples: int = EXAMPLES) -> Diagnosis:
    """Return why a decoder fails at a length, on the examples that ``evaluate_by_length`` draws with the same seed.

    The first error of each failing example is queried again with one thing changed: the change that repairs it is its
    cause. Causes that need the tokens an answer depends on are left out if the task does not declare them (support).
    """
    lengths, following = [subject.longest], 2 * subject.longest
    while following < length:
        # A file has rows of some lengths only.
        lengths.append(nearest_length(subject.task, following))
        following *= 2
    lengths = sorted({*lengths, length})
    mass = {each: mass_at_length(subject, each) for each in lengths}
    home = mass[subject.longest]
    heads = tuple((int(layer), int(head)) for layer, head in np.argwhere((home > 0) & (home >= home.max() / 2)))
    by_length, tested = [], Tested(failed=[], right=[])
    for each in lengths:
        tested = find_failures(subject, each, num_examples)
        asked = count_examples(subject.task, each, num_examples)
        exact = asked - sum(len(part.kind) for part in tested.failed)
        low, high = wilson_interval(exact, asked)
        of_heads = tuple(float(mass[each][head]) for head in heads)
        by_length.append(
            AtLength(length=each, num_examples=asked, exact_match=exact / asked, low=low, high=high, mass=of_heads)
        )
    last = by_length[-1]
    found = Diagnosis(
        length=length,
        num_examples=last.num_examples,
        trained=subject.trained,
        by_length=tuple(by_length),
        heads=heads,
        mass_at_errors=(),
        failures=None,
        shown=(),
        causes=(),
        thinning=None,
        unasked=None,
        limited_by=f"nothing fails at {length}: exact match {last.exact_match:.3f} ({last.low:.3f} to {last.high:.3f})",
    )
    return _explained(found, subject, tested) if tested.failed else found


def check_diagnosis(task: Task, longest: int, length: int, num_examples: int) -> None:
    """Raise ``SettingError`` for a task graded by loss, and for a length that is not beyond training."""
    if isinstance(task, GradedByLoss):
        raise SettingError(f"task {task.name} is graded by loss and has no wrong answers; use lengthwise evaluate")
    if length <= longest:
        raise SettingError(
            f"length {length} is no longer than the {longest} of training; use a larger one, or lengthwise evaluate"
        )
    if isinstance(task, HasLengths) and longest not in task.available_lengths:
        raise SettingError(
            f"the rows have none of length {longest}, the longest of training, which a diagnosis begins with; "
            "add some of that length"
        )
    if num_examples < 1:
        raise SettingError(f"{num_examples} examples tell nothing; use at least 1")


def _explained(found: Diagnosis, subject: Subject, tested: Tested) -> Diagnosis:
    failed, first = tested.failed, [each.first for each in tested.failed]
    failures, unasked, thinning = count_failures(subject, failed), _unasked(subject, first), None
    shown = tuple(compare_with_training(subject, first))
    of_kinds = tuple(causes_of_kinds(subject, failed, failures))
    of_readings: tuple[Cause, ...] = ()
    if unasked is None:
        reader = reader_of(subject)
        readings = ask_again(reader, first, ASKED)
        unchanged, short = float(readings.unchanged.mean()), float(readings.short.mean())
        thinning = Thinning(unchanged=unchanged, kept=reader.kept_at_home(), short=short)
        right = [part for part in tested.right if len(part.answer)]
        control = ask_again(reader, right, ASKED) if right else None
        beyond = any(each.beyond > 0 for each in shown)
        of_readings = tuple(causes_of_readings(readings, control, found.length, beyond=beyond))
    at_errors = mass_at_errors(subject, first)
    return replace(
        found,
        mass_at_errors=tuple(float(at_errors[head]) for head in found.heads),
        failures=failures,
        shown=shown,
        causes=of_readings + of_kinds,
        thinning=thinning,
        unasked=unasked,
        limited_by=limited_by(failures, of_kinds, of_readings, thinning) if found.fits else _unfit(found),
    )


def _unasked(subject: Subject, failed: list[Answers]) -> str | None:
    if failed[0].examples.support is None:
        return f"task {subject.task.name} does not say which tokens its answers depend on (support)"
    return subject.unthinnable


def _unfit(found: Diagnosis) -> str:
    home = found.by_length[0]
    return (
        f"limited by its training: exact match {home.exact_match:.3f} at length {home.length}, which it was trained "
        "on; train until it fits"
    )
