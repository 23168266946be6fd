"""The conditions of proposition 4.4 on a task, tested on examples of short lengths: each is refuted or not checked.

The context of an answer is all tokens before it. The tokens that share a coupled ID there make one super-token, and
the planted super-tokens are those at the IDs that the answer depends on. Examples can refute a condition; they cannot
prove it for all lengths.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import LengthwiseError
from lengthwise.core.randomness import stream
from lengthwise.tasks.task import Task
from lengthwise.theory.law_certificate import Assumption

# Lengths that are looked at, and examples of each.
NUM_LENGTHS = 3
LONGEST = 12
EXAMPLES = 1024
# A statistic refutes a condition beyond its mean by so many standard deviations, found by shuffles, and this margin.
DEVIATIONS = 10.0
MARGIN = 50.0
SHUFFLES = 20
# Risk of the witness up to which the answers count as realizable.
REALIZED = 0.01
# Log score of a super-token that examples show at planted IDs only.
HIGHEST = 20.0

SuperToken = tuple[int, ...]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What one answer can read: the super-tokens by ID, the IDs it depends on, counted from the smallest, the answer.

    ``slot`` is the length and the number of the answer within its response.
    """

    slot: tuple[int, int]
    supers: tuple[SuperToken, ...]
    planted: tuple[int, ...]
    label: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The planted IDs, from the first of them."""
        return tuple(each - self.planted[0] for each in self.planted)

    def window(self, start: int, shape: tuple[int, ...]) -> tuple[SuperToken, ...]:
        """The super-tokens at these IDs."""
        return tuple(self.supers[start + each] for each in shape)


def coupled_conditions(task: Task, seed: int) -> tuple[Assumption, ...]:
    """Test every condition of the proposition; each ``holds`` is False with a witness, or None for not checked."""
    contexts, refused = _contexts(task, seed)
    tests: tuple[tuple[str, str, Callable[[Sequence[Context]], str | None]], ...] = (
        ("equal numbers of tokens per ID", "C5", _fibres),
        ("independent super-tokens (PC1)", "C5", _independence),
        ("one law of planted super-tokens (PC2)", "C4", _one_law),
        ("uniform place", "C3", _uniform),
        ("realizability", "C1", _realized),
    )
    if refused is not None:
        return tuple(Assumption(name=name, holds=None, found=refused, counterexample=why) for name, why, _ in tests)
    lengths = sorted({each.slot[0] for each in contexts})
    unrefuted = f"not refuted by {EXAMPLES} examples of lengths {', '.join(map(str, lengths))}"
    found = [(name, why, test(contexts)) for name, why, test in tests]
    return tuple(
        Assumption(name=name, holds=None if told is None else False, found=told or unrefuted, counterexample=why)
        for name, why, told in found
    )


def _contexts(task: Task, seed: int) -> tuple[list[Context], str | None]:
    """All contexts of the shortest lengths that the task has, or why there are none."""
    found: list[Context] = []
    for length in range(1, LONGEST + 1):
        try:
            examples = task.sample(length=length, size=EXAMPLES, rng=stream(seed, "conditions", length))
        except LengthwiseError:
            continue
        if examples.coupling is None or examples.support is None:
            return [], "no coupling"
        if len(examples.coupling) > 1:
            return [], f"the coupling has {len(examples.coupling)} levels, and the proposition is for one"
        numbers = examples.is_answer.cumsum(axis=1)
        for row, index in np.argwhere(examples.is_answer).tolist():
            needed = examples.support[row, index]
            ids = examples.coupling[0, row, :index]
            planted = np.unique(ids[planted_tokens(needed, index)]) - ids.min()
            supers: list[list[int]] = [[] for _ in range(int(np.ptp(ids)) + 1)]
            for each, token in zip((ids - ids.min()).tolist(), examples.tokens[row, :index].tolist(), strict=True):
                supers[each].append(token)
            found.append(
                Context(
                    slot=(length, int(numbers[row, index])),
                    supers=tuple(map(tuple, supers)),
                    planted=tuple(planted.tolist()),
                    label=int(examples.tokens[row, index]),
                )
            )
        if len({each.slot[0] for each in found}) == NUM_LENGTHS:
            break
    return found, None if found else f"no examples of lengths up to {LONGEST}"


def planted_tokens(support: Int[np.ndarray, " most"], index: int) -> Int[np.ndarray, " planted"]:
    """Return the tokens that the answer at ``index`` depends on; the token before it where it depends on none."""
    needed = support[support >= 0]
    return needed if needed.size else np.array([index - 1])


def _at(slot: tuple[int, int]) -> str:
    return f"length {slot[0]}, answer {slot[1]}"


def _fibres(contexts: Sequence[Context]) -> str | None:
    """An answer before which two IDs have different numbers of tokens."""
    usual = len(contexts[0].supers[contexts[0].planted[0]])
    for each in contexts:
        for place, tokens in enumerate(each.supers):
            if len(tokens) != usual:
                return f"{_at(each.slot)}: one ID has {usual} tokens and ID {place} has {len(tokens)}"
    return None


def _independence(contexts: Sequence[Context]) -> str | None:
    """Two super-tokens of one slot that are not planted and have different laws, or depend on anything else."""
    for (slot, planted), group in _grouped(contexts, lambda each: (each.slot, each.planted)):
        others = [place for place in range(min(len(each.supers) for each in group)) if place not in planted]
        for place, other in combinations(others, 2):
            if _differ([each.supers[place] for each in group], [each.supers[other] for each in group]):
                return f"{_at(slot)}: the super-tokens at IDs {place} and {other} have different laws"
            if _dependent([(each.supers[place], each.supers[other]) for each in group]):
                return f"{_at(slot)}: the super-tokens at IDs {place} and {other} depend on each other"
        for place in others:
            if _dependent([(each.supers[place], (each.window(0, planted), each.label)) for each in group]):
                return f"{_at(slot)}: the super-token at ID {place} depends on the planted ones or on the answer"
    return None


def _one_law(contexts: Sequence[Context]) -> str | None:
    """Two places at which planted super-tokens of one shape have different laws."""
    for _, group in _grouped(contexts, lambda each: each.shape):
        laws = [
            (key, [(each.window(0, each.planted), each.label) for each in there])
            for key, there in _grouped(group, lambda each: (each.slot, each.planted[0]))
        ]
        for (slot, place), law in laws[1:]:
            if _differ(laws[0][1], law):
                (first, start), _ = laws[0]
                return f"{_at(slot)}, ID {place} and {_at(first)}, ID {start}: planted super-tokens differ in law"
    return None


def _uniform(contexts: Sequence[Context]) -> str | None:
    """A length at which contexts differ in size, or planted IDs start at some places more often than at others."""
    for length, group in _grouped(contexts, lambda each: each.slot[0]):
        sizes = {len(each.supers) for each in group}
        if len(sizes) > 1:
            return f"length {length}: contexts have {min(sizes)} to {max(sizes)} IDs"
        for shape, there in _grouped(group, lambda each: each.shape):
            starts = Counter(each.planted[0] for each in there)
            places = range(sizes.copy().pop() - shape[-1])
            expected = len(there) / len(places)
            chi_square = sum((starts[place] - expected) ** 2 / expected for place in places)
            if chi_square > len(places) + DEVIATIONS * math.sqrt(2 * len(places)) + MARGIN:
                return f"length {length}: planted IDs start at {dict(sorted(starts.items()))} in unequal shares"
    return None


def _realized(contexts: Sequence[Context]) -> str | None:
    """The risk of a witness of the class made from the examples, where it is not small.

    The score of super-tokens is the odds that they are planted where they stand, their value the answers seen then.
    """
    shapes = {each.shape for each in contexts}
    seen: Counter[Hashable] = Counter()
    planted: defaultdict[Hashable, Counter[int]] = defaultdict(Counter)
    for each in contexts:
        planted[each.shape, each.window(0, each.planted)][each.label] += 1
        seen.update(_windows(each, shapes))
    wrong = 0.0
    for each in contexts:
        total = right = 0.0
        for key, number in _windows(each, shapes).items():
            if key in planted:
                hits = planted[key].total()
                score = number * min(hits / max(seen[key] - hits, math.exp(-HIGHEST)), math.exp(HIGHEST))
                total, right = total + score, right + score * planted[key][each.label] / hits
        wrong += 1 - right / total
    risk = wrong / len(contexts)
    return f"no witness: the head made from the examples has risk {risk:.3f} on them" if risk > REALIZED else None


def _windows(context: Context, shapes: Iterable[tuple[int, ...]]) -> Counter[Hashable]:
    """How often each super-token tuple of each shape occurs in a context."""
    return Counter(
        (shape, context.window(start, shape)) for shape in shapes for start in range(len(context.supers) - shape[-1])
    )


def _grouped(contexts: Sequence[Context], key: Callable[[Context], Key]) -> Iterator[tuple[Key, list[Context]]]:
    """The contexts with equal keys together, in the order in which they first come."""
    groups: defaultdict[Key, list[Context]] = defaultdict(list)
    for each in contexts:
        groups[key(each)].append(each)
    yield from groups.items()


def _differ(first: Sequence[Hashable], second: Sequence[Hashable]) -> bool:
    """Decide that two samples have different laws."""
    return _dependent([(0, each) for each in first] + [(1, each) for each in second])


def _dependent(pairs: Sequence[tuple[Hashable, Hashable]]) -> bool:
    """Decide that the two of a pair depend on each other, by their mutual information and that of shuffled pairs."""
    left, right = ([pair[side] for pair in pairs] for side in (0, 1))
    rng = stream(0, "shuffles")
    shuffled = [_information(left, [right[index] for index in rng.permutation(len(pairs))]) for _ in range(SHUFFLES)]
    return bool(_information(left, right) > np.mean(shuffled) + DEVIATIONS * np.std(shuffled) + MARGIN)


def _information(left: Sequence[Hashable], right: Sequence[Hashable]) -> float:
    """Return twice the sum of log ratios of joint to independent frequencies over all pairs."""
    both, first, second = Counter(zip(left, right, strict=True)), Counter(left), Counter(right)
    return 2 * sum(count * math.log(count * len(left) / (first[a] * second[b])) for (a, b), count in both.items())
