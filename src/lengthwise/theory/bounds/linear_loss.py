"""Bounds for linear losses (total variation and leakage), which need only one training length. Derived here.

For every sequence, the error is at most a sum over the pieces of a cover: the error of each piece times the kappa of
its joints. Errors are added, never subtracted. In formulas, N is the test length, L the training length, R_L the risk
at the training length, and w the span.
"""

from dataclasses import dataclass
from math import exp, perm
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from lengthwise.tasks.planted.placement import Subsets
from lengthwise.theory.attention.tabular import PositionFreeAttention
from lengthwise.theory.bounds.conditions import (
    BoundError,
    Joints,
    check_train_length,
    fit_uniform_starts,
    require_finite,
    safe_ratio,
)
from lengthwise.theory.bounds.extrapolation import Extrapolation
from lengthwise.theory.bounds.sequence_cover import Cover, GridCover, ProportionalCover, compute_piece_mass, worst_case
from lengthwise.theory.risk.exact_risk import Leakage, TotalVariation

INFINITE_KAPPA_MESSAGE = (
    "no finite kappa: a set across a joint can outweigh a planted set; give all planted tuples a score above 0"
)
IRREGULARITY_MESSAGE = "the training length lacks a set that the test length plants; use a placement with the same sets"

CoverType = type[GridCover] | type[ProportionalCover]


@runtime_checkable
class Bound(Protocol):
    """Upper bound on the risk at the test length, which checks its own conditions.

    Tables show bounds by ``name``; ``provenance`` is "paper", "reconstructed" or "derived here".
    """

    name: ClassVar[str]
    provenance: ClassVar[str]

    def value(self, case: Extrapolation) -> float:
        """Return the bound, which may exceed 1, or raise ``BoundError`` if a condition fails."""
        ...


def largest_kappa(case: Extrapolation) -> float:
    """Return the largest kappa of a piece with one joint, or raise ``BoundError`` if it is infinite."""
    kappas = case.joint_weight.kappa_by_joints()
    max_kappa = float(max(kappas[True, False].max(), kappas[False, True].max()))
    return require_finite(max_kappa, INFINITE_KAPPA_MESSAGE, "heavy joints")


def start_ratio(case: Extrapolation, lengths: range) -> float:
    """Return rho0 of ``StartUniformity`` over ``lengths`` and the test length; raise ``BoundError`` if infinite."""
    rho0 = fit_uniform_starts(case.law.placement, [*lengths, case.test_length]).rho0
    return require_finite(rho0, IRREGULARITY_MESSAGE, "rare shape")


def training_piece_mass(
    case: Extrapolation, cover: Cover, factor: dict[Joints, Float[np.ndarray, "shapes tuples"]]
) -> Float[np.ndarray, "shapes length tuples"]:
    """Return ``compute_piece_mass`` with weights ``factor`` by joints, for a cover by pieces of the training length."""
    weights = {joints: values * case.tuple_probabilities for joints, values in factor.items()}
    return compute_piece_mass(case.probability(case.test_length).sum(axis=2), cover, weights)[case.train_length]


