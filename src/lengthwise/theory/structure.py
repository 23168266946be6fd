"""What the answers of a task depend on, measured on examples: how many tokens, and how near they are."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lengthwise.errors import SettingError
from lengthwise.randomness import stream
from lengthwise.tasks.task import Task
from lengthwise.theory.certificate import Assumption

# Examples that a task is looked at on, per length.
LOOKED_AT = 64
# The share of answers with an error at most, for which `needed` says how good each has to be.
WRONG = 0.1

Shape = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """The answers of a task at one length.

    A set holds the tokens that an answer depends on and the one before it, where it is predicted. ``reach`` is the
    largest span of a set in token indexes, ``id_reach`` that in coupled IDs on the level where it is largest, None
    without coupling; ``num_ids`` is how many IDs there are.
    """

    length: int
    answers: int
    k: int
    reach: int
    id_reach: int | None
    num_ids: int | None
    shapes: Counter[Shape]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How much more a local, relative head may err at a length than at the longest trained one, up to kappa.

    ``per_answer`` multiplies the risk of one answer token, ``whole`` adds up all of them; ``needed`` is the risk per
    answer token at the trained length with which at most a tenth of whole answers are wrong. None where no bound holds.
    """

    length: int
    answers: int
    per_answer: float | None
    whole: float | None
    needed: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCertificate:
    """What the structure of a task promises beyond training, whatever model is trained on it."""

    trained: int
    assumptions: tuple[Assumption, ...]
    structures: tuple[Structure, ...]
    growth: tuple[Growth, ...]


def certify_task(task: Task, *, trained: int, lengths: Sequence[int], seed: int = 0) -> TaskCertificate:
    """Look at examples of every length; ``SettingError`` for a task that does not say what its answers depend on."""
    tested = sorted({trained, *lengths})
    found = tuple(structure(task, length, seed) for length in tested)
    at = next(each for each in found if each.length == trained)
    longer = [each for each in found if each.length > trained]
    held = (
        _bounded("sparsity", "C1", "tokens per answer", [(each.length, each.k) for each in found]),
        _bounded("locality in token indexes", "C2a", "tokens", [(each.length, each.reach) for each in found]),
        _bounded("locality in coupled IDs", "C2a", "IDs", [(each.length, each.id_reach) for each in found]),
        _regular(at, longer),
    )
    return TaskCertificate(
        trained=trained,
        assumptions=held,
        structures=found,
        growth=tuple(_growth(at, each, held) for each in longer),
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
            ids = examples.coupling[:, row, needed]
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


def _growth(at: Structure, there: Structure, held: Sequence[Assumption]) -> Growth:
    sparse, _, local, regular = held
    if not (sparse.holds and local.holds and regular.holds) or at.id_reach is None:
        return Growth(length=there.length, answers=there.answers, per_answer=None, whole=None, needed=None)
    assert at.num_ids is not None
    assert there.num_ids is not None
    # With all of a set on one ID nothing crosses a cut; otherwise the bound for places about uniform, B2.
    single = at.id_reach == 1
    if not single and at.num_ids < 4 * at.id_reach:
        return Growth(length=there.length, answers=there.answers, per_answer=None, whole=None, needed=None)
    factor = (there.num_ids - 1) / (at.num_ids - 1) if single else 16 * _rise(at, there) * there.num_ids / at.num_ids
    whole = factor * there.answers
    return Growth(length=there.length, answers=there.answers, per_answer=factor, whole=whole, needed=WRONG / whole)


def _rise(at: Structure, there: Structure) -> float:
    """The largest factor by which a set is more frequent among the answers of longer texts."""
    return max(
        (count / there.shapes.total()) / (at.shapes[shape] / at.shapes.total()) for shape, count in there.shapes.items()
    )
