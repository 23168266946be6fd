"""Certificate of a planted law at longer lengths: assumptions, exact risks, bounds and predictions."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import stream
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.attention.training import fit_tables
from lengthwise.theory.bounds import BOUNDS, COVER_BOUNDS
from lengthwise.theory.bounds.conditions import BoundError, regularity_constant, regularity_ratio
from lengthwise.theory.bounds.extrapolation import Extrapolation, Prediction, predict
from lengthwise.theory.bounds.linear_loss import Bound, largest_kappa
from lengthwise.theory.bounds.white_box import SampledKnownScores
from lengthwise.theory.risk.bayes import BayesPredictor, bayes_attention
from lengthwise.theory.risk.exact_risk import ConditionalRisk, Predictor, TotalVariation
from lengthwise.theory.risk.realizability import Realizability, find_realizability
from lengthwise.theory.risk.risk_at_length import RiskEstimate, conditional_risk, estimate_risk, mean_risk

LOSS = TotalVariation()
# The largest test length of bounds that sum over the pieces of every planted set.
MAX_COVER_LENGTH = 1024
# Names of the bounds that hold only with probability 0.95.
PROBABILISTIC_BOUNDS = {SampledKnownScores.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A condition, its test result as text (``found``), and a counterexample to it; ``holds`` is None if unknown."""

    name: str
    holds: bool | None
    found: str
    counterexample: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
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
class LawCertificate:
    """Certificate of one fitted head; ``risks`` are at the longest training length, then at the test lengths.

    ``realizability`` covers these lengths and the shortest training length. No bound requires it.
    """

    trained: tuple[int, int]
    assumptions: tuple[Assumption, ...]
    realizability: Realizability
    risks: tuple[Risk, ...]
    bounds: tuple[BoundValue, ...]
    predictions: tuple[Prediction, ...]
    verdict: str
    predictor: Predictor


def certify_law(
    law: Planted, *, trained: tuple[int, int], lengths: Sequence[int], steps: int = 1000, seed: int = 0
) -> LawCertificate:
    """Fit a sparse functional attention on lengths ``trained`` (inclusive), and certify its risk at longer ``lengths``.

    Risks are exact if the law has a span or few sequences, and sampled otherwise. If a condition of a bound fails, the
    certificate gives the reason. Raises ``SettingError`` for dependent background tokens, for training lengths that are
    too short for the law, and for test lengths that are not above the training lengths.
    """
    law.check_independent()
    _check_lengths(law, trained, lengths)
    law, longest = law.with_possible_tuples, trained[1]
    predictor = fit_tables(law, trained, steps, seed)
    every_length = sorted({longest, *lengths})
    risks = tuple(_estimate_risks(law, predictor, length, seed) for length in every_length)
    case = _build_case(law, predictor, longest)
    assumptions = tuple(_list_assumptions(case(every_length[-1])))
    bounds = tuple(bound for length in every_length[1:] for bound in _evaluate_bounds(case(length)))
    return LawCertificate(
        trained=trained,
        assumptions=assumptions,
        realizability=find_realizability(law, (trained[0], *every_length)),
        risks=risks,
        bounds=bounds,
        predictions=tuple(predict(law, predictor, longest, length, LOSS) for length in every_length[1:]),
        verdict=" ".join(_verdict_at(risk, bounds, assumptions) for risk in risks[1:]),
        predictor=predictor,
    )


def _check_lengths(law: Planted, trained: tuple[int, int], lengths: Sequence[int]) -> None:
    shortest, longest = trained
    if not law.min_length <= shortest <= longest:
        raise SettingError(
            f"invalid training lengths {shortest}:{longest}: this law needs {law.min_length} tokens "
            "or more, and the shortest length comes first; use --train-lengths "
            f"{law.min_length}:{max(16, longest)}"
        )
    check_test_lengths(longest, lengths)


def check_test_lengths(max_train_length: int, lengths: Sequence[int]) -> None:
    """Raise ``SettingError`` unless all lengths are above the longest training length."""
    if not lengths:
        raise SettingError(f"no test lengths; use --lengths above {max_train_length}")
    if short := [length for length in lengths if length <= max_train_length]:
        raise SettingError(
            f"length {short[0]} is not above the longest training length {max_train_length}; use "
            f"--lengths above {max_train_length}"
        )


def _verdict_at(risk: Risk, bounds: Sequence[BoundValue], assumptions: Sequence[Assumption]) -> str:
    proved = [each for each in bounds if each.length == risk.length and each.bound not in PROBABILISTIC_BOUNDS]
    values = [(bound.value, bound.title) for bound in proved if bound.value is not None]
    if not values:
        failed = " and ".join(assumption.name for assumption in assumptions if not assumption.holds)
        reason = f"missing: {failed}" if failed else "the conditions of every bound fail, as listed"
        return f"No risk is guaranteed at length {risk.length} ({reason})."
    value, title = min(values)
    if value >= 1:
        return f"No risk is guaranteed at length {risk.length}, because the smallest bound ({value:.3g}) is at least 1."
    risk_method = "exact" if risk.found.how == "exact" else "sampled"
    return (
        f"At length {risk.length} the risk of this fitted head is guaranteed to be at most {value:.3g} ({title}); "
        f"its {risk_method} value is {risk.found.risk:.3g}."
    )


