"""Certificate of a task: tests of the conditions of proposition 4.4 on example answers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import stream
from lengthwise.core.type_checks import check_arguments
from lengthwise.tasks.task import Task
from lengthwise.theory.planted_law_certificate import Assumption, check_test_lengths
from lengthwise.theory.task_conditions import coupled_conditions, planted_tokens

# Examples per length.
NUM_EXAMPLES = 64
TOKEN_LOCALITY = "locality in token indexes"

Shape = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """Sizes and shapes of the token sets that the answers of a task depend on, at one length.

    Every set includes the token before the answer. ``answers`` is the largest number of answers per example. ``k`` is
    the largest number of tokens in a set, and ``reach`` is the largest span of a set in tokens. ``id_reach`` is the
    largest span of a set in coupled IDs on any level. ``num_ids`` is the number of IDs from the smallest to the largest
    coupled ID of the examples, on the level with the widest range. Without a coupling, both are None. ``shapes`` counts
    the sets by shape: on each level, the IDs of the set minus its smallest ID.
    """

    length: int
    answers: int
    k: int
    reach: int
    id_reach: int | None
    num_ids: int | None
    shapes: Counter[Shape]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCertificate:
    """Tests of the conditions of proposition 4.4 for a task, the structure at each length, and a verdict.

    ``trained`` is the longest training length. There is no bound, because examples can refute conditions but not prove
    them. Only a planted law has bounds.
    """

    trained: int
    assumptions: tuple[Assumption, ...]
    structures: tuple[Structure, ...]
    verdict: str


@check_arguments
def certify_task(task: Task, *, trained: int, lengths: Sequence[int], seed: int = 0) -> TaskCertificate:
    """Test the conditions of proposition 4.4 on examples of length ``trained`` and of longer ``lengths``.

    ``trained`` is the longest training length. Raises ``SettingError`` for a task without ``support``.
    """
    check_test_lengths(trained, lengths)
    structures = tuple(measure_structure(task, length, seed) for length in sorted({trained, *lengths}))
    assumptions = (
        _assume_constant("sparsity", "growing k", "tokens per answer", [(each.length, each.k) for each in structures]),
        _assume_constant(
            TOKEN_LOCALITY, "growing gap", "span in tokens", [(each.length, each.reach) for each in structures]
        ),
        _assume_constant(
            "locality in coupled IDs",
            "growing gap",
            "span in IDs",
            [(each.length, each.id_reach) for each in structures],
        ),
        _assume_regular(structures[0], structures[1:]),
        *coupled_conditions(task, seed),
    )
    return TaskCertificate(
        trained=trained, assumptions=assumptions, structures=structures, verdict=_verdict(task, assumptions)
    )


def _verdict(task: Task, assumptions: Sequence[Assumption]) -> str:
    # Proposition 4.4 does not need locality in token indexes.
    failed = [each.name for each in assumptions if each.name != TOKEN_LOCALITY and each.holds is False]
    if failed:
        return (
            f"Nothing is guaranteed for {task.name} beyond training: the data violate conditions of proposition 4.4 "
            f"({'; '.join(failed)}). Measure trained runs with evaluate."
        )
    return (
        f"Nothing is guaranteed for {task.name} beyond training: no condition of proposition 4.4 was refuted, but "
        "examples cannot prove them. Write the data as a planted law in a FILE.json to get bounds."
    )


def measure_structure(task: Task, length: int, seed: int) -> Structure:
    """Measure the structure of example answers at one length; raise ``SettingError`` for a task without ``support``."""
    examples = task.sample(length=length, size=NUM_EXAMPLES, rng=stream(seed, "structure", length))
    if examples.support is None:
        raise SettingError(
            f"task {task.name} does not declare which tokens its answers depend on (support); use a built-in "
            "task or a class with support, because a task file has none, or a planted law"
        )
    shapes: Counter[Shape] = Counter()
    k = reach = 0
    for example, answer_index in np.argwhere(examples.is_answer).tolist():
        support = examples.support[example, answer_index]
        needed = np.unique(np.append(support[support >= 0], answer_index - 1))
        k, reach = max(k, len(needed)), max(reach, int(np.ptp(needed)) + 1)
        if examples.coupling is not None:
            ids = examples.coupling[:, example, planted_tokens(support, answer_index)]
            shapes[tuple(tuple(sorted(set((id_level - id_level.min()).tolist()))) for id_level in ids)] += 1
    return Structure(
        length=length,
        answers=int(examples.is_answer.sum(axis=1).max()),
        k=k,
        reach=reach,
        id_reach=max(id_level[-1] + 1 for shape in shapes for id_level in shape) if shapes else None,
        num_ids=None if examples.coupling is None else int(np.ptp(examples.coupling, axis=(1, 2)).max()) + 1,
        shapes=shapes,
    )


def _assume_constant(
    name: str, counterexample: str, unit: str, by_length: Sequence[tuple[int, int | None]]
) -> Assumption:
    """Build the assumption that a number is the same at every length, with ``found`` in units of ``unit``."""
    values = {value for _, value in by_length}
    holds = len(values) == 1 and None not in values
    if None in values:
        finding = "no coupling"
    elif holds:
        finding = f"{unit}: {values.pop()} at every length"
    else:
        finding = f"{unit}: " + ", ".join(f"{value} at {length}" for length, value in by_length)
    return Assumption(name=name, holds=holds, found=finding, counterexample=counterexample)


def _assume_regular(train: Structure, test_structures: Sequence[Structure]) -> Assumption:
    """Build the assumption that every set of coupled IDs at longer lengths also occurs in training."""
    new_shapes = {shape for structure in test_structures for shape in structure.shapes} - set(train.shapes)
    if not train.shapes:
        finding = "no coupling"
    elif new_shapes:
        finding = f"{len(new_shapes)} of the sets at longer lengths do not occur in training"
    else:
        finding = "no new set"
    return Assumption(
        name="regularity in coupled IDs",
        holds=bool(train.shapes) and not new_shapes,
        found=finding,
        counterexample="rare shape",
    )
