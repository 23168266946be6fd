"""Every upper bound of the risk on long sequences, by name, with those for losses in which errors may cancel.

The form of F0 to F2 is that of Golowich et al. 2025 (arXiv 2502.16792), theorem 4.3; constants and the factor kappa are
reconstructed. F3, F4 and the sum they come from also need kappa: the ``C8`` of ``counterexamples`` breaks all without.
"""

from dataclasses import dataclass
from typing import ClassVar

from lengthwise.theory.bounds.conditions import BoundError, eta, finite
from lengthwise.theory.bounds.extrapolation import Extrapolation
from lengthwise.theory.bounds.linear_loss import (
    KAPPA,
    REGULAR,
    AverageOfLengths,
    Bound,
    ConditionalRisks,
    FloorCorrected,
    LargestRatio,
    LinearGrowth,
    ProportionalRisks,
    SingleTokens,
    SingleTokensPower,
    WithoutKappa,
    WithoutPlaces,
    WorstTransfer,
    one_joint,
    rho0,
)
from lengthwise.theory.bounds.sequence_cover import DifferenceCover, push_forward
from lengthwise.theory.bounds.white_box import Cut, SampledCut


def published_factor(case: Extrapolation) -> float:
    """``3 kappa eta_L eta_N``, where the conditions of F0, F1 and F2 hold."""
    case.check_known()
    span = case.check_room(4)
    etas = [eta(case.law.placement, length, span) for length in (case.trained, case.tested)]
    return 3 * one_joint(case) * finite(max(etas), REGULAR, "C3") * min(etas)


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareOfLength:
    """``3 kappa eta_L eta_N L N^2 delta`` with the average risk delta over L/2 .. L, with 4 spans of room."""

    name: ClassVar[str] = "F0"
    title: ClassVar[str] = "Theorem 4.3, factor L N^2"
    provenance: ClassVar[str] = "reconstructed"
    needs: ClassVar[str] = "span, kappa, eta, average risk of the trained lengths"

    def value(self, case: Extrapolation) -> float:
        """Does not use the span but for the room."""
        return published_factor(case) * case.trained * case.tested**2 * case.average


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareOfSpans:
    """``3 kappa eta_L eta_N L (N / w)^2 delta`` with the average risk delta, with 4 spans w of room."""

    name: ClassVar[str] = "F1"
    title: ClassVar[str] = "Theorem 4.3, factor L (N / w)^2"
    provenance: ClassVar[str] = "reconstructed"
    needs: ClassVar[str] = "span, kappa, eta, average risk of the trained lengths"

    def value(self, case: Extrapolation) -> float:
        """Windows and chunks of the rest, each at most ``N / w``; L is the price of an average."""
        return published_factor(case) * case.trained * (case.tested / case.span) ** 2 * case.average


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareOfSpansWorst:
    """``3 kappa eta_L eta_N (N / w)^2 delta`` with the largest risk delta of the lengths L/2 .. L."""

    name: ClassVar[str] = "F2"
    title: ClassVar[str] = "Theorem 4.3 for minimax training, factor (N / w)^2"
    provenance: ClassVar[str] = "reconstructed"
    needs: ClassVar[str] = "span, kappa, eta, largest risk of the trained lengths"

    def value(self, case: Extrapolation) -> float:
        """For a predictor that is good at every trained length."""
        return published_factor(case) * (case.tested / case.span) ** 2 * case.worst


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareOfRatio:
    """``48 kappa rho0 (N / L)^2 delta`` with the largest risk delta of L/2 .. L, for places about uniform, even L."""

    name: ClassVar[str] = "F3"
    title: ClassVar[str] = "Theorem 4.3 at uniform places, factor (N / L)^2"
    provenance: ClassVar[str] = "reconstructed"
    needs: ClassVar[str] = "span, kappa, about uniform places, largest risk of the trained lengths"

    def value(self, case: Extrapolation) -> float:
        """F4 times ``N / L``: each place of a longer sequence counted as likely as one of a shorter."""
        return LinearOfRatio().value(case) * case.tested / case.trained


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearOfRatio:
    """``48 kappa rho0 (N / L) delta`` with the largest risk delta of L/2 .. L, for places about uniform, even L."""

    name: ClassVar[str] = "F4"
    title: ClassVar[str] = "linear in N / L, from several trained lengths"
    provenance: ClassVar[str] = "derived here"
    needs: ClassVar[str] = "span, kappa, about uniform places, largest risk of the trained lengths"

    def value(self, case: Extrapolation) -> float:
        """A single place of a longer sequence is the less likely, so one of the two factors ``N / L`` cancels."""
        case.check_known()
        case.check_room(4)
        if case.trained % 2:
            raise BoundError(f"trained length {case.trained} is odd and cannot be halved; use {case.trained - 1}")
        return 48 * one_joint(case) * rho0(case, case.lengths) * case.tested / case.trained * case.worst


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """``sum_S Q_N(S) (r_window + sum_J kappa_J r_J)`` over the pieces J, with and without each chunk.

    Without ``window`` and ``chunk``, half of the trained length and what is left of it beside a span.
    """

    window: int | None = None
    chunk: int | None = None

    name: ClassVar[str] = "A"
    title: ClassVar[str] = "Theorem 4.3, summed over windows"
    provenance: ClassVar[str] = "reconstructed"
    needs: ClassVar[str] = "span, kappa, risks at several trained lengths by planted set and tuple"

    def value(self, case: Extrapolation) -> float:
        """Errors are subtracted, so one length is not enough (C6)."""
        case.check_known()
        span = case.check_room(1)
        window = case.trained - case.trained // 2 if self.window is None else self.window
        chunk = case.trained - window - span + 1 if self.chunk is None else self.chunk
        if window + chunk + span - 1 > case.trained:
            raise BoundError(
                f"a window of {window} and chunks of {chunk} at span {span} make pieces of {window + chunk + span - 1} "
                f"tokens, beyond the trained {case.trained} (counterexample C2b); lower one of them"
            )
        cover = DifferenceCover(tested=case.tested, window=window, chunk=chunk, span=span)
        factor = {joints: each * case.tuples for joints, each in case.joint_weight.by_joints().items()}
        finite(float(factor[True, True].max()), KAPPA, "C8")
        pushed = push_forward(case.probability(case.tested).sum(axis=2), cover, factor)
        return sum(float((mass * case.table(length, case.loss)).sum()) for length, mass in pushed.items())


BOUNDS: dict[str, type[Bound]] = {
    bound.name: bound
    for bound in (
        SquareOfLength,
        SquareOfSpans,
        SquareOfSpansWorst,
        SquareOfRatio,
        LinearOfRatio,
        Differences,
        ConditionalRisks,
        WorstTransfer,
        LargestRatio,
        Cut,
        SampledCut,
        SingleTokens,
        SingleTokensPower,
        LinearGrowth,
        AverageOfLengths,
        ProportionalRisks,
        FloorCorrected,
        WithoutPlaces,
        WithoutKappa,
    )
}
