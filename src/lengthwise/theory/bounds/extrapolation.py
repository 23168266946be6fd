"""What a bound is computed of: a planted law, a predictor, the two lengths, and risks at the trained one."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.placement import Local, Placement
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import PositionFreeAttention, TabularAttention
from lengthwise.theory.bounds.conditions import (
    BoundError,
    JointWeight,
    check_room,
    joint_weight,
    on_shapes,
    support,
    uniformity,
)
from lengthwise.theory.risk.exact_risk import (
    Conditional,
    Distance,
    Leakage,
    Loss,
    Predictor,
    TotalVariation,
    enumerated_risk,
)
from lengthwise.theory.risk.growth_curves import FAR, fit_odds, limit_risk, secant
from lengthwise.theory.risk.laplace_risk import laplace_risks

NO_RISK = 1e-12

# How far the constant of uniform places may be from 1 by rounding.
ROUNDING = 1e-9

RiskOf = Callable[[Planted, Predictor, int, Loss], Conditional]

MeanOf = Callable[[Planted, Predictor, int, Loss], float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Extrapolation:
    """Everything that bounds ask for, computed when first asked; ``conditional`` gives exact risks by planted set.

    ``risk``, where given, finds their mean at less cost. A risk at ``tested`` is never computed: that is what bounds
    are for.
    """

    law: Planted
    predictor: Predictor
    trained: int
    tested: int
    loss: Loss = field(default_factory=TotalVariation)
    conditional: RiskOf = enumerated_risk
    risk: MeanOf | None = None

    def __post_init__(self) -> None:
        # A tuple that is never planted has no risk, and its score must not decide kappa.
        object.__setattr__(self, "law", self.law.possible)

    @property
    def relative(self) -> TabularAttention | PositionFreeAttention:
        """The predictor, if where a set stands cannot matter to it; ``BoundError`` otherwise.

        ``SettingError`` where it reads other tokens, or more or fewer of them, than the law plants.
        """
        if not isinstance(self.predictor, (TabularAttention, PositionFreeAttention)):
            raise BoundError(
                f"{type(self.predictor).__name__} is not relative by construction (counterexample C4); use a "
                "TabularAttention"
            )
        read = self.predictor.num_tokens, self.predictor.k
        if read != (self.law.num_tokens, self.law.k):
            raise SettingError(
                f"the predictor reads sets of {read[1]} out of {read[0]} tokens, the law plants {self.law.k} out of "
                f"{self.law.num_tokens}; use the same numbers for both"
            )
        return self.predictor

    @property
    def attention(self) -> TabularAttention:
        """The predictor, if it is also local by construction; ``BoundError`` otherwise."""
        if isinstance(self.relative, PositionFreeAttention):
            raise BoundError(
                "the class is not local: it reads sets however far apart (counterexample C2b); use a "
                "TabularAttention, or the bounds "
                "for classes without positions"
            )
        return self.relative

    @cached_property
    def span(self) -> int:
        """How many tokens a planted set or a set of the class reaches over; ``BoundError`` where nothing limits it."""
        self.check_sparse()
        if self.law.placement.span is None:
            raise BoundError(
                f"planted sets of '{self.law.placement.name}' are not local (counterexample C2a); use a placement with "
                "a span"
            )
        scored = (self.attention.log_scores > -np.inf).any(axis=1)
        reach = self.attention.shapes[scored, -1].max(initial=0)
        return max(self.law.placement.span, int(reach) + 1)

    def check_sparse(self) -> None:
        """Refuse a placement that plants more tokens at another length."""
        for length in (self.trained, self.tested):
            planted = self.law.placement.law(length).shapes.shape[1]
            if planted != self.law.k:
                raise BoundError(
                    f"length {length} plants {planted} tokens and not {self.law.k} (counterexample C1: sparsity that "
                    "grows with the "
                    "length); plant as many at all lengths"
                )

    def check_linear(self) -> None:
        """Refuse a loss in which errors of two sets may cancel, and answers that are no probabilities."""
        if not isinstance(self.loss, (TotalVariation, Leakage)):
            raise BoundError(
                f"loss '{self.loss.name}' is not linear: errors may cancel at the trained length (counterexample C6); "
                "use 'tv' or "
                "'leakage', or the bounds for the norm loss"
            )
        if isinstance(self.loss, TotalVariation):
            self.check_probabilities()

    def check_known(self) -> None:
        """Refuse a loss that is neither linear nor a distance."""
        if not isinstance(self.loss, Distance):
            self.check_linear()

    def check_probabilities(self) -> None:
        """Refuse values outside 0 to 1, with which a loss could be negative."""
        for name, values in (("value", self.relative.values), ("default", self.relative.default)):
            if not ((values >= 0) & (values <= 1)).all():
                raise BoundError(
                    f"a {name} of the predictor lies outside 0 to 1, so that losses may cancel (counterexample C6); "
                    "give probabilities"
                )

    def check_room(self, spans: int) -> int:
        """The span, where the trained length holds it so many times."""
        check_room(self.trained, self.tested, self.span, spans)
        return self.span

    @property
    def lengths(self) -> range:
        """The lengths of training: from half of the longest on."""
        return range((self.trained + 1) // 2, self.trained + 1)

    @cached_property
    def shapes(self) -> Int[np.ndarray, "shapes k"]:
        """The shapes that are planted at the tested length."""
        return support(self.law.placement, [self.tested])

    @cached_property
    def tuples(self) -> Float[np.ndarray, " tuples"]:
        """The probabilities of the planted tuples."""
        return np.array(self.law.probabilities)

    def probability(self, length: int) -> Float[np.ndarray, "shapes length tuples"]:
        """Of each of the shapes, at each start, with each planted tuple."""
        return on_shapes(self.law.placement, self.shapes, length)[:, :, None] * self.tuples

    @cached_property
    def joint_weight(self) -> JointWeight:
        """What can cross a joint, for the shapes that are planted at the tested length."""
        return joint_weight(self.law, self.attention, self.shapes)

    @cached_property
    def mean(self) -> Callable[[int], float]:
        """The risk at a length."""
        # A risk of 0 may come out just below it, and bounds multiply by large numbers.
        return cache(lambda length: max(self._mean(length), 0.0))

    def _mean(self, length: int) -> float:
        if self.risk is not None:
            return self.risk(self.law, self.predictor, length, self.loss)
        return self.conditional(self.law, self.predictor, length, self.loss).mean

    @cached_property
    def average(self) -> float:
        """The mean risk over the lengths of training: what fitting them all together makes small."""
        return float(np.mean([self.mean(length) for length in self.lengths]))

    @cached_property
    def worst(self) -> float:
        """The largest risk of any length of training."""
        return max(self.mean(length) for length in self.lengths)

    @cached_property
    def table(self) -> Callable[..., Float[np.ndarray, "shapes length tuples"]]:
        """The risk at a length given the shape, the start and the tuple, also of sets that are not planted there."""
        return cache(self._table)

    def _table(self, length: int, loss: Loss) -> Float[np.ndarray, "shapes length tuples"]:
        shapes = tuple(map(tuple, self.shapes.tolist()))
        everywhere = Local(shapes=shapes, weights=(1 / len(shapes),) * len(shapes))
        found = np.zeros((len(shapes), length, len(self.tuples)))
        planted = on_shapes(everywhere, self.shapes, length) > 0
        for index, (each, labels) in enumerate(zip(self.law.tuples, self.law.labels, strict=True)):
            one = replace(self.law, tuples=(each,), probabilities=(1.0,), labels=(labels,), placement=everywhere)
            risks = self.conditional(one, self.predictor, length, loss)
            # Sets are listed shape by shape, by their start.
            found[planted, index] = np.maximum(risks.risk, 0.0)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The risk at a length as trained lengths alone predict it, or why they do not.

    ``low`` and ``high`` come from the residuals of the fit alone: too narrow where the true curve is no odds law.
    """

    length: int
    odds: float | None = None
    low: float | None = None
    high: float | None = None
    secant: float | None = None
    refused: str | None = None