def kappa_weighted_mass(case: Extrapolation, cover_type: CoverType) -> Float[np.ndarray, "shapes length tuples"]:
    """Return ``training_piece_mass`` with kappa as ``factor``, or raise ``BoundError`` if a condition fails."""
    case.check_linear()
    cover = cover_type(test_length=case.test_length, train_length=case.train_length, span=case.span)
    kappas = case.joint_weight.kappa_by_joints()
    require_finite(float(kappas[True, True].max()), INFINITE_KAPPA_MESSAGE, "heavy joints")
    return training_piece_mass(case, cover, kappas)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCover:
    """Bound ``sum_S Q_N(S) sum_J kappa_J r_L(S in J)`` over the planted sets S and the pieces J of a ``GridCover``.

    ``Q_N(S)`` is the probability of S at the test length N. ``r_L(S in J)`` is the risk at the training length L, given
    that the planted set has the token indexes of S in J.
    """

    name: ClassVar[str] = "window cover"
    provenance: ClassVar[str] = "derived here"

    def value(self, case: Extrapolation) -> float:
        """Return the bound from the risks of all sets that fit, including sets that training never plants."""
        return float((kappa_weighted_mass(case, GridCover) * case.risk_table(case.train_length, case.loss)).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionalWindowCover:
    """Variant of ``WindowCover`` with a ``ProportionalCover``: fewer pieces, but most pieces have two joints."""

    name: ClassVar[str] = "proportional cover"
    provenance: ClassVar[str] = "derived here"

    def value(self, case: Extrapolation) -> float:
        """Return the bound from the risks of all sets that fit."""
        mass = kappa_weighted_mass(case, ProportionalCover)
        return float((mass * case.risk_table(case.train_length, case.loss)).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstRisks:
    """Variant of ``WindowCover`` that uses only the mean training risk, with the worst risks by set for this mean."""

    cover: CoverType = GridCover

    name: ClassVar[str] = "window cover, worst risks"
    provenance: ClassVar[str] = "derived here"

    def value(self, case: Extrapolation) -> float:
        """Return the bound, which is finite even if training lacks a planted set; such a set has loss 1."""
        mass = kappa_weighted_mass(case, self.cover)
        return worst_case(case.risk(case.train_length), mass.ravel(), case.probability(case.train_length).ravel()).value


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestRatio:
    """Bound ``R_L`` times the largest ratio of kappa-weighted piece mass to training probability, over planted sets."""

    cover: CoverType = GridCover

    name: ClassVar[str] = "window cover, largest ratio"
    provenance: ClassVar[str] = "derived here"

    def value(self, case: Extrapolation) -> float:
        """Return the bound, which is never below ``WorstRisks``."""
        mass, probability = kappa_weighted_mass(case, self.cover), case.probability(case.train_length)
        mass_ratio = float(safe_ratio(mass.ravel(), probability.ravel()).max())
        return require_finite(mass_ratio, IRREGULARITY_MESSAGE, "rare shape") * case.risk(case.train_length)


def _check_single_token_case(case: Extrapolation) -> None:
    case.check_linear()
    case.check_sparsity()
    check_train_length(case.train_length, case.test_length, 1, 2)
    if case.law.k != 1:
        raise BoundError(
            f"the law has {case.law.k} planted tokens, but this bound needs k = 1; use the bound '{WindowCover.name}'"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleTokens:
    """Bound ``(N - 1) / (L - 1) R_L`` for k = 1 and any placement, with test length N and training length L."""

    name: ClassVar[str] = "single tokens"
    provenance: ClassVar[str] = "derived here"

    def value(self, case: Extrapolation) -> float:
        """Return the bound, which needs neither kappa nor regularity."""
        _check_single_token_case(case)
        return (case.test_length - 1) / (case.train_length - 1) * case.risk(case.train_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleTokenGroups:
    """Bound ``1 - (1 - R_L)^T`` for k = 1, if ``T = (N - 1) / (L - 1)`` is an integer; it is at most ``T R_L``."""

    name: ClassVar[str] = "single tokens, independent groups"
    provenance: ClassVar[str] = "derived here"

    def value(self, case: Extrapolation) -> float:
        """Return the bound from the odds of T disjoint groups, which are independent given the planted token."""
        _check_single_token_case(case)
        num_groups, remainder = divmod(case.test_length - 1, case.train_length - 1)
        if remainder:
            raise BoundError(
                "(test length - 1) must be a multiple of (training length - 1), but the lengths are "
                f"{case.test_length} and {case.train_length}; test at length "
                f"{num_groups * (case.train_length - 1) + 1}, or use the bound '{SingleTokens.name}'"
            )
        return float(1 - (1 - case.risk(case.train_length)) ** num_groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearGrowth:
    """Bound ``16 kappa rho0 (N / L) R_L`` for a training length L of at least 4 spans; 20 replaces 16 for odd L."""

    name: ClassVar[str] = "linear in N / L"
    provenance: ClassVar[str] = "derived here"

    def value(self, case: Extrapolation) -> float:
        """Return the bound: ``4 N / L`` windows times ``4 N / L`` pieces per window times the ratio ``rho0 L / N``."""
        case.check_linear()
        case.check_train_length(4)
        constant_factor = 20 if case.train_length % 2 else 16
        rho0 = start_ratio(case, range(case.train_length, case.train_length + 1))
        growth_factor = constant_factor * largest_kappa(case) * rho0 * case.test_length / case.train_length
        return growth_factor * case.risk(case.train_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearGrowthOfMean:
    """Bound ``40 kappa rho0 (N / L) delta`` with the mean risk delta at the lengths L/2 .. L, for L >= 8 spans."""

    name: ClassVar[str] = "linear in N / L, mean over training lengths"
    provenance: ClassVar[str] = "derived here"

    def value(self, case: Extrapolation) -> float:
        """Return the bound, which is above ``LinearGrowth`` at the training length with the smallest risk."""
        case.check_linear()
        case.check_train_length(8)
        growth_factor = 40 * largest_kappa(case) * start_ratio(case, case.train_lengths)
        return growth_factor * case.test_length / case.train_length * case.average_risk


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelNoiseCorrected:
    """Variant of ``WindowCover`` that counts the error e_z of the planted set once instead of once per piece.

    The bound is ``E e_z + sum_S Q_N(S) sum_J kappa_J (r_L - e_z A_L)``, where ``A_L`` is the mean attention weight of
    the planted set. The loss must be total variation.
    """

    name: ClassVar[str] = "window cover, label noise counted once"
    provenance: ClassVar[str] = "derived here"

    def value(self, case: Extrapolation) -> float:
        """Return the bound, which is below ``WindowCover`` if labels are random."""
        mass = kappa_weighted_mass(case, GridCover)
        if not isinstance(case.loss, TotalVariation):
            raise BoundError(
                f"loss '{case.loss.name}' has no label noise to correct, because its error on the planted set is 0; "
                "use loss 'tv'"
            )
        index_of = {tuple(shape): index for index, shape in enumerate(case.attention.shapes.tolist())}
        planted_error = np.zeros((len(case.shapes), len(case.tuple_probabilities)))
        for index, shape in enumerate(case.shapes.tolist()):
            if tuple(shape) in index_of:
                values = case.attention.values[index_of[tuple(shape)], case.law.tuple_codes(np.array(case.law.tuples))]
                planted_error[index] = 1 - (values * np.array(case.law.labels)).sum(axis=1)
        attention_mass = 1 - case.risk_table(case.train_length, Leakage())
        excess_risk = case.risk_table(case.train_length, case.loss) - planted_error[:, None] * attention_mass
        planted_probability = case.probability(case.test_length).sum(axis=1)
        return float((planted_probability * planted_error).sum() + (mass * excess_risk).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class NoLocality:
    """Bound ``(N - k) .. (N - 2k + 1) / ((L - k) .. (L - 2k + 1)) R_L`` for uniform sets and no position input.

    The placement is ``Subsets``, and the predictor is a ``PositionFreeAttention``. The factor is about ``(N / L)^k``
    for k planted tokens; some laws attain the bound in the limit.
    """

    name: ClassVar[str] = "no locality"
    provenance: ClassVar[str] = "derived here"

    def value(self, case: Extrapolation) -> float:
        """Return the bound, which averages over random subsequences that contain the planted set."""
        case.check_linear()
        k = case.law.k
        if not isinstance(case.relative_predictor, PositionFreeAttention):
            predictor_name = type(case.predictor).__name__
            raise BoundError(f"{predictor_name} reads distances between tokens; use a PositionFreeAttention")
        if not isinstance(case.law.placement, Subsets):
            raise BoundError(
                f"the sets of placement '{case.law.placement.name}' are not equally likely; use placement Subsets (see "
                "counterexample 'rare shape')"
            )
        check_train_length(case.train_length, case.test_length, k, 2)
        return perm(case.test_length - k, k) / perm(case.train_length - k, k) * case.risk(case.train_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortenedGaps:
    """Bound ``32 rho0 (N / L) max R_l + 4 (N / L) exp(-n / 2)`` with ``n = floor(L / (16 (w - 1))) - 2``, for even L.

    The maximum is over the training lengths l, and w is the span. The proof shortens gaps instead of deleting them, so
    there is no joint and no kappa. No such bound holds without the second term.
    """

    name: ClassVar[str] = "shortened gaps"
    provenance: ClassVar[str] = "derived here"

    def value(self, case: Extrapolation) -> float:
        """Return the bound, which needs an even training length of at least ``48 * (span - 1)`` tokens."""
        case.check_linear()
        span = case.check_train_length(4)
        if span < 2:
            raise BoundError(f"sets of span {span} cross no joint, so kappa is 1; use the bound '{LinearGrowth.name}'")
        num_blocks = case.train_length // (16 * (span - 1)) - 2
        if num_blocks < 1 or case.train_length % 2:
            raise BoundError(
                f"training length {case.train_length} is odd or too short for span {span}; train at an even "
                f"length of at least {48 * (span - 1)} (see counterexample 'heavy joints')"
            )
        length_ratio = case.test_length / case.train_length
        rho0 = start_ratio(case, case.train_lengths)
        return 32 * rho0 * length_ratio * case.largest_risk + 4 * length_ratio * exp(-num_blocks / 2)
