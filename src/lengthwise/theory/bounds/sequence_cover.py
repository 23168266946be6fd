"""Covers: a long sequence cut into short pieces that all keep the planted set and together hold every local set.

A piece is what is left when tokens are deleted; the rest closes up. Deleting unplanted tokens leaves a sequence of the
same law at the shorter length, so the risk on a piece is a risk that training has seen. Intervals are half open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.theory.bounds.conditions import BoundError, Joints, quotients

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The tokens of ``runs``, put next to each other; ``core`` lies in one run and holds the planted set.

    Of the local sets inside a run, a piece claims those that start in ``left`` and before the core, those that end in
    ``right`` and after it, and, if ``inside``, those within the core. The pieces of a cover claim each set once.
    """

    runs: tuple[Interval, ...]
    core: Interval
    left: Interval = (0, 0)
    right: Interval = (0, 0)
    inside: bool = False

    @property
    def size(self) -> int:
        """How many tokens are kept."""
        return sum(end - start for start, end in self.runs)

    @property
    def joints(self) -> tuple[bool, bool]:
        """Whether tokens that were apart meet to the left, to the right of the run that holds the core."""
        return self.runs[0][1] <= self.core[0], self.core[1] <= self.runs[-1][0]

    def tokens(self) -> Int[np.ndarray, " size"]:
        """The token indexes that are kept, increasing."""
        return np.concatenate([np.arange(*run) for run in self.runs])

    def place(self, token: int) -> int:
        """The token index, among those kept, of one that is."""
        return sum(min(end, token) - start for start, end in self.runs if start < token)

    def mirrored(self, length: int) -> "Piece":
        """The same for the sequence read backwards."""
        core, left, right, *runs = (
            (length - end, length - start) for start, end in (self.core, self.right, self.left, *reversed(self.runs))
        )
        return Piece(runs=tuple(runs), core=core, left=left, right=right, inside=self.inside)


