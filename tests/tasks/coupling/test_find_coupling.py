"""Tests of the coupling that is found from examples: right rules, and refusals with a reason."""

import json
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from lengthwise.core.errors import CouplingError
from lengthwise.core.randomness import random_stream
from lengthwise.experiments.recipes.recipe_table import ASSIGNMENT_RULE
from lengthwise.tasks import Addition, Copy, JSONLTask, MultiAddition, Parity, Reverse, Sort, VariableAssignment
from lengthwise.tasks.coupling.answer_steps import (
    build_answer_steps,
    divide_into_phases,
    iter_phase_divisions,
    join_steps,
)
from lengthwise.tasks.coupling.dependence_search import SearchProgress
from lengthwise.tasks.coupling.found_coupling import find_coupling_in_examples as find_coupling
from lengthwise.tasks.coupling.pointers import compute_coupling, parse_pointer_rule

EXAMPLES = {
    "parity": (Parity(), range(1, 9), 60, ("prompt first +1 +0", "answer 1")),
    "copy": (Copy(), range(1, 8), 100, ("prompt first +1 +0",)),
    "reverse": (Reverse(), range(1, 8), 100, ("prompt last -1 +0",)),
    "addition with carries": (
        Addition(scratchpad="carry"),
        range(1, 7),
        400,
        ("prompt first +1 +0", "answer 1", "prompt #10.0 +1 +1"),
    ),
    "addition": (
        Addition(),
        range(1, 8),
        300,
        ("prompt first +1 +0", "answer 1", "prompt first +1 -1", "prompt #10.0 +1 +0", "prompt #10.0 +1 +1"),
    ),
    "variable assignment": (
        VariableAssignment(num_names=16),
        range(2, 6),
        150,
        ("prompt last +1 +0", "match answer 1 before 26 +2"),
    ),
}


@cache
def found_in_examples(name):
    """Return the coupling found in the examples of a task, which several tests use."""
    task, lengths, num_examples, _ = EXAMPLES[name]
    return find_coupling(task, tuple(lengths), num_per_length=num_examples)


@pytest.mark.first(2)
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_found_locators_are_those_of_the_task(name):
    found = found_in_examples(name)
    assert set(found.phases[0][1]) == set(EXAMPLES[name][3])
    assert len(found.phases) == 1
    assert found.accuracy == found.checked_accuracy == 1


@dataclass(frozen=True, kw_only=True)
class ParityWithoutCoupling(Parity):
    """Parity whose examples have neither coupling, step_index nor depends_on."""

    def sample(self, *, length, size, rng):  # noqa: D102
        examples = super().sample(length=length, size=size, rng=rng)
        return replace(examples, coupling=None, step_index=None, depends_on=None)


def test_the_declared_coupling_and_support_are_never_read():
    lengths = (1, 2, 3, 4, 5, 6)
    bare = find_coupling(ParityWithoutCoupling(), lengths, num_per_length=40)
    assert bare == find_coupling(Parity(), lengths, num_per_length=40)


@pytest.mark.slow
def test_pointers_of_addition_move_through_both_operands():
    found = found_in_examples("addition")
    examples = Addition().sample(length=3, size=1, rng=random_stream(0))
    # Prompt: three digits, a leading 0, +, three digits, a leading 0, =.
    assert compute_coupling(found.rule, examples)[:, 0].tolist() == [
        [2, 3, 4, 5, 6, 7, 8, 9, 10, 2, 3, 4, 5, 6, 11],
        [2, 3, 4, 5, 6, 7, 8, 9, 10, 7, 8, 9, 10, 10, 11],
    ]


def test_pointers_of_reversing_end_before_the_first_token():
    task = Reverse()
    found = find_coupling(task, (1, 2, 3, 4, 5), num_per_length=60)
    assert found.rule.falls == (False,)
    rows = JSONLTask()
    found = find_coupling(rows, (1, 2, 3, 4, 5))
    assert found.rule.falls == (True,)
    examples = rows.records_at(3, np.array([0]))
    assert compute_coupling(found.rule, examples)[0, 0].tolist() == [2, 3, 4, 1, 4, 3, 2, 1, 5]


