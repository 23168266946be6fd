"""Planted correlations: the probabilities are those of the definition, and the sampler draws by them."""

from collections.abc import Callable
from itertools import product
from math import prod

import numpy as np
import pytest
import torch

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import stream
from lengthwise.tasks import PLACEMENTS, Planted
from lengthwise.tasks.planted.placement import ByLength, Local, Placement, Subsets, UniformShapes

SEEDS = 20
# Sequences of each seed.
SIZE = 2_000
# Bonferroni: one chance in a thousand that any of the seeds is refused wrongly.
LEAST_P = 1e-3 / SEEDS

# Background and planted tokens alike, labels by chance: nothing is told apart at sight.
AMBIGUOUS = {
    "local": Planted(
        background=(0.6, 0.4),
        tuples=((0, 1), (1, 0), (1, 1)),
        probabilities=(0.5, 0.2, 0.3),
        labels=((0.9, 0.1), (0.0, 1.0), (0.35, 0.65)),
        placement=Local(shapes=((0, 1), (0, 3)), weights=(0.7, 0.3)),
    ),
    "all subsets": Planted(
        background=(0.2, 0.5, 0.3),
        tuples=((0, 0), (2, 1)),
        probabilities=(0.4, 0.6),
        labels=((0.5, 0.25, 0.25), (0.0, 0.0, 1.0)),
        placement=Subsets(num_planted=2),
    ),
    "uniform shapes of three": Planted(
        background=(0.7, 0.3),
        tuples=((0, 1, 1), (1, 0, 0)),
        probabilities=(0.5, 0.5),
        labels=((1.0, 0.0), (0.2, 0.8)),
        placement=UniformShapes(num_planted=3, widest=4),
    ),
    "by length": Planted(
        background=(0.5, 0.3, 0.2),
        tuples=((2, 2), (0, 2)),
        probabilities=(0.25, 0.75),
        labels=((1.0, 0.0), (0.0, 1.0)),
        placement=ByLength(until=(4,)),
    ),
    "single tokens": Planted(
        background=(0.5, 0.5, 0.0),
        tuples=((1,), (2,)),
        probabilities=(0.5, 0.5),
        labels=((1.0, 0.0), (0.0, 1.0)),
        placement=Local(shapes=((0,),), weights=(1.0,)),
    ),
}
LAWS = {**AMBIGUOUS, "default": Planted()}
over_laws = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
over_ambiguous = pytest.mark.parametrize("law", AMBIGUOUS.values(), ids=AMBIGUOUS)
over_placements = pytest.mark.parametrize("placement", [entry() for entry in PLACEMENTS.values()], ids=PLACEMENTS)

Outcome = tuple[tuple[int, ...], tuple[int, ...], int]


def local_sets(shapes: dict[tuple[int, ...], float], length: int) -> dict[tuple[int, ...], float]:
    """The definition of a local law, one set at a time."""
    fitting = {shape: weight for shape, weight in shapes.items() if shape[-1] < length}
    return {
        tuple(start + step for step in shape): weight / sum(fitting.values()) / (length - shape[-1])
        for shape, weight in fitting.items()
        for start in range(length - shape[-1])
    }


def sets_of(placement: Placement, length: int) -> dict[tuple[int, ...], float]:
    """Every set and its probability, as plain Python has them."""
    tokens = range(length)
    match placement:
        case Local():
            return local_sets(dict(zip(placement.shapes, placement.weights, strict=True)), length)
        case UniformShapes():
            width = 1 if placement.num_planted == 1 else placement.widest
            every = {each for each in product(range(width), repeat=placement.num_planted) if each[0] == 0}
            rising = [each for each in every if list(each) == sorted(set(each))]
            return local_sets(dict.fromkeys(rising, 1 / len(rising)), length)
        case Subsets():
            every = [each for each in product(tokens, repeat=placement.k) if list(each) == sorted(set(each))]
            return dict.fromkeys(every, 1 / len(every))
        case ByLength():
            return sets_of(placement.laws[sum(length > last for last in placement.until)], length)
    raise AssertionError(placement)


