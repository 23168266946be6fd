"""Independent implementation of all tasks: the sequence after each prompt, one symbol at a time."""

import re
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from tests.support.cases import ADDITION_VARIANTS, EXACT_MATCH_TASKS, decode_tokens, has_own_test

from lengthwise.tasks import (
    TASKS,
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
from lengthwise.tasks.examples import Examples

over_lengths = pytest.mark.parametrize("length", [1, 2, 5, 12])
over_additions = pytest.mark.parametrize(
    "task", [pytest.param(task, id=name) for name, task in ADDITION_VARIANTS.items()]
)


def expected_parity(task: Parity, prompt: list[str]) -> list[str]:
    bits = prompt[: prompt.index("=")]
    ones, running = 0, []
    for bit in bits:
        ones += bit == "1"
        running.append("1" if ones % 2 else "0")
    return [*bits, "=", "0", *running, "end"]


def expected_copy(task: Copy, prompt: list[str]) -> list[str]:
    symbols = prompt[: prompt.index("=")]
    return [*symbols, "=", ">", *symbols, "end"]


def expected_reverse(task: Reverse, prompt: list[str]) -> list[str]:
    symbols = prompt[1 : prompt.index(">")]
    return ["=", *symbols, ">", *reversed(symbols), "end"]


def operands_of(task: Addition, prompt: list[str]) -> tuple[str, str]:
    """Return both operands of the prompt, most significant digit first."""
    first, second = "".join(prompt).split("=")[0].split("+")
    return (first[::-1], second[::-1]) if task.order == "least" else (first, second)


def carries_out(a: int, b: int, place: int) -> bool:
    """Return True if the sum of the digits up to a place, counted from 0, has one more digit."""
    power = 10 ** (place + 1)
    return a % power + b % power >= power


def expected_addition(task: Addition, prompt: list[str]) -> list[str]:
    first, second = operands_of(task, prompt)
    a, b = int(first), int(second)
    digits = [str(a), str(b), str(a + b)]
    if task.zero_padding:
        assert len(first) == len(second)
        digits = [number.zfill(len(first)) for number in digits]
    least_first = {"least": (True, True), "most": (False, False), "reversed_sum": (False, True)}[task.order]
    for number, reverse in enumerate((least_first[0], least_first[0], least_first[1])):
        digits[number] = digits[number][::-1] if reverse else digits[number]
    total = list(digits[2])
    if task.scratchpad != "none":
        total = [f"{digit}c" if carries_out(a, b, place) else digit for place, digit in enumerate(total)]
    if task.scratchpad == "trace":
        # Before the digit at a place: the digit of the first operand plus the carry from the place below.
        carries = [place > 0 and carries_out(a, b, place - 1) for place in range(len(total))]
        reads = [f"r{a // 10**place % 10 + carry}" for place, carry in enumerate(carries)]
        total = [symbol for step in zip(reads, total, strict=True) for symbol in step]
    return [*digits[0], "+", *digits[1], "=", *total, "end"]


def expected_multi_addition(task: MultiAddition, prompt: list[str]) -> list[str]:
    operands = "".join(prompt).removesuffix("=>").split("+")
    width = len(operands[0])
    assert {len(operand) for operand in operands} == {width}
    symbols = [*"+".join(operands), "="]
    total, *others = (int(operand[::-1]) for operand in operands)
    for other in others:
        symbols.append(">")
        for place in range(width):
            carry = carries_out(total, other, place)
            symbols += [str(total + other).zfill(width)[::-1][place] + "c" * carry, "c" if carry else "."]
        total += other
    return [*symbols, "end"]


def expected_multiplication(task: Multiplication, prompt: list[str]) -> list[str]:
    first, second = "".join(prompt).removesuffix("=>").split("x")
    symbols, a = [*first, "x", *second, "=", ">"], int(first[::-1])
    for row, digit in enumerate(map(int, second)):
        shifted = 10 * a * int(second[:row] or 0)
        for place in range(len(first)):
            power = 10**place
            carried = (shifted % power + digit * (a % power)) // power
            product, above = digit * (a // power % 10), shifted // power % 10
            tens, ones = divmod(product + above + carried, 10)
            step = [f"{product:02}", f"+{product + above:02}"] if task.trace else [f"{product + carried:02}"]
            symbols += [*step, f"{ones}c{tens}"]
        symbols.append(">")
    return [*symbols, "end"]


def expected_index_hints(task: IndexHints, prompt: list[str]) -> list[str]:
    bits = [symbol for symbol in prompt if not symbol.startswith("#")]
    plain = expected_parity(Parity(), bits)
    symbols, hint, start = [], 0, int(prompt[0].removeprefix("#"))
    for index, symbol in enumerate(plain):
        # The separator, the start token after it and the end token have no place.
        has_place = symbol in ("0", "1") and index != bits.index("=") + 1
        symbols += [f"#{start + hint}", symbol] if has_place else [symbol]
        hint = hint + 1 if has_place else 0
    return symbols


def expected_planted(task: PlantedCorrelations, prompt: list[str]) -> list[str]:
    letters = prompt[: prompt.index("=")]
    first, second = (letter for letter in letters if letter in "cd")
    return [*letters, "=", "0" if first == second else "1", "end"]


def expected_sparse_parity(task: SparseParity, prompt: list[str]) -> list[str]:
    tokens = prompt[: prompt.index("=")]
    flagged = [symbol[0] for symbol in tokens if (symbol in "01" if task.coding == "letters" else symbol[1:] == "*")]
    assert min(task.fewest, len(tokens)) <= len(flagged) <= task.most
    return [*tokens, "=", str(flagged.count("1") % 2), "end"]


def expected_recall(task: Recall, prompt: list[str]) -> list[str]:
    text, queries = prompt[: prompt.index("=")], prompt[prompt.index("=") + 1 : -1]
    value_of = {key: text[place + 1] for place, key in enumerate(text) if key.startswith("k")}
    return [*text, "=", *queries, ">", *(value_of[query] for query in queries), "end"]


def expected_multi_query_recall(task: MultiQueryRecall, prompt: list[str]) -> list[str]:
    text, *queries = re.split(r" \?\d* ", " ".join(prompt[:-1]))
    pairs = [pair.split() for pair in re.findall(r"[s0-9 ]+: [s0-9 ]+", text)]
    value_of = {" ".join(pair[: task.key_length]): pair[task.key_length + 1 :] for pair in pairs}
    assert len(value_of) == len(pairs) == max(1, int(task.density * len(text.split())) // task.pair_width)
    marks = [symbol for symbol in prompt if symbol.startswith("?")]
    assert marks == [f"?{number}" if task.numbered else "?" for number in range(1, task.num_queries + 1)]
    response = [[mark, *value_of[query]] for mark, query in zip(marks, queries, strict=True)]
    return [*prompt, *chain(*response), "end"]


def expected_variable_assignment(task: VariableAssignment, prompt: list[str]) -> list[str]:
    width, (query, _) = task.operands + 2, prompt[-2:]
    blocks = [prompt[first : first + width] for first in range(0, len(prompt) - 3, width)]
    assignments = {variable: operands for variable, _, *operands in blocks}
    variable, total, response = query, 0, [query]
    while variable.startswith("x"):
        variable, *constants = assignments[variable]
        if task.operands == 1:
            response.append(variable)
            continue
        terms = [variable, *constants] if variable.startswith("v") else constants
        total += sum(int(constant[1:]) for constant in terms)
        response += [f"v{total % task.num_values}", *([variable] if variable.startswith("x") else [])]
    return [*prompt, *response, "end"]


def expected_rows(task: JSONLTask, prompt: list[str]) -> list[str]:
    assert prompt[-2:] == ["<mark>", "<start>"]
    return [*prompt, *prompt[-3::-1], "end"]


def expected_sort(task: Sort, prompt: list[str]) -> list[str]:
    items = prompt[: prompt.index("=")]
    return [*items, "=", ">", *sorted(items, key=int), "end"]


ORACLES = {
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


def symbols_of(task: Task, examples: Examples) -> list[list[str]]:
    """Return the symbols of each sequence."""
    return np.array(task.vocabulary)[examples.tokens].tolist()


@pytest.mark.parametrize(
    "task", [pytest.param(task, id=name) for name, task in EXACT_MATCH_TASKS.items() if task.name in ORACLES]
)
@pytest.mark.covering(2)
@pytest.mark.parametrize("beyond", [0, 1, 4, 11])
def test_every_sequence_matches_the_oracle_of_its_task(beyond, task, rng):
    examples = task.sample(length=task.min_length + beyond, size=1_000, rng=rng)
    for symbols, prompt_length in zip(symbols_of(task, examples), examples.prompt_length.tolist(), strict=True):
        expected = ORACLES[task.name](task, symbols[:prompt_length])
        fill = ["end"] * (len(symbols) - len(expected))
        assert symbols == [*expected, *fill]


def test_every_task_with_one_correct_answer_has_an_oracle_or_its_own_test():
    names = {name for name, task in TASKS.items() if not isinstance(task(), GradedByLoss)}
    assert set(ORACLES) <= names
    # The test of a new task can contain its oracle.
    assert all(has_own_test(name) for name in names - set(ORACLES))


def length_of(task: Addition, prompt: list[str]) -> tuple[int, int]:
    """Return the numbers of digits of both operands without leading zeros."""
    first, second = (len(operand.lstrip("0")) or 1 for operand in operands_of(task, prompt))
    return first, second


@over_additions
@over_lengths
@pytest.mark.covering(1)
def test_the_longer_operand_has_as_many_digits_as_the_length(length, task, rng):
    examples = task.sample(length=length, size=100, rng=rng)
    for tokens, prompt_length in zip(examples.tokens, examples.prompt_length, strict=True):
        assert max(length_of(task, decode_tokens(task, tokens[:prompt_length]))) == length


def longest_chain(a: int, b: int, length: int) -> int:
    """Return the largest number of consecutive places with a carry."""
    longest = run = 0
    for place in range(length):
        run = run + 1 if carries_out(a, b, place) else 0
        longest = max(longest, run)
    return longest


def chain_lengths(task: Addition, length: int, size: int, rng: np.random.Generator) -> list[int]:
    examples = task.sample(length=length, size=size, rng=rng)
    prompts = [decode_tokens(task, row[:end]) for row, end in zip(examples.tokens, examples.prompt_length, strict=True)]
    return [longest_chain(*map(int, operands_of(task, prompt)), length) for prompt in prompts]


@over_additions
@pytest.mark.parametrize("length", [1, 2, 5, 12, 31])
@pytest.mark.covering(1)
def test_the_carry_variant_has_carry_chains_over_at_least_half_of_the_digits(length, task, rng):
    lengths = chain_lengths(task.variants()["carry"], length, 100, rng)
    assert min(lengths) >= length / 2
    assert max(lengths) == length


def test_the_share_of_long_carry_chains_is_long_carry_share(rng):
    lengths = chain_lengths(Addition(long_carry_share=0.25, long_carry_from=1.0), 10, 2_000, rng)
    assert np.mean([chain == 10 for chain in lengths]) == pytest.approx(0.25, abs=0.03)


def test_the_uniform_variant_plants_no_carries(rng):
    lengths = chain_lengths(Addition(long_carry_share=1.0).variants()["uniform"], 10, 500, rng)
    assert np.mean([chain == 10 for chain in lengths]) < 0.02
    assert 1 < np.mean(lengths) < 5


@over_additions
def test_the_unequal_variant_has_a_second_operand_of_every_number_of_digits(task, rng):
    variant = task.variants()["unequal"]
    examples = variant.sample(length=6, size=600, rng=rng)
    lengths = [
        length_of(variant, decode_tokens(variant, tokens[:prompt_length]))
        for tokens, prompt_length in zip(examples.tokens, examples.prompt_length, strict=True)
    ]
    assert {first for first, _ in lengths} == {6}
    counts = np.bincount([second for _, second in lengths], minlength=7)
    assert (counts[1:] > 60).all()


@over_additions
@pytest.mark.parametrize(
    "sum_of", ["57+68", "0+0", "999+1", "1+999", "5+5", "90+9", "007+5", " 12 + 34 = ", "99999999999999999999+1"]
)
@pytest.mark.covering(1)
def test_a_parsed_sum_has_the_answer_of_python(sum_of, task):
    examples = task.example_from_prompt(sum_of)
    answer = decode_tokens(task, examples.tokens[0, examples.is_answer[0]])
    assert answer.pop() == "end"
    digits = "".join(symbol.removesuffix("c") for symbol in answer if not symbol.startswith("r"))
    a, b = map(int, sum_of.replace("=", "").split("+"))
    assert int(digits if task.order == "most" else digits[::-1]) == a + b
    assert task.zero_padding or len(digits) == len(str(a + b))
    prompt = decode_tokens(task, examples.tokens[0, : examples.prompt_length[0]])
    assert tuple(map(int, operands_of(task, prompt))) == (a, b)


@pytest.mark.parametrize("prompt", ["3 1 4", "314", "314=>", " 3 1 4 = > ", "7"])
@pytest.mark.parametrize(("task", "step"), [(Copy(), 1), (Reverse(), -1)])
def test_a_parsed_string_is_copied_or_reversed(step, task, prompt):
    examples = task.example_from_prompt(prompt)
    symbols = prompt.replace(" ", "").removesuffix("=>")
    assert decode_tokens(task, examples.tokens[0, examples.is_answer[0]]) == [*symbols[::step], "end"]


@pytest.mark.parametrize(("task", "step"), [(Copy(num_symbols=12), 1), (Reverse(num_symbols=12), -1)])
def test_symbols_of_two_digits_are_separated_by_spaces(step, task):
    examples = task.example_from_prompt("11 3 10")
    assert decode_tokens(task, examples.tokens[0, examples.is_answer[0]]) == [*["11", "3", "10"][::step], "end"]


@pytest.mark.parametrize("prompt", ["0110", "0 1 1 0", "0110=", "0110=0"])
def test_parsed_bits_have_their_running_parity_as_the_answer(prompt):
    examples = Parity().example_from_prompt(prompt)
    assert "".join(decode_tokens(Parity(), examples.tokens[0])) == "0110=00100end"


@pytest.mark.parametrize("task", [pytest.param(task, id=name) for name, task in EXACT_MATCH_TASKS.items()])
def test_parsing_a_sampled_prompt_gives_the_same_example(task, rng):
    # As many hints as places, so sampled hints start at zero too.
    task = replace(task, num_hints=5) if isinstance(task, IndexHints) else task
    examples = task.sample(length=5, size=10, rng=rng)
    for row, prompt_length in enumerate(examples.prompt_length):
        symbols = decode_tokens(task, examples.tokens[row, :prompt_length])
        prompt = " ".join(symbol for symbol in symbols if not symbol.startswith("#"))
        if isinstance(task, Addition):
            prompt = "+".join(number.lstrip("0") or "0" for number in operands_of(task, symbols))
        if isinstance(task, MultiAddition):
            operands = "".join(symbols).removesuffix("=>").split("+")
            prompt = "+".join(number.rstrip("0")[::-1] or "0" for number in operands)
        if isinstance(task, Multiplication):
            first, second = "".join(symbols).removesuffix("=>").split("x")
            prompt = first[: -len(second)][::-1] + "x" + second
        parsed = task.example_from_prompt(prompt)
        seq = parsed.tokens.shape[1]
        assert np.array_equal(parsed.tokens[0], examples.tokens[row, :seq])
        assert np.array_equal(parsed.is_answer[0], examples.is_answer[row, :seq])
        if examples.coupling is not None:
            assert parsed.coupling is not None
            assert np.array_equal(parsed.coupling[:, 0], examples.coupling[:, row, :seq])
        if examples.depends_on is not None:
            assert parsed.depends_on is not None
            assert np.array_equal(parsed.depends_on[0], examples.depends_on[row, :seq])


@pytest.mark.parametrize(("operands", "chains"), [(1, 4), (1, 1), (3, 2)])
def test_the_queried_chain_has_its_share_of_the_assignments_and_distractor_chains_the_rest(operands, chains, rng):
    task = VariableAssignment(operands=operands, num_chains=chains)
    examples = task.sample(length=12, size=1_000, rng=rng)
    depths, ends = [], []
    for tokens, prompt_length in zip(examples.tokens, examples.prompt_length, strict=True):
        symbols = decode_tokens(task, tokens)
        response = symbols[prompt_length : symbols.index("end")]
        depths.append(sum(symbol.startswith("x") for symbol in response))
        ends.append(sum(symbol.startswith("v") for symbol in symbols[2 : prompt_length - 3 : operands + 2]))
        assert len(set(symbols[: prompt_length - 3 : operands + 2])) == 12
    assert set(depths) == (set(range(3, 13)) if chains > 1 else {12})
    assert all((end == 1) == (depth == 12) for end, depth in zip(ends, depths, strict=True))
    assert set(ends) == set(range(1, chains + 1))


def test_a_parsed_sum_of_several_numbers_has_the_partial_sums_of_python():
    task = MultiAddition()
    examples = task.example_from_prompt("999 + 1 + 27 + 999 =")
    rows = "".join(decode_tokens(task, examples.tokens[0, examples.is_answer[0]])).removesuffix("end").split(">")
    sums = [row.replace("c", "").replace(".", "")[::-1] for row in rows]
    assert [int(total) for total in sums] == [1000, 1027, 2026]


@pytest.mark.parametrize(("count", "width"), [(2, 4), (9, 4), (10, 4), (11, 5), (12, 5)])
def test_numbers_are_as_wide_as_the_longest_possible_sum(count, width, rng):
    examples = MultiAddition(operands=(count, count)).sample(length=3, size=1, rng=rng)
    assert examples.prompt_length[0] == count * (width + 1) + 1
    assert len(str(count * 999)) <= width


def test_the_number_of_operands_covers_both_ends_of_its_range(rng):
    samples = [MultiAddition(operands=(2, 4)).sample(length=1, size=1, rng=rng) for _ in range(60)]
    assert {int((examples.tokens == 10).sum()) + 1 for examples in samples} == {2, 3, 4}


def test_only_the_support_of_a_step_is_at_id_distance_zero_on_both_levels(rng):
    task = MultiAddition(operands=(4, 4))
    examples = task.sample(length=3, size=1, rng=rng)
    assert examples.coupling is not None
    assert examples.depends_on is not None
    ids, index = examples.coupling[:, 0], np.arange(examples.tokens.shape[1])
    places = examples.step_index[0]
    for answer in np.flatnonzero((places > 0) & (index >= examples.prompt_length[0])):
        is_near = (ids[:, :answer] == ids[:, answer - 1, None]).all(axis=0) & (places[:answer] > 0)
        assert sorted(np.flatnonzero(is_near)) == sorted(examples.depends_on[0, answer, :2])
