"""Planted correlations: exact probabilities and the distribution of samples."""

from collections.abc import Callable
from itertools import product
from math import prod

import numpy as np
import pytest
import torch

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.tasks import PLACEMENTS, PlantedCorrelations
from lengthwise.tasks.planted.placement import (
    LengthDependentPlacement,
    LocalPlacement,
    Placement,
    SubsetPlacement,
    UniformShapePlacement,
)

SEEDS = 20
# Sequences per seed.
SIZE = 2_000
# Bonferroni: a false rejection of any seed has probability 0.001.
LEAST_P = 1e-3 / SEEDS

# Laws whose planted tokens also occur in the background, with random labels.
AMBIGUOUS = {
    "local": PlantedCorrelations(
        background=(0.6, 0.4),
        tuples=((0, 1), (1, 0), (1, 1)),
        probabilities=(0.5, 0.2, 0.3),
        labels=((0.9, 0.1), (0.0, 1.0), (0.35, 0.65)),
        placement=LocalPlacement(shapes=((0, 1), (0, 3)), weights=(0.7, 0.3)),
    ),
    "all subsets": PlantedCorrelations(
        background=(0.2, 0.5, 0.3),
        tuples=((0, 0), (2, 1)),
        probabilities=(0.4, 0.6),
        labels=((0.5, 0.25, 0.25), (0.0, 0.0, 1.0)),
        placement=SubsetPlacement(num_planted=2),
    ),
    "uniform shapes of three": PlantedCorrelations(
        background=(0.7, 0.3),
        tuples=((0, 1, 1), (1, 0, 0)),
        probabilities=(0.5, 0.5),
        labels=((1.0, 0.0), (0.2, 0.8)),
        placement=UniformShapePlacement(num_planted=3, widest=4),
    ),
    "by length": PlantedCorrelations(
        background=(0.5, 0.3, 0.2),
        tuples=((2, 2), (0, 2)),
        probabilities=(0.25, 0.75),
        labels=((1.0, 0.0), (0.0, 1.0)),
        placement=LengthDependentPlacement(until=(4,)),
    ),
    "single tokens": PlantedCorrelations(
        background=(0.5, 0.5, 0.0),
        tuples=((1,), (2,)),
        probabilities=(0.5, 0.5),
        labels=((1.0, 0.0), (0.0, 1.0)),
        placement=LocalPlacement(shapes=((0,),), weights=(1.0,)),
    ),
}
LAWS = {**AMBIGUOUS, "default": PlantedCorrelations()}
over_laws = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
over_ambiguous = pytest.mark.parametrize("law", AMBIGUOUS.values(), ids=AMBIGUOUS)
over_placements = pytest.mark.parametrize("placement", [entry() for entry in PLACEMENTS.values()], ids=PLACEMENTS)

Outcome = tuple[tuple[int, ...], tuple[int, ...], int]


def local_sets(shapes: dict[tuple[int, ...], float], length: int) -> dict[tuple[int, ...], float]:
    """Return the probabilities of a local law from its definition."""
    fitting = {shape: weight for shape, weight in shapes.items() if shape[-1] < length}
    return {
        tuple(start + step for step in shape): weight / sum(fitting.values()) / (length - shape[-1])
        for shape, weight in fitting.items()
        for start in range(length - shape[-1])
    }


def sets_of(placement: Placement, length: int) -> dict[tuple[int, ...], float]:
    """Return the probability of each set from the definition of the placement."""
    tokens = range(length)
    match placement:
        case LocalPlacement():
            return local_sets(dict(zip(placement.shapes, placement.weights, strict=True)), length)
        case UniformShapePlacement():
            width = 1 if placement.num_planted == 1 else placement.widest
            every = {each for each in product(range(width), repeat=placement.num_planted) if each[0] == 0}
            rising = [each for each in every if list(each) == sorted(set(each))]
            return local_sets(dict.fromkeys(rising, 1 / len(rising)), length)
        case SubsetPlacement():
            every = [each for each in product(tokens, repeat=placement.k) if list(each) == sorted(set(each))]
            return dict.fromkeys(every, 1 / len(every))
        case LengthDependentPlacement():
            return sets_of(placement.laws[sum(length > last for last in placement.until)], length)
    raise AssertionError(placement)


