"""Counterexamples: heads that do as well as any on the trained lengths and fail beyond, by exact enumeration."""

import doctest
import re
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from lengthwise.core.errors import SettingError
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.bounds.conditions import rho
from lengthwise.theory.counterexamples import COUNTEREXAMPLES, heavy_joints, rare_shape, small_leak
from lengthwise.theory.counterexamples.counterexample import Row, columns

PAGE = (Path(__file__).parents[2] / "docs/theory.md").read_text()

# Exact values by hand. C2b: where the pair stands leaves so many pairs of fillers with a gap of 6 or more.
FAR = {pairs: 0.5 * 1e3 * pairs / (1e3 * pairs + 1) for pairs in range(1, 7)}
BEYOND = {
    "C1": {7: 0.5, 8: 0.5, 9: 0.5},
    "C2a": {9: 0.15, 10: 0.5},
    "C2b": {7: 4 / 6 * FAR[1], 8: (2 * FAR[2] + 3 * FAR[3]) / 7, 9: (FAR[1] + FAR[3] + FAR[5] + FAR[6]) / 4},
    "C3": {7: 0.5, 8: 0.5, 9: 0.5},
    "C4": {7: 1 / 12, 8: 1 / 7, 9: 3 / 16},
    "C5": {7: 0.5 * (1 - 0.7**5)},
    "C6": {4: 1 / 4, 6: 1 / 6, 10: 1 / 2},
    "C7": {10: 9e-6 / (1 + 9e-6), 25: 24e-6 / (1 + 24e-6)},
    "C8": {5: 5.0**-3 / 4 / 2},
}
ROWS = {name: each.run() for name, each in COUNTEREXAMPLES.items()}
over_all = pytest.mark.parametrize("name", COUNTEREXAMPLES)


def mean(risks: list[float]) -> float:
    return sum(risks) / len(risks)


@over_all
def test_the_risk_beyond_the_trained_lengths_is_what_a_calculation_by_hand_gives(name):
    beyond = {row.length: row.learned for row in ROWS[name] if not row.trained}
    assert beyond == pytest.approx(BEYOND[name], rel=1e-6)


@over_all
def test_on_the_trained_lengths_nothing_is_better_than_what_was_learned(name):
    trained = [row for row in ROWS[name] if row.trained]
    worst = {"C3": 0.005, "C7": 4e-6}.get(name, 1e-10)
    assert max(row.learned for row in trained) <= worst * (1 + 1e-9)
    if name not in ("C3", "C7"):
        assert mean([row.learned for row in trained]) <= mean([row.witness for row in trained]) + 1e-15


@over_all
def test_the_class_has_a_member_that_does_well_at_all_lengths(name):
    assert max(row.witness for row in ROWS[name]) < 1e-10
    assert max(row.learned for row in ROWS[name] if not row.trained) > 1e5 * max(row.witness for row in ROWS[name])


def written_out(attention: TabularAttention, tokens: list[int]) -> np.ndarray:
    """The definition, one set at a time."""
    total, mean_value = 0.0, np.zeros(2)
    for row, shape in enumerate(attention.shapes.tolist()):
        for start in range(len(tokens) - shape[-1]):
            shown = [tokens[start + step] for step in shape]
            code = sum(token * attention.num_tokens**power for power, token in enumerate(reversed(shown)))
            score = float(np.exp(attention.log_scores[row, code]))
            total, mean_value = total + score, mean_value + score * attention.values[row, code]
    return mean_value / total if total > 0 else attention.default


