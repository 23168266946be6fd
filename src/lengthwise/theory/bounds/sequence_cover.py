"""Covers of a long sequence: short pieces that each contain the planted set and together contain every local set.

To form a piece, delete some tokens that are not planted. By the deletion lemma, a piece has the distribution of
sequences of its length, so its risk is a risk at a training length. Intervals are half open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.theory.bounds.conditions import BoundError, Joints, safe_ratio

Interval = tuple[int, int]
Atoms = Float[np.ndarray, " atoms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Part of a sequence: the concatenated tokens of ``runs``. One run contains ``core`` with the planted set.

    A piece claims the local sets inside a run that start in ``left`` (before the core) or end in ``right`` (after it).
    With ``claims_core``, it also claims the sets inside the core. A cover claims each local set once.
    """

    runs: tuple[Interval, ...]
    core: Interval
    left: Interval = (0, 0)
    right: Interval = (0, 0)
    claims_core: bool = False

    @property
    def num_tokens(self) -> int:
        """The number of tokens in the piece."""
        return sum(end - start for start, end in self.runs)

    @property
    def joints(self) -> Joints:
        """Two flags: True if there is a joint left of the run with the core, and True if there is one right of it."""
        return self.runs[0][1] <= self.core[0], self.core[1] <= self.runs[-1][0]

    def tokens(self) -> Int[np.ndarray, " num_tokens"]:
        """Return the token indexes of the piece in increasing order."""
        return np.concatenate([np.arange(*run) for run in self.runs])

    def index_of(self, token: int) -> int:
        """Return the index within the piece of a token, which is given by its index in the sequence."""
        return sum(min(end, token) - start for start, end in self.runs if start < token)

    def mirror(self, length: int) -> "Piece":
        """Return the mirror image of the piece in the reversed sequence, which has ``length`` tokens."""
        intervals = self.core, self.right, self.left, *reversed(self.runs)
        core, left, right, *runs = ((length - end, length - start) for start, end in intervals)
        return Piece(runs=tuple(runs), core=core, left=left, right=right, claims_core=self.claims_core)


