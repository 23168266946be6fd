"""Independent implementation of the coupling and the support of all tasks, from their docstrings.

Docstrings do not define the end token. Its support is the sign that a reader reaches after the last token it reads. Its
ID is never read; it is beyond all others, or the ID of the next row.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
import pytest
from tests.support.cases import EXACT_MATCH_TASKS, has_own_test
from tests.tasks.test_oracles import symbols_of

from lengthwise.experiments.reproduction import load_claims
from lengthwise.tasks import (
    Addition,
    Copy,
    GradedByLoss,
    IndexHints,
    JSONLTask,
    MultiAddition,
    Multiplication,
    MultiQueryRecall,
    Parity,
    PlantedCorrelations,
    Recall,
    Reverse,
    Sort,
    SparseParity,
    Task,
    VariableAssignment,
)

# Group of each token per level, including the end token; None if the task declares no coupling.
Groups = list[tuple[int, ...]] | None
# Support of each answer, by token index; None if the task declares no depends_on.
Needs = dict[int, set[int]] | None
Expected = tuple[Groups, Needs]
# Name of a token, its groups, and the names in its support.
Step = tuple[tuple[object, ...], tuple[int, ...], list[tuple[object, ...]]]

CASES: dict[str, Task] = {
    **EXACT_MATCH_TASKS,
    "multiplication-square": Multiplication(digits=None),
    "index_hints-reverse": IndexHints(task=Reverse()),
    "index_hints-addition": IndexHints(task=Addition(scratchpad="carry", zero_padding=False, unequal=True)),
    "index_hints-multi_addition": IndexHints(task=MultiAddition(operands=(3, 3))),
}
# Tasks of all published claims with their variants, each once.
PUBLISHED: dict[str, Task] = {}
for claim in load_claims().values():
    for label, experiment in claim.experiments().items():
        for variant, task in {"": experiment.task, **experiment.task.variants()}.items():
            if not isinstance(task, GradedByLoss) and task not in (*CASES.values(), *PUBLISHED.values()):
                PUBLISHED[f"{claim.name}-{label}-{variant}"] = task


def one_level(*numbers: int) -> Groups:
    return [numbers]


def expected_parity(task: Parity, symbols: list[str]) -> Expected:
    equals = symbols.index("=")
    start, bits = equals + 1, range(1, equals + 1)
    needs = {start + bit: {bit - 1, start + bit - 1} for bit in bits} | {len(symbols) - 1: {equals}}
    if task.coupling == "none":
        return None, needs
    # The start token is the running parity of no bits. The sign follows the last bit.
    groups = [bit + 1 if task.coupling == "next" else bit for bit in (0, *bits)]
    return one_level(*bits, equals + 1, *groups, equals + 2), needs


def expected_reading(reads: list[int]) -> Expected:
    """Return one group per prompt token; later tokens have the group of the next token in ``reads``."""
    groups = one_level(*range(1, len(reads) + 1), *(read + 1 for read in reads), len(reads) + 1)
    return groups, {len(reads) + 1 + answer: {read} for answer, read in enumerate(reads)}


def expected_copy(task: Copy, symbols: list[str]) -> Expected:
    return expected_reading([*range(symbols.index("=") + 1)])


def expected_reverse(task: Reverse, symbols: list[str]) -> Expected:
    return expected_reading([*reversed(range(symbols.index(">")))])


def expected_sort(task: Sort, symbols: list[str]) -> Expected:
    equals = symbols.index("=")
    # The sort of Python is stable as well, so equal items keep the order of the list.
    groups, _ = expected_reading([*sorted(range(equals), key=lambda place: int(symbols[place])), equals])
    return groups, None


def expected_rows(task: JSONLTask, symbols: list[str]) -> Expected:
    # The built-in records are reversed, so the number of the mark is below that of the first token.
    count = symbols.index("<mark>")
    return one_level(*range(1, count + 1), 0, *range(count, -1, -1), count + 1), None


def expected_sum_trace(
    a: dict[int, int], b: dict[int, int], plus: int, equals: int, end: int
) -> tuple[dict[int, int], dict[int, set[int]]]:
    """Return the group and the support of each token of a trace, which reads a digit of ``a``, then one of ``b``."""
    longest, groups, needs = max(len(a), len(b)), {}, {}
    for index in range(equals + 1, end + 1):
        digit, is_second = (index - equals + 1) // 2, (index - equals) % 2 == 0
        read = plus if digit > longest else (b if is_second else a).get(digit)
        groups[index] = min(digit, longest) + 1 if is_second else digit
        needs[index] = {each for each in (read, index - 1) if each not in (None, equals)}
    return groups | {end: longest + 2}, needs


def by_significance(first: int, count: int, least_first: bool) -> dict[int, int]:
    """Return the token index of each digit of a number, by significance from 1."""
    return {place if least_first else count + 1 - place: first + place - 1 for place in range(1, count + 1)}


@lru_cache
def expected_digits(task: Addition, plus: int, equals: int, end: int) -> Expected:
    spans = ((0, plus), (plus + 1, equals), (equals + 1, end))
    ascending = {"least": (True, True, True), "most": (False,) * 3, "reversed_sum": (False, False, True)}[task.order]
    a, b, total = (by_significance(first, last - first, up) for (first, last), up in zip(spans, ascending, strict=True))
    longest, falling = max(len(a), len(b)), task.order == "most"
    numbers = {index: digit for number in (a, b) for digit, index in number.items()}
    # A reader reaches the sign after the last digit.
    numbers |= {plus: 0 if falling else longest + 1, equals: longest if falling else 1, end: longest + 2}
    if task.scratchpad == "trace":
        groups_of, needs = expected_sum_trace(a, b, plus, equals, end)
        return one_level(*((numbers | groups_of)[index] for index in range(end + 1))), needs
    numbers |= {index: digit - 1 if falling else min(digit, longest) + 1 for digit, index in total.items()}
    groups = one_level(*(numbers[index] for index in range(end + 1)))
    if falling:
        return groups, None
    needs = {}
    for digit, index in enumerate(range(equals + 1, end + 1), start=1):
        sources = [a.get(digit), b.get(digit)] if digit <= longest else [plus]
        sources += [index - 1] if digit > 1 else []
        sources += [a.get(digit - 1), b.get(digit - 1)] if task.scratchpad == "none" else []
        needs[index] = {each for each in sources if each is not None}
    return groups, needs


def expected_addition(task: Addition, symbols: list[str]) -> Expected:
    return expected_digits(task, symbols.index("+"), symbols.index("="), len(symbols) - 1)


def expected_steps(steps: list[Step]) -> Expected:
    """Return groups and support of named tokens; names without a token are ignored."""
    index_of = {name: index for index, (name, _, _) in enumerate(steps)}
    needs = {
        index: {index_of[each] for each in depends_on if each in index_of}
        for index, (_, _, depends_on) in enumerate(steps)
    }
    levels = zip(*(groups for _, groups, _ in steps), strict=True)
    return [*levels], {index: depends_on for index, depends_on in needs.items() if depends_on}


@lru_cache
def expected_sums(count: int, width: int) -> Expected:
    steps: list[Step] = []
    for operand in range(1, count + 1):
        # The first two operands are read together, each other operand with the previous row.
        row = max(operand - 1, 1)
        steps += [(("digit", operand, place), (place, row), []) for place in range(1, width + 1)]
        # The first sign has the number of the last row, which is never read.
        steps.append((("sign", operand), (width + 1, row if operand > 1 else count), []))
    for row in range(2, count + 1):
        # A step follows the carry of the previous place, the first step follows the sign.
        steps.append((("carry", row, 0), (1, row - 1), [("sign", row - 1)] if row > 2 else []))
        for place in range(1, width + 1):
            above = ("sum", row - 1, place) if row > 2 else ("digit", 1, place)
            digits = [above, ("digit", row, place)]
            steps.append((("sum", row, place), (place, row), [*digits, ("carry", row, place - 1)]))
            steps.append((("carry", row, place), (place + 1, row - 1), [("sum", row, place)]))
    return expected_steps([*steps, (("end",), (1, count), [("sign", count)])])


def expected_multi_addition(task: MultiAddition, symbols: list[str]) -> Expected:
    return expected_sums(symbols.count("+") + 1, symbols.index("+"))


@lru_cache
def expected_products(count: int, width: int, trace: bool) -> Expected:
    steps: list[Step] = [(("a", place), (place, 0), []) for place in range(1, width + 1)]
    steps.append((("x",), (width + 1, 0), []))
    steps += [(("b", row), (0, row), []) for row in range(1, count + 1)]
    steps += [(("=",), (1, count + 1), []), ((">", 0), (1, 1), [])]
    for row in range(1, count + 1):
        for place in range(1, width + 1):
            below, product, carry = ("sum", row - 1, place - 1), ("product", row, place), ("sum", row, place - 1)
            factors, partial = [("a", place), ("b", row)], ("partial", row, place)
            steps.append((product, (place, row - 1), factors if trace else [*factors, carry]))
            if trace:
                steps.append((partial, (place, row), [product, below]))
            steps.append((("sum", row, place), (place + 1, row), [partial, carry] if trace else [product, below]))
        steps.append(((">", row), (1, row + 1), [("x",)]))
    return expected_steps([*steps, (("end",), (1, count + 1), [("=",)])])


def expected_multiplication(task: Multiplication, symbols: list[str]) -> Expected:
    times = symbols.index("x")
    return expected_products(symbols.index("=") - times - 1, times, task.trace)


def expected_index_hints(task: IndexHints, symbols: list[str]) -> Expected:
    plain = [index for index, symbol in enumerate(symbols) if not symbol.startswith("#")]
    _, needs = ORACLES[task.task.name](task.task, [symbols[index] for index in plain])
    if needs is None:
        return None, None
    hints = [index for index, symbol in enumerate(symbols) if symbol.startswith("#")]
    depends_on = {plain[index]: {plain[each] for each in sources} for index, sources in needs.items()}
    # A hint before the first answer token is itself an answer.
    response = [hint for hint in hints if hint >= min(depends_on) - 1]
    depends_on |= {hint: {previous} for previous, hint in pairwise(response)}
    return None, depends_on | {response[0]: {hints[0], response[0] - 1}}


def expected_label(symbols: list[str], is_read: Callable[[str], bool]) -> Expected:
    """Return the support of one answer, which depends on some tokens of the prompt."""
    equals = symbols.index("=")
    return None, {equals + 1: {index for index in range(equals) if is_read(symbols[index])}, equals + 2: {equals}}


def expected_planted(task: PlantedCorrelations, symbols: list[str]) -> Expected:
    # The background has only other letters.
    return expected_label(symbols, lambda letter: letter in "cd")


def expected_sparse_parity(task: SparseParity, symbols: list[str]) -> Expected:
    flagged = ("0", "1") if task.coding == "letters" else ("0*", "1*")
    return expected_label(symbols, lambda symbol: symbol in flagged)


def expected_recall(task: Recall, symbols: list[str]) -> Expected:
    equals, start, end = (symbols.index(sign) for sign in ("=", ">", "end"))
    # A value shares the group of its key, each other token has its own.
    numbers = [*accumulate(int(not symbol.startswith("v")) for symbol in symbols[:start])]
    groups = one_level(*numbers, *numbers[equals + 1 :], numbers[equals], numbers[-1] + 1)
    needs = {end: {equals}}
    for query in range(equals + 1, start):
        key = symbols.index(symbols[query])
        needs[start + query - equals] = {query, key, key + 1}
    return groups, needs


def expected_multi_query_recall(task: MultiQueryRecall, symbols: list[str]) -> Expected:
    start, width = symbols.index(">"), task.key_length
    query_marks = [index for index, symbol in enumerate(symbols[:start]) if symbol[0] == "?"]
    answer_marks = [index for index, symbol in enumerate(symbols) if symbol[0] == "?" and index > start]
    needs = {symbols.index("end"): {start}}
    for mark, answer_mark in zip(query_marks, answer_marks, strict=True):
        query = symbols[mark + 1 : mark + 1 + width]
        (key,) = (index for index in range(start) if symbols[index : index + width + 1] == [*query, ":"])
        needs[answer_mark] = {mark}
        for place in range(task.value_length):
            read = {mark + 1 + offset for offset in range(width)} | {key + offset for offset in range(width)}
            needs[answer_mark + 1 + place] = read | {key + width + 1 + place}
    return None, needs


def expected_variable_assignment(task: VariableAssignment, symbols: list[str]) -> Expected:
    width, mark, end = task.operands + 2, symbols.index("?"), symbols.index("end")
    query, start, query_group = mark + 1, mark + 2, mark // width + 1
    numbers = [*(index // width for index in range(mark)), query_group - 1, query_group, query_group]
    needs: dict[int, set[int]] = {}
    variable, block = query, 0
    for index in range(start + 1, end):
        if symbols[index].startswith("x"):
            needs[index] = {query} if variable == query else {variable, block, block + 2}
            variable, block = index, symbols[:mark:width].index(symbols[index]) * width
            numbers.append(block // width)
        elif task.operands == 1:
            needs[index] = {variable, block, block + 2}
            numbers.append(query_group)
        else:
            earlier = {index - 2} if index - 2 > start else set()
            needs[index] = {*range(block + 2, block + width)} | earlier
            numbers.append(numbers[-1])
    # A chain ends at a value. After a sum, its assignment shows whether a value was reached.
    needs[end] = {end - 1} if task.operands == 1 else {block + 2}
    return one_level(*numbers, query_group + 1), needs


ORACLES: dict[str, Callable[..., Expected]] = {
    "parity": expected_parity,
    "copy": expected_copy,
    "reverse": expected_reverse,
    "addition": expected_addition,
    "multi_addition": expected_multi_addition,
    "multiplication": expected_multiplication,
    "index_hints": expected_index_hints,
    "planted": expected_planted,
    "sparse_parity": expected_sparse_parity,
    "recall": expected_recall,
    "multi_query_recall": expected_multi_query_recall,
    "variable_assignment": expected_variable_assignment,
    "rows": expected_rows,
    "sort": expected_sort,
}

# Tasks whose docstrings define the numbers; the others define shared groups and their order.
NUMBERED = ("addition", "multiplication", "sort")


@lru_cache
def ranks(numbers: tuple[int, ...]) -> tuple[int, ...]:
    rank = {number: place for place, number in enumerate(sorted(set(numbers)))}
    return tuple(rank[number] for number in numbers)


@lru_cache
def depends_on_sets(depends_on: bytes, seq: int) -> dict[int, set[int]]:
    """Return the support of each token, cached because many examples of a length share it."""
    places = np.frombuffer(depends_on, dtype=np.int64).reshape(seq, -1).tolist()
    sets = ({place for place in each if place >= 0} for each in places)
    return {index: each for index, each in enumerate(sets) if each}


def same_groups(task: Task, actual: list[tuple[int, ...]], expected: list[tuple[int, ...]]) -> bool:
    if task.name in NUMBERED:
        return actual == expected
    return [*map(ranks, actual)] == [*map(ranks, expected)]


@pytest.mark.parametrize(
    "task", [pytest.param(task, id=name) for name, task in (CASES | PUBLISHED).items() if task.name in ORACLES]
)
@pytest.mark.covering(2)
@pytest.mark.parametrize("beyond", [0, 1, 4, 11])
def test_coupling_and_support_match_the_oracle_of_the_task(beyond, task, rng):
    examples = task.sample(length=task.min_length + beyond, size=1_000, rng=rng)
    for index, padded in enumerate(symbols_of(task, examples)):
        symbols = padded[: padded.index("end") + 1]
        groups, needs = ORACLES[task.name](task, symbols)
        assert (examples.coupling is None, examples.depends_on is None) == (groups is None, needs is None)
        if groups is not None:
            actual = [tuple(level) for level in examples.coupling[:, index, : len(symbols)].tolist()]
            assert same_groups(task, actual, groups)
        if needs is not None:
            assert depends_on_sets(examples.depends_on[index].astype(np.int64).tobytes(), len(padded)) == needs


def test_every_task_with_coupling_or_support_has_an_oracle_or_its_own_test(rng):
    names = set()
    for task in CASES.values():
        examples = task.sample(length=task.min_length, size=1, rng=rng)
        if examples.coupling is not None or examples.depends_on is not None:
            names.add(task.name)
    assert set(ORACLES) <= names
    assert all(has_own_test(name) for name in names - set(ORACLES))
