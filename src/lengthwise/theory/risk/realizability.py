"""Realizability of a planted law: a witness in the class of attentions with zero risk at given lengths."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.risk.bayes import bayes_attention, bayes_risk
from lengthwise.theory.risk.exact_erm import exact_risks
from lengthwise.theory.risk.exact_risk import Loss, TotalVariation

# Risks up to this value count as zero, because exact risks have rounding errors.
ZERO_RISK = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class Realizability:
    """Result of a witness check: ``holds`` is True if the witness has zero risk, False if no predictor has.

    ``holds`` is None if this witness fails, but another one may exist. ``found`` gives the reason in words. ``delta``
    is the largest risk of the witness at the given lengths, or None if its risk was not computed.
    """

    holds: bool | None
    delta: float | None
    found: str


def check_realizability(
    law: Planted, witness: TabularAttention, lengths: Sequence[int], loss: Loss | None = None
) -> Realizability:
    """Check by its exact risks whether a witness realizes a law: whether its risk is zero at all ``lengths``.

    The class contains the relative attentions over sets of k tokens with a span of at most the span of the law. If the
    risk of the witness is above ``ZERO_RISK`` at a length, the Bayes predictor decides whether any predictor has zero
    risk there: if one has, the sequence determines the label (for ``Leakage``, the planted set), so the Bayes predictor
    has zero risk, too. The default loss is ``TotalVariation``. Raises ``SettingError`` for a witness outside of the
    class, for no lengths, and for a law whose exact risk cannot be computed. Golowich et al. 2025 (arXiv 2502.16792)
    assume realizability; the check is derived here.
    """
    loss = TotalVariation() if loss is None else loss
    if not lengths:
        raise SettingError("no lengths to check the witness at; use at least one length, such as the training lengths")
    _check_membership(law, witness)
    risks = dict(zip(lengths, exact_risks(law, witness, lengths, loss).tolist(), strict=True))
    delta = max(*risks.values(), 0.0)
    if delta <= ZERO_RISK:
        return Realizability(holds=True, delta=delta, found=f"a witness has risk 0 at {_describe(lengths)}")
    for length in sorted(length for length, risk in risks.items() if risk > ZERO_RISK):
        least_risk = bayes_risk(law, length, loss)
        if least_risk > ZERO_RISK:
            found = f"no predictor has risk 0 at length {length}; the risk of the true posterior is {least_risk:.4g}"
            return Realizability(holds=False, delta=delta, found=found)
    worst_length = max(risks, key=lambda length: risks[length])
    found = f"this witness has risk {delta:.4g} at length {worst_length}; another predictor has risk 0"
    return Realizability(holds=None, delta=delta, found=found)


def posterior_witness(law: Planted, lengths: Sequence[int]) -> TabularAttention:
    """Build the canonical witness of a law: an attention whose scores are the sums of ``bayes_attention`` over lengths.

    It is one head for all lengths, with every shape that is planted at one of them. Raises the same errors as
    ``bayes_attention``. Derived here.
    """
    heads = [bayes_attention(law, length) for length in lengths]
    scores_by_shape: dict[tuple[int, ...], np.ndarray] = {}
    for head in heads:
        for shape, log_scores in zip(map(tuple, head.shapes.tolist()), head.log_scores, strict=True):
            scores_by_shape[shape] = np.logaddexp(scores_by_shape.get(shape, -np.inf), log_scores)
    return TabularAttention(
        num_tokens=law.num_tokens,
        shapes=np.array(list(scores_by_shape)),
        log_scores=np.array(list(scores_by_shape.values())),
        values=np.tile(law.label_law, (len(scores_by_shape), 1, 1)),
        default=heads[0].default,
    )


def find_realizability(law: Planted, lengths: Sequence[int]) -> Realizability:
    """Check realizability with ``posterior_witness``; ``holds`` is None if no risk is computable."""
    try:
        return check_realizability(law, posterior_witness(law, lengths), lengths)
    except SettingError as error:
        return Realizability(holds=None, delta=None, found=f"no witness was checked: {error}")


def _check_membership(law: Planted, witness: TabularAttention) -> None:
    if (witness.num_tokens, witness.k) != (law.num_tokens, law.k):
        raise SettingError(
            f"the witness reads sets of {witness.k} of {witness.num_tokens} tokens, but the law plants {law.k} of "
            f"{law.num_tokens}; use a witness with the set size and the number of tokens of the law"
        )
    if law.placement.span is not None and witness.span > law.placement.span:
        raise SettingError(
            f"the witness reads sets with a span of {witness.span} tokens, so it is outside of the class with span "
            f"{law.placement.span}; use a witness with a span of at most {law.placement.span} tokens"
        )


def _describe(lengths: Sequence[int]) -> str:
    shortest, longest = min(lengths), max(lengths)
    return f"length {longest}" if shortest == longest else f"{len(set(lengths))} lengths from {shortest} to {longest}"
