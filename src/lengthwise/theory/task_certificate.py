"""A task and the conditions of proposition 4.4: what its answers depend on, measured on examples, and a verdict."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import stream
from lengthwise.core.type_checks import check_arguments
from lengthwise.tasks.task import Task
from lengthwise.theory.law_certificate import Assumption
from lengthwise.theory.task_conditions import coupled_conditions, planted_tokens

# Examples that a task is looked at on, per length.
LOOKED_AT = 64
IN_TOKENS = "locality in token indexes"

Shape = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """The answers of a task at one length.

    ``k`` and ``reach`` are the number and the span in token indexes of the tokens that an answer depends on and the
    one before it, where it is predicted. ``id_reach`` is the span of the tokens that it depends on in coupled IDs, on
    the level where it is largest, None without coupling; ``num_ids`` is how many IDs there are.
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
    """The conditions of proposition 4.4 on a task, its structure by length, and a verdict in words.

    No bound is stated: examples refute conditions and cannot prove them. A planted law has exact probabilities and
    bounds.
    """

    trained: int
    assumptions: tuple[Assumption, ...]
    structures: tuple[Structure, ...]
    verdict: str


@check_arguments
def certify_task(task: Task, *, trained: int, lengths: Sequence[int], seed: int = 0) -> TaskCertificate:
    """Look at examples of every length; ``SettingError`` for a task that does not say what its answers depend on."""
    short = [length for length in lengths if length <= trained]
    if short or not lengths:
        raise SettingError(
            f"length {short[0] if short else 'none'} is no longer than the {trained} of training; use --lengths above "
            f"{trained}"
        )
    tested = sorted({trained, *lengths})
    found = tuple(structure(task, length, seed) for length in tested)
    at, *longer = found
    held = (
        _bounded("sparsity", "C1", "tokens per answer", [(each.length, each.k) for each in found]),
        _bounded(IN_TOKENS, "C2a", "tokens", [(each.length, each.reach) for each in found]),
        _bounded("locality in coupled IDs", "C2a", "IDs", [(each.length, each.id_reach) for each in found]),
        _regular(at, longer),
        *coupled_conditions(task, seed),
    )
    return TaskCertificate(trained=trained, assumptions=held, structures=found, verdict=_verdict(task, held))


def _verdict(task: Task, held: Sequence[Assumption]) -> str:
    # Proposition 4.4 is there for sets that are not local in token indexes.
    needed = [each for each in held if each.name != IN_TOKENS]
    failed = [each.name for each in needed if each.holds is False]
    if failed:
        return (
            f"Nothing is promised of {task.name} beyond training: the data do not meet the conditions of proposition "
            f"4.4 ({'; '.join(failed)}). Measure trained runs with evaluate."
        )
    return (
        f"Nothing is promised of {task.name} beyond training: no condition of proposition 4.4 was refuted, but "
        "examples "
        "cannot prove them. Write the data as a planted law in a FILE.json to get bounds."
    )


def structure(task: Task, length: int, seed: int) -> Structure:
    """The sets of all answers of some examples."""
    examples = task.sample(length=length, size=LOOKED_AT, rng=stream(seed, "structure", length))
    if examples.support is None:
        raise SettingError(
            f"task {task.name} does not say which tokens its answers depend on (support), so nothing can be certified "
            "of it; use a task that does, or a planted law"
        )
    shapes: Counter[Shape] = Counter()
    k = reach = 0
    for row, index in np.argwhere(examples.is_answer).tolist():
        needed = examples.support[row, index]
        needed = np.unique(np.append(needed[needed >= 0], index - 1))
        k, reach = max(k, len(needed)), max(reach, int(np.ptp(needed)) + 1)
        if examples.coupling is not None:
            ids = examples.coupling[:, row, planted_tokens(examples.support[row, index], index)]
            shapes[tuple(tuple(sorted(set((level - level.min()).tolist()))) for level in ids)] += 1
    return Structure(
        length=length,
        answers=int(examples.is_answer.sum(axis=1).max()),
        k=k,
        reach=reach,
        id_reach=max(level[-1] + 1 for shape in shapes for level in shape) if shapes else None,
        num_ids=None if examples.coupling is None else int(np.ptp(examples.coupling, axis=(1, 2)).max()) + 1,
        shapes=shapes,
    )


def _bounded(name: str, counterexample: str, unit: str, found: Sequence[tuple[int, int | None]]) -> Assumption:
    """That a number is the same at every length."""
    numbers = {number for _, number in found}
    if None in numbers:
        return Assumption(name=name, holds=False, found="no coupling", counterexample=counterexample)
    told = ", ".join(f"{number} at {length}" for length, number in found)
    same = len(numbers) == 1
    return Assumption(
        name=name,
        holds=same,
        found=f"{numbers.pop()} {unit} at every length" if same else f"{unit}: {told}",
        counterexample=counterexample,
    )


def _regular(at: Structure, longer: Sequence[Structure]) -> Assumption:
    """That longer texts have no set that training does not have, in coupled IDs."""
    if not at.shapes:
        return Assumption(name="regularity in coupled IDs", holds=False, found="no coupling", counterexample="C3")
    unseen = {shape for each in longer for shape in each.shapes} - set(at.shapes)
    told = f"{len(unseen)} of the sets at longer lengths are not in training" if unseen else "no new set"
    return Assumption(name="regularity in coupled IDs", holds=not unseen, found=told, counterexample="C3")
