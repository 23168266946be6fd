"""Position coupling: over super-tokens a coupled attention and a coupled law are an attention and a planted law."""

from dataclasses import dataclass, replace
from itertools import combinations, product
from math import prod

import numpy as np
import pytest

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import stream
from lengthwise.tasks.planted.placement import Local, ShapeLaw, Subsets
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.position_coupling import (
    CoupledAttention,
    CoupledPlacement,
    Coupling,
    Halves,
    blocks,
    folded,
    places_of_ids,
    super_attention,
    super_law,
    super_tokens,
)
from lengthwise.theory.risk.exact_risk import Distance, TotalVariation, enumerated_risk

# IDs of a set, in the order of its tokens: all alike, on two IDs, and with a token to spare.
OFFSETS = {
    "one ID": [[0, 0]],
    "two IDs": [[0, 1], [1, 0], [2, 0]],
    "three tokens": [[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 1, 1], [1, 0, 1], [2, 2, 0]],
}
COUPLINGS = {"folded": folded, "blocks": blocks}
over_offsets = pytest.mark.parametrize("offsets", OFFSETS.values(), ids=OFFSETS)
over_couplings = pytest.mark.parametrize("coupling", COUPLINGS.values(), ids=COUPLINGS)

# A pair half the length apart among fillers of two kinds, the label its exclusive or.
FAR_PAIR = Planted(
    background=(0.7, 0.3, 0.0, 0.0),
    tuples=((2, 2), (2, 3), (3, 2), (3, 3)),
    probabilities=(0.25,) * 4,
    labels=((1.0, 0.0), (0.0, 1.0), (0.0, 1.0), (1.0, 0.0)),
    placement=Halves(),
)


def random_attention(
    offsets: list[list[int]], coupling: Coupling, rng: np.random.Generator, num_tokens: int = 2
) -> CoupledAttention:
    """Scores over many orders of magnitude, some of them 0."""
    shape = (len(offsets), num_tokens ** len(offsets[0]))
    log_scores = rng.normal(scale=4.0, size=shape)
    log_scores[rng.random(shape) < 0.2] = -np.inf
    return CoupledAttention(
        num_tokens=num_tokens,
        coupling=coupling,
        offsets=np.array(offsets),
        log_scores=log_scores,
        values=rng.random((*shape, 2)),
        default=np.array([0.5, 0.5]),
    )


def written_out(attention: CoupledAttention, tokens: list[int]) -> np.ndarray:
    """The definition, one set at a time."""
    ids, rows = attention.coupling(len(tokens)).tolist(), attention.offsets.tolist()
    total, mean = 0.0, np.zeros(2)
    for chosen in combinations(range(len(tokens)), len(rows[0])):
        least = min(ids[token] for token in chosen)
        row = [ids[token] - least for token in chosen]
        if row not in rows:
            continue
        code = int("".join(str(tokens[token]) for token in chosen), attention.num_tokens)
        score = float(np.exp(attention.log_scores[rows.index(row), code]))
        total, mean = total + score, mean + score * attention.values[rows.index(row), code]
    return mean / total if total > 0 else attention.default


@over_offsets
@over_couplings
def test_a_coupled_attention_is_the_weighted_mean_over_all_sets_of_tokens(coupling, offsets, rng):
    attention = random_attention(offsets, coupling, rng)
    for length in (4, 7, 8):
        tokens = rng.integers(0, 2, size=(20, length))
        expected = np.array([written_out(attention, row) for row in tokens.tolist()])
        assert np.abs(attention.predict(tokens) - expected).max() < 1e-12


@over_offsets
@over_couplings
@pytest.mark.parametrize("length", [4, 6, 8, 10])
def test_a_coupled_attention_of_tokens_is_an_attention_of_super_tokens(length, coupling, offsets, rng):
    attention = random_attention(offsets, coupling, rng)
    tokens = rng.integers(0, 2, size=(50, length))
    over_ids = super_attention(attention, 10)
    assert over_ids.span <= 3
    found = over_ids.predict(super_tokens(tokens, coupling, 2))
    assert np.abs(found - attention.predict(tokens)).max() < 1e-10
    assert found.std(axis=0).min() > 1e-3


