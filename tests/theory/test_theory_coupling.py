"""Position coupling: a coupled attention and law are an attention and a planted law over super-tokens."""

from dataclasses import dataclass, replace
from itertools import combinations, product
from math import prod

import numpy as np
import pytest

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.tasks.planted.placement import LocalPlacement, OffsetDistribution, SubsetPlacement
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.attention.position_coupling import (
    CoupledAttention,
    CoupledPlacement,
    Coupling,
    HalfLengthPlacement,
    build_super_token_attention,
    build_super_token_task,
    couple_sequence_halves,
    group_tokens_by_id,
)
from lengthwise.theory.risk.exact_risk import NormLoss, TotalVariationLoss, enumerated_risk


def couple_neighbors(length):
    """Couple neighbors: tokens 0 and 1 share ID 0, tokens 2 and 3 share ID 1, and so on."""
    return np.arange(length) // 2


def to_super_tokens(tokens, coupling, num_tokens):
    """Encode the tokens of each ID as one number; the first token is the leading digit."""
    tokens_by_id = group_tokens_by_id(coupling(tokens.shape[1]))
    return tokens[:, tokens_by_id] @ num_tokens ** np.arange(tokens_by_id.shape[1] - 1, -1, -1)


# IDs of a set in token order: one ID, two IDs, and three tokens on two IDs.
OFFSETS = {
    "one ID": [[0, 0]],
    "two IDs": [[0, 1], [1, 0], [2, 0]],
    "three tokens": [[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 1, 1], [1, 0, 1], [2, 2, 0]],
}
COUPLINGS = {"halves": couple_sequence_halves, "neighbors": couple_neighbors}
over_offsets = pytest.mark.parametrize("offsets", OFFSETS.values(), ids=OFFSETS)
over_couplings = pytest.mark.parametrize("coupling", COUPLINGS.values(), ids=COUPLINGS)

# A pair half the length apart among fillers of two kinds; the label is its exclusive or.
FAR_PAIR = PlantedCorrelations(
    background=(0.7, 0.3, 0.0, 0.0),
    tuples=((2, 2), (2, 3), (3, 2), (3, 3)),
    probabilities=(0.25,) * 4,
    labels=((1.0, 0.0), (0.0, 1.0), (0.0, 1.0), (1.0, 0.0)),
    placement=HalfLengthPlacement(),
)


def random_attention(
    offsets: list[list[int]], coupling: Coupling, rng: np.random.Generator, num_tokens: int = 2
) -> CoupledAttention:
    """Sample an attention with scores over many orders of magnitude, some of them 0."""
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


def predict_by_definition(attention: CoupledAttention, tokens: list[int]) -> np.ndarray:
    ids, listed = attention.coupling(len(tokens)).tolist(), attention.offsets.tolist()
    total, mean = 0.0, np.zeros(2)
    for indexes in combinations(range(len(tokens)), len(listed[0])):
        least = min(ids[index] for index in indexes)
        offsets = [ids[index] - least for index in indexes]
        if offsets not in listed:
            continue
        code = int("".join(str(tokens[index]) for index in indexes), attention.num_tokens)
        score = float(np.exp(attention.log_scores[listed.index(offsets), code]))
        total, mean = total + score, mean + score * attention.values[listed.index(offsets), code]
    return mean / total if total > 0 else attention.default


@over_offsets
@over_couplings
def test_a_coupled_attention_is_the_weighted_mean_over_all_sets_of_tokens(coupling, offsets, rng):
    attention = random_attention(offsets, coupling, rng)
    for length in (4, 7, 8):
        tokens = rng.integers(0, 2, size=(20, length))
        expected = np.array([predict_by_definition(attention, sequence) for sequence in tokens.tolist()])
        assert np.abs(attention.predict(tokens) - expected).max() < 1e-12


@over_offsets
@over_couplings
@pytest.mark.parametrize("length", [4, 6, 8, 10])
def test_a_coupled_attention_of_tokens_is_an_attention_of_super_tokens(length, coupling, offsets, rng):
    attention = random_attention(offsets, coupling, rng)
    tokens = rng.integers(0, 2, size=(50, length))
    over_ids = build_super_token_attention(attention, 10)
    assert over_ids.span <= 3
    outputs = over_ids.predict(to_super_tokens(tokens, coupling, 2))
    assert np.abs(outputs - attention.predict(tokens)).max() < 1e-10
    assert outputs.std(axis=0).min() > 1e-3