def test_a_pointer_stops_at_the_end_of_its_operand(tmp_path):
    rows = [{"prompt": ["4", "0", "+", "8"], "response": ["8", "4"]}]
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    task = JSONLTask(file=str(file)).read()
    plus = task.vocabulary.index("+")
    texts = ("one", f"rising: prompt last -1 -1 until {plus}", f"falling: prompt #{plus}.0 -1 -1")
    rule = parse_pointer_rule(texts)
    assert (rule.saved_texts, rule.looked_up_tokens) == (texts, {plus})
    # The first pointer stops at the plus sign, the second one in front of the prompt.
    examples = task.records_at(task.available_lengths[0], np.array([0]))
    assert compute_coupling(rule, examples)[:, 0].tolist() == [
        [2, 3, 4, 5, 6, 5, 4, 4, 7],
        [2, 3, 4, 5, 1, 3, 2, 1, 6],
    ]


def test_a_rule_is_restored_from_its_texts():
    found = found_in_examples("reverse")
    assert parse_pointer_rule(found.rule.saved_texts) == found.rule
    assert parse_pointer_rule(json.loads(json.dumps(found.rule.saved_texts))) == found.rule
    assert parse_pointer_rule(ASSIGNMENT_RULE).saved_texts == ASSIGNMENT_RULE


@dataclass(frozen=True, kw_only=True)
class Answers(Copy):
    """Copy task whose response a subclass replaces."""

    def sample(self, *, length, size, rng):  # noqa: D102
        examples = super().sample(length=length, size=size, rng=rng)
        tokens = examples.tokens.copy()
        response = slice(length + 2, 2 * length + 2)
        tokens[:, response] = self.respond(tokens[:, :length], tokens[:, response], rng)
        return replace(examples, tokens=tokens)


class RandomAnswers(Answers):
    """Random responses."""

    def respond(self, prompt, response, rng):  # noqa: D102
        return rng.integers(0, self.num_symbols, size=response.shape)


class NoisyCopy(Answers):
    """Copy with 2% of random symbols."""

    def respond(self, prompt, response, rng):  # noqa: D102
        is_wrong = rng.random(response.shape) < 0.02
        return np.where(is_wrong, rng.integers(0, self.num_symbols, size=response.shape), response)


class LateShift(Answers):
    """Copy; at length 6 and above, the symbol 7 becomes an 8."""

    def respond(self, prompt, response, rng):  # noqa: D102
        return np.where((response == 7) & (prompt.shape[1] > 5), 8, response)


class CopyOfDoubledPrompt(Answers):
    """Copy of a prompt whose symbols all equal the first, so that every locator explains the answers."""

    def sample(self, *, length, size, rng):  # noqa: D102
        examples = super().sample(length=length, size=size, rng=rng)
        tokens = examples.tokens.copy()
        symbols = np.r_[0:length, length + 2 : 2 * length + 2]
        tokens[:, symbols] = tokens[:, :1]
        return replace(examples, tokens=tokens)

    def respond(self, prompt, response, rng):  # noqa: D102
        return response


# Names of the rule's division, the response to a prompt, and the expected indexes of the prompt for each response token
# and the end token, with one row per pointer. A pointer waits at its first token, and ends after the last prompt token.
IN_TWO_PARTS = {
    "twice": ("split whole", lambda prompt: prompt * 2, [[0, 1, 2, 3, 3, 3, 3], [0, 0, 0, 0, 1, 2, 3]]),
    "odd places first": (
        "split half down",
        lambda prompt: prompt[1::2] + prompt[::2],
        [[1, 3, 3, 3], [0, 0, 2, 3]],
    ),
    "even places first": (
        "split half up",
        lambda prompt: prompt[::2] + prompt[1::2],
        [[0, 2, 3, 3], [1, 1, 1, 3]],
    ),
    "forwards and backwards": (
        "split whole",
        lambda prompt: prompt + prompt[::-1],
        [[0, 1, 2, 3, 3, 3, 3], [2, 2, 2, 2, 1, 0, -1]],
    ),
}