def joint(law: PlantedCorrelations, length: int) -> dict[Outcome, float]:
    """Return ``P(x, S, y)`` of all possible outcomes from the definition."""
    planted = dict(zip(law.tuples, zip(law.probabilities, law.labels, strict=True), strict=True))
    probabilities: dict[Outcome, float] = {}
    for x in product(range(law.num_tokens), repeat=length):
        for planted_set, of_set in sets_of(law.placement, length).items():
            share, labels = planted.get(tuple(x[token] for token in planted_set), (0.0, ()))
            around = prod(law.background[x[token]] for token in range(length) if token not in planted_set)
            for label, of_label in enumerate(labels):
                if of_set * share * around * of_label > 0:
                    probabilities[x, planted_set, label] = of_set * share * around * of_label
    return probabilities


def joint_from_law(law: PlantedCorrelations, length: int) -> dict[Outcome, float]:
    """Return ``P(x, S, y)`` from the weights of sets and labels of the law."""
    tokens = np.array(list(product(range(law.num_tokens), repeat=length)))
    sets, weights = law.planted_set_weights(tokens)
    mu = np.where(np.array(law.background) == 0, 1.0, np.array(law.background))
    of_label = law.label_probabilities[law.tuple_codes(tokens[:, sets])]  # batch sets labels
    probability = (weights * mu[tokens].prod(axis=1)[:, None])[:, :, None] * of_label
    return {
        (tuple(tokens[row].tolist()), tuple(sets[place].tolist()), int(label)): float(probability[row, place, label])
        for row, place, label in np.argwhere(probability > 0)
    }


def marginal(law: dict[Outcome, float], of: Callable[[Outcome], object]) -> dict[object, float]:
    """Return the distribution of a function of the outcome."""
    probabilities: dict[object, float] = {}
    for outcome, probability in law.items():
        probabilities[of(outcome)] = probabilities.get(of(outcome), 0.0) + probability
    return probabilities


def p_value(statistic: float, freedom: int) -> float:
    """Return the p-value of a chi-square statistic."""
    return float(torch.special.gammaincc(torch.tensor(freedom / 2).double(), torch.tensor(statistic / 2).double()))


def sample_outcomes(law: PlantedCorrelations, length: int, size: int, seed: int) -> list[Outcome]:
    tokens, sets, labels = law.sample_arrays(length, size, random_stream(seed, "planted"))
    return [
        (tuple(x), tuple(planted_set), label)
        for x, planted_set, label in zip(tokens.tolist(), sets.tolist(), labels.tolist(), strict=True)
    ]


@over_laws
@pytest.mark.parametrize("length", [4, 5])
def test_the_probabilities_of_all_sequences_sets_and_labels_add_up_to_one(length, law):
    assert sum(joint_from_law(law, length).values()) == pytest.approx(1.0, abs=1e-12)


@over_laws
def test_the_marginal_of_sets_tuples_and_labels_is_a_product(law):
    planted = dict(zip(law.tuples, zip(law.probabilities, law.labels, strict=True), strict=True))
    actual = marginal(
        joint_from_law(law, 4), lambda each: (each[1], tuple(each[0][token] for token in each[1]), each[2])
    )
    expected = {
        (planted_set, each, label): of_set * share * of_label
        for planted_set, of_set in sets_of(law.placement, 4).items()
        for each, (share, labels) in planted.items()
        for label, of_label in enumerate(labels)
        if of_label > 0
    }
    assert actual == pytest.approx(expected, abs=1e-12)


@over_placements
@pytest.mark.parametrize("beyond", [0, 1, 3, 16])
def test_the_law_of_a_placement_matches_its_definition(beyond, placement):
    length = placement.min_length + beyond
    sets, probability = placement.offset_distribution(length).sets()
    probabilities = {
        tuple(planted_set): share for planted_set, share in zip(sets.tolist(), probability.tolist(), strict=True)
    }
    assert len(probabilities) == len(sets)
    assert probabilities == pytest.approx(sets_of(placement, length), abs=1e-15)
    assert sum(probabilities.values()) == pytest.approx(1.0, abs=1e-12)