@runtime_checkable
class Cover(Protocol):
    """A rule that maps the first token index of a planted set to the pieces of the sequence."""

    def pieces(self, start: int) -> Sequence[Piece]:
        """Return the pieces for a planted set that starts at token index ``start``; there is at least one piece."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCover:
    """Cover with a core window on a grid: each chunk of other tokens gives one piece of ``train_length`` tokens.

    The core is a window of half the training length. A piece contains the core, a chunk, and the ``span - 1`` tokens
    before the chunk, so no local set crosses from the chunk to the core. The chunk next to the core is in the same run.
    Pieces have at most one joint. Raises ``BoundError`` if half the training length is below the span. Derived here.
    """

    test_length: int
    train_length: int
    span: int

    def __post_init__(self) -> None:
        if not 2 * self.span <= self.train_length <= self.test_length:
            raise BoundError(
                f"training length {self.train_length} and test length {self.test_length} give no cover by windows for "
                f"span {self.span}; train at {2 * self.span} tokens or longer, but not above the test length (see "
                "counterexample 'unbounded reach')"
            )

    def pieces(self, start: int) -> Sequence[Piece]:
        """Return the pieces with chunks to the right of the core, then the pieces with chunks to its left."""
        core = grid_window(start, self.test_length, self.train_length - self.train_length // 2, self.span)
        right_pieces = self._build_right_pieces(core, claims_core=True)
        mirrored_core = (self.test_length - core[1], self.test_length - core[0])
        mirrored_pieces = self._build_right_pieces(mirrored_core, claims_core=not right_pieces)
        return [*right_pieces, *(piece.mirror(self.test_length) for piece in mirrored_pieces)]

    def _build_right_pieces(self, core: Interval, *, claims_core: bool) -> list[Piece]:
        core_start, core_end = core
        if core_end == self.test_length:
            return []
        run_start = min(core_start, self.test_length - self.train_length)
        run_end = run_start + self.train_length
        pieces = [Piece(runs=((run_start, run_end),), core=core, right=(core_end, run_end), claims_core=claims_core)]
        chunk_length = self.train_length - (core_end - core_start) - self.span + 1
        for chunk_start in range(run_end, self.test_length, chunk_length):
            chunk_end = min(chunk_start + chunk_length, self.test_length)
            # Move the last chunk inward, so that every piece has the training length.
            chunk_run = (chunk_end - chunk_length - self.span + 1, chunk_end)
            pieces.append(Piece(runs=merge_intervals(core, chunk_run), core=core, right=(chunk_start, chunk_end)))
        return pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionalCover:
    """Cover by pieces of exactly ``train_length`` tokens: a core of one span and slices on both sides. Derived here.

    The slices are proportional to the number of tokens on each side, so the planted set keeps its relative index.
    There are about ``(test_length - span) / (train_length - 3 * span + 2)`` pieces with at most two joints.
    Raises ``BoundError`` if the training length is below three spans.
    """

    test_length: int
    train_length: int
    span: int

    def __post_init__(self) -> None:
        if not 3 * self.span <= self.train_length <= self.test_length:
            raise BoundError(
                f"training length {self.train_length} and test length {self.test_length} give no proportional cover at "
                f"span {self.span}; train at {3 * self.span} tokens or longer, but not above the test length (see "
                "counterexample 'unbounded reach')"
            )

    def pieces(self, start: int) -> Sequence[Piece]:
        """Return the piece with the slices next to the core, then the pieces with slices further away from it."""
        start = min(start, self.test_length - self.span)
        end = start + self.span
        before, after, others = start, self.test_length - end, self.train_length - self.span
        # Minimize the number of pieces, then the distance from the proportions of the sequence.
        target = others * before / max(before + after, 1)
        widths = range(max(0, others - after), min(before, others) + 1)
        left_width = min(widths, key=lambda width: (self._count_pieces(width, before, after), abs(width - target)))
        right_width = others - left_width
        slices = zip_longest(self._slice_distances(left_width, before), self._slice_distances(right_width, after))
        pieces = []
        for index, (left_slice, right_slice) in enumerate(slices):
            # A side without further slices repeats its nearest slice, which makes no joint.
            left_near, left_far = left_slice or (left_width, left_width)
            right_near, right_far = right_slice or (right_width, right_width)
            left_run = (start - left_far, start - left_far + left_width)
            right_run = (end + right_far - right_width, end + right_far)
            piece = Piece(
                runs=merge_intervals(left_run, (start, end), right_run),
                core=(start, end),
                left=(start - left_far, start - left_near),
                right=(end + right_near, end + right_far),
                claims_core=index == 0,
            )
            pieces.append(piece)
        return pieces

    def _count_pieces(self, left_width: int, num_before: int, num_after: int) -> int:
        """Return the number of pieces with ``left_width`` tokens left of the core, or more if no cover exists."""
        sides = ((left_width, num_before), (self.train_length - self.span - left_width, num_after))
        if any(self.span > width < total for width, total in sides):
            return self.test_length + 1
        return max(1 - (width - total) // (width - self.span + 1) if width < total else 1 for width, total in sides)

    def _slice_distances(self, width: int, max_distance: int) -> list[Interval]:
        """Divide the distances from the core, up to ``max_distance``, into the intervals that the slices claim."""
        step = max(width - self.span + 1, 1)
        later = ((start, min(start + step, max_distance)) for start in range(width, max_distance, step))
        return [(0, width), *later]


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceCover:
    """Cover for losses whose errors may cancel: sums and differences of piece errors give the error of the sequence.

    The core is a window of ``window_length`` tokens on a grid; chunks of ``chunk_length`` tokens divide the other
    tokens. Each chunk gives one piece with it and one without it. Their difference is the effect of the sets that end
    in the chunk. The pieces claim no sets. Reconstructed from Golowich et al. 2025 (arXiv 2502.16792), theorem 4.3.
    """

    test_length: int
    window_length: int
    chunk_length: int
    span: int

    def __post_init__(self) -> None:
        min_chunk = max(self.span - 1, 1)
        if self.window_length < self.span or self.chunk_length < min_chunk or self.test_length < self.window_length:
            raise BoundError(
                f"window {self.window_length} and chunk {self.chunk_length} do not separate sets of span "
                f"{self.span} at test length {self.test_length}; use a window of {self.span} to {self.test_length} "
                f"tokens and a chunk of at least {min_chunk}"
            )

    def pieces(self, start: int) -> Sequence[Piece]:
        """Return the core window, then two pieces per chunk: with the chunk and without it."""
        core = grid_window(start, self.test_length, self.window_length, self.span)
        mirrored_core = (self.test_length - core[1], self.test_length - core[0])
        left_pieces = [piece.mirror(self.test_length) for piece in self._build_right_pieces(mirrored_core)]
        return [Piece(runs=(core,), core=core), *self._build_right_pieces(core), *left_pieces]

    def _build_right_pieces(self, core: Interval) -> list[Piece]:
        core_end = core[1]
        pieces = []
        for chunk_start in range(core_end, self.test_length, self.chunk_length):
            # The tokens before the chunk prevent local sets that cross from the chunk to the core.
            first = max(chunk_start - self.span + 1, core_end)
            chunk_end = min(chunk_start + self.chunk_length, self.test_length)
            runs = (merge_intervals(core, (first, run_end)) for run_end in (chunk_end, chunk_start))
            pieces += [Piece(runs=each, core=core) for each in runs]
        return pieces


def grid_window(start: int, test_length: int, window_length: int, span: int) -> Interval:
    """Return the grid window that contains all local sets that start at ``start``; windows overlap by ``span - 1``."""
    grid_step = window_length - span + 1
    window_start = min(start // grid_step * grid_step, test_length - window_length)
    return window_start, window_start + window_length


def merge_intervals(*intervals: Interval) -> tuple[Interval, ...]:
    """Join adjacent intervals and drop empty intervals; intervals must be sorted and disjoint."""
    runs: list[Interval] = []
    for start, end in intervals:
        if start < end:
            is_adjacent = runs and runs[-1][1] == start
            runs.append((runs.pop()[0], end) if is_adjacent else (start, end))
    return tuple(runs)


def compute_piece_mass(
    probability: Float[np.ndarray, "shapes length"],
    cover: Cover,
    factor: Mapping[Joints, Float[np.ndarray, "shapes tuples"]],
) -> dict[int, Float[np.ndarray, "shapes num_tokens tuples"]]:
    """Return the mass of each planted set by number of tokens, with axes shape, index in the piece, and tuple.

    Each piece for a planted set adds the probability of the set, multiplied by the factor of the joints of the piece.
    With a factor of 1, the total is the expected number of pieces. Derived here.
    """
    piece_mass: dict[int, Float[np.ndarray, "shapes num_tokens tuples"]] = {}
    for start in np.flatnonzero(probability.any(axis=0)):
        for piece in cover.pieces(int(start)):
            num_tokens = piece.num_tokens
            if num_tokens not in piece_mass:
                piece_mass[num_tokens] = np.zeros((len(probability), num_tokens, factor[False, False].shape[1]))
            piece_mass[num_tokens][:, piece.index_of(int(start))] += probability[:, start, None] * factor[piece.joints]
    return piece_mass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase:
    """Solution of ``worst_case``: the maximal value, the risk of each atom, and the price per unit of training risk."""

    value: float
    risk: Atoms
    price: float


def worst_case(train_risk: float, piece_mass: Atoms, train_mass: Atoms, max_loss: float = 1.0) -> WorstCase:
    """Maximize ``sum piece_mass r`` over ``0 <= r <= max_loss`` with ``sum train_mass r <= train_risk``. Derived here.

    An atom is a planted set and tuple with risk r. This is a fractional knapsack (Neyman-Pearson lemma): atoms with the
    largest ``piece_mass / train_mass`` get risk first. The value is finite even if that ratio is infinite. The price is
    the added value per unit of added training risk; it is 0 if some training risk remains.
    """
    if not (train_risk >= 0 and max_loss > 0):
        raise SettingError(
            f"invalid train_risk {train_risk} or max_loss {max_loss}; use train_risk >= 0 and max_loss > 0"
        )
    if not (np.isfinite(piece_mass).all() and (piece_mass >= 0).all() and (train_mass >= 0).all()):
        raise SettingError("piece_mass or train_mass has a negative or infinite value; use finite values of at least 0")
    mass_ratio = safe_ratio(piece_mass, train_mass)
    order = np.argsort(-mass_ratio, kind="stable")
    cost = train_mass[order] * max_loss
    earlier_cost = np.cumsum(cost) - cost
    share = np.clip(np.divide(train_risk - earlier_cost, cost, out=np.ones_like(cost), where=cost > 0), 0.0, 1.0)
    risk = np.zeros_like(piece_mass)
    risk[order] = share * max_loss
    partial = np.flatnonzero((share < 1) & (cost > 0))
    price = float(mass_ratio[order[partial[0]]]) if len(partial) else 0.0
    return WorstCase(value=float(piece_mass @ risk), risk=risk, price=price)
