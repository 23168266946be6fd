"""Covers: the sets that their pieces hold and claim, their number, and the deletion lemma."""

from itertools import product

import numpy as np
import pytest
from tests.support.planted_laws import random_law
from tests.support.random_instances import Sizes, random_instance

from lengthwise.tasks.planted.placement import LocalPlacement, UniformShapePlacement
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.bounds.bound_inputs import BoundError, cross_cut_scores, safe_ratio, shape_probabilities
from lengthwise.theory.bounds.training_window_covers import (
    ChunkDifferenceCover,
    GridWindowCover,
    ProportionalCover,
    SequencePiece,
    expected_piece_counts,
    merge_intervals,
)

COVERS = {"grid": GridWindowCover, "proportional": ProportionalCover}
ONES = {cuts: np.ones((1, 1)) for cuts in product((False, True), repeat=2)}


# The number of spans that a cover needs in the training length.
ROOM = {GridWindowCover: 2, ProportionalCover: 3}


def random_cover(kind, rng):
    span = int(rng.integers(1, 6))
    train_length = int(rng.integers(ROOM[kind] * span, ROOM[kind] * span + 12))
    return kind(test_length=int(train_length + rng.integers(0, 40)), train_length=train_length, span=span)


def run_of(piece: SequencePiece, token: int) -> int | None:
    return next((index for index, (low, high) in enumerate(piece.runs) if low <= token < high), None)


def holds(piece: SequencePiece, first: int, last: int) -> bool:
    return run_of(piece, first) is not None and run_of(piece, first) == run_of(piece, last)


def claims(piece: SequencePiece, first: int, last: int) -> bool:
    return (
        (piece.claims_core and piece.core[0] <= first and last < piece.core[1])
        or (first < piece.core[0] and piece.left[0] <= first < piece.left[1])
        or (last >= piece.core[1] and piece.right[0] <= last < piece.right[1])
    )


@pytest.mark.parametrize("kind", COVERS.values(), ids=COVERS)
def test_every_local_set_is_claimed_once_by_a_piece_that_holds_it_in_one_run(kind, rng):
    for _ in range(25):
        cover = random_cover(kind, rng)
        pieces = cover.list_pieces(int(rng.integers(cover.test_length)))
        for first in range(cover.test_length):
            for last in range(first, min(first + cover.span, cover.test_length)):
                claimants = [piece for piece in pieces if claims(piece, first, last)]
                assert len(claimants) == 1
                assert holds(claimants[0], first, last)


@pytest.mark.parametrize("kind", COVERS.values(), ids=COVERS)
def test_every_piece_has_the_training_length_and_holds_all_sets_from_the_start(kind, rng):
    for _ in range(25):
        cover = random_cover(kind, rng)
        start = int(rng.integers(cover.test_length))
        for piece in cover.list_pieces(start):
            assert len(set(piece.tokens())) == piece.num_tokens == cover.train_length
            assert set(piece.tokens()) <= set(range(cover.test_length))
            last = min(start + cover.span, cover.test_length) - 1
            assert piece.core[0] <= start <= last < piece.core[1]
            assert holds(piece, *(piece.core[0], piece.core[1] - 1))
            assert piece.index_of_token(last) == list(piece.tokens()).index(last)


@pytest.mark.parametrize("kind", COVERS.values(), ids=COVERS)
def test_cuts_occur_only_at_the_ends_of_the_planted_run(kind, rng):
    combinations = set()
    for _ in range(25):
        cover = random_cover(kind, rng)
        for piece in cover.list_pieces(int(rng.integers(cover.test_length))):
            tokens = piece.tokens()
            (breaks,) = np.nonzero(np.diff(tokens) > 1)
            left = [place for place in breaks if tokens[place + 1] <= piece.core[0]]
            right = [place for place in breaks if tokens[place] >= piece.core[1] - 1]
            assert len(left) + len(right) == len(breaks)
            assert (len(left), len(right)) == piece.cuts
            combinations.add(piece.cuts)
    assert len(combinations) == (4 if kind is ProportionalCover else 3)


def test_the_number_of_pieces_of_a_proportional_cover_is_close_to_its_formula():
    for test_length, train_length, span in ((400, 32, 2), (1000, 64, 4), (300, 30, 1)):
        cover = ProportionalCover(test_length=test_length, train_length=train_length, span=span)
        number = np.mean([len(cover.list_pieces(start)) for start in range(0, test_length - span + 1, 11)])
        assert number <= (test_length - span) / (train_length - 3 * span + 2) + 1.5