def predict(law: Planted, predictor: Predictor, trained: int, length: int, loss: Loss) -> Prediction:
    """Continue the exact risks of the trained lengths at which sets are planted as they are at ``length``."""
    if not isinstance(predictor, TabularAttention) or law.placement.span is None:
        return Prediction(length=length, refused="the risks at trained lengths are not exact: sets have no span")
    halves = range((trained + 1) // 2, trained + 1)
    known = [each for each in halves if each >= law.min_length and _alike(law.placement, each, length)]
    if len(known) < 2:
        return Prediction(
            length=length,
            refused=f"{len(known)} of the trained lengths {halves.start} to {trained} have the shapes and places of "
            f"length {length}, and a curve needs 2",
        )
    try:
        risks = laplace_risks(law, predictor, known, loss)
    except SettingError as error:
        return Prediction(length=length, refused=str(error))
    # A head without any risk has no limit above 0, which the law of odds needs.
    odds = fit_odds(known, risks, max(limit_risk(law, predictor), NO_RISK))
    low, high = odds.interval(length)
    return Prediction(length=length, odds=odds.at(length), low=low, high=high, secant=secant(known, risks, length))


def _alike(placement: Placement, trained: int, length: int) -> bool:
    """Whether both lengths, and very long ones, have the same law of shapes at uniform places."""
    return uniformity(placement, [trained, length, FAR]).rho0 <= 1 + ROUNDING
