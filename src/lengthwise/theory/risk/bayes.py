"""The best predictor of a planted law: its posterior is itself a sparse functional attention. Derived here."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention, normalized
from lengthwise.theory.risk.exact_risk import Leakage, Loss, Predictor, TotalVariation, enumerated_risk
from lengthwise.theory.risk.laplace_risk import laplace_log_loss, laplace_risk

# What one token that the background never draws adds to the log score of a set: sets without it are left no weight.
MARKED = 80.0


@dataclass(frozen=True, slots=True)
class LogLoss:
    """``E[-log f_y]`` in nats: what the Bayes predictor minimizes. No upper bound; infinite where f_y may be 0."""

    name: ClassVar[str] = "log"

    def of(
        self,
        predictor: Predictor,
        tokens: Int[np.ndarray, "batch length"],
        planted: Int[np.ndarray, "batch k"],
        labels: Float[np.ndarray, "batch outputs"],
    ) -> Float[np.ndarray, " batch"]:
        """``-sum_y K(y | z) log f_y(x)``; a label that does not occur costs nothing."""
        with np.errstate(divide="ignore"):
            logs = np.log(predictor.predict(tokens))
        return np.asarray(-(labels * np.where(labels > 0, logs, 0.0)).sum(axis=1))


@dataclass(frozen=True, slots=True)
class BayesPredictor:
    """The posterior of the label at any length, of any placement: ``P(y | x) = sum_S P(S | x) K(y | x_S)``.

    Derived here: ``P(S | x)`` is ``Q(S) Qvoc(x_S) / mu(x_S)``, divided by the sum over all sets. Where x has
    probability 0, the answer is the law of the labels.
    """

    law: Planted

    def scored(
        self, tokens: Int[np.ndarray, "batch length"]
    ) -> tuple[Int[np.ndarray, "sets k"], Float[np.ndarray, "batch sets"], Float[np.ndarray, "batch sets outputs"]]:
        """All sets that may be planted, with the log score and the value of each."""
        sets, weights = self.law.set_weights(tokens)
        with np.errstate(divide="ignore"):
            return sets, np.log(weights), self.law.label_law[self.law.codes(tokens[:, sets])]

    def predict(self, tokens: Int[np.ndarray, "batch length"]) -> Float[np.ndarray, "batch outputs"]:
        """The probabilities of the labels."""
        _, log_scores, values = self.scored(tokens)
        weights, total = normalized(log_scores)
        return np.where(total[:, None] > 0, np.einsum("bs,bso->bo", weights, values), _prior(self.law))


def bayes_attention(law: Planted, length: int) -> TabularAttention:
    """The Bayes predictor at one length, as a relative and local attention; derived here.

    Its scores are ``Q(o, c) Qvoc(z) / mu(z)``, where the places of each shape o must be alike. With one shape it is the
    same at all lengths. A token that the background never draws counts ``MARKED`` nats instead of infinitely many;
    exact to rounding, as no possible sequence has such a token outside of its planted set. Raises ``SettingError`` for
    a placement without a span, or with a preferred place.
    """
    if law.placement.span is None:
        raise SettingError(
            f"placement '{law.placement.name}' has no span, so its Bayes predictor is not local; use BayesPredictor"
        )
    placed = law.placement.law(length)
    rows = []
    for shape, row in zip(placed.shapes, placed.probability, strict=True):
        fits = row[: max(length - int(shape[-1]), 0)]
        if len(fits) and fits.max() - fits.min() > 1e-12 * fits.max():
            raise SettingError(
                f"sets of shape {tuple(shape.tolist())} prefer some places, which no relative attention can; use "
                "BayesPredictor with enumerated_risk or sampled_risk"
            )
        rows.append(fits[0] if len(fits) else 0.0)
    with np.errstate(divide="ignore"):
        log_scores = np.log(np.array(rows))[:, None] + _log_ratio(law)
    likely = np.isfinite(log_scores).any(axis=1)
    return TabularAttention(
        num_tokens=law.num_tokens,
        shapes=placed.shapes[likely],
        log_scores=log_scores[likely],
        values=np.tile(law.label_law, (int(likely.sum()), 1, 1)),
        default=_prior(law),
    )


def bayes_risk(law: Planted, length: int, loss: Loss) -> float:
    """The exact risk of the Bayes predictor: at any length under the losses ``log``, ``tv`` and ``leakage``.

    Under ``log`` no predictor has a smaller one, under ``leakage`` this is the posterior mass off the planted set.
    Other losses, and placements without a span, are enumerated: ``SettingError`` where that is too much.
    """
    if law.placement.span is not None:
        if isinstance(loss, LogLoss):
            return laplace_log_loss(law, bayes_attention(law, length), length)
        if isinstance(loss, TotalVariation | Leakage):
            return laplace_risk(law, bayes_attention(law, length), length, loss)
    return enumerated_risk(law, BayesPredictor(law), length, loss).mean


def likelihood_ratios(law: Planted, length: int) -> Float[np.ndarray, "shapes tuples"]:
    """How much likelier each planted set is than background, ``q(o) Qvoc(z) / mu(z)``; infinite for marked tuples.

    ``q`` is the law of the shapes at this length. Background has 1 in the mean, at every place; so about a length of
    this size hides the set (derived here).
    """
    share = law.placement.law(length).probability.sum(axis=1)
    mu = np.array(law.background)[np.array(law.tuples)].prod(axis=1)
    planted = np.broadcast_to(np.array(law.probabilities), mu.shape)
    ratio = np.divide(planted, mu, out=np.where(planted > 0, np.inf, 0.0), where=mu > 0)
    return np.asarray(np.where(share[:, None] > 0, share[:, None] * ratio, 0.0))


def information_horizon(law: Planted, length: int) -> float:
    """The length at which background hides the planted set even from the Bayes predictor, in tokens, roughly.

    The geometric mean of ``likelihood_ratios``: its log is ``KL(Qvoc || mu ** k) - H(q)``, q being the law of the
    shapes at ``length``. Infinite where a planted tuple has a token that the background never draws. Derived here.
    """
    ratio, weight = likelihood_ratios(law, length), _joint(law, length)
    return float(np.exp(weight[weight > 0] @ np.log(ratio[weight > 0])))


def information_leakage(law: Planted, length: int) -> float:
    """About the leakage of the Bayes predictor: the mean of ``N / (N + LR)``, as if background had its mean weight."""
    return float((_joint(law, length) * (length / (length + likelihood_ratios(law, length)))).sum())


def _joint(law: Planted, length: int) -> Float[np.ndarray, "shapes tuples"]:
    return law.placement.law(length).probability.sum(axis=1)[:, None] * np.array(law.probabilities)


def _prior(law: Planted) -> Float[np.ndarray, " outputs"]:
    return np.array(law.probabilities) @ np.array(law.labels)


def _log_ratio(law: Planted) -> Float[np.ndarray, " codes"]:
    """``log Qvoc(z) / mu(z)`` of every tuple z, with ``MARKED`` in place of minus the log of 0."""
    mu = np.array(law.background)
    log_mu = np.where(mu > 0, np.log(np.where(mu > 0, mu, 1.0)), -MARKED)
    every = np.indices((law.num_tokens,) * law.k).reshape(law.k, -1)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(law.tuple_law) - log_mu[every].sum(axis=0))
