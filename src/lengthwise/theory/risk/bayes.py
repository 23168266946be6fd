"""Bayes predictor of a planted law, which is a sparse functional attention. Derived here."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention, weighted_mean
from lengthwise.theory.risk.exact_risk import (
    Leakage,
    Loss,
    Losses,
    Outputs,
    PlantedSets,
    Predictor,
    ScoredSets,
    Tokens,
    TotalVariation,
    enumerated_risk,
)
from lengthwise.theory.risk.laplace_risk import laplace_log_loss, laplace_risk

# The log score of each token that the background never produces; sets without these tokens get no weight.
MARKER_SCORE = 80.0


@dataclass(frozen=True, slots=True)
class LogLoss:
    """Log loss ``E[-log f_y]`` in nats, where f_y is the predicted probability of the label y.

    The Bayes predictor minimizes it. It is infinite if f_y may be 0.
    """

    name: ClassVar[str] = "log"

    def evaluate(self, predictor: Predictor, tokens: Tokens, planted: PlantedSets, labels: Outputs) -> Losses:
        """Return ``-sum_y K(y | z) log f_y(x)`` per sequence x; ``labels`` are ``K(y | z)``, and zeros have no loss."""
        with np.errstate(divide="ignore"):
            log_probabilities = np.log(predictor.predict(tokens))
        return np.asarray(-(labels * np.where(labels > 0, log_probabilities, 0.0)).sum(axis=1))


@dataclass(frozen=True, slots=True)
class BayesPredictor:
    """Posterior of the label at any length and placement: ``P(y | x) = sum_S P(S | x) K(y | x_S)``. Derived here.

    ``P(S | x)`` is ``Q(S) Qvoc(x_S) / mu(x_S)`` divided by its sum over all sets S. Q is the placement, Qvoc the
    distribution of planted tuples, mu the background, and K the distribution of labels. If the sequence x has
    probability 0, the output is the prior of the labels.
    """

    law: Planted

    def score_sets(self, tokens: Tokens) -> ScoredSets:
        """Return all sets that may be planted, with their log scores and their values (label probabilities)."""
        sets, weights = self.law.planted_set_weights(tokens)
        with np.errstate(divide="ignore"):
            return sets, np.log(weights), self.law.label_law[self.law.tuple_codes(tokens[:, sets])]

    def predict(self, tokens: Tokens) -> Outputs:
        """Return the posterior probabilities of the labels."""
        _, log_scores, values = self.score_sets(tokens)
        return weighted_mean(log_scores, values, _prior(self.law))


def bayes_attention(law: Planted, length: int) -> TabularAttention:
    """Build the Bayes predictor at one length as a relative and local attention. Derived here.

    The score of a tuple z in shape o is ``Q(o, c) Qvoc(z) / mu(z)``: the probability of o at a start c (equal for all
    c), times the probability of z as planted tuple, divided by its background probability. With one shape, the
    predictor is the same at all lengths. A token that the background never produces adds ``MARKER_SCORE`` nats instead
    of infinity; the result is exact up to rounding, because such tokens occur only in planted sets. Raises
    ``SettingError`` for a placement without a span or with starts of unequal probability.
    """
    if law.placement.span is None:
        raise SettingError(
            f"placement '{law.placement.name}' has no span, so its Bayes predictor is not local; use BayesPredictor"
        )
    placement = law.placement.law(length)
    start_probabilities = []
    for shape, probability in zip(placement.shapes, placement.probability, strict=True):
        fitting = probability[: max(length - int(shape[-1]), 0)]
        if len(fitting) and np.ptp(fitting) > 1e-12 * fitting.max():
            raise SettingError(
                f"sets of shape {tuple(shape.tolist())} have starts of unequal probability, which a relative attention "
                "cannot represent; use BayesPredictor with enumerated_risk or sampled_risk"
            )
        start_probabilities.append(fitting[0] if len(fitting) else 0.0)
    with np.errstate(divide="ignore"):
        log_scores = np.log(np.array(start_probabilities))[:, None] + _log_ratio(law)
    has_score = np.isfinite(log_scores).any(axis=1)
    return TabularAttention(
        num_tokens=law.num_tokens,
        shapes=placement.shapes[has_score],
        log_scores=log_scores[has_score],
        values=np.tile(law.label_law, (int(has_score.sum()), 1, 1)),
        default=_prior(law),
    )


def bayes_risk(law: Planted, length: int, loss: Loss) -> float:
    """Return the exact risk of the Bayes predictor, at any length if the law has a span and the loss is linear or log.

    With ``LogLoss``, no predictor has a smaller risk. With ``Leakage``, the risk is the posterior probability of all
    sets that are not planted. Other losses and placements without a span need enumeration, which raises
    ``SettingError`` for too many sequences.
    """
    if law.placement.span is not None:
        if isinstance(loss, LogLoss):
            return laplace_log_loss(law, bayes_attention(law, length), length)
        if isinstance(loss, TotalVariation | Leakage):
            return laplace_risk(law, bayes_attention(law, length), length, loss)
    return enumerated_risk(law, BayesPredictor(law), length, loss).mean


def _prior(law: Planted) -> Float[np.ndarray, " outputs"]:
    return np.array(law.probabilities) @ np.array(law.labels)


def _log_ratio(law: Planted) -> Float[np.ndarray, " codes"]:
    """Return ``log(Qvoc(z) / mu(z))`` for every tuple z; a factor of mu that is 0 adds ``MARKER_SCORE``."""
    background = law.independent_background
    log_background = np.where(background > 0, np.log(np.where(background > 0, background, 1.0)), -MARKER_SCORE)
    tuples = np.indices((law.num_tokens,) * law.k).reshape(law.k, -1)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(law.tuple_law) - log_background[tuples].sum(axis=0))
