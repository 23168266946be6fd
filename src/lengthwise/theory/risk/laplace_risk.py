"""Exact risks at any length from a Laplace transform, which turns sums over all sets into Markov chain steps.

The expected loss is ``E[b / a]``: a is the sum of the scores of all sets, and b is the sum of scores times losses. The
identity ``1 / a = int_0^inf exp(-s a) ds`` turns it into an integral of ``E[b exp(-s a)]``. Both sums grow token by
token, given the last ``span - 1`` tokens. Derived here.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.placement import ShapeLaw
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.risk.exact_risk import Leakage, Loss, TotalVariation
from lengthwise.theory.risk.transfer_operator import Insertion, TokenChain, chain_totals

# Step of the trapezoid rule in log s; its error |Gamma(1 + 2 pi i / step)| is below rounding.
LOG_STEP = 0.25
# s * a is FIRST_EXPONENT at the first node for the largest sum, and LAST_EXPONENT at the last node for the smallest.
FIRST_EXPONENT, LAST_EXPONENT = 1e-17, 60.0
# If s times a sum is this large, exp(-s a) is exactly 0.
UNDERFLOW_EXPONENT = 800.0
# Relative tolerance for the comparison of two computed values of the same probability.
PROBABILITY_TOLERANCE = 1e-9


def laplace_risk(law: Planted, attention: TabularAttention, length: int, loss: Loss) -> float:
    """Return the exact risk for ``TotalVariation`` or ``Leakage``, to about 12 significant digits.

    For a vocabulary V, the cost is ``log length`` products of matrices over ``|V|^(span - 1)`` states, for a few
    hundred values of s. Raises ``SettingError`` for other losses, placements without a span, and too many states.
    Derived here.
    """
    return float(laplace_risks(law, attention, [length], loss)[0])


def laplace_risks(
    law: Planted, attention: TabularAttention, lengths: Sequence[int], loss: Loss
) -> Float[np.ndarray, " lengths"]:
    """Return ``laplace_risk`` at each of the lengths; all lengths share the same matrix powers."""
    return placement_risks(law, attention, _shape_laws(law, lengths), loss)


def placement_risks(
    law: Planted, attention: TabularAttention, shape_laws: Sequence[ShapeLaw], loss: Loss
) -> Float[np.ndarray, " shape_laws"]:
    """Return the exact risk for each of ``shape_laws``, which are distributions of the planted set. Derived here."""
    labels, label_index = np.unique(np.array(law.labels), axis=0, return_inverse=True)
    if isinstance(loss, TotalVariation):
        _check_output_probabilities(law, attention)
        costs, default_costs = 1 - np.einsum("scl,rl->rsc", attention.values, labels), 1 - labels @ attention.default
    elif isinstance(loss, Leakage):
        _check_set_size(law, attention)
        # Labels have no effect, so all tuples share one cost.
        label_index, default_costs = np.zeros_like(label_index), np.ones(1)
        costs = np.ones((1, *attention.log_scores.shape))
    else:
        raise SettingError(
            f"loss '{loss.name}' is not linear in the attention; use loss 'tv', 'leakage' or sampled_risk"
        )
    weights = np.where(label_index.ravel() == np.arange(len(default_costs))[:, None], np.array(law.probabilities), 0.0)
    insertion = Insertion(np.array(law.tuples), weights, planted_is_free=isinstance(loss, Leakage))
    chain = TokenChain.build(law, attention.shapes, attention.log_scores, costs)
    first, last, underflow = _integration_range(chain, shape_laws)
    log_s = np.append(np.arange(first, last, LOG_STEP), underflow)
    totals = chain_totals(chain, insertion, shape_laws, log_s)
    # At the last node, exp(-s a) is the probability that no set has weight; the output is then the default.
    return np.asarray(LOG_STEP * totals.derivative.sum(axis=(0, 2)) + default_costs @ totals.value[:, :, -1])


def laplace_log_loss(law: Planted, attention: TabularAttention, length: int) -> float:
    """Return the exact log loss ``E[-log f_y]`` in nats, where f_y is the predicted probability of the label y.

    The numerical error is about 1e-12. The loss is infinite if f_y is 0 with a probability above 0. The computation
    uses ``log(a / a_y) = int_0^inf (exp(-s a_y) - exp(-s a)) ds / s``, where a is the sum of all scores and a_y is the
    sum of scores times values of label y. Raises the same errors as ``laplace_risk``. Derived here.
    """
    shape_laws = _shape_laws(law, [length])
    _check_output_probabilities(law, attention)
    return sum(_log_loss(law, attention, shape_laws, label) for label in range(law.num_labels))


def _log_loss(law: Planted, attention: TabularAttention, shape_laws: list[ShapeLaw], label: int) -> float:
    weights = np.array(law.probabilities)[None] * np.array(law.labels)[:, label]
    has_label = weights[0] > 0
    insertion = Insertion(np.array(law.tuples)[has_label], weights[:, has_label], planted_is_free=False)
    with np.errstate(divide="ignore"):
        log_values, default_loss = np.log(attention.values[:, :, label]), -float(np.log(attention.default[label]))
    chains = [
        TokenChain.build(law, attention.shapes, log_scores, np.zeros((1, *log_scores.shape)))
        for log_scores in (attention.log_scores + log_values, attention.log_scores)
    ]
    first, last, underflow = np.array([_integration_range(chain, shape_laws) for chain in chains]).T
    log_s = np.append(np.arange(first.min(), last.max(), LOG_STEP), underflow.max())
    label_decay, total_decay = (chain_totals(chain, insertion, shape_laws, log_s).value[0, 0] for chain in chains)
    # The last node gives the probability of a sum of 0.
    if label_decay[-1] > total_decay[-1] * (1 + PROBABILITY_TOLERANCE):
        return np.inf
    zero_sum_loss = float(total_decay[-1]) * default_loss if total_decay[-1] > 0 else 0.0
    return LOG_STEP * float((label_decay - total_decay)[:-1].sum()) + zero_sum_loss


def _shape_laws(law: Planted, lengths: Sequence[int]) -> list[ShapeLaw]:
    if law.placement.span is None:
        raise SettingError(
            f"placement '{law.placement.name}' has no span, but laplace_risk needs one; use enumerated_risk or "
            "sampled_risk"
        )
    return [law.placement.law(length) for length in lengths]


def _integration_range(chain: TokenChain, shape_laws: Sequence[ShapeLaw]) -> tuple[float, float, float]:
    """Return the first and the last log s of the integral, and a log s at which exp(-s a) is 0 unless a is 0."""
    finite = chain.log_scores[np.isfinite(chain.log_scores)]
    if not len(finite):
        return 0.0, 0.0, 0.0
    max_num_sets = max(shape_law.length for shape_law in shape_laws) * len(chain.shapes)
    return (
        float(np.log(FIRST_EXPONENT / max_num_sets) - finite.max()),
        float(np.log(LAST_EXPONENT) - finite.min()),
        float(np.log(UNDERFLOW_EXPONENT) - finite.min()),
    )


def _check_output_probabilities(law: Planted, attention: TabularAttention) -> None:
    _check_num_tokens(law, attention)
    num_outputs = len(attention.default)
    if num_outputs != law.num_labels:
        raise SettingError(
            f"{num_outputs} outputs do not match {law.num_labels} labels; use an attention with one output per label"
        )
    min_output = min(float(attention.values.min()), float(attention.default.min()))
    if min_output < 0:
        raise SettingError(f"invalid output probability {min_output:.3g}; use values between 0 and 1")


def _check_set_size(law: Planted, attention: TabularAttention) -> None:
    _check_num_tokens(law, attention)
    if attention.k != law.k:
        raise SettingError(
            f"sets of {attention.k} tokens never equal the {law.k} planted tokens, so leakage is 1; use loss 'tv'"
        )


def _check_num_tokens(law: Planted, attention: TabularAttention) -> None:
    if attention.num_tokens != law.num_tokens:
        raise SettingError(
            f"the attention has {attention.num_tokens} tokens and the law has {law.num_tokens}; use the same number"
        )
