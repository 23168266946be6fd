"""All upper bounds on the risk at longer lengths by name, including those of theorem 4.3 for any known loss.

The forms of theorem 4.3 are those of Golowich et al. 2025 (arXiv 2502.16792) and its reviews; the constants and the
factor kappa are reconstructed. Without kappa they are false: see the counterexample 'heavy joints'.
"""

from dataclasses import dataclass
from typing import ClassVar

from lengthwise.theory.bounds.conditions import BoundError, eta, require_finite
from lengthwise.theory.bounds.extrapolation import Extrapolation
from lengthwise.theory.bounds.linear_loss import (
    FINITE_KAPPA,
    REGULARITY,
    Bound,
    FloorCorrected,
    LargestRatio,
    LinearGrowth,
    LinearGrowthOfMean,
    NoLocality,
    ProportionalWindowCover,
    ShortenedGaps,
    SingleTokenGroups,
    SingleTokens,
    WindowCover,
    WorstRisks,
    one_joint_kappa,
    uniform_constant,
)
from lengthwise.theory.bounds.sequence_cover import DifferenceCover, push_forward
from lengthwise.theory.bounds.white_box import KnownScores, SampledKnownScores


def _published_factor(case: Extrapolation) -> float:
    """Return ``3 kappa eta_L eta_N`` if the conditions of theorem 4.3 hold."""
    case.check_loss()
    span = case.check_room(4)
    etas = [eta(case.law.placement, length, span) for length in (case.train_length, case.test_length)]
    return 3 * one_joint_kappa(case) * require_finite(max(etas), REGULARITY, "rare shape") * min(etas)


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareOfLength:
    """``3 kappa eta_L eta_N L N^2 delta`` with the average risk delta over L/2 .. L, with room for 4 spans."""

    name: ClassVar[str] = "Theorem 4.3, factor L N^2"
    provenance: ClassVar[str] = "reconstructed"

    def value(self, case: Extrapolation) -> float:
        """Return the bound; the span enters only through the required room."""
        return _published_factor(case) * case.train_length * case.test_length**2 * case.average_risk


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareOfSpans:
    """``3 kappa eta_L eta_N L (N / w)^2 delta`` with the average risk delta, with room for 4 spans w."""

    name: ClassVar[str] = "Theorem 4.3, factor L (N / w)^2"
    provenance: ClassVar[str] = "reconstructed"

    def value(self, case: Extrapolation) -> float:
        """Return the bound from at most ``N / w`` windows and chunks; the average risk costs the factor L."""
        return _published_factor(case) * case.train_length * (case.test_length / case.span) ** 2 * case.average_risk


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimaxSquareOfSpans:
    """``3 kappa eta_L eta_N (N / w)^2 delta`` with the largest risk delta over the lengths L/2 .. L."""

    name: ClassVar[str] = "Theorem 4.3 for minimax training, factor (N / w)^2"
    provenance: ClassVar[str] = "reconstructed"

    def value(self, case: Extrapolation) -> float:
        """Return the bound, which needs a small risk at every training length."""
        return _published_factor(case) * (case.test_length / case.span) ** 2 * case.largest_risk


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareOfRatio:
    """``48 kappa rho0 (N / L)^2 delta`` with the largest risk delta over L/2 .. L, for nearly uniform starts."""

    name: ClassVar[str] = "Theorem 4.3 for uniform starts, factor (N / L)^2"
    provenance: ClassVar[str] = "reconstructed"

    def value(self, case: Extrapolation) -> float:
        """Return ``LinearOfLargest`` times ``N / L``, which ignores that starts are less likely at longer lengths."""
        return LinearOfLargest().value(case) * case.test_length / case.train_length


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearOfLargest:
    """``48 kappa rho0 (N / L) delta`` with the largest risk delta over L/2 .. L, even L, for nearly uniform starts."""

    name: ClassVar[str] = "linear in N / L, several training lengths"
    provenance: ClassVar[str] = "derived here"

    def value(self, case: Extrapolation) -> float:
        """Return the bound; each start is less likely at longer lengths, which cancels one factor ``N / L``."""
        case.check_loss()
        case.check_room(4)
        length = case.train_length
        if length % 2:
            raise BoundError(f"training length {length} is odd and cannot be halved; use {length - 1}")
        factor = 48 * one_joint_kappa(case) * uniform_constant(case, case.train_lengths)
        return factor * case.test_length / length * case.largest_risk


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """``sum_S Q_N(S) (r_window + sum_J kappa_J r_J)`` over the pieces J, with and without each chunk.

    By default, ``window`` is half the training length, and ``chunk`` the rest without a span.
    """

    window: int | None = None
    chunk: int | None = None

    name: ClassVar[str] = "Theorem 4.3, summed over windows"
    provenance: ClassVar[str] = "reconstructed"

    def value(self, case: Extrapolation) -> float:
        """Return the bound, which subtracts errors and so needs several training lengths ('canceling errors')."""
        case.check_loss()
        span = case.check_room(1)
        window = case.train_length - case.train_length // 2 if self.window is None else self.window
        chunk = case.train_length - window - span + 1 if self.chunk is None else self.chunk
        size = window + chunk + span - 1
        if size > case.train_length:
            raise BoundError(
                f"a window of {window} and chunks of {chunk} at span {span} make pieces of {size} tokens, above the "
                f"training length {case.train_length}; lower one of them (see counterexample 'unbounded reach')"
            )
        cover = DifferenceCover(test_length=case.test_length, window=window, chunk=chunk, span=span)
        factor = {joints: each * case.tuple_probabilities for joints, each in case.joint_weight.by_joints().items()}
        require_finite(float(factor[True, True].max()), FINITE_KAPPA, "heavy joints")
        pushed = push_forward(case.probability(case.test_length).sum(axis=2), cover, factor)
        return sum(float((mass * case.risk_table(length, case.loss)).sum()) for length, mass in pushed.items())


BOUNDS: dict[str, type[Bound]] = {
    bound.name: bound
    for bound in (
        SquareOfLength,
        SquareOfSpans,
        MinimaxSquareOfSpans,
        SquareOfRatio,
        LinearOfLargest,
        Differences,
        WindowCover,
        WorstRisks,
        LargestRatio,
        KnownScores,
        SampledKnownScores,
        SingleTokens,
        SingleTokenGroups,
        LinearGrowth,
        LinearGrowthOfMean,
        ProportionalWindowCover,
        FloorCorrected,
        NoLocality,
        ShortenedGaps,
    )
}
# Bounds that sum over the pieces of every planted set, which takes long at long test lengths.
COVER_BOUNDS = (
    Differences,
    WindowCover,
    WorstRisks,
    LargestRatio,
    KnownScores,
    SampledKnownScores,
    ProportionalWindowCover,
    FloorCorrected,
)