def test_a_set_of_far_tokens_is_a_single_super_token():
    law = build_super_token_task(FAR_PAIR, couple_sequence_halves, 8)
    assert (law.k, law.placement.max_span, law.placement.min_length) == (1, 1, 1)
    assert FAR_PAIR.placement.max_span is None
    # A super-token is read as a number of base 4.
    assert law.tuples == ((10,), (11,), (14,), (15,))


def enumerated_joint(
    law: PlantedCorrelations, coupling: Coupling, length: int
) -> dict[tuple[tuple[int, ...], int], float]:
    """Sum the joint probability of super-tokens and label over all sequences of tokens."""
    sets, probability = law.placement.offset_distribution(length).sets()
    places = group_tokens_by_id(coupling(length))
    joint: dict[tuple[tuple[int, ...], int], float] = {}
    for x in product(range(law.num_tokens), repeat=length):
        supers = tuple(int("".join(str(x[token]) for token in group), law.num_tokens) for group in places)
        for planted, share in zip(sets.tolist(), probability, strict=True):
            background = prod(law.background[x[token]] for token in range(length) if token not in planted)
            for each, of_tuple, labels in zip(law.tuples, law.probabilities, law.labels, strict=True):
                if each == tuple(x[token] for token in planted):
                    for label, of_label in enumerate(labels):
                        key = (supers, label)
                        joint[key] = joint.get(key, 0.0) + share * background * of_tuple * of_label
    return {key: share for key, share in joint.items() if share > 0}


PLAIN = PlantedCorrelations(
    background=(0.6, 0.4),
    tuples=((0, 1), (1, 0), (1, 1)),
    probabilities=(0.5, 0.2, 0.3),
    labels=((0.9, 0.1), (0.0, 1.0), (0.35, 0.65)),
    placement=HalfLengthPlacement(),
)


@pytest.mark.parametrize(
    ("law", "coupling"),
    [
        (PLAIN, couple_sequence_halves),
        (replace(PLAIN, placement=LocalPlacement(shapes=((0, 2),), weights=(1.0,))), np.arange),
    ],
    ids=["a pair under one ID", "an ID for each token"],
)
@pytest.mark.parametrize("length", [4, 6])
def test_super_tokens_follow_their_planted_law(length, law, coupling):
    expected = enumerated_joint(law, coupling, length)
    over_ids = build_super_token_task(law, coupling, length)
    joint = enumerated_joint(over_ids, np.arange, len(group_tokens_by_id(coupling(length))))
    assert joint == pytest.approx(expected, abs=1e-12)


def test_planted_super_tokens_may_contain_background_tokens():
    # The planted token is the first of a pair of neighbors; the second token is background.
    single = PlantedCorrelations(
        background=(0.6, 0.4, 0.0),
        tuples=((2,),),
        probabilities=(1.0,),
        labels=((1.0, 0.0),),
        placement=FirstOfTwo(shapes=((0,),), weights=(1.0,)),
    )
    law = build_super_token_task(single, couple_neighbors, 8)
    assert dict(zip(law.tuples, law.probabilities, strict=True)) == pytest.approx({(6,): 0.6, (7,): 0.4})
    expected = pytest.approx(enumerated_joint(law, np.arange, 3), abs=1e-12)
    assert enumerated_joint(single, couple_neighbors, 6) == expected


@dataclass(frozen=True, kw_only=True)
class FirstOfTwo(LocalPlacement):
    """A single token at an even index."""

    def offset_distribution(self, length: int) -> OffsetDistribution:
        """Return the uniform distribution over even indexes."""
        return OffsetDistribution(shapes=np.array([[0]]), probability=np.resize([2 / length, 0.0], (1, length)))


@over_couplings
def test_a_random_offset_of_all_ids_changes_no_prediction(coupling, rng):
    attention = random_attention(OFFSETS["two IDs"], coupling, rng)
    tokens = rng.integers(0, 2, size=(20, 8))
    moved = replace(attention, coupling=lambda length: coupling(length) + 17)
    assert np.array_equal(moved.predict(tokens), attention.predict(tokens))


def leaking(score: float) -> CoupledAttention:
    """Build an attention to pairs with the same ID: planted pairs have score 1, others ``score`` and no label."""
    pairs = list(product(range(4), repeat=2))
    planted = [first in (2, 3) and second in (2, 3) for first, second in pairs]
    values = [np.eye(2)[int(first != second)] if min(first, second) > 1 else (0.5, 0.5) for first, second in pairs]
    return CoupledAttention(
        num_tokens=4,
        coupling=couple_sequence_halves,
        offsets=np.array([[0, 0]]),
        log_scores=np.log([[1.0 if each else score for each in planted]]),
        values=np.array([values]),
        default=np.array([0.5, 0.5]),
    )


