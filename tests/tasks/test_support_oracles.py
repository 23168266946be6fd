"""Coupling and support of every token, by plain Python from what the docstring of its task says.

Docstrings leave the end token open. It follows once the sign behind what is read has been reached, and that is its
support; nobody reads its ID, which is beyond all others or that of a row that would follow.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
import pytest
from tests.support.cases import ANSWERED, smallest_length
from tests.tasks.test_oracles import spelled

from lengthwise.experiments.reproductions import CLAIMS
from lengthwise.tasks import (
    Addition,
    Copy,
    IndexHints,
    JSONLTask,
    MultiAddition,
    Multiplication,
    Parity,
    Planted,
    Recall,
    Reverse,
    Sort,
    SparseParity,
    Task,
    VariableAssignment,
)

# On each level every token's group, the end token's too; None where a task declares no coupling.
Groups = list[tuple[int, ...]] | None
# The token indexes that an answer depends on, by its own; None where a task declares no support.
Needs = dict[int, set[int]] | None
Tied = tuple[Groups, Needs]
# What a token is, its groups, and what it depends on.
Step = tuple[tuple[object, ...], tuple[int, ...], list[tuple[object, ...]]]

CASES: dict[str, Task] = {
    **ANSWERED,
    "multiplication-square": Multiplication(digits=None),
    "index_hints-reverse": IndexHints(task=Reverse()),
    "index_hints-addition": IndexHints(task=Addition(scratchpad="carry", zero_padding=False, unequal=True)),
    "index_hints-multi_addition": IndexHints(task=MultiAddition(operands=(3, 3))),
}
# What is published: the tasks of all claims with their variants, each once.
PUBLISHED: dict[str, Task] = {}
for claim in CLAIMS.values():
    for row, experiment in claim.experiments().items():
        for variant, task in {"": experiment.task, **experiment.task.variants()}.items():
            if task not in (*CASES.values(), *PUBLISHED.values()):
                PUBLISHED[f"{claim.name}-{row}-{variant}"] = task


def one_level(*numbers: int) -> Groups:
    return [numbers]


def tied_parity(task: Parity, symbols: list[str]) -> Tied:
    equals = symbols.index("=")
    start, bits = equals + 1, range(1, equals + 1)
    needs = {start + bit: {bit - 1, start + bit - 1} for bit in bits} | {len(symbols) - 1: {equals}}
    if task.coupling == "none":
        return None, needs
    # The start token is the running parity of no bit; behind the last bit is the sign.
    read = [bit + 1 if task.coupling == "next" else bit for bit in (0, *bits)]
    return one_level(*bits, equals + 1, *read, equals + 2), needs


def tied_reading(reads: list[int]) -> Tied:
    """One group for every token of a prompt, then, from its last token on, that of the token that is read next."""
    groups = one_level(*range(1, len(reads) + 1), *(read + 1 for read in reads), len(reads) + 1)
    return groups, {len(reads) + 1 + answer: {read} for answer, read in enumerate(reads)}


def tied_copy(task: Copy, symbols: list[str]) -> Tied:
    return tied_reading([*range(symbols.index("=") + 1)])


def tied_reverse(task: Reverse, symbols: list[str]) -> Tied:
    return tied_reading([*reversed(range(symbols.index(">")))])


def tied_sort(task: Sort, symbols: list[str]) -> Tied:
    equals = symbols.index("=")
    # Python's sort is stable too: equal items come in the order of the list.
    groups, _ = tied_reading([*sorted(range(equals), key=lambda place: int(symbols[place])), equals])
    return groups, None


def tied_rows(task: JSONLTask, symbols: list[str]) -> Tied:
    # Our own rows are written backwards, so that the mark is below the first token.
    count = symbols.index("<mark>")
    return one_level(*range(1, count + 1), 0, *range(count, -1, -1), count + 1), None


def by_significance(first: int, count: int, least_first: bool) -> dict[int, int]:
    """The token index of each digit of a number, counted from the least significant one."""
    return {place if least_first else count + 1 - place: first + place - 1 for place in range(1, count + 1)}


@lru_cache
def tied_digits(task: Addition, plus: int, equals: int, end: int) -> Tied:
    spans = ((0, plus), (plus + 1, equals), (equals + 1, end))
    ascending = {"least": (True, True, True), "most": (False,) * 3, "reversed_sum": (False, False, True)}[task.order]
    a, b, total = (by_significance(first, last - first, up) for (first, last), up in zip(spans, ascending, strict=True))
    longest, falling = max(len(a), len(b)), task.order == "most"
    numbers = {index: digit for number in (a, b) for digit, index in number.items()}
    # The sign is where a reader arrives behind the last digit.
    numbers |= {plus: 0 if falling else longest + 1, equals: longest if falling else 1, end: longest + 2}
    numbers |= {index: digit - 1 if falling else min(digit, longest) + 1 for digit, index in total.items()}
    groups = one_level(*(numbers[index] for index in range(end + 1)))
    if falling:
        return groups, None
    needs: dict[int, set[int]] = {}
    for digit, index in enumerate(range(equals + 1, end + 1), start=1):
        wanted = [a.get(digit), b.get(digit)] if digit <= longest else [plus]
        wanted += [index - 1] if digit > 1 else []
        wanted += [a.get(digit - 1), b.get(digit - 1)] if task.scratchpad == "none" else []
        needs[index] = {each for each in wanted if each is not None}
    return groups, needs


def tied_addition(task: Addition, symbols: list[str]) -> Tied:
    return tied_digits(task, symbols.index("+"), symbols.index("="), len(symbols) - 1)


def tied_steps(steps: list[Step]) -> Tied:
    """The same where every token has a name, and names what it depends on; names of no token are passed over."""
    where = {name: index for index, (name, _, _) in enumerate(steps)}
    needs = {index: {where[each] for each in named if each in where} for index, (_, _, named) in enumerate(steps)}
    levels = zip(*(groups for _, groups, _ in steps), strict=True)
    return [*levels], {index: named for index, named in needs.items() if named}


@lru_cache
def tied_sums(count: int, width: int) -> Tied:
    steps: list[Step] = []
    for operand in range(1, count + 1):
        # The first two operands are read together, every other one with the row that is written before.
        row = max(operand - 1, 1)
        steps += [(("digit", operand, place), (place, row), []) for place in range(1, width + 1)]
        # The first sign is that of the last row, which nobody reads.
        steps.append((("sign", operand), (width + 1, row if operand > 1 else count), []))
    for row in range(2, count + 1):
        # A step begins behind the carry of the place before, the first one behind the sign.
        steps.append((("carry", row, 0), (1, row - 1), [("sign", row - 1)] if row > 2 else []))
        for place in range(1, width + 1):
            above = ("sum", row - 1, place) if row > 2 else ("digit", 1, place)
            digits = [above, ("digit", row, place)]
            steps.append((("sum", row, place), (place, row), [*digits, ("carry", row, place - 1)]))
            steps.append((("carry", row, place), (place + 1, row - 1), [("sum", row, place)]))
    return tied_steps([*steps, (("end",), (1, count), [("sign", count)])])


def tied_multi_addition(task: MultiAddition, symbols: list[str]) -> Tied:
    return tied_sums(symbols.count("+") + 1, symbols.index("+"))


@lru_cache
def tied_products(count: int, width: int) -> Tied:
    steps: list[Step] = [(("a", place), (place, 0), []) for place in range(1, width + 1)]
    steps.append((("x",), (width + 1, 0), []))
    steps += [(("b", row), (0, row), []) for row in range(1, count + 1)]
    steps += [(("=",), (1, count + 1), []), ((">", 0), (1, 1), [])]
    for row in range(1, count + 1):
        for place in range(1, width + 1):
            below, product = ("sum", row - 1, place - 1), ("product", row, place)
            steps.append((product, (place, row - 1), [("a", place), ("b", row), ("sum", row, place - 1)]))
            steps.append((("sum", row, place), (place + 1, row), [product, below]))
        steps.append(((">", row), (1, row + 1), [("x",)]))
    return tied_steps([*steps, (("end",), (1, count + 1), [("=",)])])


def tied_multiplication(task: Multiplication, symbols: list[str]) -> Tied:
    times = symbols.index("x")
    return tied_products(symbols.index("=") - times - 1, times)


def tied_index_hints(task: IndexHints, symbols: list[str]) -> Tied:
    kept = [index for index, symbol in enumerate(symbols) if not symbol.startswith("#")]
    _, needs = SUPPORTED[task.task.name](task.task, [symbols[index] for index in kept])
    if needs is None:
        return None, None
    hints = [index for index, symbol in enumerate(symbols) if symbol.startswith("#")]
    hinted = {kept[index]: {kept[each] for each in named} for index, named in needs.items()}
    # The first answer may have a hint before it, and that is an answer then.
    response = [hint for hint in hints if hint >= min(hinted) - 1]
    hinted |= {hint: {before} for before, hint in pairwise(response)}
    return None, hinted | {response[0]: {hints[0], response[0] - 1}}


def tied_label(symbols: list[str], is_read: Callable[[str], bool]) -> Tied:
    """One answer, which depends on some tokens of the prompt."""
    equals = symbols.index("=")
    return None, {equals + 1: {index for index in range(equals) if is_read(symbols[index])}, equals + 2: {equals}}


def tied_planted(task: Planted, symbols: list[str]) -> Tied:
    # The background has only the other letters.
    return tied_label(symbols, lambda letter: letter in "cd")


def tied_sparse_parity(task: SparseParity, symbols: list[str]) -> Tied:
    flagged = ("0", "1") if task.coding == "letters" else ("0*", "1*")
    return tied_label(symbols, lambda symbol: symbol in flagged)


def tied_recall(task: Recall, symbols: list[str]) -> Tied:
    equals, start, end = (symbols.index(sign) for sign in ("=", ">", "end"))
    # A value goes with its key, everything else is by itself.
    numbers = [*accumulate(int(not symbol.startswith("v")) for symbol in symbols[:start])]
    groups = one_level(*numbers, *numbers[equals + 1 :], numbers[equals], numbers[-1] + 1)
    needs = {end: {equals}}
    for question in range(equals + 1, start):
        key = symbols.index(symbols[question])
        needs[start + question - equals] = {question, key, key + 1}
    return groups, needs


def tied_variable_assignment(task: VariableAssignment, symbols: list[str]) -> Tied:
    width, mark, end = task.operands + 2, symbols.index("?"), symbols.index("end")
    asked, start, question = mark + 1, mark + 2, mark // width + 1
    numbers = [*(index // width for index in range(mark)), question - 1, question, question]
    needs: dict[int, set[int]] = {}
    variable, block = asked, 0
    for index in range(start + 1, end):
        if symbols[index].startswith("x"):
            needs[index] = {asked} if variable == asked else {variable, block, block + 2}
            variable, block = index, symbols[:mark:width].index(symbols[index]) * width
            numbers.append(block // width)
        elif task.operands == 1:
            needs[index] = {variable, block, block + 2}
            numbers.append(question)
        else:
            earlier = {index - 2} if index - 2 > start else set()
            needs[index] = {*range(block + 2, block + width)} | earlier
            numbers.append(numbers[-1])
    # Only a value ends the chain; a sum does not tell, but what its assignment leads to does.
    needs[end] = {end - 1} if task.operands == 1 else {block + 2}
    return one_level(*numbers, question + 1), needs


SUPPORTED: dict[str, Callable[..., Tied]] = {
    "parity": tied_parity,
    "copy": tied_copy,
    "reverse": tied_reverse,
    "addition": tied_addition,
    "multi_addition": tied_multi_addition,
    "multiplication": tied_multiplication,
    "index_hints": tied_index_hints,
    "planted": tied_planted,
    "sparse_parity": tied_sparse_parity,
    "recall": tied_recall,
    "variable_assignment": tied_variable_assignment,
    "rows": tied_rows,
    "sort": tied_sort,
}

# Where docstrings say numbers; elsewhere they say which tokens share a group, and the order of groups.
NUMBERED = ("addition", "multiplication", "sort")


@lru_cache
def ranks(numbers: tuple[int, ...]) -> tuple[int, ...]:
    rank = {number: place for place, number in enumerate(sorted(set(numbers)))}
    return tuple(rank[number] for number in numbers)


@lru_cache
def named_in(support: bytes, seq: int) -> dict[int, set[int]]:
    """What each token depends on; many examples of a length have it in common."""
    places = np.frombuffer(support, dtype=np.int64).reshape(seq, -1).tolist()
    named = ({place for place in each if place >= 0} for each in places)
    return {index: each for index, each in enumerate(named) if each}


def same_groups(task: Task, found: list[tuple[int, ...]], told: list[tuple[int, ...]]) -> bool:
    if task.name in NUMBERED:
        return found == told
    return [*map(ranks, found)] == [*map(ranks, told)]


@pytest.mark.parametrize("task", [pytest.param(task, id=name) for name, task in (CASES | PUBLISHED).items()])
@pytest.mark.parametrize("beyond", [0, 1, 4, 11])
def test_groups_and_support_are_what_plain_python_tells_from_the_symbols(beyond, task, rng):
    examples = task.sample(length=smallest_length(task) + beyond, size=1_000, rng=rng)
    for row, filled in enumerate(spelled(task, examples)):
        symbols = filled[: filled.index("end") + 1]
        groups, needs = SUPPORTED[task.name](task, symbols)
        assert (examples.coupling is None, examples.support is None) == (groups is None, needs is None)
        if groups is not None:
            found = [tuple(level) for level in examples.coupling[:, row, : len(symbols)].tolist()]
            assert same_groups(task, found, groups)
        if needs is not None:
            assert named_in(examples.support[row].astype(np.int64).tobytes(), len(filled)) == needs


def test_every_task_that_declares_groups_or_a_support_has_an_oracle(rng):
    declared = set()
    for task in CASES.values():
        examples = task.sample(length=smallest_length(task), size=1, rng=rng)
        if examples.coupling is not None or examples.support is not None:
            declared.add(task.name)
    assert declared == set(SUPPORTED)
