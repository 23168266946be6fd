"""Covers: which sets they hold, what they cost, and why deleting tokens is allowed."""

from itertools import product

import numpy as np
import pytest
from tests.support.planted_laws import random_law
from tests.support.random_instances import Sizes, random_instance

from lengthwise.tasks.planted.placement import Local, UniformShapes
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.bounds.conditions import BoundError, joint_weight, on_shapes
from lengthwise.theory.bounds.sequence_cover import (
    DifferenceCover,
    GridCover,
    Piece,
    ProportionalCover,
    eta_push,
    merged,
    push_forward,
)

COVERS = {"grid": GridCover, "proportional": ProportionalCover}
ALIKE = {joints: np.ones((1, 1)) for joints in product((False, True), repeat=2)}


# So many spans a cover asks for.
ROOM = {GridCover: 2, ProportionalCover: 3}


def random_cover(kind, rng):
    span = int(rng.integers(1, 6))
    trained = int(rng.integers(ROOM[kind] * span, ROOM[kind] * span + 12))
    return kind(tested=int(trained + rng.integers(0, 40)), trained=trained, span=span)


def run_of(piece: Piece, token: int) -> int | None:
    return next((index for index, (low, high) in enumerate(piece.runs) if low <= token < high), None)


def holds(piece: Piece, first: int, last: int) -> bool:
    return run_of(piece, first) is not None and run_of(piece, first) == run_of(piece, last)


def claims(piece: Piece, first: int, last: int) -> bool:
    return (
        (piece.inside and piece.core[0] <= first and last < piece.core[1])
        or (first < piece.core[0] and piece.left[0] <= first < piece.left[1])
        or (last >= piece.core[1] and piece.right[0] <= last < piece.right[1])
    )


@pytest.mark.parametrize("kind", COVERS.values(), ids=COVERS)
def test_every_local_set_is_claimed_once_by_a_piece_that_holds_it_in_one_run(kind, rng):
    for _ in range(25):
        cover = random_cover(kind, rng)
        pieces = cover.pieces(int(rng.integers(cover.tested)))
        for first in range(cover.tested):
            for last in range(first, min(first + cover.span, cover.tested)):
                claimed = [piece for piece in pieces if claims(piece, first, last)]
                assert len(claimed) == 1
                assert holds(claimed[0], first, last)


@pytest.mark.parametrize("kind", COVERS.values(), ids=COVERS)
def test_every_piece_has_the_trained_length_and_holds_all_sets_that_start_there(kind, rng):
    for _ in range(25):
        cover = random_cover(kind, rng)
        start = int(rng.integers(cover.tested))
        for piece in cover.pieces(start):
            assert len(set(piece.tokens())) == piece.size == cover.trained
            assert set(piece.tokens()) <= set(range(cover.tested))
            last = min(start + cover.span, cover.tested) - 1
            assert piece.core[0] <= start <= last < piece.core[1]
            assert holds(piece, *(piece.core[0], piece.core[1] - 1))
            assert piece.place(last) == list(piece.tokens()).index(last)


@pytest.mark.parametrize("kind", COVERS.values(), ids=COVERS)
def test_tokens_that_were_apart_meet_at_the_ends_of_the_planted_run_alone(kind, rng):
    seen = set()
    for _ in range(25):
        cover = random_cover(kind, rng)
        for piece in cover.pieces(int(rng.integers(cover.tested))):
            tokens = piece.tokens()
            (breaks,) = np.nonzero(np.diff(tokens) > 1)
            left = [place for place in breaks if tokens[place + 1] <= piece.core[0]]
            right = [place for place in breaks if tokens[place] >= piece.core[1] - 1]
            assert len(left) + len(right) == len(breaks)
            assert (len(left), len(right)) == piece.joints
            seen.add(piece.joints)
    assert len(seen) == (4 if kind is ProportionalCover else 3)


def test_a_proportional_cover_takes_about_one_piece_per_room_beside_three_spans():
    for tested, trained, span in ((400, 32, 2), (1000, 64, 4), (300, 30, 1)):
        cover = ProportionalCover(tested=tested, trained=trained, span=span)
        number = np.mean([len(cover.pieces(start)) for start in range(0, tested - span + 1, 11)])
        assert number <= (tested - span) / (trained - 3 * span + 2) + 1.5


