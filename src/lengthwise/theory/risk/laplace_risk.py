"""Exact risks at any length: under a Laplace transform the sum over all sets falls apart into steps of a short chain.

``1 / a = int_0^inf exp(-s a) ds`` turns the quotient of a sparse functional attention into ``E[b exp(-s a)]``, and both
sums grow token by token, knowing the last ``span - 1`` tokens alone. Derived here.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.placement import ShapeLaw
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.risk.exact_risk import Leakage, Loss, TotalVariation
from lengthwise.theory.risk.transfer_operator import Chain, Insertion, chain_totals

# The trapezoid rule in log s: with this step it errs by |Gamma(1 + 2 pi i / step)|, below rounding.
STEP = 0.25
# Nodes start where s times the largest sum is this, and end where s times the smallest is that: both below rounding.
LOW, HIGH = 1e-17, 60.0
# At this s times a sum, its exponential is exactly 0.
EXTINCT = 800.0
# Two computations of one probability differ by less than this share.
ROUNDING = 1e-9


def laplace_risk(law: Planted, attention: TabularAttention, length: int, loss: Loss) -> float:
    """The exact risk under ``TotalVariation`` or ``Leakage``, to about 12 digits however small it is.

    Costs ``log length`` products of matrices over the ``|V| ** (span - 1)`` states, for some hundred s. Raises
    ``SettingError`` for other losses, for placements without a span, and for too many states. Derived here.
    """
    return float(laplace_risks(law, attention, [length], loss)[0])


def laplace_risks(
    law: Planted, attention: TabularAttention, lengths: Sequence[int], loss: Loss
) -> Float[np.ndarray, " lengths"]:
    """``laplace_risk`` at several lengths, which share all matrix powers."""
    return placed_risks(law, attention, _placed(law, lengths), loss)


def placed_risks(
    law: Planted, attention: TabularAttention, placed: Sequence[ShapeLaw], loss: Loss
) -> Float[np.ndarray, " placed"]:
    """The exact risk for each of several laws of the planted set in place of the law's own; derived here."""
    labels, row = np.unique(np.array(law.labels), axis=0, return_inverse=True)
    if isinstance(loss, TotalVariation):
        _check_outputs(law, attention)
        costs, default = 1 - np.einsum("scl,rl->rsc", attention.values, labels), 1 - labels @ attention.default
    elif isinstance(loss, Leakage):
        _check_sets(law, attention)
        # Which label a tuple has does not matter: one row for all.
        row, default, costs = np.zeros_like(row), np.ones(1), np.ones((1, *attention.log_scores.shape))
    else:
        raise SettingError(f"loss '{loss.name}' is not linear in the attention; use tv or leakage, or sampled_risk")
    weights = np.where(row.ravel() == np.arange(len(default))[:, None], np.array(law.probabilities), 0.0)
    insertion = Insertion(np.array(law.tuples), weights, spare_own=isinstance(loss, Leakage))
    chain = Chain.of(law, attention.shapes, attention.log_scores, costs)
    low, high, extinct = _range(chain, placed)
    totals = chain_totals(chain, insertion, placed, np.append(np.arange(low, high, STEP), extinct))
    # Where exp(-s a) is left at the last node, no set has any weight, and the default answers.
    return np.asarray(STEP * totals.change.sum(axis=(0, 2)) + default @ totals.value[:, :, -1])


def laplace_log_loss(law: Planted, attention: TabularAttention, length: int) -> float:
    """The exact ``E[-log f_y]`` in nats, to about 1e-12; infinite where a possible label may get probability 0.

    By ``log(a / a_y) = int_0^inf (exp(-s a_y) - exp(-s a)) ds / s``, with a the sum of all scores and a_y that of
    scores times values of label y. Refuses what ``laplace_risk`` does. Derived here.
    """
    placed = _placed(law, [length])
    _check_outputs(law, attention)
    return sum(_log_loss(law, attention, placed, label) for label in range(law.num_labels))


def _log_loss(law: Planted, attention: TabularAttention, placed: list[ShapeLaw], label: int) -> float:
    """What one label adds."""
    weights = np.array(law.probabilities)[None] * np.array(law.labels)[:, label]
    likely = weights[0] > 0
    insertion = Insertion(np.array(law.tuples)[likely], weights[:, likely], spare_own=False)
    with np.errstate(divide="ignore"):
        log_values, by_default = np.log(attention.values[:, :, label]), -float(np.log(attention.default[label]))
    tables = (attention.log_scores + log_values, attention.log_scores)
    chains = [Chain.of(law, attention.shapes, table, np.zeros((1, *table.shape))) for table in tables]
    ranges = np.array([_range(chain, placed) for chain in chains])
    log_s = np.append(np.arange(ranges[:, 0].min(), ranges[:, 1].max(), STEP), ranges[:, 2].max())
    right, every = (chain_totals(chain, insertion, placed, log_s).value[0, 0] for chain in chains)
    # At the last node, what is left is the probability of a sum of 0.
    if right[-1] > every[-1] * (1 + ROUNDING):
        return np.inf
    return STEP * float((right - every)[:-1].sum()) + (float(every[-1]) * by_default if every[-1] > 0 else 0.0)


def _placed(law: Planted, lengths: Sequence[int]) -> list[ShapeLaw]:
    if law.placement.span is None:
        raise SettingError(
            f"placement '{law.placement.name}' has no span, which exact risks at any length need; use enumerated_risk "
            "or sampled_risk"
        )
    return [law.placement.law(length) for length in lengths]


def _range(chain: Chain, placed: Sequence[ShapeLaw]) -> tuple[float, float, float]:
    """Between which log s the integrand matters, and a log s at which only a sum of 0 is left."""
    finite = chain.log_scores[np.isfinite(chain.log_scores)]
    if not len(finite):
        return 0.0, 0.0, 0.0
    most = max(each.length for each in placed) * len(chain.shapes)
    return (
        float(np.log(LOW / most) - finite.max()),
        float(np.log(HIGH) - finite.min()),
        float(np.log(EXTINCT) - finite.min()),
    )


def _check_outputs(law: Planted, attention: TabularAttention) -> None:
    """Refuse values that are no probabilities of the labels."""
    _check_tokens(law, attention)
    outputs = len(attention.default)
    if outputs != law.num_labels:
        raise SettingError(f"{outputs} outputs cannot be probabilities of {law.num_labels} labels; use one for each")
    lowest = min(float(attention.values.min()), float(attention.default.min()))
    if lowest < 0:
        raise SettingError(f"an output of {lowest:.3g} is no probability; use values between 0 and 1")


def _check_sets(law: Planted, attention: TabularAttention) -> None:
    """Refuse to look for the planted set among sets of another size."""
    _check_tokens(law, attention)
    if attention.k != law.k:
        raise SettingError(f"attention to sets of {attention.k} has no weight on {law.k} planted tokens; use tv")


def _check_tokens(law: Planted, attention: TabularAttention) -> None:
    if attention.num_tokens != law.num_tokens:
        raise SettingError(
            f"attention over {attention.num_tokens} tokens cannot read a law over {law.num_tokens}; make them the same"
        )