@runtime_checkable
class Cover(Protocol):
    """A rule that gives the pieces of a planted set from the token index where the set starts."""

    def pieces(self, start: int) -> Sequence[Piece]:
        """At least one; the order is that in which sets are claimed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCover:
    """Windows on a grid, and one piece of exactly ``trained`` tokens per chunk of the rest. Derived here.

    The core is a window of half the trained length. A chunk far from it comes with the ``span - 1`` tokens before it,
    so that no local set joins it to the core; the chunk next to the core makes one stretch with it. At most one joint.
    ``BoundError`` where half the trained length is below the span.
    """

    tested: int
    trained: int
    span: int

    def __post_init__(self) -> None:
        if not 2 * self.span <= self.trained <= self.tested:
            raise BoundError(
                f"windows of half of {self.trained} tokens out of {self.tested} do not hold every set of span "
                f"{self.span}; train at {2 * self.span} or longer (counterexample C2b) and test no shorter"
            )

    def pieces(self, start: int) -> Sequence[Piece]:
        """To the right of the window of this set, then to its left."""
        low, high = grid_window(start, self.tested, self.trained - self.trained // 2, self.span)
        right = self._to_the_right((low, high), inside=True)
        mirror = (self.tested - high, self.tested - low)
        left = [piece.mirrored(self.tested) for piece in self._to_the_right(mirror, inside=not right)]
        return right + left

    def _to_the_right(self, core: Interval, *, inside: bool) -> list[Piece]:
        low, high = core
        if high == self.tested:
            return []
        first = min(low, self.tested - self.trained)
        near = first + self.trained
        pieces = [Piece(runs=((first, near),), core=core, right=(high, near), inside=inside)]
        step = self.trained - (high - low) - self.span + 1
        for chunk in range(near, self.tested, step):
            end = min(chunk + step, self.tested)
            # The last chunk is moved inside, so that every piece has the trained length.
            piece = (end - step - self.span + 1, end)
            pieces.append(Piece(runs=merged(core, piece), core=core, right=(chunk, end)))
        return pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionalCover:
    """Pieces of exactly ``trained`` tokens: a core as small as a span, and room on both sides of it. Derived here.

    The room on the two sides is about in the proportion of what lies there, so that the planted set keeps its relative
    place: about ``(tested - span) / (trained - 3 * span + 2)`` pieces, at most two joints. ``BoundError`` where the
    trained length is below three spans.
    """

    tested: int
    trained: int
    span: int

    def __post_init__(self) -> None:
        if not 3 * self.span <= self.trained <= self.tested:
            raise BoundError(
                f"pieces of {self.trained} tokens out of {self.tested} have no room on both sides of a span of "
                f"{self.span}; train at {3 * self.span} or longer (counterexample C2b) and test no shorter"
            )

    def pieces(self, start: int) -> Sequence[Piece]:
        """The stretch around the core, then pairs of slices going outwards."""
        low = min(start, self.tested - self.span)
        high = low + self.span
        before, after, room = low, self.tested - high, self.trained - self.span
        # Fewest pieces; of those the proportion closest to the sequence's own.
        aim = room * before / max(before + after, 1)
        fits = range(max(0, room - after), min(before, room) + 1)
        left = min(fits, key=lambda each: (self._number(each, before, after), abs(each - aim)))
        to_left, to_right = self._slices(left, before), self._slices(room - left, after)
        pieces = []
        for index in range(max(len(to_left), len(to_right))):
            # Where one side is done, its nearest slice comes again: it makes no joint.
            nearer, ahead = to_left[index] if index < len(to_left) else (left, left)
            closer, behind = to_right[index] if index < len(to_right) else (room - left, room - left)
            piece = Piece(
                runs=merged(
                    (low - ahead, low - ahead + left), (low, high), (high + behind - room + left, high + behind)
                ),
                core=(low, high),
                left=(low - ahead, low - nearer),
                right=(high + closer, high + behind),
                inside=index == 0,
            )
            pieces.append(piece)
        return pieces

    def _number(self, left: int, before: int, after: int) -> int:
        """How many pieces it takes with this much room on the left; more than there are tokens where none do."""
        sides = ((left, before), (self.trained - self.span - left, after))
        if any(self.span > reach < total for reach, total in sides):
            return self.tested + 1
        return max(1 - (reach - total) // (reach - self.span + 1) if reach < total else 1 for reach, total in sides)

    def _slices(self, reach: int, total: int) -> list[Interval]:
        """Distances from the core out to ``total`` in slices: what each claims, its end being that of the slice."""
        step = max(reach - self.span + 1, 1)
        return [(0, reach), *((start, min(start + step, total)) for start in range(reach, total, step))]


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceCover:
    """Pieces whose errors, added and subtracted, make up the error of the whole: for losses in which errors may cancel.

    The core is a window of ``window`` tokens on a grid, the rest is cut into chunks of ``chunk``. A chunk gives two
    pieces, with it and without: what they differ by is what the sets ending in the chunk add. Reconstructed from
    Golowich et al. 2025 (arXiv 2502.16792), theorem 4.3. Nothing is claimed.
    """

    tested: int
    window: int
    chunk: int
    span: int

    def __post_init__(self) -> None:
        if self.window < self.span or self.chunk < max(self.span - 1, 1) or self.tested < self.window:
            raise BoundError(
                f"a window of {self.window} tokens and chunks of {self.chunk} out of {self.tested} do not part sets "
                f"of span {self.span}; make the window at least {self.span}, chunks at least {max(self.span - 1, 1)}"
            )

    def pieces(self, start: int) -> Sequence[Piece]:
        """The window, then two pieces per chunk."""
        low, high = grid_window(start, self.tested, self.window, self.span)
        right = self._to_the_right((low, high))
        mirror = (self.tested - high, self.tested - low)
        left = [piece.mirrored(self.tested) for piece in self._to_the_right(mirror)]
        return [Piece(runs=((low, high),), core=(low, high)), *right, *left]

    def _to_the_right(self, core: Interval) -> list[Piece]:
        high = core[1]
        pieces = []
        for first in range(high, self.tested, self.chunk):
            # No local set joins the core to a chunk that comes with the tokens before it.
            gap = max(first - self.span + 1, high)
            end = min(first + self.chunk, self.tested)
            pieces += [Piece(runs=merged(core, (gap, last)), core=core) for last in (end, first)]
        return pieces


def grid_window(start: int, tested: int, window: int, span: int) -> Interval:
    """The window that holds every set of the span that starts here; windows begin ``window - span + 1`` apart."""
    step = window - span + 1
    low = min(start // step * step, tested - window)
    return low, low + window


def merged(*intervals: Interval) -> tuple[Interval, ...]:
    """The same tokens in as few runs as there can be; intervals come in order and do not overlap."""
    runs: list[Interval] = []
    for start, end in intervals:
        if start < end:
            touches = runs and runs[-1][1] == start
            runs.append((runs.pop()[0], end) if touches else (start, end))
    return tuple(runs)


def push_forward(
    probability: Float[np.ndarray, "shapes tested"],
    cover: Cover,
    factor: Mapping[Joints, Float[np.ndarray, "shapes tuples"]],
) -> dict[int, Float[np.ndarray, "shapes length tuples"]]:
    """The law of the planted set at its place in the pieces of a cover, per length of pieces. Derived here.

    Every piece of a set adds the probability of the set, times the factor of its joints; the sum of a factor of 1 is
    the expected number of pieces.
    """
    pushed: dict[int, Float[np.ndarray, "shapes length tuples"]] = {}
    for start in np.flatnonzero(probability.any(axis=0)):
        for piece in cover.pieces(int(start)):
            if piece.size not in pushed:
                pushed[piece.size] = np.zeros((len(probability), piece.size, factor[False, False].shape[1]))
            pushed[piece.size][:, piece.place(int(start))] += probability[:, start, None] * factor[piece.joints]
    return pushed


def eta_push(
    pushed: Float[np.ndarray, "shapes length tuples"], trained: Float[np.ndarray, "shapes length tuples"]
) -> float:
    """``max pushed / trained``: the factor a risk can grow by; infinite where training lacks a set. Derived here."""
    return float(quotients(pushed.ravel(), trained.ravel()).max())


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The worst case: ``value``, the risk of each atom that attains it, and the price of a unit of training risk."""

    value: float
    risk: Float[np.ndarray, " atoms"]
    price: float