@pytest.mark.parametrize(("name", "length"), [("C2a", 9), ("C2b", 8), ("C3", 5), ("C5", 5), ("C6", 6), ("C8", 4)])
def test_risks_are_those_of_plain_python_over_all_sequences(name, length):
    case, loss = COUNTEREXAMPLES[name].case(length), COUNTEREXAMPLES[name].loss
    law = case.law
    sets, probability = law.placement.law(length).sets()
    risk = 0.0
    for x in product(*[[token for token, share in enumerate(law.background) if share > 0]] * length):
        for chosen, of_set in zip(sets.tolist(), probability.tolist(), strict=True):
            if any(x[token] != min(t for t, share in enumerate(law.background) if share > 0) for token in chosen):
                # What is planted takes the place of any background: one stands for all.
                continue
            around = np.prod([law.background[x[token]] for token in range(length) if token not in chosen])
            for each, of_tuple, labels in zip(law.tuples, law.probabilities, law.labels, strict=True):
                tokens = list(x)
                for token, shown in zip(chosen, each, strict=True):
                    tokens[token] = shown
                answer = written_out(case.learned, tokens)
                wrong = np.abs(answer - labels).sum() / 2 if loss.name == "norm" else 1 - answer @ np.array(labels)
                risk += of_set * around * of_tuple * wrong
    (row,) = COUNTEREXAMPLES[name].run([length])
    assert row.learned == pytest.approx(risk, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01, 1e-4])
def test_the_error_on_a_rare_shape_grows_by_exactly_the_ratio_of_its_masses(share):
    example = rare_shape(share)
    trained, beyond = example.run([6, 9])
    # The largest ratio of single places, times that of the numbers of places.
    ratio = rho(example.case(9).law.placement, 9, 6) * (9 - 2) / (6 - 2)
    assert ratio == pytest.approx(1 / share, rel=1e-12)
    assert beyond.learned / trained.learned == pytest.approx(ratio, rel=1e-10)


def test_the_error_on_a_shape_that_is_never_trained_grows_without_bound():
    trained, beyond = rare_shape(0.0).run([6, 9])
    assert (trained.learned, beyond.learned) == (0.0, pytest.approx(0.5))


def test_a_little_leak_grows_linearly_in_the_number_of_other_tokens():
    short, long = small_leak(1e-6).run([5, 25])
    assert long.learned / short.learned / ((25 - 1) / (5 - 1)) == pytest.approx(0.99998, abs=1e-9)


@pytest.mark.parametrize("name", ["C3", "C5", "C6", "C7", "C8"])
def test_what_breaks_is_not_locality_or_relativity_where_neither_is_left_out(name):
    for length in COUNTEREXAMPLES[name].trained:
        case = COUNTEREXAMPLES[name].case(length)
        assert isinstance(case.learned, TabularAttention)
        assert case.learned.span <= case.law.placement.span


def test_each_head_lacks_what_its_counterexample_leaves_out(rng):
    def case(name):
        return COUNTEREXAMPLES[name].case(10 if name != "C1" else 9)

    assert case("C1").law.k == 9
    assert case("C2a").law.placement.span is None
    assert case("C2b").learned.span > case("C2b").law.placement.span == 2
    pair_first, pair_last = (np.eye(1, 10, place, dtype=int) + np.eye(1, 10, place + 1, dtype=int) for place in (0, 7))
    assert not np.allclose(case("C4").learned.predict(pair_first), case("C4").learned.predict(pair_last))
    assert np.allclose(case("C4").witness.predict(pair_first), case("C4").witness.predict(pair_last))
    assert COUNTEREXAMPLES["C5"].case(6).law.background != COUNTEREXAMPLES["C5"].case(7).law.background


def test_one_word_alone_misleads_the_head_with_heavy_joints():
    head = heavy_joints().case(5).learned
    words = np.array(list(product(range(5), repeat=5)))
    planted = words[((words[:, :-1] == 0) & (words[:, 1:] == 2)).any(axis=1)]
    wrong = head.predict(planted)[:, 1]
    # The star, three digits in order and x.
    assert planted[wrong > 1e-8].tolist() == [[0, 2, 3, 4, 1]]


def kind_of(left: int, right: int, digits: int) -> int:
    """0: the planted pair, 1: the wrong one, 2: two digits counting up, 3: any other."""
    if (left, right) in ((0, 2), (digits + 1, 1)):
        return 0 if left == 0 else 1
    return 2 if left >= 2 and right == left + 1 else 3


