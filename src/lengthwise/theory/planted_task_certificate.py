"""Certificate of a planted law at longer lengths: assumptions, exact risks, bounds and predictions."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.tasks.planted.placement import Placement
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.attention.sparse_attention import fit_tabular_attention
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.bounds import BOUNDS, largest_kappa
from lengthwise.theory.bounds.bound_inputs import (
    BoundError,
    BoundInputs,
    regularity_constant,
    regularity_ratio,
    start_offset_uniformity,
)
from lengthwise.theory.risk.bayes import (
    BayesPredictor,
    RealizabilityResult,
    build_bayes_attention,
    check_bayes_realizability,
)
from lengthwise.theory.risk.exact_risk import ConditionalRisk, Predictor, TotalVariationLoss
from lengthwise.theory.risk.growth_curves import (
    ASYMPTOTIC_LENGTH,
    asymptotic_risk,
    extrapolate_by_secant,
    fit_growth_curve,
)
from lengthwise.theory.risk.laplace_transform import laplace_risks
from lengthwise.theory.risk.risk_at_length import RiskEstimate, conditional_risk, estimate_risk, mean_risk
from lengthwise.theory.task_certificate import AssumptionCheck, check_test_lengths

LOSS = TotalVariationLoss()
# The largest test length of bounds that sum over the pieces of every planted set.
MAX_COVER_LENGTH = 1024
# The limit of an odds law must be positive.
MIN_LIMIT_RISK = 1e-12
# Tolerance for the constant rho0, which is 1 for uniform starts.
RHO0_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskAtLength:
    """Risks at one length: of the fitted head (``found``) and of the true posterior.

    The posterior minimizes the log loss, but not total variation: if labels are uncertain, a more confident predictor
    has a smaller total variation.
    """

    length: int
    found: RiskEstimate
    posterior: RiskEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundValue:
    """The value of a bound at one length, or None with the reason in ``refused``; ``title`` equals ``bound``."""

    bound: str
    title: str
    provenance: str
    length: int
    value: float | None
    refused: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskPrediction:
    """Risk at one length as predicted by an odds law (``odds``) and by a secant; ``refused`` explains its absence.

    ``low`` and ``high`` are the ends of the 95% interval of ``odds`` from the residuals of the fit. The interval is too
    narrow if no odds law fits the risk.
    """

    length: int
    odds: float | None = None
    low: float | None = None
    high: float | None = None
    secant: float | None = None
    refused: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedTaskCertificate:
    """Certificate of one fitted head; ``risks`` are at the longest training length, then at the test lengths.

    ``realizability`` covers these lengths and the shortest training length. No bound requires it.
    """

    trained: tuple[int, int]
    assumptions: tuple[AssumptionCheck, ...]
    realizability: RealizabilityResult
    risks: tuple[RiskAtLength, ...]
    bounds: tuple[BoundValue, ...]
    predictions: tuple[RiskPrediction, ...]
    verdict: str
    predictor: Predictor


def certify_planted_task(
    law: PlantedCorrelations, *, trained: tuple[int, int], lengths: Sequence[int], steps: int = 1000, seed: int = 0
) -> PlantedTaskCertificate:
    """Fit a sparse functional attention on lengths ``trained`` (inclusive), and certify its risk at longer ``lengths``.

    Risks are exact if the law has a span or few sequences, and sampled otherwise. If a condition of a bound fails, the
    certificate gives the reason. Raises ``SettingError`` for dependent background tokens, for training lengths that are
    too short for the law, and for test lengths that are not above the training lengths.
    """
    law.check_independent()
    _check_lengths(law, trained, lengths)
    law, longest = law.drop_impossible_tuples, trained[1]
    predictor = fit_tabular_attention(law, trained, steps, seed)
    every_length = sorted({longest, *lengths})
    risks = tuple(_estimate_risks(law, predictor, length, seed) for length in every_length)
    case = _build_case(law, predictor, longest)
    assumptions = tuple(_list_assumptions(case(every_length[-1])))
    bounds = tuple(bound for length in every_length[1:] for bound in _evaluate_bounds(case(length)))
    return PlantedTaskCertificate(
        trained=trained,
        assumptions=assumptions,
        realizability=check_bayes_realizability(law, (trained[0], *every_length)),
        risks=risks,
        bounds=bounds,
        predictions=tuple(predict_risk(law, predictor, longest, length) for length in every_length[1:]),
        verdict=" ".join(_verdict_at(risk, bounds, assumptions) for risk in risks[1:]),
        predictor=predictor,
    )


def _check_lengths(law: PlantedCorrelations, trained: tuple[int, int], lengths: Sequence[int]) -> None:
    shortest, longest = trained
    if not law.min_length <= shortest <= longest:
        raise SettingError(
            f"invalid training lengths {shortest}:{longest}: this law needs {law.min_length} tokens "
            "or more, and the shortest length comes first; use --train-lengths "
            f"{law.min_length}:{max(16, longest)}"
        )
    check_test_lengths(longest, lengths)


def tightest_bound(bounds: Sequence[BoundValue], length: int) -> tuple[float, str] | None:
    """Return the smallest value of the proved bounds at a length, with its title; None if no bound has a value."""
    proved = [bound for bound in bounds if bound.length == length and not BOUNDS[bound.bound].is_sampled]
    return min(((bound.value, bound.title) for bound in proved if bound.value is not None), default=None)


def _verdict_at(risk: RiskAtLength, bounds: Sequence[BoundValue], assumptions: Sequence[AssumptionCheck]) -> str:
    tightest = tightest_bound(bounds, risk.length)
    if tightest is None:
        failed = " and ".join(assumption.name for assumption in assumptions if not assumption.holds)
        reason = f"missing: {failed}" if failed else "the conditions of every bound fail, as listed"
        return f"No risk is guaranteed at length {risk.length} ({reason})."
    value, title = tightest
    if value >= 1:
        return f"No risk is guaranteed at length {risk.length}, because the smallest bound ({value:.3g}) is at least 1."
    risk_method = "exact" if risk.found.how == "exact" else "sampled"
    return (
        f"At length {risk.length} the risk of this fitted head is guaranteed to be at most {value:.3g} ({title}); "
        f"its {risk_method} value is {risk.found.risk:.3g}."
    )


def _estimate_risks(law: PlantedCorrelations, predictor: Predictor, length: int, seed: int) -> RiskAtLength:
    """Estimate the risks of the fitted head and of the posterior; if both are sampled, use the same sequences."""
    posterior: Predictor = BayesPredictor(law)
    with suppress(SettingError):
        posterior = build_bayes_attention(law, length)
    found, posterior_risk = (
        estimate_risk(law, head, length, LOSS, random_stream(seed, "certify", length))
        for head in (predictor, posterior)
    )
    return RiskAtLength(length=length, found=found, posterior=posterior_risk)


def _list_assumptions(case: BoundInputs) -> Iterator[AssumptionCheck]:
    law, span, is_local = case.law, case.law.placement.max_span, isinstance(case.predictor, TabularAttention)
    max_span = "no span" if span is None else f"planted sets have a span of at most {span} tokens"
    class_span = "by construction" if is_local else "the head reads sets at any distance"
    length = f"L = {case.train_length}" + ("" if span is None else f", 4 w = {4 * span}")
    is_long = span is not None and case.train_length >= 4 * span
    for name, holds, found, counterexample in (
        ("sparsity", True, f"k = {law.k} at every length", "growing k"),
        ("locality of the data", span is not None, max_span, "growing gap"),
        ("locality of the class", is_local, class_span, "unbounded reach"),
        ("training length", is_long, length, "unbounded reach"),
        ("regularity", *_check_regularity(case, span), "rare shape"),
        ("relativity", True, "by construction", "absolute positions"),
        ("one background", True, "by construction", "new background token"),
        ("linear loss", True, f"'{case.loss.name}'", "canceling errors"),
        ("light cuts", *_check_cuts(case), "heavy cuts"),
    ):
        yield AssumptionCheck(name=name, holds=holds, found=found, counterexample=counterexample)


def _check_regularity(case: BoundInputs, span: int | None) -> tuple[bool, str]:
    """Return whether the regularity constants are finite, and their values or the reason why there are none."""
    if span is None:
        return False, "no span, so no eta"
    if case.train_length < span:
        return False, f"training lengths up to {case.train_length} have no room for the span {span}"
    # Longer lengths need no check, because eta grows only with the number of starts.
    eta_train = regularity_constant(case.law.placement, case.train_length, span)
    ratio = regularity_ratio(case.law.placement, case.test_length, case.train_length)
    found = f"eta_L = {eta_train:.4g}; Q_N over Q_L at most {ratio:.4g} at N = {case.test_length}"
    return math.isfinite(eta_train) and math.isfinite(ratio), found


def _check_cuts(case: BoundInputs) -> tuple[bool, str]:
    """Return whether kappa is finite, and its value or the reason why it is infinite."""
    try:
        return True, f"kappa = {largest_kappa(case):.4g}"
    except BoundError as error:
        return False, str(error)


def _build_case(law: PlantedCorrelations, predictor: Predictor, train_length: int) -> Callable[[int], BoundInputs]:
    """Return a cached function from a test length to the inputs of the bounds; it computes training risks only once."""
    by_set: Callable[..., ConditionalRisk] = cache(
        lambda law, length, loss: conditional_risk(law, predictor, length, loss)
    )
    mean: Callable[..., float] = cache(lambda law, length, loss: mean_risk(law, predictor, length, loss))
    return lambda test_length: BoundInputs(
        law=law,
        predictor=predictor,
        train_length=train_length,
        test_length=test_length,
        loss=LOSS,
        conditional_risk=lambda law, _, length, loss: by_set(law, length, loss),
        mean_risk=lambda law, _, length, loss: mean(law, length, loss),
    )


def _evaluate_bounds(case: BoundInputs) -> Iterator[BoundValue]:
    length = case.test_length
    for name, bound in BOUNDS.items():
        value = refused = None
        if bound.sums_pieces and length > MAX_COVER_LENGTH:
            refused = (
                f"this bound sums over pieces of every planted set, which takes too long at length {length}; use a "
                f"test length of at most {MAX_COVER_LENGTH}"
            )
        else:
            try:
                value = bound.value(case)
            except (BoundError, SettingError) as error:
                refused = str(error)
        provenance = bound.provenance
        yield BoundValue(bound=name, title=name, provenance=provenance, length=length, value=value, refused=refused)


def predict_risk(law: PlantedCorrelations, predictor: Predictor, train_length: int, length: int) -> RiskPrediction:
    """Predict the risk at ``length`` from the exact risks at the training lengths with the same shapes and starts."""
    if not isinstance(predictor, TabularAttention) or law.placement.max_span is None:
        return RiskPrediction(length=length, refused="without a span, the risks at training lengths are not exact")
    shortest = (train_length + 1) // 2
    candidates = range(max(shortest, law.min_length), train_length + 1)
    lengths = [trained for trained in candidates if _has_same_placement(law.placement, trained, length)]
    if len(lengths) < 2:
        return RiskPrediction(
            length=length,
            refused=f"only {len(lengths)} of the training lengths {shortest} to {train_length} "
            f"have the same shapes and starts as length {length}; a curve needs 2",
        )
    try:
        risks = laplace_risks(law, predictor, lengths, LOSS)
    except SettingError as error:
        return RiskPrediction(length=length, refused=str(error))
    # An odds law needs a positive limit, but a head without risk has limit 0.
    curve = fit_growth_curve(lengths, risks, max(asymptotic_risk(law, predictor), MIN_LIMIT_RISK))
    low, high = curve.confidence_interval(length)
    secant_risk = extrapolate_by_secant(lengths, risks, length)
    return RiskPrediction(length=length, odds=curve.risk_at(length), low=low, high=high, secant=secant_risk)


def _has_same_placement(placement: Placement, train_length: int, length: int) -> bool:
    """Return True if starts are uniform and shapes equally distributed at both lengths and at ``ASYMPTOTIC_LENGTH``."""
    return start_offset_uniformity(placement, [train_length, length, ASYMPTOTIC_LENGTH]) <= 1 + RHO0_TOLERANCE
