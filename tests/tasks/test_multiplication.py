"""Multiplication: an independent implementation of every symbol, coupling and support."""

from collections import defaultdict

import numpy as np
import pytest
from tests.support.cases import decode_tokens
from tests.tasks.test_oracles import expected_multiplication

from lengthwise.tasks import Multiplication

over_counts = pytest.mark.parametrize("digits", [1, 2, None])
over_traces = pytest.mark.parametrize("trace", [False, True], ids=["two symbols", "trace"])


def factors_of(prompt: list[str]) -> tuple[int, int, int, int]:
    """Return both factors, and the numbers of digits of the rows and of the second factor."""
    first, second = "".join(prompt).removesuffix("=>").split("x")
    return int(first[::-1]), int(second), len(first), len(second)


@over_traces
@over_counts
@pytest.mark.parametrize("length", [1, 2, 4])
def test_scratchpads_match_an_implementation_with_integers(length, digits, trace, rng):
    task = Multiplication(digits=digits, trace=trace)
    examples = task.sample(length=length, size=1_000, rng=rng)
    for tokens, prompt_length in zip(examples.tokens, examples.prompt_length, strict=True):
        symbols = decode_tokens(task, tokens)
        assert symbols == expected_multiplication(task, symbols[:prompt_length])
        # The last row is the product.
        a, b, width, _ = factors_of(symbols[:prompt_length])
        last = [symbol[0] for symbol in symbols[-2 - (3 if trace else 2) * width : -2] if "c" in symbol]
        assert int("".join(reversed(last))) == a * b


@over_traces
def test_a_step_depends_on_every_token_of_its_support(trace, rng):
    task = Multiplication(trace=trace)
    examples = task.sample(length=3, size=1_000, rng=rng)
    assert examples.depends_on is not None
    kinds = np.array([next((sign for sign in "c+" if sign in symbol), "") for symbol in task.vocabulary])[
        examples.tokens
    ]
    read = np.where(
        examples.depends_on >= 0,
        np.take_along_axis(examples.tokens[..., None], examples.depends_on.clip(0), axis=1),
        -1,
    )
    for kind in (examples.is_answer & (kinds == name) for name in np.unique(kinds)):
        for column in np.flatnonzero((examples.depends_on[kind] >= 0).any(axis=0)):
            answers: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)
            for tokens, answer in zip(np.delete(read, column, axis=-1)[kind], examples.tokens[kind], strict=True):
                answers[tuple(tokens.tolist())].add(int(answer))
            assert max(map(len, answers.values())) > 1


@pytest.mark.parametrize("length", [1, 4])
def test_only_the_support_of_a_step_is_at_id_distance_zero(length, rng):
    task = Multiplication(digits=3)
    examples = task.sample(length=length, size=1, rng=rng)
    assert examples.coupling is not None
    assert examples.depends_on is not None
    ids, symbols = examples.coupling[:, 0], decode_tokens(task, examples.tokens[0])
    index, (times, equals) = np.arange(len(symbols)), (symbols.index(sign) for sign in "x=")
    is_sum = np.array(["c" in symbol for symbol in symbols])
    for answer in np.flatnonzero(examples.is_answer[0]):
        same, depends_on = ids[:, :answer] == ids[:, answer - 1, None], examples.depends_on[0, answer]
        before = index[:answer]
        if is_sum[answer]:
            read = before[same.all(axis=0) & is_sum[:answer]]
            assert sorted(read) == sorted(place for place in depends_on[1:] if place >= 0)
        elif symbols[answer] not in (">", "end"):
            first, second = before < times, (before > times) & (before < equals)
            assert [*before[same[0] & first], *before[same[1] & second]] == depends_on[:2].tolist()


@pytest.mark.parametrize("length", [1, 4])
def test_a_token_of_a_trace_reads_tokens_at_id_distance_zero(length, rng):
    task = Multiplication(digits=3, trace=True)
    examples = task.sample(length=length, size=1, rng=rng)
    assert examples.coupling is not None
    assert examples.depends_on is not None
    ids, symbols = examples.coupling[:, 0], decode_tokens(task, examples.tokens[0])
    for answer in np.flatnonzero(examples.is_answer[0]):
        depends_on = examples.depends_on[0, answer]
        assert np.count_nonzero(depends_on >= 0) <= 2
        same = ids[:, depends_on[(depends_on >= 0) & (depends_on != answer - 1)]] == ids[:, answer - 1, None]
        reads_one_token = any(sign in symbols[answer] for sign in "c+")
        assert same.all() if reads_one_token else same.any(axis=0).all()


@over_traces
def test_neighboring_step_tokens_differ_by_at_most_one_id_on_both_levels(trace, rng):
    task = Multiplication(digits=3, trace=trace)
    examples = task.sample(length=5, size=1, rng=rng)
    assert examples.coupling is not None
    symbols = decode_tokens(task, examples.tokens[0])
    steps = np.diff(examples.coupling[:, 0], axis=1)
    within = [place for place in range(examples.prompt_length[0], len(symbols)) if symbols[place] not in (">", "end")]
    assert np.abs(steps[:, np.array(within) - 1]).max() == 1


@pytest.mark.parametrize(
    "prompt", ["57x68", "57*68", " 57 x 68 = ", "0x0", "9x99999", "007x5", "99999999999999999999x9"]
)
def test_a_parsed_product_has_the_answer_of_python(prompt):
    task = Multiplication()
    examples = task.example_from_prompt(prompt)
    symbols = decode_tokens(task, examples.tokens[0])
    assert symbols == expected_multiplication(task, symbols[: examples.prompt_length[0]])
    first, second = prompt.replace(" ", "").removesuffix("=").replace("*", "x").split("x")
    a, b, width, count = factors_of(symbols[: examples.prompt_length[0]])
    assert (a, b, width, count) == (int(first), int(second), len(first) + len(second), len(second))


def test_both_factors_have_the_configured_numbers_of_digits(rng):
    for digits, length in ((2, 5), (7, 3), (None, 4)):
        examples = Multiplication(digits=digits).sample(length=length, size=300, rng=rng)
        task = Multiplication()
        for tokens, prompt_length in zip(examples.tokens, examples.prompt_length, strict=True):
            a, b, width, count = factors_of(decode_tokens(task, tokens[:prompt_length]))
            assert (len(str(a)), len(str(b))) == (length, count) == (length, length if digits is None else digits)
            assert width == length + count


def test_half_of_the_digits_are_nines_in_the_share_of_examples_with_nines(rng):
    task = Multiplication(digits=20, nines_share=0.25)
    examples = task.sample(length=20, size=2_000, rng=rng)
    nines = (examples.tokens[:, : examples.prompt_length[0]] == 9).sum(axis=1) / 40
    assert np.mean(nines > 0.3) == pytest.approx(0.25, abs=0.03)
    assert nines[nines > 0.3].mean() == pytest.approx(0.55, abs=0.03)
    assert nines[nines <= 0.3].mean() == pytest.approx(0.1, abs=0.02)