def _estimate_risks(law: Planted, predictor: Predictor, length: int, seed: int) -> Risk:
    """Estimate the risks of the fitted head and of the posterior; if both are sampled, use the same sequences."""
    posterior: Predictor = BayesPredictor(law)
    with suppress(SettingError):
        posterior = bayes_attention(law, length)
    found, posterior_risk = (
        estimate_risk(law, head, length, LOSS, stream(seed, "certify", length)) for head in (predictor, posterior)
    )
    return Risk(length=length, found=found, posterior=posterior_risk)


def _list_assumptions(case: Extrapolation) -> Iterator[Assumption]:
    law, span = case.law, case.law.placement.span
    yield Assumption(name="sparsity", holds=True, found=f"k = {law.k} at every length", counterexample="growing k")
    found = "no span" if span is None else f"planted sets have a span of at most {span} tokens"
    yield Assumption(name="locality of the data", holds=span is not None, found=found, counterexample="growing gap")
    is_local = isinstance(case.predictor, TabularAttention)
    yield Assumption(
        name="locality of the class",
        holds=is_local,
        found="by construction" if is_local else "the head reads sets at any distance",
        counterexample="unbounded reach",
    )
    yield Assumption(
        name="training length",
        holds=span is not None and case.train_length >= 4 * span,
        found=f"L = {case.train_length}" + ("" if span is None else f", 4 w = {4 * span}"),
        counterexample="unbounded reach",
    )
    yield _check_regularity(case, span)
    for name, counterexample in (("relativity", "absolute positions"), ("one background", "new background token")):
        yield Assumption(name=name, holds=True, found="by construction", counterexample=counterexample)
    yield Assumption(name="linear loss", holds=True, found=f"'{case.loss.name}'", counterexample="canceling errors")
    yield _check_joints(case)


def _check_regularity(case: Extrapolation, span: int | None) -> Assumption:
    holds = False
    if span is None:
        finding = "no span, so no eta"
    elif case.train_length < span:
        finding = f"training lengths up to {case.train_length} have no room for the span {span}"
    else:
        # Longer lengths need no check, because eta grows only with the number of starts.
        eta_train = regularity_constant(case.law.placement, case.train_length, span)
        ratio = regularity_ratio(case.law.placement, case.test_length, case.train_length)
        holds = math.isfinite(eta_train) and math.isfinite(ratio)
        finding = f"eta_L = {eta_train:.4g}; Q_N over Q_L at most {ratio:.4g} at N = {case.test_length}"
    return Assumption(name="regularity", holds=holds, found=finding, counterexample="rare shape")


def _check_joints(case: Extrapolation) -> Assumption:
    try:
        finding, holds = f"kappa = {largest_kappa(case):.4g}", True
    except BoundError as error:
        finding, holds = str(error), False
    return Assumption(name="light joints", holds=holds, found=finding, counterexample="heavy joints")


def _build_case(law: Planted, predictor: Predictor, train_length: int) -> Callable[[int], Extrapolation]:
    """Return a cached function from a test length to the inputs of the bounds; it computes training risks only once."""
    by_set: Callable[..., ConditionalRisk] = cache(
        lambda law, length, loss: conditional_risk(law, predictor, length, loss)
    )
    mean: Callable[..., float] = cache(lambda law, length, loss: mean_risk(law, predictor, length, loss))
    return lambda test_length: Extrapolation(
        law=law,
        predictor=predictor,
        train_length=train_length,
        test_length=test_length,
        loss=LOSS,
        conditional_risk=lambda law, _, length, loss: by_set(law, length, loss),
        mean_risk=lambda law, _, length, loss: mean(law, length, loss),
    )


def _evaluate_bounds(case: Extrapolation) -> Iterator[BoundValue]:
    for name, bound in BOUNDS.items():
        value = refused = None
        try:
            value = _evaluate_bound(bound(), case)
        except (BoundError, SettingError) as error:
            refused = str(error)
        length, provenance = case.test_length, bound.provenance
        yield BoundValue(bound=name, title=name, provenance=provenance, length=length, value=value, refused=refused)


def _evaluate_bound(bound: Bound, case: Extrapolation) -> float:
    if isinstance(bound, COVER_BOUNDS) and case.test_length > MAX_COVER_LENGTH:
        raise BoundError(
            f"this bound sums over pieces of every planted set, which takes too long at length {case.test_length}; "
            f"use a test length of at most {MAX_COVER_LENGTH}"
        )
    return bound.value(case)
