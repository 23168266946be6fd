"""Counterexamples: heads that are as good as any at training lengths and fail beyond, by exact enumeration."""

import doctest
import re
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from lengthwise.core.errors import SettingError
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.bounds.bound_inputs import regularity_ratio
from lengthwise.theory.counterexamples import (
    COUNTEREXAMPLES,
    heavy_cuts_counterexample,
    rare_shape_counterexample,
    small_leak_counterexample,
)

PAGE = (Path(__file__).parents[2] / "docs/theory.md").read_text()

# Exact values by hand. FAR has the risk by the number of pairs of fillers with a gap of 6 or more.
FAR = {pairs: 0.5 * 1e3 * pairs / (1e3 * pairs + 1) for pairs in range(1, 7)}
BEYOND = {
    "growing k": {7: 0.5, 8: 0.5, 9: 0.5},
    "growing gap": {9: 0.15, 10: 0.5},
    "unbounded reach": {
        7: 4 / 6 * FAR[1],
        8: (2 * FAR[2] + 3 * FAR[3]) / 7,
        9: (FAR[1] + FAR[3] + FAR[5] + FAR[6]) / 4,
    },
    "rare shape": {7: 0.5, 8: 0.5, 9: 0.5},
    "absolute positions": {7: 1 / 12, 8: 1 / 7, 9: 3 / 16},
    "new background token": {7: 0.5 * (1 - 0.7**5)},
    "canceling errors": {4: 1 / 4, 6: 1 / 6, 10: 1 / 2},
    "small leak": {10: 9e-6 / (1 + 9e-6), 25: 24e-6 / (1 + 24e-6)},
    "heavy cuts": {5: 5.0**-3 / 4 / 2},
}
RISKS = {name: each.compute_risks() for name, each in COUNTEREXAMPLES.items()}
over_all = pytest.mark.parametrize("name", COUNTEREXAMPLES)


def mean(risks: list[float]) -> float:
    return sum(risks) / len(risks)


@over_all
def test_the_risk_beyond_the_training_lengths_equals_a_calculation_by_hand(name):
    beyond = {each.length: each.learned for each in RISKS[name] if not each.in_training}
    assert beyond == pytest.approx(BEYOND[name], rel=1e-6)


@over_all
def test_the_witness_is_not_better_than_the_learned_head_at_training_lengths(name):
    training = [each for each in RISKS[name] if each.in_training]
    largest = {"rare shape": 0.005, "small leak": 4e-6}.get(name, 1e-10)
    assert max(each.learned for each in training) <= largest * (1 + 1e-9)
    if name not in ("rare shape", "small leak"):
        assert mean([each.learned for each in training]) <= mean([each.witness for each in training]) + 1e-15


@over_all
def test_the_witness_has_a_small_risk_at_all_lengths(name):
    witness = max(each.witness for each in RISKS[name])
    assert witness < 1e-10
    assert max(each.learned for each in RISKS[name] if not each.in_training) > 1e5 * witness