def transfer(
    trained_risk: float,
    pushed: Float[np.ndarray, " atoms"],
    trained: Float[np.ndarray, " atoms"],
    largest: float = 1.0,
) -> Transfer:
    """``max sum pushed r`` over ``0 <= r <= largest`` with ``sum trained r <= trained_risk``. Derived here.

    A fractional knapsack, as in the lemma of Neyman and Pearson: risk is spent where ``pushed / trained`` is largest.
    Finite also where that ratio is infinite, and at most its maximum times ``trained_risk``. ``pushed`` may have any
    mass; the price is 0 where the budget is not used up.
    """
    _check(trained_risk, pushed, trained, largest)
    ratio = quotients(pushed, trained)
    order = np.argsort(-ratio, kind="stable")
    cost = trained[order] * largest
    spent_before = np.cumsum(cost) - cost
    share = np.clip(np.divide(trained_risk - spent_before, cost, out=np.ones_like(cost), where=cost > 0), 0.0, 1.0)
    risk = np.zeros_like(pushed)
    risk[order] = share * largest
    partly = np.flatnonzero((share < 1) & (cost > 0))
    price = float(ratio[order[partly[0]]]) if len(partly) else 0.0
    return Transfer(value=float(pushed @ risk), risk=risk, price=price)


def _check(trained_risk: float, pushed: np.ndarray, trained: np.ndarray, largest: float) -> None:
    if not (trained_risk >= 0 and largest > 0):
        raise SettingError(f"a risk of {trained_risk} with losses up to {largest} is none; give 0 or more")
    if not (np.isfinite(pushed).all() and (pushed >= 0).all() and (trained >= 0).all()):
        raise SettingError(
            "a mass of the planted set is negative or infinite; give probabilities, or their finite sums"
        )