def test_a_set_of_far_tokens_is_a_single_super_token():
    law = super_law(FAR_PAIR, folded, 8)
    assert (law.k, law.placement.span, law.placement.min_length) == (1, 1, 1)
    assert FAR_PAIR.placement.span is None
    # A super-token is read as a number of base 4.
    assert law.tuples == ((10,), (11,), (14,), (15,))


def raw_joint(law: Planted, coupling: Coupling, length: int) -> dict[tuple[tuple[int, ...], int], float]:
    """The law of super-tokens and label, added up over all sequences of tokens."""
    sets, probability = law.placement.law(length).sets()
    places = places_of_ids(coupling(length))
    found: dict[tuple[tuple[int, ...], int], float] = {}
    for x in product(range(law.num_tokens), repeat=length):
        shown = tuple(int("".join(str(x[token]) for token in group), law.num_tokens) for group in places)
        for chosen, share in zip(sets.tolist(), probability, strict=True):
            around = prod(law.background[x[token]] for token in range(length) if token not in chosen)
            for each, of_tuple, labels in zip(law.tuples, law.probabilities, law.labels, strict=True):
                if each == tuple(x[token] for token in chosen):
                    for label, of_label in enumerate(labels):
                        key = (shown, label)
                        found[key] = found.get(key, 0.0) + share * around * of_tuple * of_label
    return {key: share for key, share in found.items() if share > 0}


PLAIN = Planted(
    background=(0.6, 0.4),
    tuples=((0, 1), (1, 0), (1, 1)),
    probabilities=(0.5, 0.2, 0.3),
    labels=((0.9, 0.1), (0.0, 1.0), (0.35, 0.65)),
    placement=Halves(),
)


@pytest.mark.parametrize(
    ("law", "coupling"),
    [(PLAIN, folded), (replace(PLAIN, placement=Local(shapes=((0, 2),), weights=(1.0,))), np.arange)],
    ids=["a pair under one ID", "an ID for each token"],
)
@pytest.mark.parametrize("length", [4, 6])
def test_super_tokens_are_drawn_by_their_planted_law(length, law, coupling):
    expected = raw_joint(law, coupling, length)
    over_ids = super_law(law, coupling, length)
    found = raw_joint(over_ids, np.arange, len(places_of_ids(coupling(length))))
    assert found == pytest.approx(expected, abs=1e-12)


def test_super_tokens_that_hold_background_as_well_have_a_law_over_it():
    # One planted token a pair, always the first of its two: what stands beside it is background.
    single = Planted(
        background=(0.6, 0.4, 0.0),
        tuples=((2,),),
        probabilities=(1.0,),
        labels=((1.0, 0.0),),
        placement=FirstOfTwo(shapes=((0,),), weights=(1.0,)),
    )
    law = super_law(single, blocks, 8)
    assert dict(zip(law.tuples, law.probabilities, strict=True)) == pytest.approx({(6,): 0.6, (7,): 0.4})
    assert raw_joint(single, blocks, 6) == pytest.approx(raw_joint(law, np.arange, 3), abs=1e-12)


@dataclass(frozen=True, kw_only=True)
class FirstOfTwo(Local):
    """A single token, at an even place."""

    def law(self, length: int) -> ShapeLaw:
        """As the class says."""
        return ShapeLaw(shapes=np.array([[0]]), probability=np.resize([2 / length, 0.0], (1, length)))


@over_couplings
def test_a_random_offset_of_all_ids_changes_no_prediction(coupling, rng):
    attention = random_attention(OFFSETS["two IDs"], coupling, rng)
    tokens = rng.integers(0, 2, size=(20, 8))
    moved = replace(attention, coupling=lambda length: coupling(length) + 17)
    assert np.array_equal(moved.predict(tokens), attention.predict(tokens))


def leaking(score: float) -> CoupledAttention:
    """Reads pairs under one ID: those of planted tokens with score 1, all others with a small one and no answer."""
    pairs = list(product(range(4), repeat=2))
    planted = [first in (2, 3) and second in (2, 3) for first, second in pairs]
    says = [np.eye(2)[int(first != second)] if min(first, second) > 1 else (0.5, 0.5) for first, second in pairs]
    return CoupledAttention(
        num_tokens=4,
        coupling=folded,
        offsets=np.array([[0, 0]]),
        log_scores=np.log([[1.0 if each else score for each in planted]]),
        values=np.array([says]),
        default=np.array([0.5, 0.5]),
    )