@pytest.mark.parametrize(("train_length", "constant"), [(16, 16), (17, 20)])
def test_the_mass_ratio_of_a_grid_cover_is_below_its_closed_form_for_uniform_starts(train_length, constant):
    for test_length in (train_length + 1, 3 * train_length + 2):
        for span in (1, train_length // 4):
            placement = (
                LocalPlacement(shapes=((0, span - 1),), weights=(1.0,))
                if span > 1
                else UniformShapePlacement(num_planted=1)
            )
            shapes = placement.offset_distribution(test_length).shapes
            cover = GridWindowCover(test_length=test_length, train_length=train_length, span=span)
            planted = shape_probabilities(placement, shapes, test_length)
            piece_weights = expected_piece_counts(planted, cover, ONES)[train_length]
            probability = shape_probabilities(placement, shapes, train_length)
            ratio = safe_ratio(piece_weights.ravel(), probability.ravel()).max()
            assert ratio <= constant * test_length / train_length


def weight_and_sum(head, tokens):
    """Return the total score and the sum of scores times values of one sequence."""
    _, log_scores, values = head.score_token_sets(tokens[None])
    return np.exp(log_scores).sum(), (np.exp(log_scores)[..., None] * values).sum(axis=(0, 1))


def test_differences_of_pieces_add_up_to_the_error_of_the_whole(rng):
    for seed in range(20):
        sizes = Sizes(num_tokens=3, k=2, span=3, train_length=12, test_length=20)
        instance = random_instance("mixed", sizes, seed)
        cover = ChunkDifferenceCover(
            test_length=20, window_length=int(rng.integers(3, 7)), chunk_length=int(rng.integers(2, 5)), span=3
        )
        tokens, target = rng.integers(3, size=20), rng.random(2)
        pieces = cover.list_pieces(int(rng.integers(18)))
        total = np.zeros(2)
        for sign, piece in zip([1, *[1, -1] * (len(pieces) // 2)], pieces, strict=True):
            weight, values = weight_and_sum(instance.heads[0], tokens[piece.tokens()])
            total += sign * (values - weight * target)
        weight, values = weight_and_sum(instance.heads[0], tokens)
        np.testing.assert_allclose(total, values - weight * target, atol=1e-9 * weight)


@pytest.mark.parametrize("kind", COVERS.values(), ids=COVERS)
def test_kappa_times_the_errors_of_pieces_is_above_the_error_of_the_whole_for_every_sequence(kind, rng):
    for seed in range(8):
        instance = random_instance("mixed", Sizes(num_tokens=3, k=2, span=2, train_length=8, test_length=15), seed)
        law, head = instance.law, instance.heads[0]
        shapes = law.placement.offset_distribution(15).shapes
        factor = cross_cut_scores(law, head, shapes).kappa_by_cuts()
        tokens, sets, _ = law.sample_arrays(15, 10, rng)
        for sequence, planted in zip(tokens, sets, strict=True):
            index = [tuple(each) for each in law.tuples].index(tuple(sequence[planted]))
            cost = 1 - np.array(law.labels[index])
            whole = (head.predict(sequence[None])[0] * cost).sum()
            pieces = kind(test_length=15, train_length=8, span=2).list_pieces(int(planted[0]))
            parts = sum(
                factor[piece.cuts][0, index] * (head.predict(sequence[piece.tokens()][None])[0] * cost).sum()
                for piece in pieces
            )
            assert whole <= parts + 1e-12


def sequence_law(law: PlantedCorrelations, length: int, start: int) -> dict[tuple[int, ...], float]:
    """Return the probability of every sequence and label given an adjacent planted pair."""
    by_tuple = {
        each: (share, labels) for each, share, labels in zip(law.tuples, law.probabilities, law.labels, strict=True)
    }
    table = {}
    for tokens in product(range(len(law.background)), repeat=length):
        probability, labels = by_tuple.get(tokens[start : start + 2], (0.0, (0.5, 0.5)))
        for place, token in enumerate(tokens):
            probability *= 1.0 if start <= place < start + 2 else law.background[token]
        for label, share in enumerate(labels):
            table[*tokens, label] = probability * share
    return table


def marginal(table: dict[tuple[int, ...], float], piece: SequencePiece) -> dict[tuple[int, ...], float]:
    """Return the distribution of the tokens of a piece and the label."""
    places, sums = (*piece.tokens().tolist(), -1), {}
    for sequence, probability in table.items():
        remaining = tuple(sequence[place] for place in places)
        sums[remaining] = sums.get(remaining, 0.0) + probability
    return sums


@pytest.mark.parametrize("regime", ["clean", "mixed"])
def test_deleting_background_tokens_gives_the_law_of_the_shorter_length(regime):
    law = random_instance(regime, Sizes(num_tokens=3, k=2, span=2, train_length=6, test_length=8), seed=1).law
    cover = GridWindowCover(test_length=8, train_length=6, span=2)
    for start in (0, 4):
        whole = sequence_law(law, 8, start)
        for piece in cover.list_pieces(start):
            short, remaining = sequence_law(law, 6, piece.index_of_token(start)), marginal(whole, piece)
            assert max(abs(remaining[each] - short[each]) for each in short) <= 1e-12
            assert sum(short.values()) == pytest.approx(1, abs=1e-12)


def test_the_push_forward_gives_expectations_over_pieces(rng):
    law = random_instance("mixed", Sizes(num_tokens=2, k=2, span=2, train_length=6, test_length=8), seed=0).law
    cover = GridWindowCover(test_length=8, train_length=6, span=2)
    function = {each: rng.random() for each in product((0, 1), repeat=7)}
    piece_weights = expected_piece_counts(
        shape_probabilities(law.placement, law.placement.offset_distribution(8).shapes, 8), cover, ONES
    )[6]
    by_piece_weights = direct = 0.0
    for place in range(5):
        short = sequence_law(law, 6, place)
        by_piece_weights += piece_weights[0, place, 0] * sum(function[each] * share for each, share in short.items())
    for start in range(7):
        whole = sequence_law(law, 8, start)
        for piece in cover.list_pieces(start):
            direct += sum(function[each] * share / 7 for each, share in marginal(whole, piece).items())
    assert by_piece_weights == pytest.approx(direct, abs=1e-12)


def test_covers_without_room_raise():
    with pytest.raises(BoundError, match=r"training length 7 .* windows .* train at 8 tokens or longer"):
        GridWindowCover(test_length=20, train_length=7, span=4)
    with pytest.raises(BoundError, match=r"training length 8 .* proportional .* train at 9 tokens or longer"):
        ProportionalCover(test_length=20, train_length=8, span=3)
    with pytest.raises(BoundError, match=r"window 3 and chunk 2 .* window of 4 to 20 tokens and a chunk of at least 3"):
        ChunkDifferenceCover(test_length=20, window_length=3, chunk_length=2, span=4)


def test_adjacent_intervals_merge_into_one_run():
    assert merge_intervals((0, 2), (2, 2), (2, 5), (6, 6), (7, 9)) == ((0, 5), (7, 9))


def law_given(law: PlantedCorrelations, length: int, planted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all sequences in order, and ``P(x, y | S)`` from the set weights of the law."""
    tokens = np.array(list(product(range(law.num_tokens), repeat=length)))
    sets, weights = law.planted_set_weights(tokens)
    _, probability = law.placement.offset_distribution(length).sets()
    index = int(np.flatnonzero((sets == planted).all(axis=1))[0])
    mu = np.array(law.background)
    joint = weights[:, index] / probability[index] * np.where(mu == 0, 1.0, mu)[tokens].prod(axis=1)
    return tokens, joint[:, None] * law.label_probabilities[law.tuple_codes(tokens[:, planted])]


@pytest.mark.parametrize(("num_tokens", "k", "span"), [(3, 1, 1), (3, 2, 3), (2, 3, 4)])
def test_deleting_random_background_tokens_gives_the_law_of_the_shorter_length(num_tokens, k, span, rng):
    comparisons = 0
    for _ in range(20):
        law = random_law(rng, num_tokens, k, span)
        sets, _ = law.placement.offset_distribution(7).sets()
        planted = sets[rng.integers(len(sets))]
        size = int(rng.integers(int(planted[-1] - planted[0]) + 1, 7))
        others = rng.choice(np.setdiff1d(np.arange(7), planted), size=size - k, replace=False)
        remaining = np.sort(np.append(planted, others))
        shorter = np.searchsorted(remaining, planted)
        tokens, whole = law_given(law, 7, planted)
        # Deleting tokens between the planted ones changes the shape, which must be one of the law.
        shapes, _ = law.placement.offset_distribution(size).sets()
        if not (shapes == shorter).all(axis=1).any():
            continue
        _, short = law_given(law, size, shorter)
        sums = np.zeros_like(short)
        np.add.at(sums, tokens[:, remaining] @ num_tokens ** np.arange(size - 1, -1, -1), whole)
        assert whole.sum() == pytest.approx(1, abs=1e-12)
        assert np.abs(sums - short).max() <= 1e-12
        comparisons += 1
    assert comparisons >= 10