@over_placements
def test_the_span_of_a_placement_is_the_largest_span_of_its_sets(placement):
    spans = {
        int(np.ptp(planted_set)) + 1
        for length in range(placement.min_length, placement.min_length + 20)
        for planted_set in placement.offset_distribution(length).sets()[0]
    }
    assert max(spans) == (placement.min_length + 19 if placement.max_span is None else placement.max_span)


@over_placements
def test_a_length_below_the_minimum_of_a_placement_raises_an_error(placement):
    placement.offset_distribution(placement.min_length)
    for call in (placement.offset_distribution, lambda length: placement.sample(length, 3, random_stream(0))):
        with pytest.raises(
            SettingError, match=rf"length {placement.min_length - 1} is too short for {placement.k} planted"
        ):
            call(placement.min_length - 1)


@over_placements
def test_sampled_sets_follow_the_law_of_their_placement(placement):
    length = placement.min_length + 4
    expected = sets_of(placement, length)
    for seed in range(SEEDS):
        sets = placement.sample(length, SIZE, random_stream(seed, "sets"))
        assert {tuple(planted_set) for planted_set in sets.tolist()} <= set(expected)
        counts = {each: int((sets == each).all(axis=1).sum()) for each in expected}
        statistic = sum((counts[each] - SIZE * share) ** 2 / (SIZE * share) for each, share in expected.items())
        assert p_value(statistic, max(len(expected) - 1, 1)) > LEAST_P


@over_laws
def test_sampled_sequences_sets_and_labels_follow_their_joint_law(law):
    expected = joint(law, 4)
    for seed in range(SEEDS):
        outcomes = sample_outcomes(law, 4, SIZE, seed)
        assert set(outcomes) <= set(expected)
        counts = dict.fromkeys(expected, 0)
        for outcome in outcomes:
            counts[outcome] += 1
        # One cell per frequent outcome, and one for all others.
        frequent = [outcome for outcome, share in expected.items() if SIZE * share >= 5]
        cells = [(counts[outcome], SIZE * expected[outcome]) for outcome in frequent]
        rest = SIZE - sum(share for _, share in cells)
        if rest > 1:
            cells.append((SIZE - sum(count for count, _ in cells), rest))
        assert p_value(sum((count - share) ** 2 / share for count, share in cells), len(cells) - 1) > LEAST_P


@over_laws
def test_the_background_is_independent_of_the_planted_set_and_tuple(law):
    length, size, statistic, freedom = 6, 2_000, 0.0, 0
    drawable = int((np.array(law.background) > 0).sum())
    for seed in range(SEEDS):
        tokens, sets, _ = law.sample_arrays(length, size, random_stream(seed, "independent"))
        around = np.ones(tokens.shape, dtype=bool)
        np.put_along_axis(around, sets, values=False, axis=1)
        # The first background token of each sequence.
        first = tokens[np.arange(size), around.argmax(axis=1)]
        conditions = np.unique(np.concatenate([sets, np.take_along_axis(tokens, sets, axis=1)], axis=1), axis=0)
        planted = np.concatenate([sets, np.take_along_axis(tokens, sets, axis=1)], axis=1)
        for condition in conditions:
            values = first[(planted == condition).all(axis=1)]
            if len(values) < 40:
                continue
            expected = len(values) * np.array(law.background)
            counts = np.bincount(values, minlength=law.num_tokens)
            assert (counts[expected == 0] == 0).all()
            is_possible = expected > 0
            statistic += float(((counts[is_possible] - expected[is_possible]) ** 2 / expected[is_possible]).sum())
            freedom += drawable - 1
    assert freedom > 0
    assert p_value(statistic, freedom) > LEAST_P


@over_laws
@pytest.mark.parametrize("length", [4, 5])
def test_the_weights_of_sets_and_labels_give_the_joint_law(length, law):
    assert joint_from_law(law, length) == pytest.approx(joint(law, length), rel=1e-12, abs=1e-15)


