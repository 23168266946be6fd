"""Bounds for linear losses, total variation and leakage: one trained length is enough. All derived here.

Pointwise, the error of the whole is at most the sum of the errors of the pieces of a cover, each times the kappa of its
joints: scores of sets are added, never subtracted.
"""

from dataclasses import dataclass
from math import exp, perm
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from lengthwise.tasks.planted.placement import Subsets
from lengthwise.theory.attention.tabular import PositionFreeAttention
from lengthwise.theory.bounds.conditions import BoundError, Joints, check_room, finite, uniformity
from lengthwise.theory.bounds.extrapolation import Extrapolation
from lengthwise.theory.bounds.sequence_cover import (
    Cover,
    GridCover,
    ProportionalCover,
    eta_push,
    push_forward,
    transfer,
)
from lengthwise.theory.risk.exact_risk import Leakage, TotalVariation

KAPPA = "no finite kappa: weight across a joint has no bound; score every planted tuple, and no crossing one, above 0"
REGULAR = "the trained length lacks a set that is planted later; use a placement that is regular"


@runtime_checkable
class Bound(Protocol):
    """An upper bound of the risk at the tested length that checks its own conditions.

    ``title`` labels its rows; ``provenance`` is "paper", "reconstructed" or "derived here"; ``needs`` lists its inputs.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    provenance: ClassVar[str]
    needs: ClassVar[str]

    def value(self, case: Extrapolation) -> float:
        """The bound, in the unit of the loss and perhaps above 1; ``BoundError`` where a condition fails."""
        ...


def one_joint(case: Extrapolation) -> float:
    """The largest kappa of a single joint, over planted shapes, tuples and sides; ``BoundError`` where infinite."""
    factors = case.joint_weight.by_joints()
    return finite(float(max(factors[True, False].max(), factors[False, True].max())), KAPPA, "C8")


def rho0(case: Extrapolation, lengths: range) -> float:
    """The constant of a placement that is about uniform at these lengths and the tested one."""
    return finite(uniformity(case.law.placement, [*lengths, case.tested]).rho0, REGULAR, "C3")


def pushed_by(
    case: Extrapolation, cover: Cover, factor: dict[Joints, Float[np.ndarray, "shapes tuples"]]
) -> Float[np.ndarray, "shapes trained tuples"]:
    """The mass of each planted set and tuple in the pieces of a cover, all of the trained length."""
    weighted = {joints: each * case.tuples for joints, each in factor.items()}
    return push_forward(case.probability(case.tested).sum(axis=2), cover, weighted)[case.trained]


def kappa_weighted(
    case: Extrapolation, kind: type[GridCover] | type[ProportionalCover]
) -> Float[np.ndarray, "shapes trained tuples"]:
    """``pushed_by`` with kappa by shape, tuple and joints; ``BoundError`` where a condition of all covers fails."""
    case.check_linear()
    cover = kind(tested=case.tested, trained=case.trained, span=case.span)
    factor = case.joint_weight.by_joints()
    finite(float(factor[True, True].max()), KAPPA, "C8")
    return pushed_by(case, cover, factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionalRisks:
    """``sum_S Q_N(S) sum_J kappa_J r_L(place of S in J)``, over the pieces J of a cover of windows on a grid."""

    name: ClassVar[str] = "B"
    title: ClassVar[str] = "window cover, risks by planted set"
    provenance: ClassVar[str] = "derived here"
    needs: ClassVar[str] = "span, kappa, risks at the trained length by planted set and tuple"

    def value(self, case: Extrapolation) -> float:
        """Also where training never plants a set: its risk is asked for, not its probability."""
        return float((kappa_weighted(case, GridCover) * case.table(case.trained, case.loss)).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionalRisks:
    """The same sum over the pieces of a proportional cover: fewer pieces, but most of them with two joints."""

    name: ClassVar[str] = "B4"
    title: ClassVar[str] = "proportional cover, risks by planted set"
    provenance: ClassVar[str] = "derived here"
    needs: ClassVar[str] = "span, kappa, risks at the trained length by planted set and tuple"

    def value(self, case: Extrapolation) -> float:
        """As ``ConditionalRisks``."""
        return float((kappa_weighted(case, ProportionalCover) * case.table(case.trained, case.loss)).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstTransfer:
    """``Phi(R_L; kappa-weighted push-forward, Q_L)``: the same with the worst risks that have the trained mean."""

    cover: type[GridCover] | type[ProportionalCover] = GridCover

    name: ClassVar[str] = "B_transfer"
    title: ClassVar[str] = "window cover, worst risks with the trained mean"
    provenance: ClassVar[str] = "derived here"
    needs: ClassVar[str] = "span, kappa, both laws of the planted set, risk at the trained length"

    def value(self, case: Extrapolation) -> float:
        """Finite also where training lacks a set: there the loss counts as 1."""
        pushed = kappa_weighted(case, self.cover)
        return transfer(case.mean(case.trained), pushed.ravel(), case.probability(case.trained).ravel()).value


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestRatio:
    """``max(kappa-weighted push-forward / Q_L) R_L``."""

    cover: type[GridCover] | type[ProportionalCover] = GridCover

    name: ClassVar[str] = "B_push"
    title: ClassVar[str] = "window cover, largest ratio of probabilities"
    provenance: ClassVar[str] = "derived here"
    needs: ClassVar[str] = "span, kappa, both laws of the planted set (eta finite), risk at the trained length"

    def value(self, case: Extrapolation) -> float:
        """At least the worst transfer."""
        ratio = eta_push(kappa_weighted(case, self.cover), case.probability(case.trained))
        return finite(ratio, REGULAR, "C3") * case.mean(case.trained)


def check_single(case: Extrapolation) -> None:
    """Refuse what is no bag of single tokens under a linear loss."""
    case.check_linear()
    case.check_sparse()
    check_room(case.trained, case.tested, 1, 2)
    if case.law.k != 1:
        raise BoundError(
            f"{case.law.k} planted tokens: this bound is for single ones (counterexample C1); use one for any k"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleTokens:
    """``(N - 1) / (L - 1) R_L`` for k = 1, whatever the law of places: each other token is in one piece on average."""

    name: ClassVar[str] = "B1"
    title: ClassVar[str] = "single tokens, factor (N - 1) / (L - 1)"
    provenance: ClassVar[str] = "derived here"
    needs: ClassVar[str] = "k = 1, risk at the trained length"

    def value(self, case: Extrapolation) -> float:
        """No kappa, no regularity."""
        check_single(case)
        return (case.tested - 1) / (case.trained - 1) * case.mean(case.trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleTokensPower:
    """``1 - (1 - R_L)^T`` with ``T = (N - 1) / (L - 1)``, for k = 1: never above 1, nor above ``T R_L``."""

    name: ClassVar[str] = "B1_power"
    title: ClassVar[str] = "single tokens, independent groups"
    provenance: ClassVar[str] = "derived here"
    needs: ClassVar[str] = "k = 1, T a whole number, risk at the trained length"

    def value(self, case: Extrapolation) -> float:
        """Odds of error add up over T disjoint groups of tokens, which are independent given the planted one."""
        check_single(case)
        times, rest = divmod(case.tested - 1, case.trained - 1)
        if rest:
            raise BoundError(
                f"lengths {case.trained} and {case.tested} make no whole number of groups; test at "
                f"{times * (case.trained - 1) + 1}, or use the factor (N - 1) / (L - 1)"
            )
        return float(1 - (1 - case.mean(case.trained)) ** times)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearGrowth:
    """``16 kappa rho0 (N / L) R_L`` for even L with 4 spans of room; 20 in place of 16 for odd L."""

    name: ClassVar[str] = "B2"
    title: ClassVar[str] = "linear in N / L"
    provenance: ClassVar[str] = "derived here"
    needs: ClassVar[str] = "span, kappa, about uniform places, risk at the trained length"

    def value(self, case: Extrapolation) -> float:
        """A grid cover, counted: at most ``4 N / L`` windows times ``4 N / L`` pieces, times ``rho0 L / N``."""
        case.check_linear()
        case.check_room(4)
        constant = 20 if case.trained % 2 else 16
        uniform = rho0(case, range(case.trained, case.trained + 1))
        return constant * one_joint(case) * uniform * case.tested / case.trained * case.mean(case.trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageOfLengths:
    """``40 kappa rho0 (N / L) delta`` with the average risk delta over L/2 .. L, with 8 spans of room."""

    name: ClassVar[str] = "B3"
    title: ClassVar[str] = "linear in N / L, from the mean over trained lengths"
    provenance: ClassVar[str] = "derived here"
    needs: ClassVar[str] = "span, kappa, about uniform places, average risk of the trained lengths"

    def value(self, case: Extrapolation) -> float:
        """B2 at the trained length whose risk is smallest."""
        case.check_linear()
        case.check_room(8)
        return 40 * one_joint(case) * rho0(case, case.lengths) * case.tested / case.trained * case.average


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorCorrected:
    """``E e_z + sum_S Q_N(S) sum_J kappa_J (r_L - e_z A_L)``: the planted set's own error e_z is not multiplied.

    ``A_L`` is the mean attention on the planted set. Total variation only.
    """

    name: ClassVar[str] = "B5"
    title: ClassVar[str] = "window cover, label noise counted once"
    provenance: ClassVar[str] = "derived here"
    needs: ClassVar[str] = "span, kappa, risks and leakage at the trained length by planted set and tuple, values"

    def value(self, case: Extrapolation) -> float:
        """Worth it where labels are random: what the best predictor cannot know stays once."""
        pushed = kappa_weighted(case, GridCover)
        if not isinstance(case.loss, TotalVariation):
            raise BoundError(
                f"loss '{case.loss.name}' has no floor, as the planted set itself costs nothing; use another bound"
            )
        row = {tuple(shape): index for index, shape in enumerate(case.attention.shapes.tolist())}
        floor = np.zeros((len(case.shapes), len(case.tuples)))
        for index, shape in enumerate(case.shapes.tolist()):
            if tuple(shape) in row:
                values = case.attention.values[row[tuple(shape)], case.law.codes(np.array(case.law.tuples))]
                floor[index] = 1 - (values * np.array(case.law.labels)).sum(axis=1)
        attended = 1 - case.table(case.trained, Leakage())
        others = case.table(case.trained, case.loss) - floor[:, None] * attended
        planted = case.probability(case.tested).sum(axis=1)
        return float((planted * floor).sum() + (pushed * others).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutPlaces:
    """``(N - k) .. (N - 2k + 1) / ((L - k) .. (L - 2k + 1)) R_L``: no locality, no places, all sets as likely.

    About ``(N / L)^k``: the number of planted tokens is the exponent. Attained in the limit.
    """

    name: ClassVar[str] = "B6"
    title: ClassVar[str] = "no locality, factor about (N / L)^k"
    provenance: ClassVar[str] = "derived here"
    needs: ClassVar[str] = "a class without positions, uniform sets, risk at the trained length"

    def value(self, case: Extrapolation) -> float:
        """The planted set with random others: a set is kept whole with about the k-th power of ``L / N``."""
        case.check_linear()
        k = case.law.k
        if not isinstance(case.relative, PositionFreeAttention):
            kind = type(case.predictor).__name__
            raise BoundError(f"this bound is for a PositionFreeAttention, not {kind}, which knows gaps")
        if not isinstance(case.law.placement, Subsets):
            raise BoundError(
                f"'{case.law.placement.name}' has sets that are likelier than others (counterexample C3); use Subsets"
            )
        check_room(case.trained, case.tested, k, 2)
        return perm(case.tested - k, k) / perm(case.trained - k, k) * case.mean(case.trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutKappa:
    """``32 rho0 (N / L) max R_l + 4 (N / L) exp(-n / 2)`` with ``n = floor(L / (16 (w - 1))) - 2``, even L.

    Gaps are shortened, not cut out, so that no joint arises; the second term is the price, and cannot be dropped.
    """

    name: ClassVar[str] = "C"
    title: ClassVar[str] = "shortened gaps, no kappa"
    provenance: ClassVar[str] = "derived here"
    needs: ClassVar[str] = "a span of 2 or more, about uniform places, largest risk of the trained lengths"

    def value(self, case: Extrapolation) -> float:
        """Asks for 48 times the span less one."""
        case.check_linear()
        span = case.check_room(4)
        if span < 2:
            raise BoundError(f"sets of span {span} cross no joint; use the bounds with kappa, which is 1")
        kept = case.trained // (16 * (span - 1)) - 2
        if kept < 1 or case.trained % 2:
            raise BoundError(
                f"trained length {case.trained} is odd or has no room for gaps at span {span} (counterexample C8); "
                f"train at {48 * (span - 1)} or a longer even length"
            )
        growth = case.tested / case.trained
        return 32 * rho0(case, case.lengths) * growth * case.worst + 4 * growth * exp(-kept / 2)