@pytest.mark.parametrize("name", IN_TWO_PARTS)
def test_a_response_in_two_parts_has_a_pointer_for_each_part(name, tmp_path):
    division, respond, expected = IN_TWO_PARTS[name]
    rng, file = random_stream(6), tmp_path / "rows.jsonl"
    prompts = [rng.choice(list("abcdef"), size=length).tolist() for length in range(2, 9) for _ in range(60)]
    prompts.append(list("abc"))
    records = [{"prompt": prompt, "response": respond(prompt)} for prompt in prompts]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    task = JSONLTask(file=str(file))
    found = find_coupling(task)
    assert found.rule.division == division
    assert found.accuracy == found.checked_accuracy == 1
    coupling = compute_coupling(found.rule, task.example_from_prompt("a b c"))[:, 0]
    # The start token and each response token have the ID of the prompt token that the next answer needs.
    assert (coupling[:, 4 : 4 + len(expected[0])] - 2).tolist() == expected


def test_random_answers_are_refused():
    with pytest.raises(CouplingError, match=r"^no set of few tokens explains the answers: the best one, "):
        find_coupling(RandomAnswers(num_symbols=3), (2, 3, 4, 5), num_per_length=100, max_tokens=2)


def test_noise_is_reported_and_does_not_change_the_rule():
    found = find_coupling(NoisyCopy(), tuple(range(2, 9)), num_per_length=200)
    assert found.phases[0][1] == ("prompt first +1 +0",)
    assert 0.97 < found.accuracy < 0.995


def test_a_rule_that_fails_at_the_longest_lengths_is_refused():
    with pytest.raises(
        CouplingError, match=r"^the rule of the other examples is wrong for [89]\.\d% of the answers at le"
    ):
        find_coupling(LateShift(), (2, 3, 4, 5, 6), num_per_length=100, max_tokens=1)


def test_examples_of_one_length_are_refused():
    with pytest.raises(CouplingError, match=r"all examples have the same length; use examples of at least two lengths"):
        find_coupling(Copy(), (4,), num_per_length=100)


def test_texts_without_spaces_are_refused(tmp_path):
    file = tmp_path / "words.jsonl"
    file.write_text(
        "".join(json.dumps({"prompt": text, "response": text[::-1]}) + "\n" for text in ("ab", "abc", "cab"))
    )
    with pytest.raises(
        CouplingError, match=r'^100% of the prompts have only one token, .* symbols such as \["a", "b"\]'
    ):
        find_coupling(JSONLTask(file=str(file)))


@pytest.mark.slow
def test_sorting_is_refused():
    with pytest.raises(CouplingError):
        find_coupling(Sort(num_values=8), (2, 3, 4, 5), num_per_length=100, max_tokens=3)


def test_two_explanations_are_refused():
    with pytest.raises(CouplingError, match=r"two sets of tokens explain every answer equally well: .*, or .*; add"):
        find_coupling(CopyOfDoubledPrompt(), (2, 3, 4, 5, 6), num_per_length=100)


def test_lines_of_a_response_are_recognized():
    task = MultiAddition(operands=(3, 3))
    parts = [
        build_answer_steps(task.sample(length=length, size=20, rng=random_stream(3)), length) for length in (1, 2, 3)
    ]
    steps = join_steps(parts)
    end_of_line = task.vocabulary.index(">")
    lines = (f"lines {end_of_line} 1", f"lines {end_of_line} 2")
    assert ("period 2", "period 3", *lines) in iter_phase_divisions(steps)
    phases = divide_into_phases(steps, f"lines {end_of_line} 2")
    # Two lines with two answers for each digit of the padded sum, then the end of the line.
    two_digits = steps.length == 1
    assert phases.line_width[two_digits].tolist() == [5] * two_digits.sum()
    assert phases.line[two_digits][:10].tolist() == [0] * 5 + [1] * 5
    assert phases.place[two_digits][:10].tolist() == [0, 0, 1, 1, 2] * 2
    assert phases.phase[two_digits][:10].tolist() == [0, 1, 0, 1, 0, 2, 3, 2, 3, 2]