@pytest.mark.parametrize("loss", [TotalVariation(), Distance()], ids=lambda loss: loss.name)
@pytest.mark.parametrize("length", [2, 6, 8])
def test_the_risk_over_super_tokens_is_the_risk_over_tokens(length, loss):
    attention = leaking(0.01)
    raw = enumerated_risk(FAR_PAIR, attention, length, loss).mean
    over_ids = super_law(FAR_PAIR, folded, 8), super_attention(attention, 8)
    assert enumerated_risk(*over_ids, length // 2, loss).mean == pytest.approx(raw, abs=1e-12)
    assert raw == 0 if length == 2 else raw > 1e-3


def test_with_one_id_for_all_that_is_planted_the_risk_grows_at_most_with_the_number_of_ids():
    law = super_law(FAR_PAIR, folded, 8)
    for score in (1e-4, 1e-2, 1.0):
        attention = super_attention(leaking(score), 8)
        risk = {number: enumerated_risk(law, attention, number, TotalVariation()).mean for number in (2, 3, 5, 7)}
        for short, long in combinations(risk, 2):
            assert risk[long] <= (long - 1) / (short - 1) * risk[short] * (1 + 1e-12)
    assert risk[7] > 0.4


@over_couplings
def test_placed_super_tokens_are_drawn_by_their_law(coupling):
    law = CoupledPlacement(placement=Subsets(num_planted=1), coupling=coupling, fibre=2, k=1)
    sets = law.sample(5, 2_000, stream(0))
    assert law.law(5).sets()[0][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert law.law(5).sets()[1] == pytest.approx(0.2)
    assert np.bincount(sets[:, 0]) / 2_000 == pytest.approx(0.2, abs=0.04)


def turned(length: int) -> np.ndarray:
    """Two tokens an ID, whose order changes halfway."""
    ids = np.repeat(np.arange(length // 2), 2)
    ids[length // 2 :] = ids[length // 2 :][::-1].copy()
    return ids if length < 4 else np.array([0, 1, 0, 1, *ids[4:]])


REFUSED = {
    "a token too many": (
        lambda: super_tokens(np.zeros((1, 5), int), folded, 2),
        r"ID 1 has 2 tokens and ID 0 has 3; couple equally many",
    ),
    "a negative ID": (lambda: places_of_ids(np.array([-1, 0])), r"a negative one; count IDs from 0"),
    "one ID and two": (
        lambda: super_attention(random_attention([[0, 0], [0, 1]], folded, stream(0)), 8),
        r"a set has 2 different IDs and another 1; couple so that all have equally many",
    ),
    "no room": (
        lambda: super_attention(random_attention([[0, 5]], folded, stream(0)), 8),
        r"IDs \(0, 5\) do not fit the 4 IDs of this length; use a longer one",
    ),
    "another order": (
        lambda: super_attention(random_attention([[0, 1]], turned, stream(0)), 12),
        r"tokens with IDs \(0, 1\) apart change their order along the sequence",
    ),
    "another place of the super-token": (
        lambda: super_law(replace(FAR_PAIR, placement=Local(shapes=((0, 1),), weights=(1.0,))), folded, 8),
        r"what is planted at IDs \(0, 3\) has another law than at IDs \(0, 1\); choose a coupling",
    ),
    "one ID or two": (
        lambda: super_law(replace(FAR_PAIR, placement=Local(shapes=((0, 1),), weights=(1.0,))), blocks, 8),
        r"a set has 2 different IDs and another 1",
    ),
    "a difference twice": (
        lambda: random_attention([[0, 1], [0, 1]], folded, stream(0)),
        r"IDs \(0, 1\) are there twice or do not start at 0; write each difference once",
    ),
    "no zero": (
        lambda: random_attention([[1, 2]], folded, stream(0)),
        r"IDs \(1, 2\) are there twice or do not start at 0",
    ),
    "too short": (lambda: Halves().law(1), r"length 1 is too short for 2 planted tokens"),
}


@pytest.mark.parametrize(("call", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_law_or_attention_of_super_tokens_is_refused(call, text):
    with pytest.raises(SettingError, match=text):
        call()