@pytest.mark.parametrize(("trained", "constant"), [(16, 16), (17, 20)])
def test_a_grid_cover_multiplies_uniform_places_by_less_than_the_closed_form(trained, constant):
    for tested in (trained + 1, 3 * trained + 2):
        for span in (1, trained // 4):
            placement = Local(shapes=((0, span - 1),), weights=(1.0,)) if span > 1 else UniformShapes(num_planted=1)
            shapes = placement.law(tested).shapes
            cover = GridCover(tested=tested, trained=trained, span=span)
            pushed = push_forward(on_shapes(placement, shapes, tested), cover, ALIKE)[trained]
            known = on_shapes(placement, shapes, trained)[:, :, None]
            assert eta_push(pushed, known) <= constant * tested / trained


def weight_and_sum(head, tokens):
    """``a`` and ``a f`` of one sequence, and 0 where it has no set."""
    _, log_scores, values = head.scored(tokens[None])
    return np.exp(log_scores).sum(), (np.exp(log_scores)[..., None] * values).sum(axis=(0, 1))


def test_differences_of_pieces_add_up_to_the_error_of_the_whole(rng):
    for seed in range(20):
        sizes = Sizes(num_tokens=3, k=2, span=3, trained=12, tested=20)
        instance = random_instance("mixed", sizes, seed)
        cover = DifferenceCover(tested=20, window=int(rng.integers(3, 7)), chunk=int(rng.integers(2, 5)), span=3)
        tokens, target = rng.integers(3, size=20), rng.random(2)
        pieces = cover.pieces(int(rng.integers(18)))
        total = np.zeros(2)
        for sign, piece in zip([1, *[1, -1] * (len(pieces) // 2)], pieces, strict=True):
            weight, values = weight_and_sum(instance.heads[0], tokens[piece.tokens()])
            total += sign * (values - weight * target)
        weight, values = weight_and_sum(instance.heads[0], tokens)
        np.testing.assert_allclose(total, values - weight * target, atol=1e-9 * weight)


@pytest.mark.parametrize("kind", COVERS.values(), ids=COVERS)
def test_kappa_times_the_errors_of_pieces_is_above_the_error_of_the_whole_for_every_sequence(kind, rng):
    for seed in range(8):
        instance = random_instance("mixed", Sizes(num_tokens=3, k=2, span=2, trained=8, tested=15), seed)
        law, head = instance.law, instance.heads[0]
        shapes = law.placement.law(15).shapes
        factor = joint_weight(law, head, shapes).by_joints()
        tokens, sets, _ = law.draw(15, 10, rng)
        for row, planted in zip(tokens, sets, strict=True):
            index = [tuple(each) for each in law.tuples].index(tuple(row[planted]))
            cost = 1 - np.array(law.labels[index])
            whole = (head.predict(row[None])[0] * cost).sum()
            pieces = kind(tested=15, trained=8, span=2).pieces(int(planted[0]))
            parts = sum(
                factor[piece.joints][0, index] * (head.predict(row[piece.tokens()][None])[0] * cost).sum()
                for piece in pieces
            )
            assert whole <= parts + 1e-12


def sequence_law(law: Planted, length: int, start: int) -> dict[tuple[int, ...], float]:
    """The probability of every sequence and label given a planted pair of neighbours, factor by factor."""
    rows = {each: (share, row) for each, share, row in zip(law.tuples, law.probabilities, law.labels, strict=True)}
    found = {}
    for tokens in product(range(len(law.background)), repeat=length):
        planted, row = rows.get(tokens[start : start + 2], (0.0, (0.5, 0.5)))
        for place, token in enumerate(tokens):
            planted *= 1.0 if start <= place < start + 2 else law.background[token]
        for label, share in enumerate(row):
            found[*tokens, label] = planted * share
    return found


def kept_of(whole: dict[tuple[int, ...], float], piece: Piece) -> dict[tuple[int, ...], float]:
    """The law of what is left when tokens are deleted."""
    places, left = (*piece.tokens().tolist(), -1), {}
    for whole_row, probability in whole.items():
        kept = tuple(whole_row[place] for place in places)
        left[kept] = left.get(kept, 0.0) + probability
    return left


@pytest.mark.parametrize("regime", ["clean", "mixed"])
def test_deleting_unplanted_tokens_leaves_the_law_of_the_shorter_length(regime):
    law = random_instance(regime, Sizes(num_tokens=3, k=2, span=2, trained=6, tested=8), seed=1).law
    cover = GridCover(tested=8, trained=6, span=2)
    for start in (0, 4):
        whole = sequence_law(law, 8, start)
        for piece in cover.pieces(start):
            short, left = sequence_law(law, 6, piece.place(start)), kept_of(whole, piece)
            assert max(abs(left[each] - short[each]) for each in short) <= 1e-12
            assert sum(short.values()) == pytest.approx(1, abs=1e-12)


def test_pushing_forward_gives_the_mean_of_anything_on_pieces(rng):
    law = random_instance("mixed", Sizes(num_tokens=2, k=2, span=2, trained=6, tested=8), seed=0).law
    cover = GridCover(tested=8, trained=6, span=2)
    anything = {each: rng.random() for each in product((0, 1), repeat=7)}
    pushed = push_forward(on_shapes(law.placement, law.placement.law(8).shapes, 8), cover, ALIKE)[6]
    moved = direct = 0.0
    for place in range(5):
        short = sequence_law(law, 6, place)
        moved += pushed[0, place, 0] * sum(anything[each] * probability for each, probability in short.items())
    for start in range(7):
        whole = sequence_law(law, 8, start)
        for piece in cover.pieces(start):
            direct += sum(anything[each] * probability / 7 for each, probability in kept_of(whole, piece).items())
    assert moved == pytest.approx(direct, abs=1e-12)


def test_covers_without_room_are_refused():
    with pytest.raises(BoundError, match=r"half of 7 tokens .* train at 8 or longer"):
        GridCover(tested=20, trained=7, span=4)
    with pytest.raises(BoundError, match=r"pieces of 8 tokens .* train at 9 or longer"):
        ProportionalCover(tested=20, trained=8, span=3)
    with pytest.raises(BoundError, match=r"window of 3 tokens and chunks of 2 .* at least 4, chunks at least 3"):
        DifferenceCover(tested=20, window=3, chunk=2, span=4)


def test_runs_that_touch_are_one():
    assert merged((0, 2), (2, 2), (2, 5), (6, 6), (7, 9)) == ((0, 5), (7, 9))


def law_given(law: Planted, length: int, planted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All sequences in order, and ``P(x, y | S)`` by what the law itself says of sets."""
    tokens = np.array(list(product(range(law.num_tokens), repeat=length)))
    sets, weights = law.set_weights(tokens)
    _, probability = law.placement.law(length).sets()
    row = int(np.flatnonzero((sets == planted).all(axis=1))[0])
    mu = np.array(law.background)
    joint = weights[:, row] / probability[row] * np.where(mu == 0, 1.0, mu)[tokens].prod(axis=1)
    return tokens, joint[:, None] * law.label_law[law.codes(tokens[:, planted])]


@pytest.mark.parametrize(("num_tokens", "k", "span"), [(3, 1, 1), (3, 2, 3), (2, 3, 4)])
def test_deleting_any_tokens_beside_the_planted_ones_leaves_the_law_of_the_shorter_length(num_tokens, k, span, rng):
    compared = 0
    for _ in range(20):
        law = random_law(rng, num_tokens, k, span)
        sets, _ = law.placement.law(7).sets()
        planted = sets[rng.integers(len(sets))]
        size = int(rng.integers(int(planted[-1] - planted[0]) + 1, 7))
        others = rng.choice(np.setdiff1d(np.arange(7), planted), size=size - k, replace=False)
        kept = np.sort(np.append(planted, others))
        shorter = np.searchsorted(kept, planted)
        tokens, whole = law_given(law, 7, planted)
        # The set moves together where tokens between its own are deleted: its shape has to be one of the law's.
        shapes, _ = law.placement.law(size).sets()
        if not (shapes == shorter).all(axis=1).any():
            continue
        _, short = law_given(law, size, shorter)
        left = np.zeros_like(short)
        np.add.at(left, tokens[:, kept] @ num_tokens ** np.arange(size - 1, -1, -1), whole)
        assert whole.sum() == pytest.approx(1, abs=1e-12)
        assert np.abs(left - short).max() <= 1e-12
        compared += 1
    assert compared >= 10
