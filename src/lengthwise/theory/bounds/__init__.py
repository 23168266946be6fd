"""Upper bounds by name on the risk at test length N, from risks at lengths up to the training length L.

The span w is the maximum extent of a planted set, and R_L is the risk at the training length. The bounds of theorem 4.3
apply to every loss in this package. Their forms come from Golowich et al. 2025 (arXiv 2502.16792) and its reviews; the
constants and the factor kappa are reconstructed. Without kappa, the bounds are false: see the counterexample 'heavy
cuts'.

All other bounds are for linear losses (total variation and leakage), and most need only one training length. For every
sequence, the error is at most a sum over the pieces of a cover: the error of each piece times the kappa of its cuts.
Errors are added, never subtracted. Derived here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, perm

import numpy as np
from jaxtyping import Float

from lengthwise.tasks.planted.placement import SubsetPlacement
from lengthwise.theory.attention.tabular import PositionFreeAttention
from lengthwise.theory.bounds.bound_inputs import (
    BoundError,
    BoundInputs,
    Cuts,
    regularity_constant,
    require_finite,
    safe_ratio,
    start_offset_uniformity,
)
from lengthwise.theory.bounds.training_window_covers import (
    ChunkDifferenceCover,
    Cover,
    CoverType,
    GridWindowCover,
    ProportionalCover,
    expected_piece_counts,
    known_scores_bound,
    sampled_known_scores_bound,
    worst_case_weighted_risk,
)
from lengthwise.theory.risk.exact_risk import AttentionLeakageLoss, TotalVariationLoss

INFINITE_KAPPA_MESSAGE = (
    "no finite kappa: a set across a cut can outweigh a planted set; give all planted tuples a score above 0"
)
IRREGULARITY_MESSAGE = "the training length lacks a set that the test length plants; use a placement with the same sets"


def largest_kappa(case: BoundInputs) -> float:
    """Return the largest kappa of a piece with one cut, or raise ``BoundError`` if it is infinite."""
    kappas = case.cross_cut_scores.kappa_by_cuts()
    max_kappa = float(max(kappas[True, False].max(), kappas[False, True].max()))
    return require_finite(max_kappa, INFINITE_KAPPA_MESSAGE, "heavy cuts")


def start_uniformity_ratio(case: BoundInputs, lengths: range) -> float:
    """Return ``start_offset_uniformity`` over ``lengths`` and the test length; raise ``BoundError`` if infinite."""
    rho0 = start_offset_uniformity(case.law.placement, [*lengths, case.test_length])
    return require_finite(rho0, IRREGULARITY_MESSAGE, "rare shape")


def expected_training_piece_counts(
    case: BoundInputs, cover: Cover, factor: dict[Cuts, Float[np.ndarray, "shapes tuples"]]
) -> Float[np.ndarray, "shapes length tuples"]:
    """Return ``expected_piece_counts`` with weights ``factor`` by cuts, for pieces of the training length."""
    weights = {cuts: values * case.tuple_probabilities for cuts, values in factor.items()}
    return expected_piece_counts(case.set_probabilities(case.test_length).sum(axis=2), cover, weights)[
        case.train_length
    ]


def kappa_weighted_piece_counts(case: BoundInputs, cover_type: CoverType) -> Float[np.ndarray, "shapes length tuples"]:
    """Return ``expected_training_piece_counts`` with factor kappa; raise ``BoundError`` if a condition fails."""
    case.check_linear_loss()
    cover = cover_type(test_length=case.test_length, train_length=case.train_length, span=case.span)
    kappas = case.cross_cut_scores.kappa_by_cuts()
    require_finite(float(kappas[True, True].max()), INFINITE_KAPPA_MESSAGE, "heavy cuts")
    return expected_training_piece_counts(case, cover, kappas)


def _published_factor(case: BoundInputs) -> float:
    """Return ``3 kappa eta_L eta_N`` if the conditions of theorem 4.3 hold."""
    case.check_supported_loss()
    span = case.check_train_length(4)
    etas = [regularity_constant(case.law.placement, length, span) for length in (case.train_length, case.test_length)]
    return 3 * largest_kappa(case) * require_finite(max(etas), IRREGULARITY_MESSAGE, "rare shape") * min(etas)


def length_quadratic_bound(case: BoundInputs) -> float:
    """Return ``3 kappa eta_L eta_N L N^2 delta``, for a training length L of at least 4 spans.

    Delta is the average risk over the lengths L/2 .. L. The constants eta measure the irregularity of the placement.
    """
    return _published_factor(case) * case.train_length * case.test_length**2 * case.mean_training_risk


def span_quadratic_bound(case: BoundInputs) -> float:
    """Return ``3 kappa eta_L eta_N L (N / w)^2 delta``, with the average risk delta over the lengths L/2 .. L.

    There are at most ``N / w`` windows and chunks; the average risk adds the factor L. L must be at least 4 w.
    """
    return _published_factor(case) * case.train_length * (case.test_length / case.span) ** 2 * case.mean_training_risk


def minimax_quadratic_bound(case: BoundInputs) -> float:
    """Return ``3 kappa eta_L eta_N (N / w)^2 delta`` with the largest risk delta over the lengths L/2 .. L."""
    return _published_factor(case) * (case.test_length / case.span) ** 2 * case.largest_training_risk


def length_ratio_quadratic_bound(case: BoundInputs) -> float:
    """Return ``48 kappa rho0 (N / L)^2 delta`` with the largest risk delta over L/2 .. L.

    The constant rho0 (see ``start_offset_uniformity``) is near 1 if the start of the planted set is nearly uniform.
    This is ``N / L`` times ``linear_bound_from_max_risk``, as if starts were equally probable at all lengths.
    """
    return linear_bound_from_max_risk(case) * case.test_length / case.train_length


def linear_bound_from_max_risk(case: BoundInputs) -> float:
    """Return ``48 kappa rho0 (N / L) delta`` with the largest risk delta over L/2 .. L, for even training lengths L.

    Each start is less probable at longer lengths, which cancels one factor ``N / L``.
    """
    case.check_supported_loss()
    case.check_train_length(4)
    length = case.train_length
    if length % 2:
        raise BoundError(
            f"training length {length} is odd and cannot be halved; use an even length, such as {length - 1}"
        )
    growth_factor = 48 * largest_kappa(case) * start_uniformity_ratio(case, case.train_lengths)
    return growth_factor * case.test_length / length * case.largest_training_risk


def piece_difference_bound(case: BoundInputs) -> float:
    """Return ``sum_S Q_N(S) (r_window + sum_J kappa_J r_J)`` over the planted sets S, with risks r of short pieces.

    The window contains S and has half the training length. Each chunk of the other tokens gives two pieces J, one with
    and one without the chunk, which has the other half minus a span. The bound uses risks at several lengths; see the
    counterexample 'canceling errors'.
    """
    case.check_supported_loss()
    span = case.check_train_length(1)
    window = case.train_length - case.train_length // 2
    chunk = case.train_length - window - span + 1
    cover = ChunkDifferenceCover(test_length=case.test_length, window_length=window, chunk_length=chunk, span=span)
    kappas = case.cross_cut_scores.kappa_by_cuts()
    factors = {cuts: kappa * case.tuple_probabilities for cuts, kappa in kappas.items()}
    require_finite(float(factors[True, True].max()), INFINITE_KAPPA_MESSAGE, "heavy cuts")
    counts = expected_piece_counts(case.set_probabilities(case.test_length).sum(axis=2), cover, factors)
    return sum(
        float((count * case.conditional_risk_table(length, case.loss)).sum()) for length, count in counts.items()
    )


def window_cover_bound(case: BoundInputs, cover: CoverType = GridWindowCover) -> float:
    """Return ``sum_S Q_N(S) sum_J kappa_J r_L(S in J)`` over the planted sets S and the pieces J of a cover.

    ``Q_N(S)`` is the probability of S at the test length N. ``r_L(S in J)`` is the risk at the training length L, given
    that the planted set has the token indexes of S in J. The bound needs the risks of all sets that fit, including sets
    that training never plants.
    """
    return float(
        (kappa_weighted_piece_counts(case, cover) * case.conditional_risk_table(case.train_length, case.loss)).sum()
    )


def proportional_cover_bound(case: BoundInputs) -> float:
    """Return ``window_cover_bound`` with a ``ProportionalCover``: fewer pieces, but most pieces have two cuts."""
    return window_cover_bound(case, ProportionalCover)


def worst_case_risk_bound(case: BoundInputs, cover: CoverType = GridWindowCover) -> float:
    """Return ``window_cover_bound`` with the worst risks by set for the mean training risk.

    The bound is finite even if training lacks a planted set; such a set has loss 1.
    """
    counts, probability = kappa_weighted_piece_counts(case, cover), case.set_probabilities(case.train_length)
    return worst_case_weighted_risk(case.risk_at(case.train_length), counts.ravel(), probability.ravel())


def largest_ratio_bound(case: BoundInputs, cover: CoverType = GridWindowCover) -> float:
    """Return ``R_L`` times the largest ratio of kappa-weighted pieces to training probability, over planted sets.

    The bound is never below ``worst_case_risk_bound``.
    """
    counts, probability = kappa_weighted_piece_counts(case, cover), case.set_probabilities(case.train_length)
    ratio = float(safe_ratio(counts.ravel(), probability.ravel()).max())
    return require_finite(ratio, IRREGULARITY_MESSAGE, "rare shape") * case.risk_at(case.train_length)


def _check_single_token_case(case: BoundInputs) -> None:
    case.check_linear_loss()
    case.check_sparsity()
    case.check_train_length(2, span=1)
    if case.law.k != 1:
        raise BoundError(
            f"the law has {case.law.k} planted tokens, but this bound needs k = 1; use the bound 'window cover'"
        )


def single_token_bound(case: BoundInputs) -> float:
    """Return ``(N - 1) / (L - 1) R_L`` for k = 1 and any placement; it needs neither kappa nor regularity."""
    _check_single_token_case(case)
    return (case.test_length - 1) / (case.train_length - 1) * case.risk_at(case.train_length)


def single_token_group_bound(case: BoundInputs) -> float:
    """Return ``1 - (1 - R_L)^T`` for k = 1, if ``T = (N - 1) / (L - 1)`` is an integer; it is at most ``T R_L``.

    It follows from the odds of T disjoint groups, which are independent given the planted token.
    """
    _check_single_token_case(case)
    num_groups, remainder = divmod(case.test_length - 1, case.train_length - 1)
    if remainder:
        raise BoundError(
            "(test length - 1) must be a multiple of (training length - 1), but the lengths are "
            f"{case.test_length} and {case.train_length}; test at length {num_groups * (case.train_length - 1) + 1}, "
            "or use the bound 'single tokens'"
        )
    return float(1 - (1 - case.risk_at(case.train_length)) ** num_groups)


def linear_bound(case: BoundInputs) -> float:
    """Return ``16 kappa rho0 (N / L) R_L`` for a training length L of at least 4 spans; 20 replaces 16 for odd L.

    There are ``4 N / L`` windows with ``4 N / L`` pieces each; the ratio of start probabilities is ``rho0 L / N``.
    """
    case.check_linear_loss()
    case.check_train_length(4)
    constant_factor = 20 if case.train_length % 2 else 16
    rho0 = start_uniformity_ratio(case, range(case.train_length, case.train_length + 1))
    growth_factor = constant_factor * largest_kappa(case) * rho0 * case.test_length / case.train_length
    return growth_factor * case.risk_at(case.train_length)


def linear_bound_from_mean_risk(case: BoundInputs) -> float:
    """Return ``40 kappa rho0 (N / L) delta`` with the mean risk delta at the lengths L/2 .. L, for L >= 8 spans.

    The bound is above ``linear_bound`` at the training length with the smallest risk.
    """
    case.check_linear_loss()
    case.check_train_length(8)
    growth_factor = 40 * largest_kappa(case) * start_uniformity_ratio(case, case.train_lengths)
    return growth_factor * case.test_length / case.train_length * case.mean_training_risk


def label_noise_corrected_bound(case: BoundInputs) -> float:
    """Return ``window_cover_bound``, but count the error e_z of the planted set once instead of once per piece.

    The bound is ``E e_z + sum_S Q_N(S) sum_J kappa_J (r_L - e_z A_L)``, where ``A_L`` is the mean attention weight of
    the planted set. It is below ``window_cover_bound`` if labels are random. The loss must be total variation.
    """
    counts = kappa_weighted_piece_counts(case, GridWindowCover)
    if not isinstance(case.loss, TotalVariationLoss):
        raise BoundError(
            f"loss '{case.loss.name}' has no label noise to correct, because its error on the planted set is 0; "
            "use loss 'tv'"
        )
    index_of = {tuple(shape): index for index, shape in enumerate(case.attention.shapes.tolist())}
    planted_error = np.zeros((len(case.offset_patterns), len(case.tuple_probabilities)))
    for index, shape in enumerate(case.offset_patterns.tolist()):
        if tuple(shape) in index_of:
            values = case.attention.values[index_of[tuple(shape)], case.law.tuple_codes(np.array(case.law.tuples))]
            planted_error[index] = 1 - (values * np.array(case.law.labels)).sum(axis=1)
    attention_weight = 1 - case.conditional_risk_table(case.train_length, AttentionLeakageLoss())
    excess_risk = case.conditional_risk_table(case.train_length, case.loss) - planted_error[:, None] * attention_weight
    planted_probability = case.set_probabilities(case.test_length).sum(axis=1)
    return float((planted_probability * planted_error).sum() + (counts * excess_risk).sum())


def no_locality_bound(case: BoundInputs) -> float:
    """Return ``(N - k) .. (N - 2k + 1) / ((L - k) .. (L - 2k + 1)) R_L`` for uniform sets and no position input.

    The placement is ``SubsetPlacement``, the predictor a ``PositionFreeAttention``. The factor is about ``(N / L)^k``
    for k planted tokens; some laws attain the bound in the limit. The proof averages over random subsequences that
    contain the planted set.
    """
    case.check_linear_loss()
    k = case.law.k
    if not isinstance(case.position_free_predictor, PositionFreeAttention):
        predictor_name = type(case.predictor).__name__
        raise BoundError(f"{predictor_name} reads distances between tokens; use a PositionFreeAttention")
    if not isinstance(case.law.placement, SubsetPlacement):
        raise BoundError(
            f"the sets of placement '{case.law.placement.name}' are not equally likely; use SubsetPlacement (see "
            "counterexample 'rare shape')"
        )
    case.check_train_length(2, span=k)
    return perm(case.test_length - k, k) / perm(case.train_length - k, k) * case.risk_at(case.train_length)


def shortened_gaps_bound(case: BoundInputs) -> float:
    """Return ``32 rho0 (N / L) max R_l + 4 (N / L) exp(-n / 2)`` with ``n = floor(L / (16 (w - 1))) - 2``, for even L.

    The maximum is over the training lengths l, and w is the span. The proof shortens gaps instead of deleting them, so
    there is no cut and no kappa. No such bound holds without the second term. L must be at least ``48 (w - 1)``.
    """
    case.check_linear_loss()
    span = case.check_train_length(4)
    if span < 2:
        raise BoundError(f"sets of span {span} cross no cut, so kappa is 1; use the bound 'linear in N / L'")
    num_blocks = case.train_length // (16 * (span - 1)) - 2
    if num_blocks < 1 or case.train_length % 2:
        raise BoundError(
            f"training length {case.train_length} is odd or too short for span {span}; train at an even "
            f"length of at least {48 * (span - 1)} (see counterexample 'heavy cuts')"
        )
    length_ratio = case.test_length / case.train_length
    rho0 = start_uniformity_ratio(case, case.train_lengths)
    return 32 * rho0 * length_ratio * case.largest_training_risk + 4 * length_ratio * exp(-num_blocks / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """An upper bound: a function that checks its own conditions, and whether the paper states its form.

    ``value`` may exceed 1; it raises ``BoundError`` if a condition fails. With ``sums_pieces``, it sums over the pieces
    of every planted set, which is slow at long test lengths. With ``is_sampled``, it holds with probability 0.95.
    """

    value: Callable[[BoundInputs], float]
    reconstructed: bool = False
    sums_pieces: bool = False
    is_sampled: bool = False

    @property
    def provenance(self) -> str:
        """Source of the bound, in words."""
        return "reconstructed" if self.reconstructed else "derived here"


BOUNDS: dict[str, Bound] = {
    "Theorem 4.3, factor L N^2": Bound(value=length_quadratic_bound, reconstructed=True),
    "Theorem 4.3, factor L (N / w)^2": Bound(value=span_quadratic_bound, reconstructed=True),
    "Theorem 4.3 for minimax training, factor (N / w)^2": Bound(value=minimax_quadratic_bound, reconstructed=True),
    "Theorem 4.3 for uniform starts, factor (N / L)^2": Bound(value=length_ratio_quadratic_bound, reconstructed=True),
    "linear in N / L, several training lengths": Bound(value=linear_bound_from_max_risk),
    "Theorem 4.3, summed over windows": Bound(value=piece_difference_bound, reconstructed=True, sums_pieces=True),
    "window cover": Bound(value=window_cover_bound, sums_pieces=True),
    "window cover, worst risks": Bound(value=worst_case_risk_bound, sums_pieces=True),
    "window cover, largest ratio": Bound(value=largest_ratio_bound, sums_pieces=True),
    "window cover, known scores": Bound(value=known_scores_bound, sums_pieces=True),
    "window cover, known scores, 95% by sampling": Bound(
        value=sampled_known_scores_bound, sums_pieces=True, is_sampled=True
    ),
    "single tokens": Bound(value=single_token_bound),
    "single tokens, independent groups": Bound(value=single_token_group_bound),
    "linear in N / L": Bound(value=linear_bound),
    "linear in N / L, mean over training lengths": Bound(value=linear_bound_from_mean_risk),
    "proportional cover": Bound(value=proportional_cover_bound, sums_pieces=True),
    "window cover, label noise counted once": Bound(value=label_noise_corrected_bound, sums_pieces=True),
    "no locality": Bound(value=no_locality_bound),
    "shortened gaps": Bound(value=shortened_gaps_bound),
}
