"""Bayes predictor of a planted law, which is a sparse functional attention. Derived here."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention, weighted_mean
from lengthwise.theory.risk.exact_risk import Leakage, Loss, Predictor, TotalVariation, enumerated_risk
from lengthwise.theory.risk.laplace_risk import laplace_log_loss, laplace_risk

# The log score of each token that the background never produces; sets without these tokens get no weight.
MARKER_SCORE = 80.0


@dataclass(frozen=True, slots=True)
class LogLoss:
    """Log loss ``E[-log f_y]`` in nats; the Bayes predictor minimizes it. It is infinite if f_y may be 0."""

    name: ClassVar[str] = "log"

    def evaluate(
        self,
        predictor: Predictor,
        tokens: Int[np.ndarray, "batch length"],
        planted: Int[np.ndarray, "batch k"],
        labels: Float[np.ndarray, "batch outputs"],
    ) -> Float[np.ndarray, " batch"]:
        """Return ``-sum_y K(y | z) log f_y(x)`` per sequence; labels with probability 0 have no loss."""
        with np.errstate(divide="ignore"):
            logs = np.log(predictor.predict(tokens))
        return np.asarray(-(labels * np.where(labels > 0, logs, 0.0)).sum(axis=1))


@dataclass(frozen=True, slots=True)
class BayesPredictor:
    """Posterior of the label at any length and placement: ``P(y | x) = sum_S P(S | x) K(y | x_S)``. Derived here.

    ``P(S | x)`` is ``Q(S) Qvoc(x_S) / mu(x_S)`` divided by its sum over all sets. If x has probability 0, the output
    is the prior of the labels.
    """

    law: Planted

    def score_sets(
        self, tokens: Int[np.ndarray, "batch length"]
    ) -> tuple[Int[np.ndarray, "sets k"], Float[np.ndarray, "batch sets"], Float[np.ndarray, "batch sets outputs"]]:
        """Return all sets that may be planted, with their log scores and values."""
        sets, weights = self.law.planted_set_weights(tokens)
        with np.errstate(divide="ignore"):
            return sets, np.log(weights), self.law.label_law[self.law.tuple_codes(tokens[:, sets])]

    def predict(self, tokens: Int[np.ndarray, "batch length"]) -> Float[np.ndarray, "batch outputs"]:
        """Return the posterior probabilities of the labels."""
        _, log_scores, values = self.score_sets(tokens)
        return weighted_mean(log_scores, values, _prior(self.law))


def bayes_attention(law: Planted, length: int) -> TabularAttention:
    """Build the Bayes predictor at one length as a relative and local attention; derived here.

    The scores are ``Q(o, c) Qvoc(z) / mu(z)``, for uniform starts c given the shape o. With one shape, the function is
    the same at all lengths. A token that the background never produces has ``MARKER_SCORE`` nats instead of
    infinity; the result is exact up to rounding, because such tokens occur only in planted sets. Raises
    ``SettingError`` for a placement without a span or with unequal starts.
    """
    if law.placement.span is None:
        raise SettingError(
            f"placement '{law.placement.name}' has no span, so its Bayes predictor is not local; use BayesPredictor"
        )
    placement = law.placement.law(length)
    start_probabilities = []
    for shape, probability in zip(placement.shapes, placement.probability, strict=True):
        probabilities = probability[: max(length - int(shape[-1]), 0)]
        if len(probabilities) and probabilities.max() - probabilities.min() > 1e-12 * probabilities.max():
            raise SettingError(
                f"sets of shape {tuple(shape.tolist())} have starts of unequal probability, which a relative attention "
                "cannot represent; use BayesPredictor with enumerated_risk or sampled_risk"
            )
        start_probabilities.append(probabilities[0] if len(probabilities) else 0.0)
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

    The log risk is the minimum over all predictors. The leakage is the posterior mass of all other sets. Other
    losses and placements without a span need enumeration, which raises ``SettingError`` for too many sequences.
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
    """Return ``log(Qvoc(z) / mu(z))`` for every tuple z; ``MARKER_SCORE`` replaces -log 0."""
    mu = np.array(law.background)
    log_mu = np.where(mu > 0, np.log(np.where(mu > 0, mu, 1.0)), -MARKER_SCORE)
    tuples = np.indices((law.num_tokens,) * law.k).reshape(law.k, -1)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(law.tuple_law) - log_mu[tuples].sum(axis=0))