@pytest.mark.parametrize("loss", [TotalVariationLoss(), NormLoss()], ids=lambda loss: loss.name)
@pytest.mark.parametrize("length", [2, 6, 8])
def test_the_risk_over_super_tokens_equals_the_risk_over_tokens(length, loss):
    attention = leaking(0.01)
    raw = enumerated_risk(FAR_PAIR, attention, length, loss).mean
    over_ids = build_super_token_task(FAR_PAIR, couple_sequence_halves, 8), build_super_token_attention(attention, 8)
    assert enumerated_risk(*over_ids, length // 2, loss).mean == pytest.approx(raw, abs=1e-12)
    assert raw == 0 if length == 2 else raw > 1e-3


def test_if_all_planted_tokens_share_an_id_the_risk_grows_at_most_linearly_in_the_number_of_ids():
    law = build_super_token_task(FAR_PAIR, couple_sequence_halves, 8)
    for score in (1e-4, 1e-2, 1.0):
        attention = build_super_token_attention(leaking(score), 8)
        risk = {number: enumerated_risk(law, attention, number, TotalVariationLoss()).mean for number in (2, 3, 5, 7)}
        for short, long in combinations(risk, 2):
            assert risk[long] <= (long - 1) / (short - 1) * risk[short] * (1 + 1e-12)
    assert risk[7] > 0.4


@over_couplings
def test_sampled_super_token_sets_follow_their_law(coupling):
    law = CoupledPlacement(placement=SubsetPlacement(num_planted=1), coupling=coupling, tokens_per_id=2, k=1)
    sets = law.sample(5, 2_000, random_stream(0))
    assert law.offset_distribution(5).sets()[0][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert law.offset_distribution(5).sets()[1] == pytest.approx(0.2)
    assert np.bincount(sets[:, 0]) / 2_000 == pytest.approx(0.2, abs=0.04)


def reversed_halfway(length: int) -> np.ndarray:
    """Return two tokens per ID, with an order that changes halfway."""
    ids = np.repeat(np.arange(length // 2), 2)
    ids[length // 2 :] = ids[length // 2 :][::-1].copy()
    return ids if length < 4 else np.array([0, 1, 0, 1, *ids[4:]])


INVALID = {
    "odd length": (
        lambda: to_super_tokens(np.zeros((1, 5), int), couple_sequence_halves, 2),
        r"ID 1 has 2 tokens and ID 0 has 3; use a coupling with the same number",
    ),
    "a negative ID": (lambda: group_tokens_by_id(np.array([-1, 0])), r"a negative ID; return IDs that count from 0"),
    "one ID and two": (
        lambda: build_super_token_attention(
            random_attention([[0, 0], [0, 1]], couple_sequence_halves, random_stream(0)), 8
        ),
        r"one set has 2 different IDs and another has 1; use a coupling with the same number",
    ),
    "no room": (
        lambda: build_super_token_attention(random_attention([[0, 5]], couple_sequence_halves, random_stream(0)), 8),
        r"\(0, 5\) from its first ID needs 6 IDs, but sequences of this length have only 4; use a longer length",
    ),
    "another order": (
        lambda: build_super_token_attention(random_attention([[0, 1]], reversed_halfway, random_stream(0)), 12),
        r"tokens of IDs \(0, 1\) change their order along the sequence",
    ),
    "another place of the super-token": (
        lambda: build_super_token_task(
            replace(FAR_PAIR, placement=LocalPlacement(shapes=((0, 1),), weights=(1.0,))), couple_sequence_halves, 8
        ),
        r"planted super-tokens at IDs \(0, 3\) and \(0, 1\) have different distributions; choose a coupling",
    ),
    "one ID or two": (
        lambda: build_super_token_task(
            replace(FAR_PAIR, placement=LocalPlacement(shapes=((0, 1),), weights=(1.0,))), couple_neighbors, 8
        ),
        r"one set has 2 different IDs and another has 1",
    ),
    "offsets twice": (
        lambda: random_attention([[0, 1], [0, 1]], couple_sequence_halves, random_stream(0)),
        r"invalid offsets \(0, 1\); list each row of offsets once",
    ),
    "offsets without 0": (
        lambda: random_attention([[1, 2]], couple_sequence_halves, random_stream(0)),
        r"invalid offsets \(1, 2\).* with a minimum of 0",
    ),
    "too short": (lambda: HalfLengthPlacement().offset_distribution(1), r"length 1 is too short for 2 planted tokens"),
}


@pytest.mark.parametrize(("call", "message"), INVALID.values(), ids=INVALID)
def test_couplings_without_a_law_or_attention_of_super_tokens_raise(call, message):
    with pytest.raises(SettingError, match=message):
        call()
