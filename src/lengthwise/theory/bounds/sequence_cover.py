"""Covers of a long sequence by short pieces that all hold the planted set and together hold every local set.

A piece is the sequence without some tokens that are not planted. By the deletion lemma it has the distribution of the
shorter length, so its risk is a risk at a training length. Intervals are half open.
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
    """The concatenated tokens of ``runs``; ``core`` lies in one run and holds the planted set.

    Of the local sets inside a run, a piece claims those that start in ``left`` before the core, those that end in
    ``right`` after it, and, with ``claims_core``, those inside the core. A cover claims each local set once.
    """

    runs: tuple[Interval, ...]
    core: Interval
    left: Interval = (0, 0)
    right: Interval = (0, 0)
    claims_core: bool = False

    @property
    def size(self) -> int:
        """The number of tokens in the piece."""
        return sum(end - start for start, end in self.runs)

    @property
    def joints(self) -> Joints:
        """True for a joint to the left, to the right of the run that holds the core."""
        return self.runs[0][1] <= self.core[0], self.core[1] <= self.runs[-1][0]

    def tokens(self) -> Int[np.ndarray, " size"]:
        """Return the token indexes of the piece in increasing order."""
        return np.concatenate([np.arange(*run) for run in self.runs])

    def index_of(self, token: int) -> int:
        """Return the index within the piece of a token index of the sequence."""
        return sum(min(end, token) - start for start, end in self.runs if start < token)

    def mirror(self, length: int) -> "Piece":
        """Return the piece of the reversed sequence."""
        core, left, right, *runs = (
            (length - end, length - start) for start, end in (self.core, self.right, self.left, *reversed(self.runs))
        )
        return Piece(runs=tuple(runs), core=core, left=left, right=right, claims_core=self.claims_core)


@runtime_checkable
class Cover(Protocol):
    """A rule that gives the pieces of a planted set from the token index where the set starts."""

    def pieces(self, start: int) -> Sequence[Piece]:
        """Return at least one piece; pieces claim sets in this order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCover:
    """Windows on a grid, and one piece of exactly ``train_length`` tokens per chunk of the rest. Derived here.

    The core is a window of half the training length. A chunk far from it brings the ``span - 1`` tokens before it, so
    that no local set joins it to the core; the chunk next to the core forms one run with it. At most one joint.
    ``BoundError`` if half the training length is below the span.
    """

    test_length: int
    train_length: int
    span: int

    def __post_init__(self) -> None:
        if not 2 * self.span <= self.train_length <= self.test_length:
            raise BoundError(
                f"windows of half of {self.train_length} tokens out of {self.test_length} do not hold every set of "
                f"span {self.span}; train at {2 * self.span} or longer, and test at no shorter length (see "
                "counterexample 'unbounded reach')"
            )

    def pieces(self, start: int) -> Sequence[Piece]:
        """Return the pieces to the right of the window of this set, then to its left."""
        low, high = grid_window(start, self.test_length, self.train_length - self.train_length // 2, self.span)
        right = self._rightward((low, high), claims_core=True)
        mirror = (self.test_length - high, self.test_length - low)
        left = [piece.mirror(self.test_length) for piece in self._rightward(mirror, claims_core=not right)]
        return right + left

    def _rightward(self, core: Interval, *, claims_core: bool) -> list[Piece]:
        low, high = core
        if high == self.test_length:
            return []
        first = min(low, self.test_length - self.train_length)
        near = first + self.train_length
        pieces = [Piece(runs=((first, near),), core=core, right=(high, near), claims_core=claims_core)]
        step = self.train_length - (high - low) - self.span + 1
        for chunk in range(near, self.test_length, step):
            end = min(chunk + step, self.test_length)
            # The last chunk moves inside, so that every piece has the training length.
            run = (end - step - self.span + 1, end)
            pieces.append(Piece(runs=merge_intervals(core, run), core=core, right=(chunk, end)))
        return pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionalCover:
    """Pieces of exactly ``train_length`` tokens: a core of one span with room on both sides. Derived here.

    The room is divided in proportion to the tokens on each side, so that the planted set stays at about the same
    relative index: about ``(test_length - span) / (train_length - 3 * span + 2)`` pieces, at most two joints.
    ``BoundError`` if the training length is below three spans.
    """

    test_length: int
    train_length: int
    span: int

    def __post_init__(self) -> None:
        if not 3 * self.span <= self.train_length <= self.test_length:
            raise BoundError(
                f"pieces of {self.train_length} tokens out of {self.test_length} have no room on both sides of a span "
                f"of {self.span}; train at {3 * self.span} or longer, and test at no shorter length (see "
                "counterexample 'unbounded reach')"
            )

    def pieces(self, start: int) -> Sequence[Piece]:
        """Return the run around the core, then pairs of slices outwards."""
        low = min(start, self.test_length - self.span)
        high = low + self.span
        before, after, room = low, self.test_length - high, self.train_length - self.span
        # The fewest pieces; among those, the proportion closest to that of the sequence.
        target = room * before / max(before + after, 1)
        fits = range(max(0, room - after), min(before, room) + 1)
        left = min(fits, key=lambda each: (self._number(each, before, after), abs(each - target)))
        to_left, to_right = self._slices(left, before), self._slices(room - left, after)
        pieces = []
        for index in range(max(len(to_left), len(to_right))):
            # After the last slice of one side, its nearest slice repeats, which makes no joint.
            nearer, ahead = to_left[index] if index < len(to_left) else (left, left)
            closer, behind = to_right[index] if index < len(to_right) else (room - left, room - left)
            piece = Piece(
                runs=merge_intervals(
                    (low - ahead, low - ahead + left), (low, high), (high + behind - room + left, high + behind)
                ),
                core=(low, high),
                left=(low - ahead, low - nearer),
                right=(high + closer, high + behind),
                claims_core=index == 0,
            )
            pieces.append(piece)
        return pieces

    def _number(self, left: int, before: int, after: int) -> int:
        """Return the number of pieces for this room on the left; above ``test_length`` if no number suffices."""
        sides = ((left, before), (self.train_length - self.span - left, after))
        if any(self.span > reach < total for reach, total in sides):
            return self.test_length + 1
        return max(1 - (reach - total) // (reach - self.span + 1) if reach < total else 1 for reach, total in sides)

    def _slices(self, reach: int, total: int) -> list[Interval]:
        """Cut the distances from the core up to ``total`` into the intervals that the slices claim."""
        step = max(reach - self.span + 1, 1)
        return [(0, reach), *((start, min(start + step, total)) for start in range(reach, total, step))]


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceCover:
    """Pieces whose errors, added and subtracted, give the error of the whole: for losses where errors may cancel.

    The core is a window of ``window`` tokens on a grid; the rest is cut into chunks of ``chunk``. Each chunk gives two
    pieces, with and without it; their difference is the contribution of the sets that end in the chunk. Reconstructed
    from Golowich et al. 2025 (arXiv 2502.16792), theorem 4.3. The pieces claim no sets.
    """

    test_length: int
    window: int
    chunk: int
    span: int

    def __post_init__(self) -> None:
        min_chunk = max(self.span - 1, 1)
        if self.window < self.span or self.chunk < min_chunk or self.test_length < self.window:
            raise BoundError(
                f"windows of {self.window} tokens and chunks of {self.chunk} out of {self.test_length} do not separate "
                f"sets of span {self.span}; use windows of at least {self.span} and chunks of at least {min_chunk}"
            )

    def pieces(self, start: int) -> Sequence[Piece]:
        """Return the window, then two pieces per chunk."""
        low, high = grid_window(start, self.test_length, self.window, self.span)
        right = self._rightward((low, high))
        mirror = (self.test_length - high, self.test_length - low)
        left = [piece.mirror(self.test_length) for piece in self._rightward(mirror)]
        return [Piece(runs=((low, high),), core=(low, high)), *right, *left]

    def _rightward(self, core: Interval) -> list[Piece]:
        high = core[1]
        pieces = []
        for first in range(high, self.test_length, self.chunk):
            # With the tokens before the chunk, no local set joins the core to it.
            gap = max(first - self.span + 1, high)
            end = min(first + self.chunk, self.test_length)
            pieces += [Piece(runs=merge_intervals(core, (gap, last)), core=core) for last in (end, first)]
        return pieces


def grid_window(start: int, test_length: int, window: int, span: int) -> Interval:
    """Return the window that holds every set of the span from ``start``; windows begin ``window - span + 1`` apart."""
    step = window - span + 1
    low = min(start // step * step, test_length - window)
    return low, low + window


def merge_intervals(*intervals: Interval) -> tuple[Interval, ...]:
    """Return the same tokens in as few runs as possible; intervals must be sorted and disjoint."""
    runs: list[Interval] = []
    for start, end in intervals:
        if start < end:
            touches = runs and runs[-1][1] == start
            runs.append((runs.pop()[0], end) if touches else (start, end))
    return tuple(runs)


def push_forward(
    probability: Float[np.ndarray, "shapes length"],
    cover: Cover,
    factor: Mapping[Joints, Float[np.ndarray, "shapes tuples"]],
) -> dict[int, Float[np.ndarray, "shapes size tuples"]]:
    """Return the mass of each planted set at its index in the pieces of a cover, by piece size. Derived here.

    Every piece of a set adds the probability of the set times the factor of its joints. With a factor of 1, the total
    is the expected number of pieces.
    """
    pushed: dict[int, Float[np.ndarray, "shapes size tuples"]] = {}
    for start in np.flatnonzero(probability.any(axis=0)):
        for piece in cover.pieces(int(start)):
            if piece.size not in pushed:
                pushed[piece.size] = np.zeros((len(probability), piece.size, factor[False, False].shape[1]))
            pushed[piece.size][:, piece.index_of(int(start))] += probability[:, start, None] * factor[piece.joints]
    return pushed


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase:
    """The largest risk ``value``, the risk of each atom that attains it, and the price per unit of training risk."""

    value: float
    risk: Float[np.ndarray, " atoms"]
    price: float


def worst_case(
    train_risk: float,
    pushed: Float[np.ndarray, " atoms"],
    train_mass: Float[np.ndarray, " atoms"],
    max_loss: float = 1.0,
) -> WorstCase:
    """Maximize ``sum pushed r`` over ``0 <= r <= max_loss`` with ``sum train_mass r <= train_risk``. Derived here.

    A fractional knapsack (Neyman-Pearson lemma): risk goes where ``pushed / train_mass`` is largest. The value is
    finite even if that ratio is infinite. ``pushed`` may have any mass; the price is 0 if the budget is not used up.
    """
    if not (train_risk >= 0 and max_loss > 0):
        raise SettingError(f"invalid risk {train_risk} with losses up to {max_loss}; use 0 or more")
    if not (np.isfinite(pushed).all() and (pushed >= 0).all() and (train_mass >= 0).all()):
        raise SettingError("a mass of the planted set is negative or infinite; use probabilities or their finite sums")
    ratio = safe_ratio(pushed, train_mass)
    order = np.argsort(-ratio, kind="stable")
    cost = train_mass[order] * max_loss
    spent_before = np.cumsum(cost) - cost
    share = np.clip(np.divide(train_risk - spent_before, cost, out=np.ones_like(cost), where=cost > 0), 0.0, 1.0)
    risk = np.zeros_like(pushed)
    risk[order] = share * max_loss
    partial = np.flatnonzero((share < 1) & (cost > 0))
    price = float(ratio[order[partial[0]]]) if len(partial) else 0.0
    return WorstCase(value=float(pushed @ risk), risk=risk, price=price)