def joint(law: Planted, length: int) -> dict[Outcome, float]:
    """``P(x, S, y)`` of everything that can be drawn, by the formula of the definition."""
    planted = dict(zip(law.tuples, zip(law.probabilities, law.labels, strict=True), strict=True))
    found: dict[Outcome, float] = {}
    for x in product(range(law.num_tokens), repeat=length):
        for chosen, of_set in sets_of(law.placement, length).items():
            share, labels = planted.get(tuple(x[token] for token in chosen), (0.0, ()))
            around = prod(law.background[x[token]] for token in range(length) if token not in chosen)
            for label, of_label in enumerate(labels):
                if of_set * share * around * of_label > 0:
                    found[x, chosen, label] = of_set * share * around * of_label
    return found


def told(law: Planted, length: int) -> dict[Outcome, float]:
    """The same from what the law says of sets and labels."""
    tokens = np.array(list(product(range(law.num_tokens), repeat=length)))
    sets, weights = law.set_weights(tokens)
    mu = np.where(np.array(law.background) == 0, 1.0, np.array(law.background))
    of_label = law.label_law[law.codes(tokens[:, sets])]  # batch sets labels
    probability = (weights * mu[tokens].prod(axis=1)[:, None])[:, :, None] * of_label
    return {
        (tuple(tokens[row].tolist()), tuple(sets[place].tolist()), int(label)): float(probability[row, place, label])
        for row, place, label in np.argwhere(probability > 0)
    }


def marginal(law: dict[Outcome, float], of: Callable[[Outcome], object]) -> dict[object, float]:
    """The law of a part of what is drawn."""
    found: dict[object, float] = {}
    for outcome, probability in law.items():
        found[of(outcome)] = found.get(of(outcome), 0.0) + probability
    return found


def p_value(statistic: float, freedom: int) -> float:
    """How likely a chi-square is at least so large."""
    return float(torch.special.gammaincc(torch.tensor(freedom / 2).double(), torch.tensor(statistic / 2).double()))


def drawn(law: Planted, length: int, size: int, seed: int) -> list[Outcome]:
    tokens, sets, labels = law.draw(length, size, stream(seed, "planted"))
    return [
        (tuple(x), tuple(chosen), label)
        for x, chosen, label in zip(tokens.tolist(), sets.tolist(), labels.tolist(), strict=True)
    ]


@over_laws
@pytest.mark.parametrize("length", [4, 5])
def test_the_probabilities_of_all_sequences_sets_and_labels_add_up_to_one(length, law):
    assert sum(told(law, length).values()) == pytest.approx(1.0, abs=1e-12)


@over_laws
def test_the_marginal_of_sets_planted_tuples_and_labels_has_the_given_product_form(law):
    planted = dict(zip(law.tuples, zip(law.probabilities, law.labels, strict=True), strict=True))
    found = marginal(told(law, 4), lambda each: (each[1], tuple(each[0][token] for token in each[1]), each[2]))
    expected = {
        (chosen, shown, label): of_set * share * of_label
        for chosen, of_set in sets_of(law.placement, 4).items()
        for shown, (share, labels) in planted.items()
        for label, of_label in enumerate(labels)
        if of_label > 0
    }
    assert found == pytest.approx(expected, abs=1e-12)


@over_placements
@pytest.mark.parametrize("beyond", [0, 1, 3, 16])
def test_the_law_of_a_placement_is_what_plain_python_lists(beyond, placement):
    length = placement.min_length + beyond
    sets, probability = placement.law(length).sets()
    listed = {tuple(chosen): share for chosen, share in zip(sets.tolist(), probability.tolist(), strict=True)}
    assert len(listed) == len(sets)
    assert listed == pytest.approx(sets_of(placement, length), abs=1e-15)
    assert sum(listed.values()) == pytest.approx(1.0, abs=1e-12)