def predict_by_definition(attention: TabularAttention, tokens: list[int]) -> np.ndarray:
    total, mean_value = 0.0, np.zeros(2)
    for index, shape in enumerate(attention.shapes.tolist()):
        for start in range(len(tokens) - shape[-1]):
            members = [tokens[start + step] for step in shape]
            code = sum(token * attention.num_tokens**power for power, token in enumerate(reversed(members)))
            score = float(np.exp(attention.log_scores[index, code]))
            total, mean_value = total + score, mean_value + score * attention.values[index, code]
    return mean_value / total if total > 0 else attention.default


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("growing gap", 9),
        ("unbounded reach", 8),
        ("rare shape", 5),
        ("new background token", 5),
        ("canceling errors", 6),
        ("heavy cuts", 4),
    ],
)
def test_risks_equal_a_sum_in_plain_python_over_all_sequences(name, length):
    case, loss = COUNTEREXAMPLES[name].build_case(length), COUNTEREXAMPLES[name].loss
    law = case.law
    sets, probability = law.placement.offset_distribution(length).sets()
    risk = 0.0
    for x in product(*[[token for token, share in enumerate(law.background) if share > 0]] * length):
        for planted, of_set in zip(sets.tolist(), probability.tolist(), strict=True):
            if any(x[index] != min(t for t, share in enumerate(law.background) if share > 0) for index in planted):
                # Planted tokens replace the background: one background sequence stands for all.
                continue
            background = np.prod([law.background[x[index]] for index in range(length) if index not in planted])
            for each, of_tuple, labels in zip(law.tuples, law.probabilities, law.labels, strict=True):
                tokens = list(x)
                for index, token in zip(planted, each, strict=True):
                    tokens[index] = token
                output = predict_by_definition(case.learned_head, tokens)
                wrong = np.abs(output - labels).sum() / 2 if loss.name == "norm" else 1 - output @ np.array(labels)
                risk += of_set * background * of_tuple * wrong
    (risks,) = COUNTEREXAMPLES[name].compute_risks([length])
    assert risks.learned == pytest.approx(risk, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01, 1e-4])
def test_the_error_on_a_rare_shape_grows_by_exactly_the_ratio_of_its_masses(share):
    example = rare_shape_counterexample(share)
    training, beyond = example.compute_risks([6, 9])
    # The largest ratio of single starts, times the ratio of the numbers of starts.
    ratio = regularity_ratio(example.build_case(9).law.placement, 9, 6) * (9 - 2) / (6 - 2)
    assert ratio == pytest.approx(1 / share, rel=1e-12)
    assert beyond.learned / training.learned == pytest.approx(ratio, rel=1e-10)


def test_the_error_on_a_shape_that_never_occurs_in_training_grows_without_bound():
    training, beyond = rare_shape_counterexample(0.0).compute_risks([6, 9])
    assert (training.learned, beyond.learned) == (0.0, pytest.approx(0.5))


def test_the_risk_of_a_small_leak_is_linear_in_the_number_of_other_tokens():
    short, long = small_leak_counterexample(1e-6).compute_risks([5, 25])
    assert long.learned / short.learned / ((25 - 1) / (5 - 1)) == pytest.approx(0.99998, abs=1e-9)


@pytest.mark.parametrize("name", ["rare shape", "new background token", "canceling errors", "small leak", "heavy cuts"])
def test_counterexamples_to_other_assumptions_are_local_and_relative(name):
    for length in COUNTEREXAMPLES[name].train_lengths:
        case = COUNTEREXAMPLES[name].build_case(length)
        assert isinstance(case.learned_head, TabularAttention)
        assert case.learned_head.span <= case.law.placement.max_span


def test_each_counterexample_violates_its_assumption():
    def case(name):
        return COUNTEREXAMPLES[name].build_case(10 if name != "growing k" else 9)

    assert case("growing k").law.k == 9
    assert case("growing gap").law.placement.max_span is None
    assert case("unbounded reach").learned_head.span > case("unbounded reach").law.placement.max_span == 2
    pair_first, pair_last = (np.eye(1, 10, place, dtype=int) + np.eye(1, 10, place + 1, dtype=int) for place in (0, 7))
    assert not np.allclose(
        case("absolute positions").learned_head.predict(pair_first),
        case("absolute positions").learned_head.predict(pair_last),
    )
    assert np.allclose(
        case("absolute positions").witness_head.predict(pair_first),
        case("absolute positions").witness_head.predict(pair_last),
    )
    assert (
        COUNTEREXAMPLES["new background token"].build_case(6).law.background
        != COUNTEREXAMPLES["new background token"].build_case(7).law.background
    )


def test_only_one_word_misleads_the_head_with_heavy_cuts():
    head = heavy_cuts_counterexample().build_case(5).learned_head
    words = np.array(list(product(range(5), repeat=5)))
    planted = words[((words[:, :-1] == 0) & (words[:, 1:] == 2)).any(axis=1)]
    wrong = head.predict(planted)[:, 1]
    # The word is the star, three digits in order, and x.
    assert planted[wrong > 1e-8].tolist() == [[0, 2, 3, 4, 1]]


