"""What can be said about a planted law at lengths beyond training: assumptions, bounds, predictions, exact risks."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from lengthwise.errors import SettingError
from lengthwise.randomness import stream
from lengthwise.tasks.planted import Planted
from lengthwise.theory.any_length import Found, conditional_risk, mean_risk, risk_at
from lengthwise.theory.bayes import BayesPredictor, bayes_attention
from lengthwise.theory.bounds import BOUNDS
from lengthwise.theory.bounds_linear import Bound, one_joint
from lengthwise.theory.conditions import BoundError
from lengthwise.theory.extrapolation import Extrapolation
from lengthwise.theory.fitted import fitted
from lengthwise.theory.growth import fit_odds, limit_risk, secant
from lengthwise.theory.laplace import laplace_risks
from lengthwise.theory.regularity import eta, rho
from lengthwise.theory.risk import Conditional, Predictor, TotalVariation
from lengthwise.theory.tabular import TabularAttention

LOSS = TotalVariation()
# Bounds that go through the pieces of each planted set, and up to which length they are asked for.
PIECEWISE = {"A", "B", "B_transfer", "B_push", "B0", "B0_sampled", "B4", "B5"}
MOST_TOKENS = 1024
NO_RISK = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A condition of the theory: whether it holds, the number that tells, and the counterexample without it."""

    name: str
    holds: bool
    found: str
    counterexample: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """The risk at one length and how it was found; ``bayes`` is that of the predictor with the smallest log loss."""

    length: int
    found: Found
    bayes: Found


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundValue:
    """A bound at one length: its value, or why there is none."""

    bound: str
    provenance: str
    length: int
    value: float | None
    refused: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What lengths of training alone say about the risk at another.

    ``low`` and ``high`` come from the residuals of the fit alone: too near where the true curve is no odds law.
    """

    length: int
    odds: float
    low: float | None
    high: float | None
    secant: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LawCertificate:
    """All of it; ``risks`` has the tested lengths and the longest trained one, in order."""

    trained: tuple[int, int]
    assumptions: tuple[Assumption, ...]
    risks: tuple[Risk, ...]
    bounds: tuple[BoundValue, ...]
    predictions: tuple[Prediction, ...]
    predictor: Predictor


def certify_law(
    law: Planted, *, trained: tuple[int, int], lengths: Sequence[int], steps: int = 1000, seed: int = 0
) -> LawCertificate:
    """Fit a sparse functional attention on short lengths, and say how it does on longer ones.

    Exact risks where the law has a span, or few sequences; samples elsewhere. A bound whose condition fails is listed
    with its reason. ``SettingError`` where a length has no room for what is planted.
    """
    longest = trained[1]
    predictor = fitted(law, trained, steps, seed)
    tested = sorted({longest, *lengths})
    risks = tuple(_risk(law, predictor, length, seed) for length in tested)
    beyond = [length for length in tested if length > longest]
    case = _case(law, predictor, longest)
    return LawCertificate(
        trained=trained,
        assumptions=tuple(_assumptions(case(max(tested)))),
        risks=risks,
        bounds=tuple(bound for length in beyond for bound in _bounds(case(length))),
        predictions=tuple(_predictions(law, predictor, longest, beyond)),
        predictor=predictor,
    )


def _risk(law: Planted, predictor: Predictor, length: int, seed: int) -> Risk:
    """Of the predictor and of Bayes, on the same sequences where both are sampled."""
    best: Predictor = BayesPredictor(law)
    with suppress(SettingError):
        best = bayes_attention(law, length)
    found, bayes = (risk_at(law, each, length, LOSS, stream(seed, "certify", length)) for each in (predictor, best))
    return Risk(length=length, found=found, bayes=bayes)


def _assumptions(case: Extrapolation) -> Iterator[Assumption]:
    """In the order in which the theory needs them."""
    law, trained = case.law, case.trained
    span = law.placement.span
    yield Assumption(name="sparsity", holds=True, found=f"k = {law.k} at every length", counterexample="C1")
    local = "no bound" if span is None else f"planted sets reach over at most {span} tokens"
    yield Assumption(name="locality of the data", holds=span is not None, found=local, counterexample="C2a")
    reads = isinstance(case.predictor, TabularAttention)
    yield Assumption(
        name="locality of the class",
        holds=reads,
        found="by construction" if reads else "it reads sets however far apart",
        counterexample="C2b",
    )
    room = span is not None and trained >= 4 * span
    yield Assumption(
        name="room",
        holds=room,
        found=f"L = {trained}" + ("" if span is None else f", 4 w = {4 * span}"),
        counterexample="C2b",
    )
    yield _regularity(case, span)
    yield Assumption(name="relativity", holds=True, found="by construction", counterexample="C4")
    yield Assumption(name="one background", holds=True, found="by construction", counterexample="C5")
    yield Assumption(name="linear loss", holds=True, found=f"'{case.loss.name}'", counterexample="C6")
    yield _light_joints(case)


def _regularity(case: Extrapolation, span: int | None) -> Assumption:
    if span is None:
        return Assumption(name="regularity", holds=False, found="no span, so no eta", counterexample="C3")
    # Long laws only repeat what shorter ones show: eta grows by the room alone.
    found = eta(case.law.placement, case.trained, span)
    jump = rho(case.law.placement, case.tested, case.trained)
    return Assumption(
        name="regularity",
        holds=math.isfinite(found) and math.isfinite(jump),
        found=f"eta_L = {found:.4g}; Q_N over Q_L at most {jump:.4g} at N = {case.tested}",
        counterexample="C3",
    )


def _light_joints(case: Extrapolation) -> Assumption:
    try:
        kappa = one_joint(case)
    except BoundError as error:
        return Assumption(name="light joints", holds=False, found=str(error), counterexample="C8")
    return Assumption(name="light joints", holds=True, found=f"kappa = {kappa:.4g}", counterexample="C8")


def _case(law: Planted, predictor: Predictor, trained: int) -> Callable[[int], Extrapolation]:
    """What bounds ask for, by tested length: risks at trained lengths are found once for all."""
    conditional: Callable[..., Conditional] = cache(
        lambda at, length, loss: conditional_risk(at, predictor, length, loss)
    )
    mean: Callable[..., float] = cache(lambda at, length, loss: mean_risk(at, predictor, length, loss))
    return lambda tested: Extrapolation(
        law=law,
        predictor=predictor,
        trained=trained,
        tested=tested,
        loss=LOSS,
        conditional=lambda at, _, length, loss: conditional(at, length, loss),
        risk=lambda at, _, length, loss: mean(at, length, loss),
    )


def _bounds(case: Extrapolation) -> Iterator[BoundValue]:
    """Every bound at one length."""
    for name, bound in BOUNDS.items():
        value, refused = None, None
        try:
            value = _value(bound(), case)
        except (BoundError, SettingError) as error:
            refused = str(error)
        yield BoundValue(bound=name, provenance=bound.provenance, length=case.tested, value=value, refused=refused)


def _value(bound: Bound, case: Extrapolation) -> float:
    if bound.name in PIECEWISE and case.tested > MOST_TOKENS:
        raise BoundError(
            f"{bound.name} adds up pieces of every planted set, which takes too long beyond {MOST_TOKENS} tokens; ask "
            "for a shorter length"
        )
    return bound.value(case)


def _predictions(law: Planted, predictor: Predictor, trained: int, lengths: Sequence[int]) -> Iterator[Prediction]:
    """From exact risks at the lengths of training; none where these are sampled."""
    if not isinstance(predictor, TabularAttention) or law.placement.span is None:
        return
    known = range((trained + 1) // 2, trained + 1)
    try:
        risks = laplace_risks(law, predictor, known, LOSS)
    except SettingError:
        return
    # A head without any risk has no limit above 0, which the law of odds needs.
    odds = fit_odds(known, risks, max(limit_risk(law, predictor), NO_RISK))
    for length in lengths:
        low, high = odds.interval(length)
        yield Prediction(length=length, odds=odds.at(length), low=low, high=high, secant=secant(known, risks, length))