@over_placements
def test_no_set_of_a_placement_reaches_over_more_than_its_span_and_one_of_them_over_just_that(placement):
    reached = {
        int(np.ptp(chosen)) + 1
        for length in range(placement.min_length, placement.min_length + 20)
        for chosen in placement.law(length).sets()[0]
    }
    assert max(reached) == (placement.min_length + 19 if placement.span is None else placement.span)


@over_placements
def test_a_placement_has_no_set_below_its_smallest_length(placement):
    placement.law(placement.min_length)
    for call in (placement.law, lambda length: placement.sample(length, 3, stream(0))):
        with pytest.raises(
            SettingError, match=rf"length {placement.min_length - 1} is too short for {placement.k} planted"
        ):
            call(placement.min_length - 1)


@over_placements
def test_sets_are_drawn_by_the_law_of_their_placement(placement):
    length = placement.min_length + 4
    expected = sets_of(placement, length)
    for seed in range(SEEDS):
        sets = placement.sample(length, SIZE, stream(seed, "sets"))
        assert {tuple(chosen) for chosen in sets.tolist()} <= set(expected)
        counted = {each: int((sets == each).all(axis=1).sum()) for each in expected}
        statistic = sum((counted[each] - SIZE * share) ** 2 / (SIZE * share) for each, share in expected.items())
        assert p_value(statistic, max(len(expected) - 1, 1)) > LEAST_P


@over_laws
def test_sequences_sets_and_labels_are_drawn_by_their_joint_law(law):
    expected = joint(law, 4)
    for seed in range(SEEDS):
        outcomes = drawn(law, 4, SIZE, seed)
        assert set(outcomes) <= set(expected)
        counted = dict.fromkeys(expected, 0)
        for outcome in outcomes:
            counted[outcome] += 1
        # A cell of its own for what is drawn often, one for all else.
        often = [outcome for outcome, share in expected.items() if SIZE * share >= 5]
        cells = [(counted[outcome], SIZE * expected[outcome]) for outcome in often]
        rest = SIZE - sum(share for _, share in cells)
        if rest > 1:
            cells.append((SIZE - sum(count for count, _ in cells), rest))
        assert p_value(sum((count - share) ** 2 / share for count, share in cells), len(cells) - 1) > LEAST_P


@over_laws
def test_the_background_is_independent_of_the_planted_set_and_tuple(law):
    length, size, statistic, freedom = 6, 2_000, 0.0, 0
    drawable = int((np.array(law.background) > 0).sum())
    for seed in range(SEEDS):
        tokens, sets, _ = law.draw(length, size, stream(seed, "independent"))
        around = np.ones(tokens.shape, dtype=bool)
        np.put_along_axis(around, sets, values=False, axis=1)
        # Any set has as many background tokens: one of them is looked at.
        first = tokens[np.arange(size), around.argmax(axis=1)]
        given = np.unique(np.concatenate([sets, np.take_along_axis(tokens, sets, axis=1)], axis=1), axis=0)
        planted = np.concatenate([sets, np.take_along_axis(tokens, sets, axis=1)], axis=1)
        for condition in given:
            seen = first[(planted == condition).all(axis=1)]
            if len(seen) < 40:
                continue
            expected = len(seen) * np.array(law.background)
            counts = np.bincount(seen, minlength=law.num_tokens)
            assert (counts[expected == 0] == 0).all()
            shown = expected > 0
            statistic += float(((counts[shown] - expected[shown]) ** 2 / expected[shown]).sum())
            freedom += drawable - 1
    assert freedom > 0
    assert p_value(statistic, freedom) > LEAST_P


@over_laws
@pytest.mark.parametrize("length", [4, 5])
def test_what_a_law_says_of_sets_and_labels_is_their_joint_law_with_the_tokens(length, law):
    assert told(law, length) == pytest.approx(joint(law, length), rel=1e-12, abs=1e-15)