def counted(before: tuple[int, tuple[int, ...]], after: int, digits: int) -> tuple[int, tuple[int, ...]]:
    """The last token and how many pairs of each kind there are, with one token more."""
    left, counts = before
    kind = kind_of(left, after, digits) if left >= 0 else None
    return after, tuple(count + (number == kind) for number, count in enumerate(counts))


def risk_by_counts(digits: int, heavy: float, length: int) -> float:
    """The risk of C8 by counting how many pairs of each kind a sequence has, from left to right."""
    risk = 0.0
    for start in range(length - 1):
        states = Counter({(-1, (0, 0, 0, 0)): 1.0})
        for token in range(length):
            shown = {start: [0], start + 1: [2]}.get(token, range(digits + 2))
            grown: Counter[tuple[int, tuple[int, ...]]] = Counter()
            for (before, share), after in product(states.items(), shown):
                grown[counted(before, after, digits)] += share / len(shown)
            states = grown
        for (_, (right, wrong, rising, others)), share in states.items():
            risk += share * wrong / (right + wrong + 1e-9 * rising + heavy * others) / (length - 1)
    return risk


def test_heavy_joints_have_the_risks_that_counting_pairs_gives():
    found = {row.length: row.learned for row in heavy_joints().run([2, 3, 4, 5, 6])}
    for length, risk in found.items():
        assert risk == pytest.approx(risk_by_counts(3, 1e9, length), rel=1e-4, abs=1e-15)
    with pytest.raises(SettingError, match=r"length 9 has .* sequences, more than the"):
        heavy_joints(digits=7, heavy=1e13).run([9])
    long = [risk_by_counts(7, 1e13, length) for length in range(2, 10)]
    assert mean(long[:-1]) == pytest.approx(1.0e-15, rel=0.05)
    assert long[-1] == pytest.approx(9.0**-7 / 8 / 2, rel=1e-3)


def test_heavy_joints_exceed_the_bound_that_leaves_their_weight_out():
    *trained, tested = heavy_joints().run()
    longest, test = trained[-1].length, tested.length
    delta = mean([row.learned for row in trained])
    # Uniform places of one pair: there are length - 1 of them, and the shortest sequence has one.
    bound = 3 * (longest - 1) * (test - 1) * longest * test**2 * delta
    assert tested.learned > 1e4 * bound
    # With what may cross a joint beside the planted pair's score of 1, it holds.
    assert tested.learned < bound * (1 + 1e9)


def test_rows_are_in_order_of_length_and_say_which_were_trained():
    rows = COUNTEREXAMPLES["C6"].run([10, 5, 4, 5])
    assert [(row.length, row.trained) for row in rows] == [(4, False), (5, True), (10, False)]


def test_columns_hold_what_rows_hold():
    rows = [
        Row(length=3, trained=True, learned=0.25, witness=0.0),
        Row(length=9, trained=False, learned=1.0, witness=0.0),
    ]
    assert {name: column.tolist() for name, column in columns(rows).items()} == {
        "length": [3, 9],
        "trained": [True, False],
        "learned": [0.25, 1.0],
        "witness": [0.0, 0.0],
    }


@over_all
def test_the_page_of_the_theory_names_every_counterexample_with_its_assumption(name):
    assumption = COUNTEREXAMPLES[name].assumption.split(":")[0]
    assert re.search(rf"^\| `{name}` \| {re.escape(assumption)}", PAGE, flags=re.MULTILINE)


def test_every_python_snippet_of_the_page_says_what_it_gives():
    snippets = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    runner = doctest.DocTestRunner()
    for number, snippet in enumerate(snippets):
        runner.run(doctest.DocTestParser().get_doctest(snippet, {}, f"snippet {number}", "docs/theory.md", 0))
    assert runner.summarize(verbose=False).failed == 0
    assert runner.summarize(verbose=False).attempted > 5
