"""Covers of a long sequence: short pieces that each contain the planted set and together contain every local set.

To form a piece, delete some tokens that are not planted. By the deletion lemma, a piece has the distribution of
sequences of its length, so its risk is a risk at a training length. Intervals are half open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.theory.bounds.conditions import BoundError, Joints, safe_ratio

Interval = tuple[int, int]


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
        """Two flags: True if the run of the core has a joint on its left, and on its right."""
        return self.runs[0][1] <= self.core[0], self.core[1] <= self.runs[-1][0]

    def tokens(self) -> Int[np.ndarray, " num_tokens"]:
        """Return the token indexes of the piece in increasing order."""
        return np.concatenate([np.arange(*run) for run in self.runs])

    def index_of(self, token: int) -> int:
        """Return the index within the piece for a token index of the sequence."""
        return sum(min(end, token) - start for start, end in self.runs if start < token)

    def mirror(self, length: int) -> "Piece":
        """Return the same piece in the reversed sequence."""
        core, left, right, *runs = (
            (length - end, length - start) for start, end in (self.core, self.right, self.left, *reversed(self.runs))
        )
        return Piece(runs=tuple(runs), core=core, left=left, right=right, claims_core=self.claims_core)


@runtime_checkable
class Cover(Protocol):
    """A rule that maps the first token index of a planted set to the pieces of the sequence."""

    def pieces(self, start: int) -> Sequence[Piece]:
        """Return one or more pieces; earlier pieces claim sets first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCover:
    """Cover by windows on a grid: each chunk of other tokens gives one piece of ``train_length`` tokens. Derived here.

    The core is a window of half the training length. A piece contains the core, a chunk, and the ``span - 1`` tokens
    before the chunk, so no local set crosses from the chunk to the core. The chunk next to the core is in the same run.
    Pieces have at most one joint. Raises ``BoundError`` if half the training length is below the span.
    """

    test_length: int
    train_length: int
    span: int

    def __post_init__(self) -> None:
        if not 2 * self.span <= self.train_length <= self.test_length:
            raise BoundError(
                f"training length {self.train_length} and test length {self.test_length} give no cover by windows for "
                f"span {self.span}; train at {2 * self.span} or longer, but not above the test length (see "
                "counterexample 'unbounded reach')"
            )

    def pieces(self, start: int) -> Sequence[Piece]:
        """Return the pieces to the right of the window of this set, then to its left."""
        low, high = grid_window(start, self.test_length, self.train_length - self.train_length // 2, self.span)
        right = self._build_right_pieces((low, high), claims_core=True)
        mirror = (self.test_length - high, self.test_length - low)
        left = [piece.mirror(self.test_length) for piece in self._build_right_pieces(mirror, claims_core=not right)]
        return right + left

    def _build_right_pieces(self, core: Interval, *, claims_core: bool) -> list[Piece]:
        low, high = core
        if high == self.test_length:
            return []
        run_start = min(low, self.test_length - self.train_length)
        run_end = run_start + self.train_length
        pieces = [Piece(runs=((run_start, run_end),), core=core, right=(high, run_end), claims_core=claims_core)]
        step = self.train_length - (high - low) - self.span + 1
        for chunk in range(run_end, self.test_length, step):
            end = min(chunk + step, self.test_length)
            # Move the last chunk inward, so that every piece has the training length.
            chunk_run = (end - step - self.span + 1, end)
            pieces.append(Piece(runs=merge_intervals(core, chunk_run), core=core, right=(chunk, end)))
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
                f"span {self.span}; train at {3 * self.span} or longer, but not above the test length (see "
                "counterexample 'unbounded reach')"
            )

    def pieces(self, start: int) -> Sequence[Piece]:
        """Return the piece around the core, then pieces with slices further away."""
        low = min(start, self.test_length - self.span)
        high = low + self.span
        num_before, num_after, num_others = low, self.test_length - high, self.train_length - self.span
        # Minimize the number of pieces, then the distance from the proportions of the sequence.
        target_width = num_others * num_before / max(num_before + num_after, 1)
        left_widths = range(max(0, num_others - num_after), min(num_before, num_others) + 1)
        left_width = min(
            left_widths, key=lambda each: (self._count_pieces(each, num_before, num_after), abs(each - target_width))
        )
        right_width = num_others - left_width
        left_slices = self._slice_distances(left_width, num_before)
        right_slices = self._slice_distances(right_width, num_after)
        pieces = []
        for index in range(max(len(left_slices), len(right_slices))):
            # A side without further slices repeats its nearest slice, which makes no joint.
            left_inner, left_outer = left_slices[index] if index < len(left_slices) else (left_width, left_width)
            right_inner, right_outer = right_slices[index] if index < len(right_slices) else (right_width, right_width)
            piece = Piece(
                runs=merge_intervals(
                    (low - left_outer, low - left_outer + left_width),
                    (low, high),
                    (high + right_outer - right_width, high + right_outer),
                ),
                core=(low, high),
                left=(low - left_outer, low - left_inner),
                right=(high + right_inner, high + right_outer),
                claims_core=index == 0,
            )
            pieces.append(piece)
        return pieces

    def _count_pieces(self, left_width: int, num_before: int, num_after: int) -> int:
        """Return the number of pieces with ``left_width`` tokens on the left, or a larger number if no cover exists."""
        sides = ((left_width, num_before), (self.train_length - self.span - left_width, num_after))
        if any(self.span > width < total for width, total in sides):
            return self.test_length + 1
        return max(1 - (width - total) // (width - self.span + 1) if width < total else 1 for width, total in sides)

    def _slice_distances(self, first_slice_width: int, total: int) -> list[Interval]:
        """Divide the distances from the core, up to ``total``, into the intervals that the slices claim."""
        step = max(first_slice_width - self.span + 1, 1)
        starts = range(first_slice_width, total, step)
        return [(0, first_slice_width), *((start, min(start + step, total)) for start in starts)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceCover:
    """Cover for losses whose errors may cancel: sums and differences of piece errors give the error of the sequence.

    The core is a window of ``window`` tokens on a grid; the other tokens are divided into chunks of ``chunk``. Each
    chunk gives one piece with the chunk and one piece without it. Their difference is the effect of the sets that end
    in the chunk.
    Reconstructed from Golowich et al. 2025 (arXiv 2502.16792), theorem 4.3. The pieces claim no sets.
    """

    test_length: int
    window: int
    chunk: int
    span: int

    def __post_init__(self) -> None:
        min_chunk = max(self.span - 1, 1)
        if self.window < self.span or self.chunk < min_chunk or self.test_length < self.window:
            raise BoundError(
                f"window {self.window} and chunk {self.chunk} do not separate sets of span {self.span} at test length "
                f"{self.test_length}; use a window of at least {self.span} and a chunk of at least {min_chunk}"
            )

    def pieces(self, start: int) -> Sequence[Piece]:
        """Return the window, then two pieces per chunk."""
        low, high = grid_window(start, self.test_length, self.window, self.span)
        right = self._build_right_pieces((low, high))
        mirror = (self.test_length - high, self.test_length - low)
        left = [piece.mirror(self.test_length) for piece in self._build_right_pieces(mirror)]
        return [Piece(runs=((low, high),), core=(low, high)), *right, *left]

    def _build_right_pieces(self, core: Interval) -> list[Piece]:
        high = core[1]
        pieces = []
        for chunk_start in range(high, self.test_length, self.chunk):
            # The tokens before the chunk prevent local sets that cross from the chunk to the core.
            run_start = max(chunk_start - self.span + 1, high)
            chunk_end = min(chunk_start + self.chunk, self.test_length)
            pieces += [
                Piece(runs=merge_intervals(core, (run_start, run_end)), core=core)
                for run_end in (chunk_end, chunk_start)
            ]
        return pieces


def grid_window(start: int, test_length: int, window: int, span: int) -> Interval:
    """Return the grid window that contains every set of the span at ``start``; the step is ``window - span + 1``."""
    step = window - span + 1
    low = min(start // step * step, test_length - window)
    return low, low + window


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
    """Return the mass of each planted set at its index in the pieces of a cover, by number of tokens. Derived here.

    Each piece of a set adds the probability of the set, multiplied by the factor of the joints of the piece. With a
    factor of 1, the total is the expected number of pieces.
    """
    piece_mass: dict[int, Float[np.ndarray, "shapes num_tokens tuples"]] = {}
    for start in np.flatnonzero(probability.any(axis=0)):
        for piece in cover.pieces(int(start)):
            size = piece.num_tokens
            if size not in piece_mass:
                piece_mass[size] = np.zeros((len(probability), size, factor[False, False].shape[1]))
            piece_mass[size][:, piece.index_of(int(start))] += probability[:, start, None] * factor[piece.joints]
    return piece_mass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase:
    """Solution of ``worst_case``: the largest risk, the risk of each atom, and the price per unit of training risk."""

    value: float
    risk: Float[np.ndarray, " atoms"]
    price: float


def worst_case(
    train_risk: float,
    piece_mass: Float[np.ndarray, " atoms"],
    train_mass: Float[np.ndarray, " atoms"],
    max_loss: float = 1.0,
) -> WorstCase:
    """Maximize ``sum piece_mass r`` over ``0 <= r <= max_loss`` with ``sum train_mass r <= train_risk``. Derived here.

    This is a fractional knapsack (Neyman-Pearson lemma): atoms with the largest ``piece_mass / train_mass`` get risk
    first. The value is finite even if that ratio is infinite. The price is 0 if some training risk remains.
    """
    if not (train_risk >= 0 and max_loss > 0):
        raise SettingError(
            f"invalid risk {train_risk} or max_loss {max_loss}; use a risk of at least 0 and a max_loss above 0"
        )
    if not (np.isfinite(piece_mass).all() and (piece_mass >= 0).all() and (train_mass >= 0).all()):
        raise SettingError("a mass of planted sets is negative or infinite; use finite values of at least 0")
    ratio = safe_ratio(piece_mass, train_mass)
    order = np.argsort(-ratio, kind="stable")
    cost = train_mass[order] * max_loss
    spent_before = np.cumsum(cost) - cost
    loss_share = np.clip(np.divide(train_risk - spent_before, cost, out=np.ones_like(cost), where=cost > 0), 0.0, 1.0)
    risk = np.zeros_like(piece_mass)
    risk[order] = loss_share * max_loss
    partial = np.flatnonzero((loss_share < 1) & (cost > 0))
    price = float(ratio[order[partial[0]]]) if len(partial) else 0.0
    return WorstCase(value=float(piece_mass @ risk), risk=risk, price=price)