@over_laws
def test_renaming_the_tokens_renames_the_sequences_and_changes_no_probability(law, rng):
    # Row i of the renamed law belongs to the token that was order[i].
    order = rng.permutation(law.num_tokens)
    renamed = Planted(
        background=tuple(law.background[token] for token in order),
        tuples=tuple(tuple(int(np.flatnonzero(order == token)[0]) for token in each) for each in law.tuples),
        probabilities=law.probabilities,
        labels=law.labels,
        placement=law.placement,
    )
    tokens = rng.integers(0, law.num_tokens, size=(200, 6))
    (_, weights), (_, of_renamed) = law.set_weights(order[tokens]), renamed.set_weights(tokens)
    assert np.allclose(weights, of_renamed, rtol=1e-12, atol=0)


@over_laws
def test_background_tokens_that_change_places_change_no_probability(law, rng):
    tokens = rng.integers(0, law.num_tokens, size=(100, 7))
    sets, weights = law.set_weights(tokens)
    for place, chosen in enumerate(sets):
        others = np.setdiff1d(np.arange(7), chosen)
        moved = tokens.copy()
        moved[:, others] = tokens[:, rng.permutation(others)]
        assert np.allclose(law.set_weights(moved)[1][:, place], weights[:, place], rtol=1e-12, atol=0)


@over_ambiguous
def test_an_asked_prompt_is_answered_with_its_most_probable_label(law, rng):
    length = 5
    of_label = marginal(joint(law, length), lambda each: (each[0], each[2]))
    checked = 0
    for x in rng.integers(0, law.num_tokens, size=(60, length)).tolist():
        votes = [of_label.get((tuple(x), label), 0.0) for label in range(law.num_labels)]
        if sum(votes) == 0 or sorted(votes)[-1] - sorted(votes)[-2] < 1e-12:
            continue
        examples = law.from_prompt(" ".join(law.vocabulary[token] for token in x))
        answer = law.vocabulary[examples.tokens[0, length + 1]]
        assert answer == str(int(np.argmax(votes)))
        checked += 1
    assert checked > 10


@over_laws
def test_an_example_shows_its_tokens_its_separator_its_label_and_names_the_planted_set(law, rng):
    examples = law.sample(length=6, size=30, rng=stream(3, "examples"))
    tokens, sets, labels = law.draw(6, 30, stream(3, "examples"))
    assert examples.support is not None
    assert np.array_equal(examples.tokens[:, :6], tokens)
    assert [law.vocabulary[token] for token in examples.tokens[:, 7]] == [str(label) for label in labels]
    assert {law.vocabulary[token] for token in examples.tokens[:, 6]} == {"="}
    assert np.array_equal(examples.support[:, 7], sets)


def test_a_token_that_the_background_never_draws_has_to_be_planted():
    # Both c and d are never background: a set that leaves one of them out is impossible.
    sets, weights = Planted().set_weights(np.array([[2, 3, 0, 0], [2, 3, 2, 0]]))
    assert sets[weights[0] > 0].tolist() == [[0, 1]]
    assert (weights[1] == 0).all()


def test_a_law_by_length_changes_right_after_the_lengths_it_names():
    law = ByLength(until=(4, 7), laws=tuple(Local(shapes=((0, gap),), weights=(1.0,)) for gap in (1, 2, 3)))
    gaps = {length: int(np.ptp(law.law(length).sets()[0][0])) for length in range(2, 10)}
    assert gaps == {2: 1, 3: 1, 4: 1, 5: 2, 6: 2, 7: 2, 8: 3, 9: 3}


def test_a_shape_without_weight_counts_neither_for_the_span_nor_for_the_smallest_length():
    law = Local(shapes=((0, 1), (0, 2), (0, 5)), weights=(0.0, 1.0, 0.0))
    assert (law.span, law.min_length) == (3, 3)


def test_more_sets_than_can_be_listed_are_still_drawn():
    law = Subsets(num_planted=9)
    sets = law.sample(400, 50, stream(0))
    assert (np.diff(sets, axis=1) > 0).all()
    assert sets.max() > 300
    with pytest.raises(SettingError, match="more than 200000"):
        law.law(400)