def test_random_symbols_do_not_make_lines():
    steps = join_steps([build_answer_steps(Copy().sample(length=4, size=100, rng=random_stream(4)), 4)])
    assert not any(division.startswith("lines") for group in iter_phase_divisions(steps) for division in group)


@pytest.mark.slow
def test_responses_with_lines_are_refused_with_the_tokens_that_they_need():
    message = (
        r"the response has lines, and pointers cannot move from line to line; give the coupling\. .*"
        r"answer 1 of every 2 in the later lines: the previous answer, the answer at the same place in the previous "
        r"line, prompt token '\+' \(with the number of the line\) \+ place \+1; "
        r"answer 2 of every 2 in the later lines: the previous answer"
    )
    with pytest.raises(CouplingError, match=message):
        find_coupling(MultiAddition(), (1, 2, 3), num_per_length=300, progress=SearchProgress(max_work=5e9))


def test_repeated_examples_do_not_count_as_evidence(tmp_path):
    rng = random_stream(1)
    records = [
        {"prompt": [f"x{rng.integers(50)}" for _ in range(length)], "response": [f"y{rng.integers(50)}"]}
        for length in (3, 4, 5)
        for _ in range(20)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records for _ in range(10)))
    with pytest.raises(CouplingError):
        find_coupling(JSONLTask(file=str(path)))


def couple_rows(tmp_path, sample, lengths, count=100, **settings):
    """Return the coupling found in rows that ``sample(rng, length)`` returns as prompt and response."""
    rng, path = random_stream(5), tmp_path / "rows.jsonl"
    rows = [(length, *sample(rng, length)) for length in lengths for _ in range(count)]
    path.write_text("".join(json.dumps({"prompt": p, "response": r, "length": length}) + "\n" for length, p, r in rows))
    return find_coupling(JSONLTask(file=str(path)), **settings)


def letters(rng, count, alphabet="abc"):
    """Return random letters."""
    return rng.choice(list(alphabet), size=count).tolist()


def test_answers_that_ignore_the_prompt_are_refused(tmp_path):
    with pytest.raises(CouplingError, match=r"^the answers do not depend on the prompt, so no prompt token needs"):
        couple_rows(tmp_path, lambda rng, n: (letters(rng, n), ["y"]), (2, 3, 4))


