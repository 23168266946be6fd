"""What can be said about a planted law at lengths beyond training: assumptions, bounds, predictions, exact risks."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import stream
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.attention.training import fitted
from lengthwise.theory.bounds import BOUNDS
from lengthwise.theory.bounds.conditions import BoundError, eta, rho
from lengthwise.theory.bounds.extrapolation import Extrapolation, Prediction, predict
from lengthwise.theory.bounds.linear_loss import Bound, one_joint
from lengthwise.theory.risk.bayes import BayesPredictor, bayes_attention
from lengthwise.theory.risk.exact_risk import Conditional, Predictor, TotalVariation
from lengthwise.theory.risk.risk_at_length import Found, conditional_risk, mean_risk, risk_at

LOSS = TotalVariation()
# Bounds that go through the pieces of each planted set, and up to which length they are asked for.
PIECEWISE = {"A", "B", "B_transfer", "B_push", "B0", "B0_sampled", "B4", "B5"}
# Bounds that hold with probability 0.95: listed, but no promise.
SAMPLED = {"B0_sampled"}
MOST_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A condition of the theory, the number that decides it, and the counterexample without it.

    ``holds`` is None where the condition was not checked.
    """

    name: str
    holds: bool | None
    found: str
    counterexample: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """The risk at one length and how it was found, and that of the true posterior.

    The posterior has the smallest log loss. Under total variation it is no lower bound: where labels stay uncertain, a
    predictor that is surer than it should be has a smaller risk.
    """

    length: int
    found: Found
    posterior: Found


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundValue:
    """A bound at one length: its value, or why there is none; ``bound`` is its key in ``BOUNDS``."""

    bound: str
    title: str
    provenance: str
    length: int
    value: float | None
    refused: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LawCertificate:
    """Assumptions, exact risks, bounds and predictions for one fitted head, and a verdict in words.

    ``risks`` has the longest trained length and the tested ones, in order.
    """

    trained: tuple[int, int]
    assumptions: tuple[Assumption, ...]
    risks: tuple[Risk, ...]
    bounds: tuple[BoundValue, ...]
    predictions: tuple[Prediction, ...]
    verdict: str
    predictor: Predictor


def certify_law(
    law: Planted, *, trained: tuple[int, int], lengths: Sequence[int], steps: int = 1000, seed: int = 0
) -> LawCertificate:
    """Fit a sparse functional attention on short lengths, and say how it does on longer ones.

    Exact risks where the law has a span, or few sequences; samples elsewhere. A bound whose condition fails is listed
    with its reason. ``SettingError`` where a length has no room for what is planted or is no longer than training.
    """
    _check_lengths(law, trained, lengths)
    law, longest = law.possible, trained[1]
    predictor = fitted(law, trained, steps, seed)
    tested = sorted({longest, *lengths})
    risks = tuple(_risk(law, predictor, length, seed) for length in tested)
    case = _case(law, predictor, longest)
    assumptions = tuple(_assumptions(case(tested[-1])))
    bounds = tuple(bound for length in tested[1:] for bound in _bounds(case(length)))
    return LawCertificate(
        trained=trained,
        assumptions=assumptions,
        risks=risks,
        bounds=bounds,
        predictions=tuple(predict(law, predictor, longest, length, LOSS) for length in tested[1:]),
        verdict=" ".join(_verdict_at(risk, bounds, assumptions) for risk in risks[1:]),
        predictor=predictor,
    )


def _check_lengths(law: Planted, trained: tuple[int, int], lengths: Sequence[int]) -> None:
    shortest, longest = trained
    if not law.min_length <= shortest <= longest:
        raise SettingError(
            f"training on lengths {shortest}:{longest} is impossible: this law needs {law.min_length} tokens or more, "
            f"and the shortest comes first; use --train-lengths {law.min_length}:{max(16, longest)}"
        )
    short = [length for length in lengths if length <= longest]
    if short or not lengths:
        raise SettingError(
            f"length {short[0] if short else 'none'} is no longer than the {longest} of training; use --lengths above "
            f"{longest}"
        )


def _verdict_at(risk: Risk, bounds: Sequence[BoundValue], assumptions: Sequence[Assumption]) -> str:
    """The promise at one length, or the conditions that fail."""
    proved = [each for each in bounds if each.length == risk.length and each.bound not in SAMPLED]
    valued = [(each.value, each.title) for each in proved if each.value is not None]
    if not valued:
        failed = " and ".join(each.name for each in assumptions if not each.holds)
        reason = f"missing: {failed}" if failed else "the conditions of every bound fail, as listed"
        return f"No risk is promised at length {risk.length} ({reason})."
    least, title = min(valued)
    if least >= 1:
        return f"No risk is promised at length {risk.length}: the least bound is {least:.3g}, and no risk is above 1."
    how = "exactly" if risk.found.how == "exact" else "by sampling"
    return (
        f"At length {risk.length} the risk of this fitted head is promised to be at most {least:.3g} ({title}); "
        f"computed {how} at that length it is {risk.found.risk:.3g}."
    )


def _risk(law: Planted, predictor: Predictor, length: int, seed: int) -> Risk:
    """Of the predictor and of the true posterior, on the same sequences where both are sampled."""
    best: Predictor = BayesPredictor(law)
    with suppress(SettingError):
        best = bayes_attention(law, length)
    found, posterior = (risk_at(law, each, length, LOSS, stream(seed, "certify", length)) for each in (predictor, best))
    return Risk(length=length, found=found, posterior=posterior)


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
    if case.trained < span:
        told = f"training lengths up to {case.trained} have no room for the span {span}"
        return Assumption(name="regularity", holds=False, found=told, counterexample="C3")
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
        yield BoundValue(
            bound=name,
            title=bound.title,
            provenance=bound.provenance,
            length=case.tested,
            value=value,
            refused=refused,
        )


def _value(bound: Bound, case: Extrapolation) -> float:
    if bound.name in PIECEWISE and case.tested > MOST_TOKENS:
        raise BoundError(
            f"this bound adds up pieces of every planted set, which takes too long beyond {MOST_TOKENS} tokens; use a "
            "shorter length"
        )
    return bound.value(case)
