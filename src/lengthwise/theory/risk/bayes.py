"""Bayes predictor of a planted law, and realizability: a head with zero risk at given lengths. Derived here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.attention.tabular import Outputs, ScoredSets, TabularAttention, Tokens, weighted_mean
from lengthwise.theory.risk.exact_risk import (
    AttentionLeakageLoss,
    Loss,
    Losses,
    PlantedSets,
    Predictor,
    TotalVariationLoss,
    enumerated_risk,
)
from lengthwise.theory.risk.laplace_transform import laplace_log_loss, laplace_risk
from lengthwise.theory.risk.risk_at_length import exact_risks

# The log score of each token that the background never produces; sets without these tokens get no weight.
MARKER_SCORE = 80.0
# Risks up to this value count as zero, because exact risks have rounding errors.
ZERO_RISK = 1e-10


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

    law: PlantedCorrelations

    def score_token_sets(self, tokens: Tokens) -> ScoredSets:
        """Return all sets that may be planted, with their log scores and their values (label probabilities)."""
        sets, weights = self.law.planted_set_weights(tokens)
        with np.errstate(divide="ignore"):
            return sets, np.log(weights), self.law.label_probabilities[self.law.tuple_codes(tokens[:, sets])]

    def predict(self, tokens: Tokens) -> Outputs:
        """Return the posterior probabilities of the labels."""
        _, log_scores, values = self.score_token_sets(tokens)
        return weighted_mean(log_scores, values, _prior(self.law))


def build_bayes_attention(law: PlantedCorrelations, length: int) -> TabularAttention:
    """Build the Bayes predictor at one length as a relative and local attention. Derived here.

    The score of a tuple z in shape o is ``Q(o, c) Qvoc(z) / mu(z)``: the probability of o at a start c (equal for all
    c), times the probability of z as planted tuple, divided by its background probability. With one shape, the
    predictor is the same at all lengths. A token that the background never produces adds ``MARKER_SCORE`` nats instead
    of infinity; the result is exact up to rounding, because such tokens occur only in planted sets. Raises
    ``SettingError`` for a placement without a span or with starts of unequal probability.
    """
    if law.placement.max_span is None:
        raise SettingError(
            f"placement '{law.placement.name}' has no span, so its Bayes predictor is not local; use BayesPredictor"
        )
    placement = law.placement.offset_distribution(length)
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
        values=np.tile(law.label_probabilities, (int(has_score.sum()), 1, 1)),
        default=_prior(law),
    )


def bayes_risk(law: PlantedCorrelations, length: int, loss: Loss) -> float:
    """Return the exact risk of the Bayes predictor, at any length if the law has a span and the loss is linear or log.

    With ``LogLoss``, no predictor has a smaller risk. With ``AttentionLeakageLoss``, the risk is the posterior
    probability of all sets that are not planted. Other losses and placements without a span need enumeration, which
    raises ``SettingError`` for too many sequences.
    """
    if law.placement.max_span is not None:
        if isinstance(loss, LogLoss):
            return laplace_log_loss(law, build_bayes_attention(law, length), length)
        if isinstance(loss, TotalVariationLoss | AttentionLeakageLoss):
            return laplace_risk(law, build_bayes_attention(law, length), length, loss)
    return enumerated_risk(law, BayesPredictor(law), length, loss).mean


def _prior(law: PlantedCorrelations) -> Float[np.ndarray, " outputs"]:
    return np.array(law.probabilities) @ np.array(law.labels)


def _log_ratio(law: PlantedCorrelations) -> Float[np.ndarray, " codes"]:
    """Return ``log(Qvoc(z) / mu(z))`` for every tuple z; a factor of mu that is 0 adds ``MARKER_SCORE``."""
    background = law.independent_background
    log_background = np.where(background > 0, np.log(np.where(background > 0, background, 1.0)), -MARKER_SCORE)
    tuples = np.indices((law.num_tokens,) * law.k).reshape(law.k, -1)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(law.tuple_code_probabilities) - log_background[tuples].sum(axis=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class RealizabilityResult:
    """Result of a witness check: ``holds`` is True if the witness has zero risk, False if no predictor has.

    ``holds`` is None if this witness fails, but another one may exist. ``found`` gives the reason in words. ``delta``
    is the largest risk of the witness at the given lengths, or None if its risk was not computed.
    """

    holds: bool | None
    delta: float | None
    found: str


def check_realizability(
    law: PlantedCorrelations, witness: TabularAttention, lengths: Sequence[int], loss: Loss | None = None
) -> RealizabilityResult:
    """Check by its exact risks whether a witness realizes a law: whether its risk is zero at all ``lengths``.

    The class contains the relative attentions over sets of k tokens with a span of at most the span of the law. If the
    risk of the witness is above ``ZERO_RISK`` at a length, the Bayes predictor decides whether any predictor has zero
    risk there: if one has, the sequence determines the label (for ``AttentionLeakageLoss``, the planted set), so the
    Bayes predictor has zero risk, too. The default loss is ``TotalVariationLoss``. Raises ``SettingError`` for a
    witness outside of the class, for no lengths, and for a law whose exact risk cannot be computed. Golowich et al.
    2025 (arXiv 2502.16792) assume realizability; the check is derived here.
    """
    loss = TotalVariationLoss() if loss is None else loss
    if not lengths:
        raise SettingError("no lengths to check the witness at; use at least one length, such as the training lengths")
    _check_membership(law, witness)
    risks = dict(zip(lengths, exact_risks(law, witness, lengths, loss).tolist(), strict=True))
    delta = max(*risks.values(), 0.0)
    if delta <= ZERO_RISK:
        return RealizabilityResult(holds=True, delta=delta, found=f"a witness has risk 0 at {_describe(lengths)}")
    for length in sorted(length for length, risk in risks.items() if risk > ZERO_RISK):
        least_risk = bayes_risk(law, length, loss)
        if least_risk > ZERO_RISK:
            found = f"no predictor has risk 0 at length {length}; the risk of the true posterior is {least_risk:.4g}"
            return RealizabilityResult(holds=False, delta=delta, found=found)
    worst_length = max(risks, key=lambda length: risks[length])
    found = f"this witness has risk {delta:.4g} at length {worst_length}; another predictor has risk 0"
    return RealizabilityResult(holds=None, delta=delta, found=found)


def build_posterior_witness(law: PlantedCorrelations, lengths: Sequence[int]) -> TabularAttention:
    """Build the canonical witness of a law: its scores are the sums of those of ``build_bayes_attention`` over lengths.

    It is one head for all lengths, with every shape that is planted at one of them. Raises the same errors as
    ``build_bayes_attention``. Derived here.
    """
    heads = [build_bayes_attention(law, length) for length in lengths]
    scores_by_shape: dict[tuple[int, ...], np.ndarray] = {}
    for head in heads:
        for shape, log_scores in zip(map(tuple, head.shapes.tolist()), head.log_scores, strict=True):
            scores_by_shape[shape] = np.logaddexp(scores_by_shape.get(shape, -np.inf), log_scores)
    return TabularAttention(
        num_tokens=law.num_tokens,
        shapes=np.array(list(scores_by_shape)),
        log_scores=np.array(list(scores_by_shape.values())),
        values=np.tile(law.label_probabilities, (len(scores_by_shape), 1, 1)),
        default=heads[0].default,
    )


def check_bayes_realizability(law: PlantedCorrelations, lengths: Sequence[int]) -> RealizabilityResult:
    """Check realizability with ``build_posterior_witness``; ``holds`` is None if no risk is computable."""
    try:
        return check_realizability(law, build_posterior_witness(law, lengths), lengths)
    except SettingError as error:
        return RealizabilityResult(holds=None, delta=None, found=f"no witness was checked: {error}")


def _check_membership(law: PlantedCorrelations, witness: TabularAttention) -> None:
    if (witness.num_tokens, witness.k) != (law.num_tokens, law.k):
        raise SettingError(
            f"the witness reads sets of {witness.k} of {witness.num_tokens} tokens, but the law plants {law.k} of "
            f"{law.num_tokens}; use a witness with the set size and the number of tokens of the law"
        )
    if law.placement.max_span is not None and witness.span > law.placement.max_span:
        raise SettingError(
            f"the witness reads sets with a span of {witness.span} tokens, so it is outside of the class with span "
            f"{law.placement.max_span}; use a witness with a span of at most {law.placement.max_span} tokens"
        )


def _describe(lengths: Sequence[int]) -> str:
    shortest, longest = min(lengths), max(lengths)
    return f"length {longest}" if shortest == longest else f"{len(set(lengths))} lengths from {shortest} to {longest}"