@over_laws
def test_renaming_the_tokens_does_not_change_the_probabilities(law, rng):
    # Token i of the renamed law is token order[i] of the law.
    order = rng.permutation(law.num_tokens)
    renamed = PlantedCorrelations(
        background=tuple(law.background[token] for token in order),
        tuples=tuple(tuple(int(np.flatnonzero(order == token)[0]) for token in each) for each in law.tuples),
        probabilities=law.probabilities,
        labels=law.labels,
        placement=law.placement,
    )
    tokens = rng.integers(0, law.num_tokens, size=(200, 6))
    (_, weights), (_, of_renamed) = law.planted_set_weights(order[tokens]), renamed.planted_set_weights(tokens)
    assert np.allclose(weights, of_renamed, rtol=1e-12, atol=0)


@over_laws
def test_permuting_the_background_tokens_does_not_change_the_probabilities(law, rng):
    tokens = rng.integers(0, law.num_tokens, size=(100, 7))
    sets, weights = law.planted_set_weights(tokens)
    for place, planted_set in enumerate(sets):
        others = np.setdiff1d(np.arange(7), planted_set)
        moved = tokens.copy()
        moved[:, others] = tokens[:, rng.permutation(others)]
        assert np.allclose(law.planted_set_weights(moved)[1][:, place], weights[:, place], rtol=1e-12, atol=0)


@over_ambiguous
def test_the_answer_of_a_parsed_prompt_is_its_most_probable_label(law, rng):
    length = 5
    of_label = marginal(joint(law, length), lambda each: (each[0], each[2]))
    num_checked = 0
    for x in rng.integers(0, law.num_tokens, size=(60, length)).tolist():
        votes = [of_label.get((tuple(x), label), 0.0) for label in range(law.num_labels)]
        if sum(votes) == 0 or sorted(votes)[-1] - sorted(votes)[-2] < 1e-12:
            continue
        examples = law.example_from_prompt(" ".join(law.vocabulary[token] for token in x))
        answer = law.vocabulary[examples.tokens[0, length + 1]]
        assert answer == str(int(np.argmax(votes)))
        num_checked += 1
    assert num_checked > 10


@over_laws
def test_an_example_has_tokens_separator_and_label_and_the_planted_set_as_support(law, rng):
    examples = law.sample(length=6, size=30, rng=random_stream(3, "examples"))
    tokens, sets, labels = law.sample_arrays(6, 30, random_stream(3, "examples"))
    assert examples.depends_on is not None
    assert np.array_equal(examples.tokens[:, :6], tokens)
    assert [law.vocabulary[token] for token in examples.tokens[:, 7]] == [str(label) for label in labels]
    assert {law.vocabulary[token] for token in examples.tokens[:, 6]} == {"="}
    assert np.array_equal(examples.depends_on[:, 7], sets)


def test_a_token_with_background_probability_zero_must_be_planted():
    # c and d have background probability 0, so a set without one of them is impossible.
    sets, weights = PlantedCorrelations().planted_set_weights(np.array([[2, 3, 0, 0], [2, 3, 2, 0]]))
    assert sets[weights[0] > 0].tolist() == [[0, 1]]
    assert (weights[1] == 0).all()


def test_a_law_by_length_changes_after_the_lengths_in_until():
    law = LengthDependentPlacement(
        until=(4, 7), laws=tuple(LocalPlacement(shapes=((0, gap),), weights=(1.0,)) for gap in (1, 2, 3))
    )
    gaps = {length: int(np.ptp(law.offset_distribution(length).sets()[0][0])) for length in range(2, 10)}
    assert gaps == {2: 1, 3: 1, 4: 1, 5: 2, 6: 2, 7: 2, 8: 3, 9: 3}


def test_a_shape_with_weight_zero_affects_neither_span_nor_minimum_length():
    law = LocalPlacement(shapes=((0, 1), (0, 2), (0, 5)), weights=(0.0, 1.0, 0.0))
    assert (law.max_span, law.min_length) == (3, 3)


def test_a_placement_with_too_many_sets_to_enumerate_can_be_sampled():
    law = SubsetPlacement(num_planted=9)
    sets = law.sample(400, 50, random_stream(0))
    assert (np.diff(sets, axis=1) > 0).all()
    assert sets.max() > 300
    with pytest.raises(SettingError, match="more than 200,000"):
        law.offset_distribution(400)
