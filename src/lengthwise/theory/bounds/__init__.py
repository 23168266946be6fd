"""Upper bounds by name on the risk at test length N, from risks at lengths up to the training length L.

The span w is the maximum extent of a planted set. The bounds of theorem 4.3 apply to every loss in this package.

The forms of theorem 4.3 come from Golowich et al. 2025 (arXiv 2502.16792) and its reviews; the constants and the
factor kappa are reconstructed. Without kappa, the bounds are false: see the counterexample 'heavy joints'.
"""

from dataclasses import dataclass
from typing import ClassVar

from lengthwise.theory.bounds.conditions import BoundError, regularity_constant, require_finite
from lengthwise.theory.bounds.extrapolation import Extrapolation
from lengthwise.theory.bounds.linear_loss import (
    INFINITE_KAPPA_MESSAGE,
    IRREGULARITY_MESSAGE,
    Bound,
    LabelNoiseCorrected,
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
    largest_kappa,
    start_ratio,
)
from lengthwise.theory.bounds.sequence_cover import DifferenceCover, compute_piece_mass
from lengthwise.theory.bounds.white_box import KnownScores, SampledKnownScores


def _published_factor(case: Extrapolation) -> float:
    """Return ``3 kappa eta_L eta_N`` if the conditions of theorem 4.3 hold."""
    case.check_loss()
    span = case.check_train_length(4)
    etas = [regularity_constant(case.law.placement, length, span) for length in (case.train_length, case.test_length)]
    return 3 * largest_kappa(case) * require_finite(max(etas), IRREGULARITY_MESSAGE, "rare shape") * min(etas)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuadraticInLengthBound:
    """Bound ``3 kappa eta_L eta_N L N^2 delta`` on the risk at test length N, for training length L >= 4 spans.

    Delta is the average risk over the lengths L/2 .. L. The constants eta measure the irregularity of the placement.
    """

    name: ClassVar[str] = "Theorem 4.3, factor L N^2"
    provenance: ClassVar[str] = "reconstructed"

    def value(self, case: Extrapolation) -> float:
        """Return the bound; the span affects only the required training length."""
        return _published_factor(case) * case.train_length * case.test_length**2 * case.average_risk


@dataclass(frozen=True, slots=True, kw_only=True)
class QuadraticInSpansBound:
    """Bound ``3 kappa eta_L eta_N L (N / w)^2 delta`` on the risk at test length N, with the span w.

    Delta is the average risk over the lengths L/2 .. L. The training length L must be at least 4 w.
    """

    name: ClassVar[str] = "Theorem 4.3, factor L (N / w)^2"
    provenance: ClassVar[str] = "reconstructed"

    def value(self, case: Extrapolation) -> float:
        """Return the bound, which has at most ``N / w`` windows and chunks; the average risk adds the factor L."""
        return _published_factor(case) * case.train_length * (case.test_length / case.span) ** 2 * case.average_risk


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimaxQuadraticInSpansBound:
    """Bound ``3 kappa eta_L eta_N (N / w)^2 delta`` with the largest risk delta over the lengths L/2 .. L."""

    name: ClassVar[str] = "Theorem 4.3 for minimax training, factor (N / w)^2"
    provenance: ClassVar[str] = "reconstructed"

    def value(self, case: Extrapolation) -> float:
        """Return the bound, which is small only if the risk is small at every length from L/2 to L."""
        return _published_factor(case) * (case.test_length / case.span) ** 2 * case.largest_risk


@dataclass(frozen=True, slots=True, kw_only=True)
class QuadraticInLengthRatioBound:
    """Bound ``48 kappa rho0 (N / L)^2 delta`` with the largest risk delta over L/2 .. L.

    The constant rho0 (see ``StartUniformity``) is near 1 if the start of the planted set is nearly uniform.
    """

    name: ClassVar[str] = "Theorem 4.3 for uniform starts, factor (N / L)^2"
    provenance: ClassVar[str] = "reconstructed"

    def value(self, case: Extrapolation) -> float:
        """Return ``N / L`` times ``LinearGrowthOfLargestRisk``, as if starts were equally probable at all lengths."""
        return LinearGrowthOfLargestRisk().value(case) * case.test_length / case.train_length


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearGrowthOfLargestRisk:
    """Bound ``48 kappa rho0 (N / L) delta`` with the largest risk delta over L/2 .. L, for even training lengths L."""

    name: ClassVar[str] = "linear in N / L, several training lengths"
    provenance: ClassVar[str] = "derived here"

    def value(self, case: Extrapolation) -> float:
        """Return the bound; each start is less probable at longer lengths, which cancels one factor ``N / L``."""
        case.check_loss()
        case.check_train_length(4)
        length = case.train_length
        if length % 2:
            raise BoundError(
                f"training length {length} is odd and cannot be halved; use an even length, such as {length - 1}"
            )
        growth_factor = 48 * largest_kappa(case) * start_ratio(case, case.train_lengths)
        return growth_factor * case.test_length / length * case.largest_risk


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceBound:
    """Bound ``sum_S Q_N(S) (r_window + sum_J kappa_J r_J)`` over the planted sets S, with risks r of short pieces.

    The window contains S. Each chunk of the other tokens gives two pieces J, one with and one without the chunk. The
    default ``window`` is half the training length, and the default ``chunk`` is the other half minus a span.
    """

    window: int | None = None
    chunk: int | None = None

    name: ClassVar[str] = "Theorem 4.3, summed over windows"
    provenance: ClassVar[str] = "reconstructed"

    def value(self, case: Extrapolation) -> float:
        """Return the bound, which uses risks at several lengths; see the counterexample 'canceling errors'."""
        case.check_loss()
        span = case.check_train_length(1)
        window = case.train_length - case.train_length // 2 if self.window is None else self.window
        chunk = case.train_length - window - span + 1 if self.chunk is None else self.chunk
        num_tokens = window + chunk + span - 1
        if num_tokens > case.train_length:
            raise BoundError(
                f"window {window} and chunk {chunk} with span {span} make pieces of {num_tokens} "
                f"tokens, more than the training length {case.train_length}; reduce window or chunk "
                "(see counterexample 'unbounded reach')"
            )
        cover = DifferenceCover(test_length=case.test_length, window_length=window, chunk_length=chunk, span=span)
        kappas = case.joint_weight.kappa_by_joints()
        factors = {joints: kappa * case.tuple_probabilities for joints, kappa in kappas.items()}
        require_finite(float(factors[True, True].max()), INFINITE_KAPPA_MESSAGE, "heavy joints")
        piece_mass = compute_piece_mass(case.probability(case.test_length).sum(axis=2), cover, factors)
        return sum(float((mass * case.risk_table(length, case.loss)).sum()) for length, mass in piece_mass.items())


BOUNDS: dict[str, type[Bound]] = {
    bound.name: bound
    for bound in (
        QuadraticInLengthBound,
        QuadraticInSpansBound,
        MinimaxQuadraticInSpansBound,
        QuadraticInLengthRatioBound,
        LinearGrowthOfLargestRisk,
        DifferenceBound,
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
        LabelNoiseCorrected,
        NoLocality,
        ShortenedGaps,
    )
}
# Bounds that sum over the pieces of every planted set; they are slow at long test lengths.
COVER_BOUNDS = (
    DifferenceBound,
    WindowCover,
    WorstRisks,
    LargestRatio,
    KnownScores,
    SampledKnownScores,
    ProportionalWindowCover,
    LabelNoiseCorrected,
)