def test_responses_of_one_token_are_searched_without_empty_phases(tmp_path):
    def middle(rng, n):
        prompt = letters(rng, n)
        return prompt, [prompt[n // 2]]

    with pytest.raises(CouplingError):
        couple_rows(tmp_path, middle, (1, 2, 3, 4, 5), max_tokens=2)


@pytest.mark.slow
def test_end_tokens_do_not_pass_the_check_for_the_other_answers(tmp_path):
    def payload_parity(rng, n):
        bits, payload = letters(rng, n, "01"), letters(rng, int(rng.integers(1, 7)), "abcd")
        return [*bits, "|", *payload], [["even", "odd"][bits.count("1") % 2]]

    # Four tokens explain the parity of up to four bits, but no answer at length 4 has tokens of shorter examples.
    with pytest.raises(CouplingError, match=r"^(too few examples to check the rule of the first|two sets|no set)"):
        couple_rows(tmp_path, payload_parity, (1, 2, 3, 4), count=150)


@pytest.mark.slow
def test_a_token_that_names_the_row_explains_nothing(tmp_path):
    def tagged(rng, n):
        bits, parity = letters(rng, n, "01"), None
        parity = ["even", "odd"][bits.count("1") % 2]
        return [*bits, "|", f"row{rng.integers(10**9)}"], [parity] * n

    with pytest.raises(CouplingError):
        couple_rows(tmp_path, tagged, (2, 3, 4, 5, 6), max_tokens=2)


def test_a_division_without_addresses_for_one_explanation_does_not_decide(tmp_path):
    def copied_twice(rng, n):
        upper = letters(rng, n, "ABCD")
        fillers = letters(rng, n, "uvw")
        pairs = [symbol for pair in zip(upper, fillers, strict=True) for symbol in pair]
        return [*(symbol.lower() for symbol in upper), "|", *pairs], [f"{symbol}!" for symbol in upper]

    with pytest.raises(CouplingError, match=r"^two sets of tokens explain every (later )?answer equally well"):
        couple_rows(tmp_path, copied_twice, range(2, 8))


def test_another_rule_in_a_few_longest_rows_is_refused(tmp_path):
    def change(rng, n):
        prompt = letters(rng, n, "abcdef")
        return prompt, prompt if n < 7 else [prompt[0]] * n

    rng, path = random_stream(6), tmp_path / "rows.jsonl"
    rows = [(n, *change(rng, n)) for n in range(2, 8) for _ in range(100 if n < 7 else 4)]
    path.write_text("".join(json.dumps({"prompt": p, "response": r, "length": n}) + "\n" for n, p, r in rows))
    with pytest.raises(CouplingError, match=r"the rule of the other examples is wrong for \d\d\.\d% .* at length 7"):
        find_coupling(JSONLTask(file=str(path)), max_tokens=1)


@pytest.mark.slow
def test_an_answer_token_that_the_rule_never_predicts_is_refused(tmp_path):
    def rare_mark(rng, n):
        prompt = letters(rng, n, "abcdefgh")
        marked = [i >= 2 and prompt[i - 2] == "a" and prompt[i - 1] == "b" for i in range(n)]
        return prompt, ["x" if mark else letter for mark, letter in zip(marked, prompt, strict=True)]

    with pytest.raises(CouplingError, match=r"but only 0% of the answers 'x'; they depend on other tokens"):
        couple_rows(tmp_path, rare_mark, range(2, 9), count=200, max_tokens=1)


def test_prompts_of_one_size_are_refused(tmp_path):
    def last_three(rng, n):
        prompt = letters(rng, 5)
        return prompt, prompt[-3:]

    with pytest.raises(CouplingError, match=r"all examples have the same number of prompt tokens; use examples of at"):
        couple_rows(tmp_path, last_three, (2, 3, 4))


def test_a_token_is_preferred_to_an_offset_as_anchor(tmp_path):
    def second_operand(rng, n):
        text = letters(rng, n)
        return [letters(rng, 1)[0], "+", *text], text

    found = couple_rows(tmp_path, second_operand, range(2, 7))
    assert found.phases[0][1][0].startswith("prompt #")


@pytest.mark.slow
def test_groups_that_pointers_can_follow_are_not_refused_as_lines(tmp_path):
    def pairs(rng, n):
        text = letters(rng, 2 * n, "abcdef")
        return text, [symbol for i in range(n) for symbol in (text[2 * i], text[2 * i + 1], ";")]

    found = couple_rows(tmp_path, pairs, range(2, 8))
    assert [texts[:1] for _, texts in found.phases[:2]] == [("prompt first +2 +0",), ("prompt first +2 +1",)]


def unless(num_before):
    """Return a function that copies letters, but swaps a and b after this many letters a."""

    def sample(rng, length):
        text = letters(rng, length)
        swapped = {"a": "b", "b": "a", "c": "a"}
        return text, [
            swapped[letter] if i >= num_before and set(text[i - num_before : i]) == {"a"} else letter
            for i, letter in enumerate(text)
        ]

    return sample


@pytest.mark.first(1)
@pytest.mark.parametrize("num_before", [2, 3])
def test_tokens_that_matter_only_together_are_found(num_before, tmp_path):
    # The errors of the copying rule, 2% to 5% of the answers, would pass as noise.
    found = couple_rows(tmp_path, unless(num_before), range(3, 11), count=300)
    assert {locator for _, locators in found.phases for locator in locators} == {
        f"prompt first +1 {-before:+d}" for before in range(num_before + 1)
    }
    assert found.accuracy == 1


@pytest.mark.slow
def test_errors_that_depend_on_tokens_are_no_noise(tmp_path):
    message = (
        r"the best rule explains 9\d.\d% of the answers, and the other answers are not noise: their share depends on "
        r"(prompt token|the answer) .* and .*; add examples, or write intermediate results"
    )
    with pytest.raises(CouplingError, match=message):
        couple_rows(tmp_path, unless(3), range(3, 11), count=300, max_tokens=2)


def noisy_parities(rng, length):
    """Return bits and running parities, of which 2% are wrong; the next one continues from the right parity."""
    bits = letters(rng, length, "01")
    parities = np.cumsum([int(bit) for bit in bits]) % 2
    return bits, [str(parity ^ (rng.random() < 0.02)) for parity in parities.tolist()]


def noisy_letters(rng, length):
    """Return letters and a copy in which 5% of the letters a are wrong."""
    text = letters(rng, length)
    return text, ["b" if letter == "a" and rng.random() < 0.05 else letter for letter in text]


def noisy_rows(rng, length):
    """Return letters and a copy, or in 2% of the rows other letters."""
    text = letters(rng, length)
    return text, text if rng.random() > 0.02 else letters(rng, length)


@pytest.mark.slow
@pytest.mark.parametrize("sample", [noisy_letters, noisy_parities])
def test_noise_that_is_not_uniform_is_still_noise(sample, tmp_path):
    check_noisy_rule(couple_rows(tmp_path, sample, range(3, 11), count=300))


def test_wrong_answers_that_gather_in_rows_are_noise_only_if_the_user_says_so(tmp_path):
    with pytest.raises(
        CouplingError, match=r"not independent noise: wrong are \d\d\.\d% of the answers in rows with an"
    ):
        couple_rows(tmp_path, noisy_rows, range(3, 11), count=300)
    check_noisy_rule(couple_rows(tmp_path, noisy_rows, range(3, 11), count=300, allow_noise=True))


def test_a_few_wrong_answers_cannot_show_whether_they_are_noise(tmp_path):
    def sample(rng, length):
        text = letters(rng, length)
        return text, ["b" if rng.random() < 0.001 else letter for letter in text]

    with pytest.raises(CouplingError, match=r"cannot tell whether the others are noise: only [1-9] of"):
        couple_rows(tmp_path, sample, range(3, 11), count=150)


def check_noisy_rule(found):
    """Check the rule of a noisy copy, or of noisy parities."""
    # Of noisy parities, more tokens predict more, but the pointer stays the same.
    assert found.num_levels == 1
    assert found.rule.saved_texts[1].endswith("prompt first +1 +0")
    assert 0.9 < found.accuracy < 1


def look_up(layout):
    """Return a function that writes a table of letters and digits, and a key at a place of the layout."""

    def sample(rng, length):
        keys = rng.permutation(list("abcdefghij"))[:length].tolist()
        values = letters(rng, length, "0123456789")
        table = [symbol for pair in zip(keys, values, strict=True) for symbol in pair]
        chosen = int(rng.integers(length))
        parts = {"table": table, "key": [keys[chosen]]}
        return [symbol for part in layout.split() for symbol in parts.get(part, [part])], [values[chosen]]

    return sample


@pytest.mark.first(1)
@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("layout", "key"), [("table key", "prompt 1"), ("table ? key = =", "prompt 3"), ("key : table", "first 0")]
)
def test_the_key_of_a_look_up_is_found_beside_constant_tokens(layout, key, tmp_path):
    found = couple_rows(tmp_path, look_up(layout), range(2, 10), count=150)
    assert found.phases[0][1] == (f"match {key} anywhere 0 +1",)


@pytest.mark.parametrize("name", ["parity", "copy", "reverse"])
def test_the_found_coupling_is_the_declared_one_up_to_a_constant(name):
    task = EXAMPLES[name][0]
    rule = parse_pointer_rule(found_in_examples(name).rule.saved_texts)
    for length in (1, 2, 7):
        examples = task.sample(length=length, size=8, rng=random_stream(0, "same coupling", length))
        difference = compute_coupling(rule, examples)[0] - examples.coupling[0]
        # No token reads the ID of the end token.
        assert len(np.unique(difference[:, :-1])) == 1
