"""Covers of a long sequence by short pieces, and bounds from the scores inside the pieces.

Each piece contains the planted set, and together the pieces contain every local set. To form a piece, delete some
tokens that are not planted. By the deletion lemma, a piece has the distribution of sequences of its length, so its risk
is a risk at a training length. Intervals are half open.

Bounds with known scores do not need kappa. The error of a sequence is at most a sum over its pieces: the loss of the
sets that each piece claims. Within a piece, the weights of its sets sum to 1. Derived here.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.tasks.planted.placement import OffsetDistribution
from lengthwise.theory.attention.tabular import Outputs, TabularAttention, Tokens, normalize_scores
from lengthwise.theory.bounds.bound_inputs import BoundError, BoundInputs, Cuts, safe_ratio
from lengthwise.theory.risk.exact_risk import (
    AttentionLeakageLoss,
    Loss,
    Losses,
    PlantedSets,
    Predictor,
    count_sequences,
    enumerated_risk,
)
from lengthwise.theory.risk.risk_at_length import bernstein_margin

Interval = tuple[int, int]
Atoms = Float[np.ndarray, " atoms"]
# The largest number of sequences, summed over all windows, of an exact bound.
MAX_SEQUENCES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencePiece:
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
    def cuts(self) -> Cuts:
        """Two flags: True if there is a cut left of the run with the core, and True if there is one right of it."""
        return self.runs[0][1] <= self.core[0], self.core[1] <= self.runs[-1][0]

    def tokens(self) -> Int[np.ndarray, " num_tokens"]:
        """Return the token indexes of the piece in increasing order."""
        return np.concatenate([np.arange(*run) for run in self.runs])

    def index_of_token(self, token: int) -> int:
        """Return the index within the piece of a token, which is given by its index in the sequence."""
        return sum(min(end, token) - start for start, end in self.runs if start < token)

    def with_relative_indexes(self) -> "SequencePiece":
        """Return the piece with token indexes that count from its start."""
        core, left, right, *runs = (
            (self.index_of_token(start), self.index_of_token(end - 1) + 1) if start < end else (0, 0)
            for start, end in (self.core, self.left, self.right, *self.runs)
        )
        return SequencePiece(runs=tuple(runs), core=core, left=left, right=right, claims_core=self.claims_core)

    def contains_planted_sets(self, sets: Int[np.ndarray, "sets k"]) -> Bool[np.ndarray, " sets"]:
        """Return one flag per set of tokens of a relative piece: True if the set lies inside one run."""
        run_index = np.searchsorted([end for _, end in self.runs], sets, side="right")
        return np.asarray(run_index[:, 0] == run_index[:, -1])

    def claims_sets(self, sets: Int[np.ndarray, "sets k"]) -> Bool[np.ndarray, " sets"]:
        """Return one flag per set of tokens of a relative piece: True if the piece claims the set."""
        first_index, last_index = sets[:, 0], sets[:, -1]
        is_in_core = (first_index >= self.core[0]) & (last_index < self.core[1]) & self.claims_core
        starts_in_left = (first_index >= self.left[0]) & (first_index < self.left[1])
        ends_in_right = (last_index >= self.right[0]) & (last_index < self.right[1])
        return np.asarray(self.contains_planted_sets(sets) & (is_in_core | starts_in_left | ends_in_right))

    def mirror(self, length: int) -> "SequencePiece":
        """Return the mirror image of the piece in the reversed sequence, which has ``length`` tokens."""
        intervals = self.core, self.right, self.left, *reversed(self.runs)
        core, left, right, *runs = ((length - end, length - start) for start, end in intervals)
        return SequencePiece(runs=tuple(runs), core=core, left=left, right=right, claims_core=self.claims_core)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridWindowCover:
    """Cover with a core window on a grid: each chunk of other tokens gives one piece of ``train_length`` tokens.

    The core is a window of half the training length. A piece contains the core, a chunk, and the ``span - 1`` tokens
    before the chunk, so no local set crosses from the chunk to the core. The chunk next to the core is in the same run.
    Pieces have at most one cut. Raises ``BoundError`` if half the training length is below the span. Derived here.
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

    def list_pieces(self, start: int) -> Sequence[SequencePiece]:
        """Return the pieces with chunks to the right of the core, then the pieces with chunks to its left."""
        core = find_grid_window(start, self.test_length, self.train_length - self.train_length // 2, self.span)
        right_pieces = self._build_right_pieces(core, claims_core=True)
        mirrored_core = (self.test_length - core[1], self.test_length - core[0])
        mirrored_pieces = self._build_right_pieces(mirrored_core, claims_core=not right_pieces)
        return [*right_pieces, *(piece.mirror(self.test_length) for piece in mirrored_pieces)]

    def _build_right_pieces(self, core: Interval, *, claims_core: bool) -> list[SequencePiece]:
        core_start, core_end = core
        if core_end == self.test_length:
            return []
        run_start = min(core_start, self.test_length - self.train_length)
        run_end = run_start + self.train_length
        pieces = [
            SequencePiece(runs=((run_start, run_end),), core=core, right=(core_end, run_end), claims_core=claims_core)
        ]
        chunk_length = self.train_length - (core_end - core_start) - self.span + 1
        for chunk_start in range(run_end, self.test_length, chunk_length):
            chunk_end = min(chunk_start + chunk_length, self.test_length)
            # Move the last chunk inward, so that every piece has the training length.
            chunk_run = (chunk_end - chunk_length - self.span + 1, chunk_end)
            pieces.append(
                SequencePiece(runs=merge_intervals(core, chunk_run), core=core, right=(chunk_start, chunk_end))
            )
        return pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionalCover:
    """Cover by pieces of exactly ``train_length`` tokens: a core of one span and slices on both sides. Derived here.

    The slices are proportional to the number of tokens on each side, so the planted set keeps its relative index.
    There are about ``(test_length - span) / (train_length - 3 * span + 2)`` pieces with at most two cuts.
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

    def list_pieces(self, start: int) -> Sequence[SequencePiece]:
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
            # A side without further slices repeats its nearest slice, which makes no cut.
            left_near, left_far = left_slice or (left_width, left_width)
            right_near, right_far = right_slice or (right_width, right_width)
            left_run = (start - left_far, start - left_far + left_width)
            right_run = (end + right_far - right_width, end + right_far)
            piece = SequencePiece(
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
class ChunkDifferenceCover:
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

    def list_pieces(self, start: int) -> Sequence[SequencePiece]:
        """Return the core window, then two pieces per chunk: with the chunk and without it."""
        core = find_grid_window(start, self.test_length, self.window_length, self.span)
        mirrored_core = (self.test_length - core[1], self.test_length - core[0])
        left_pieces = [piece.mirror(self.test_length) for piece in self._build_right_pieces(mirrored_core)]
        return [SequencePiece(runs=(core,), core=core), *self._build_right_pieces(core), *left_pieces]

    def _build_right_pieces(self, core: Interval) -> list[SequencePiece]:
        core_end = core[1]
        pieces = []
        for chunk_start in range(core_end, self.test_length, self.chunk_length):
            # The tokens before the chunk prevent local sets that cross from the chunk to the core.
            first = max(chunk_start - self.span + 1, core_end)
            chunk_end = min(chunk_start + self.chunk_length, self.test_length)
            runs = (merge_intervals(core, (first, run_end)) for run_end in (chunk_end, chunk_start))
            pieces += [SequencePiece(runs=piece_runs, core=core) for piece_runs in runs]
        return pieces


# A rule that maps the first token index of a planted set to the pieces of the sequence.
Cover = GridWindowCover | ProportionalCover | ChunkDifferenceCover
# A cover by pieces of the training length.
CoverType = type[GridWindowCover] | type[ProportionalCover]


def find_grid_window(start: int, test_length: int, window_length: int, span: int) -> Interval:
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


def expected_piece_counts(
    probability: Float[np.ndarray, "shapes length"],
    cover: Cover,
    factor: Mapping[Cuts, Float[np.ndarray, "shapes tuples"]],
) -> dict[int, Float[np.ndarray, "shapes num_tokens tuples"]]:
    """Return the expected number of pieces by number of tokens, with axes shape, index in the piece, and tuple.

    Each piece for a planted set adds the probability of the set, multiplied by the factor of the cuts of the piece.
    With a factor of 1, the total is the expected number of pieces. Derived here.
    """
    counts: dict[int, Float[np.ndarray, "shapes num_tokens tuples"]] = {}
    for start in np.flatnonzero(probability.any(axis=0)).tolist():
        for piece in cover.list_pieces(start):
            num_tokens = piece.num_tokens
            if num_tokens not in counts:
                counts[num_tokens] = np.zeros((len(probability), num_tokens, factor[False, False].shape[1]))
            counts[num_tokens][:, piece.index_of_token(start)] += probability[:, start, None] * factor[piece.cuts]
    return counts


def worst_case_weighted_risk(train_risk: float, weight: Atoms, train_probability: Atoms) -> float:
    """Maximize ``sum weight r`` over risks ``0 <= r <= 1`` with ``sum train_probability r <= train_risk``.

    An atom is a planted set and tuple with risk r. This is a fractional knapsack (Neyman-Pearson lemma): atoms with the
    largest ``weight / train_probability`` get risk first. The value is finite even if that ratio is infinite. Derived
    here.
    """
    if not train_risk >= 0:
        raise SettingError(f"invalid train_risk {train_risk}; use train_risk >= 0")
    if not (np.isfinite(weight).all() and (weight >= 0).all() and (train_probability >= 0).all()):
        raise SettingError("a weight or train_probability is negative or infinite; use finite values of at least 0")
    order = np.argsort(-safe_ratio(weight, train_probability), kind="stable")
    cost = train_probability[order]
    earlier_cost = np.cumsum(cost) - cost
    risk = np.zeros_like(weight)
    risk[order] = np.clip(np.divide(train_risk - earlier_cost, cost, out=np.ones_like(cost), where=cost > 0), 0.0, 1.0)
    return float(weight @ risk)


@dataclass(frozen=True, slots=True)
class PieceLoss:
    """Loss in [0, 1] of the sets that a relative piece claims; the attention weights are over all sets in its runs."""

    piece: SequencePiece
    loss: Loss

    name: ClassVar[str] = "piece"

    def evaluate(self, predictor: Predictor, tokens: Tokens, planted: PlantedSets, labels: Outputs) -> Losses:
        """Return the loss per sequence; without weights, that of the default with ``claims_core`` and 0 otherwise."""
        assert isinstance(predictor, TabularAttention)
        sets, log_scores, values = predictor.score_token_sets(tokens)
        is_inside = self.piece.contains_planted_sets(sets)
        weights, total_score = normalize_scores(log_scores[:, is_inside])
        if isinstance(self.loss, AttentionLeakageLoss):
            set_loss = (sets[None, is_inside] != planted[:, None]).any(axis=2).astype(float)
            default_loss = np.ones(len(tokens))
        else:
            set_loss = 1 - np.einsum("bso,bo->bs", values[:, is_inside], labels)
            default_loss = 1 - labels @ predictor.default
        is_claimed = self.piece.claims_sets(sets[is_inside])
        claimed_loss = (weights * set_loss)[:, is_claimed].sum(axis=1)
        return np.asarray(np.where(total_score > 0, claimed_loss, default_loss * self.piece.claims_core))


@dataclass(frozen=True, slots=True)
class FixedPlacement:
    """Placement that plants the set with the same token indexes at every length."""

    shape: tuple[int, ...]
    start: int

    name: ClassVar[str] = "fixed"
    summary: ClassVar[str] = "one set at every length"

    @property
    def k(self) -> int:
        """The number of planted tokens."""
        return len(self.shape)

    @property
    def max_span(self) -> int | None:
        """The span of the set in tokens."""
        return self.shape[-1] + 1

    @property
    def min_length(self) -> int:
        """The shortest length, at which the last token is planted."""
        return self.start + self.shape[-1] + 1

    def offset_distribution(self, length: int) -> OffsetDistribution:
        """Return the distribution in which the set has probability 1."""
        return OffsetDistribution(shapes=np.array([self.shape]), probability=np.eye(1, length, self.start))

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size k"]:
        """Return ``size`` copies of the token indexes of the set."""
        return np.tile(self.start + np.array(self.shape), (size, 1))


def count_distinct_pieces(
    case: BoundInputs, cover_type: CoverType
) -> dict[tuple[SequencePiece, FixedPlacement], float]:
    """Return the expected number of pieces for each distinct summand; long test lengths add few distinct summands.

    A summand is a relative piece and its planted set. Raises ``BoundError`` if the lengths are too short for the cover,
    the predictor or the law is not local, or the loss is not linear.
    """
    case.check_linear_loss()
    cover = cover_type(test_length=case.test_length, train_length=case.train_length, span=case.span)
    set_probability = case.set_probabilities(case.test_length).sum(axis=2)
    expected_counts: dict[tuple[SequencePiece, FixedPlacement], float] = defaultdict(float)
    for set_start in np.flatnonzero(set_probability.any(axis=0)).tolist():
        for piece in cover.list_pieces(set_start):
            relative_piece, planted_index = piece.with_relative_indexes(), piece.index_of_token(set_start)
            for shape, probability in zip(
                case.offset_patterns.tolist(), set_probability[:, set_start].tolist(), strict=True
            ):
                if probability > 0:
                    expected_counts[relative_piece, FixedPlacement(tuple(shape), planted_index)] += probability
    return expected_counts


def known_scores_bound(case: BoundInputs, cover: CoverType = ProportionalCover) -> float:
    """Return ``sum_S Q_N(S) sum_J E[sum of g e over sets that J claims / sum of g over sets inside runs of J]``.

    S is a planted set with probability ``Q_N(S)`` at the test length N, and J is a piece of the cover for S. The score
    of a set is g, and its error is e. The computation enumerates all sequences of the training length; it raises
    ``SettingError`` for too many sequences.
    """
    counts, bound = count_distinct_pieces(case, cover), 0.0
    total_sequences = len(counts) * count_sequences(case.law, case.train_length)
    if total_sequences > MAX_SEQUENCES:
        raise SettingError(
            f"{len(counts)} windows of {case.train_length} tokens have {total_sequences:,} sequences, "
            f"more than the {MAX_SEQUENCES:,} allowed; use a shorter training length, or sampled_known_scores_bound"
        )
    for (piece, placement), count in counts.items():
        law, loss = replace(case.law, placement=placement), PieceLoss(piece, case.loss)
        bound += count * enumerated_risk(law, case.attention, case.train_length, loss).mean
    return bound


def sampled_known_scores_bound(
    case: BoundInputs,
    cover: CoverType = ProportionalCover,
    num_samples: int = 10_000,
    failure_probability: float = 0.05,
    seed: int = 0,
) -> float:
    """Return an upper confidence bound on ``known_scores_bound`` from ``num_samples`` sequences.

    The bound is invalid with probability at most ``failure_probability``. Summands are sampled in proportion to their
    expected number of pieces. The empirical Bernstein inequality bounds their mean (Maurer and Pontil 2009, theorem 4).
    """
    if num_samples < 2 or not 0 < failure_probability < 1:
        raise SettingError(
            f"invalid num_samples {num_samples} or failure_probability {failure_probability}; use at least 2 samples "
            "and a failure_probability between 0 and 1"
        )
    expected_counts = count_distinct_pieces(case, cover)
    rng = random_stream(seed, "cut", case.train_length, case.test_length)
    total_count = sum(expected_counts.values())
    sizes = rng.multinomial(num_samples, np.array(list(expected_counts.values())) / total_count).tolist()
    losses = []
    for (piece, placement), size in zip(expected_counts, sizes, strict=True):
        law = replace(case.law, placement=placement)
        tokens, sets, _ = law.sample_arrays(case.train_length, size, rng)
        labels = law.label_probabilities[law.tuple_codes(np.take_along_axis(tokens, sets, axis=1))]
        losses.append(PieceLoss(piece, case.loss).evaluate(case.attention, tokens, sets, labels))
    all_losses = np.concatenate(losses)
    return total_count * (float(all_losses.mean()) + bernstein_margin(all_losses, failure_probability))