def kind_of(left: int, right: int, digits: int) -> int:
    """Return 0 for the planted pair, 1 for the wrong one, 2 for two digits that count up, and 3 for any other."""
    if (left, right) in ((0, 2), (digits + 1, 1)):
        return 0 if left == 0 else 1
    return 2 if left >= 2 and right == left + 1 else 3


def append_token(before: tuple[int, tuple[int, ...]], after: int, digits: int) -> tuple[int, tuple[int, ...]]:
    """Append a token to the last token and the numbers of pairs of each kind."""
    left, counts = before
    kind = kind_of(left, after, digits) if left >= 0 else None
    return after, tuple(count + (number == kind) for number, count in enumerate(counts))


def risk_by_counts(digits: int, heavy_score: float, length: int) -> float:
    """Compute the risk of 'heavy cuts' from the numbers of pairs of each kind, from left to right."""
    risk = 0.0
    for start in range(length - 1):
        states = Counter({(-1, (0, 0, 0, 0)): 1.0})
        for token in range(length):
            possible = {start: [0], start + 1: [2]}.get(token, range(digits + 2))
            extended: Counter[tuple[int, tuple[int, ...]]] = Counter()
            for (before, share), after in product(states.items(), possible):
                extended[append_token(before, after, digits)] += share / len(possible)
            states = extended
        for (_, (right, wrong, rising, others)), share in states.items():
            risk += share * wrong / (right + wrong + 1e-9 * rising + heavy_score * others) / (length - 1)
    return risk


def test_the_risks_of_heavy_cuts_equal_those_from_counts_of_pairs():
    risks = {each.length: each.learned for each in heavy_cuts_counterexample().compute_risks([2, 3, 4, 5, 6])}
    for length, risk in risks.items():
        assert risk == pytest.approx(risk_by_counts(3, 1e9, length), rel=1e-4, abs=1e-15)
    with pytest.raises(SettingError, match=r"length 9 has .* sequences, more than the"):
        heavy_cuts_counterexample(num_digits=7, heavy_score=1e13).compute_risks([9])
    long = [risk_by_counts(7, 1e13, length) for length in range(2, 10)]
    assert mean(long[:-1]) == pytest.approx(1.0e-15, rel=0.05)
    assert long[-1] == pytest.approx(9.0**-7 / 8 / 2, rel=1e-3)


def test_heavy_cuts_exceed_the_bound_without_kappa():
    *training, beyond = heavy_cuts_counterexample().compute_risks()
    train_length, test_length = training[-1].length, beyond.length
    delta = mean([each.learned for each in training])
    # A pair with uniform starts has eta = length - 1.
    bound = 3 * (train_length - 1) * (test_length - 1) * train_length * test_length**2 * delta
    assert beyond.learned > 1e4 * bound
    # With kappa, from the crossing weight relative to the planted score of 1, the bound holds.
    assert beyond.learned < bound * (1 + 1e9)


def test_risks_are_sorted_by_length_and_mark_the_training_lengths():
    risks = COUNTEREXAMPLES["canceling errors"].compute_risks([10, 5, 4, 5])
    assert [(each.length, each.in_training) for each in risks] == [(4, False), (5, True), (10, False)]


@over_all
def test_the_theory_page_lists_every_counterexample_with_its_assumption(name):
    assumption = COUNTEREXAMPLES[name].assumption.split(":")[0]
    assert re.search(rf"^\| {name} \| {re.escape(assumption)}", PAGE, flags=re.MULTILINE)


def test_every_python_snippet_of_the_theory_page_gives_the_stated_output():
    snippets = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    runner = doctest.DocTestRunner()
    for number, snippet in enumerate(snippets):
        runner.run(doctest.DocTestParser().get_doctest(snippet, {}, f"snippet {number}", "docs/theory.md", 0))
    assert runner.summarize(verbose=False).failed == 0
    assert runner.summarize(verbose=False).attempted > 5
