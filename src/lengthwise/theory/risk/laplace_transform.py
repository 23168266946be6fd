"""Exact risks at any length from a Laplace transform, which turns sums over all sets into Markov chain steps.

The expected loss is ``E[b / a]``: a is the sum of the scores of all sets, and b is the sum of scores times losses. The
identity ``1 / a = int_0^inf exp(-s a) ds`` turns it into an integral of ``E[b exp(-s a)]``. Both sums grow token by
token, given the last ``span - 1`` tokens. Derived here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Complex, Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.placement import OffsetDistribution
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.risk.exact_risk import AttentionLeakageLoss, Loss, TotalVariationLoss

# The largest number of scores, and the largest number of states for products of dense matrices.
MAX_SCORES = 1 << 16
MAX_DENSE_STATES = 128
# The largest number of array entries per step; the values of s are processed in blocks of this size.
MAX_BLOCK_ENTRIES = 1 << 18
# The largest exponent x; exp(-exp(x)) is 0 even for much smaller x.
MAX_LOG_EXPONENT = 700.0
# Step of the trapezoid rule in log s; its error |Gamma(1 + 2 pi i / step)| is below rounding.
LOG_STEP = 0.25
# s * a is FIRST_EXPONENT at the first node for the largest sum, and LAST_EXPONENT at the last node for the smallest.
FIRST_EXPONENT, LAST_EXPONENT = 1e-17, 60.0
# If s times a sum is this large, exp(-s a) is exactly 0.
UNDERFLOW_EXPONENT = 800.0
# Relative tolerance for the comparison of two computed values of the same probability.
PROBABILITY_TOLERANCE = 1e-9
# The derivative of a polynomial p at x is the imaginary part of p(x + i h) divided by h. This h is so small that its
# square is lost in rounding, so the result is exact up to rounding.
DERIVATIVE_STEP = 1e-100


# Operators on distributions over states. Imaginary parts are derivatives by cost, in units of DERIVATIVE_STEP.
Operator = Complex[np.ndarray, "costs s from to"]
# The operators without and with the planted set.
Pair = tuple[Operator, Operator]


class TokenMarkovChain:
    """Markov chain of tokens, whose state is the last ``span - 1`` tokens.

    ``log_scores`` and ``costs`` belong to the set of each shape that ends at the next token. States near the start of
    the sequence have fewer tokens. ``tokens`` lists the tokens with positive probability, and ``successor`` is the next
    state.
    """

    def __init__(
        self,
        law: PlantedCorrelations,
        shapes: Int[np.ndarray, "shapes k"],
        log_scores: Float[np.ndarray, "shapes codes"],
        costs: Float[np.ndarray, "costs shapes codes"],
    ) -> None:
        """Build the chain from scores and costs by shape and tuple code; raises ``SettingError`` if it is too large."""
        background = law.independent_background
        tokens = np.union1d(np.flatnonzero(background), np.unique(law.tuples))
        state_length = int(shapes[:, -1].max())
        num_scores = len(shapes) * len(tokens) ** (state_length + 1)
        if num_scores > MAX_SCORES:
            raise SettingError(
                f"{len(shapes)} shapes, span {state_length + 1} and {len(tokens)} tokens make {num_scores:,} scores, "
                f"more than the {MAX_SCORES:,} allowed; use a smaller span, fewer tokens, or sampled_risk"
            )
        # The value -1 represents a token before the sequence.
        state_tuples = [
            (-1,) * (state_length - num_known) + last_tokens
            for num_known in range(state_length + 1)
            for last_tokens in product(tokens, repeat=num_known)
        ]
        states = np.array(state_tuples, dtype=np.int64).reshape(len(state_tuples), state_length)
        windows = np.column_stack([np.repeat(states, len(tokens), axis=0), np.tile(tokens, len(states))])
        windows = windows.reshape(len(states), len(tokens), state_length + 1)
        index_of = {tuple(state): index for index, state in enumerate(states.tolist())}
        successor = [[index_of[tuple(window[1:])] for window in state_windows] for state_windows in windows.tolist()]
        sets = windows[:, :, state_length - shapes[:, -1:] + shapes]  # states tokens shapes k
        codes = np.moveaxis(sets @ law.num_tokens ** np.arange(shapes.shape[1] - 1, -1, -1), 2, 0)
        is_inside = (np.moveaxis(sets, 2, 0) >= 0).all(axis=3)
        shape_indexes, codes = np.arange(len(shapes))[:, None, None], np.where(is_inside, codes, 0)
        self.tokens, self.background, self.shapes = tokens, background[tokens], shapes
        self.successor: Int[np.ndarray, "states tokens"] = np.array(successor)
        self.log_scores = np.where(is_inside, log_scores[shape_indexes, codes], -np.inf)
        self.costs: Float[np.ndarray, "costs shapes states tokens"] = costs[:, shape_indexes, codes]
        # The log of the total score of the sets that end at the next token, by state and token.
        self.log_total_score = np.logaddexp.reduce(self.log_scores, axis=0)

    def mean_set_cost(
        self, free_shape: Int[np.ndarray, " k"] | None = None
    ) -> Float[np.ndarray, "costs states tokens"]:
        """Return the mean cost of the sets that end at the next token; the set of ``free_shape`` has cost 0."""
        has_cost = slice(None) if free_shape is None else (self.shapes != free_shape).any(axis=1)
        score_share = np.exp(self.log_scores - np.where(np.isfinite(self.log_total_score), self.log_total_score, 0.0))
        return np.asarray((score_share * self.costs)[:, has_cost].sum(axis=1))


@dataclass(frozen=True, slots=True)
class WeightedPlantedTuples:
    """Planted tuples with a probability per cost and tuple; with ``planted_is_free``, the planted set has cost 0."""

    tuples: Int[np.ndarray, "tuples k"]
    weights: Float[np.ndarray, "costs tuples"]
    planted_is_free: bool


# Expectations ``E[exp(-s a)]`` and ``E[s b exp(-s a)]`` of full sequences.
Totals = tuple[Float[np.ndarray, "costs laws s"], Float[np.ndarray, "costs laws s"]]


def compute_laplace_transforms(
    chain: TokenMarkovChain,
    insertion: WeightedPlantedTuples,
    shape_laws: Sequence[OffsetDistribution],
    log_s: Float[np.ndarray, " s"],
) -> Totals:
    """Compute the ``Totals`` for every distribution of the planted set in ``shape_laws`` and every s."""
    num_states = len(chain.successor)
    num_rows = num_states if num_states <= MAX_DENSE_STATES else 1
    size = max(1, MAX_BLOCK_ENTRIES // (len(insertion.weights) * num_states * len(chain.tokens) * num_rows))
    totals = np.zeros((len(insertion.weights), len(shape_laws), len(log_s)), dtype=complex)
    for start in range(0, len(log_s), size):
        block = slice(start, start + size)
        steps = _Steps(chain, insertion, log_s[block])
        for law_index, shape_law in enumerate(shape_laws):
            for shape, probability in zip(shape_law.shapes, shape_law.probability, strict=True):
                if probability.any():
                    total = steps.total(shape, probability[: shape_law.length - shape[-1]])
                    totals[:, law_index, block] += total.sum(axis=(2, 3))
    return totals.real, totals.imag / DERIVATIVE_STEP


class _Steps:
    """Operators that append background and planted tokens to distributions over states, for one block of s."""

    def __init__(
        self, chain: TokenMarkovChain, insertion: WeightedPlantedTuples, log_s: Float[np.ndarray, " s"]
    ) -> None:
        self.chain, self.insertion = chain, insertion
        # The factor s keeps the derivative in the range of floats even if scores exceed it.
        self.exponent = np.exp(np.minimum(log_s[:, None, None] + chain.log_total_score, MAX_LOG_EXPONENT))
        self.factor = self._factor(chain.mean_set_cost())
        self.powers: dict[tuple[int, ...], list[Pair]] = {}

    def _factor(self, cost: Float[np.ndarray, "costs states tokens"]) -> Complex[np.ndarray, "costs s states tokens"]:
        """Return ``exp(-s a)`` of the sets that end at the next token, with its derivative by cost."""
        return np.exp(-self.exponent) * (1 + 1j * DERIVATIVE_STEP * cost[:, None] * self.exponent)

    def total(self, planted: Int[np.ndarray, " k"], probability: Float[np.ndarray, " starts"]) -> Operator:
        """Return the operator of a full sequence: a sum over all starts of the planted set, weighted by probability."""
        without_planted = self._identity(np.eye(1, len(self.chain.successor)))
        prefix = without_planted, np.zeros_like(without_planted)
        for equal in np.split(probability, np.flatnonzero(np.diff(probability)) + 1):
            prefix = self._add_starts(prefix, planted, float(equal[0]), len(equal))
        return prefix[1]

    def _add_starts(self, prefix: Pair, shape: Int[np.ndarray, " k"], probability: float, num_starts: int) -> Pair:
        """Extend both operators over ``num_starts`` consecutive starts that have the same probability."""
        without, planted = prefix
        # A matrix product costs as much as one step for each state.
        if num_starts <= len(self.chain.successor) or len(self.chain.successor) > MAX_DENSE_STATES:
            for _ in range(num_starts):
                planted = self._step(planted) + probability * self._insert(without, shape)
                without = self._step(without)
            return without, planted
        for bit in range(num_starts.bit_length()):
            if num_starts >> bit & 1:
                background, insertion = self._compute_power(shape, bit)
                planted = planted @ background + probability * (without @ insertion)
                without = without @ background
        return without, planted

    def _compute_power(self, shape: Int[np.ndarray, " k"], bit: int) -> Pair:
        """Return operators of ``2 ** bit`` tokens: all background, and a sum over as many starts of the planted set."""
        powers = self.powers.setdefault(tuple(shape.tolist()), [])
        if not powers:
            identity = self._identity(np.eye(len(self.chain.successor)))
            powers.append((self._step(identity), self._insert(identity, shape)))
        while len(powers) <= bit:
            background, insertion = powers[-1]
            powers.append((background @ background, insertion @ background + background @ insertion))
        return powers[bit]

    def _insert(self, prefix: Operator, shape: Int[np.ndarray, " k"]) -> Operator:
        """Append the planted tokens and the background tokens between them, summed over the planted tuples."""
        last_factor = self._factor(self.chain.mean_set_cost(shape)) if self.insertion.planted_is_free else self.factor
        inserted = np.zeros_like(prefix)
        for planted_tuple, weight in zip(self.insertion.tuples, self.insertion.weights.T, strict=True):
            token_at = dict(zip(shape.tolist(), planted_tuple.tolist(), strict=True))
            extended = prefix
            for offset in range(shape[-1] + 1):
                factor = last_factor if offset == shape[-1] else self.factor
                extended = self._step(extended, token_at.get(offset), factor)
            inserted += weight[:, None, None, None] * extended
        return inserted

    def _step(
        self,
        prefix: Operator,
        token: int | None = None,
        factor: Complex[np.ndarray, "costs s states tokens"] | None = None,
    ) -> Operator:
        """Append one token: ``token``, or a random background token if it is None."""
        chain, factor = self.chain, self.factor if factor is None else factor
        probability = chain.background if token is None else (chain.tokens == token).astype(float)
        indexes = np.flatnonzero(probability)
        weights = factor[..., indexes] * probability[indexes]
        return _sum_by_successor(prefix[..., None] * weights[:, :, None], chain.successor[:, indexes])

    def _identity(self, states: Float[np.ndarray, "from to"]) -> Operator:
        shape = len(self.insertion.weights), len(self.exponent), *states.shape
        return np.broadcast_to(states, shape).astype(complex)


def _sum_by_successor(
    flow: Complex[np.ndarray, "costs s from states tokens"], successor: Int[np.ndarray, "states tokens"]
) -> Operator:
    """Return the sum of ``flow`` over all states and tokens with the same successor state."""
    order = successor.ravel().argsort(kind="stable")
    reached, group_starts = np.unique(successor.ravel()[order], return_index=True)
    totals = np.zeros(flow.shape[:-1], dtype=complex)
    totals[..., reached] = np.add.reduceat(flow.reshape(*flow.shape[:-2], -1)[..., order], group_starts, axis=-1)
    return totals


def laplace_risk(law: PlantedCorrelations, attention: TabularAttention, length: int, loss: Loss) -> float:
    """Return the exact risk for ``TotalVariationLoss`` or ``AttentionLeakageLoss``, to about 12 significant digits.

    For a vocabulary V, the cost is ``log length`` products of matrices over ``|V|^(span - 1)`` states, for a few
    hundred values of s. Raises ``SettingError`` for other losses, placements without a span, and too many states.
    Derived here.
    """
    return float(laplace_risks(law, attention, [length], loss)[0])


def laplace_risks(
    law: PlantedCorrelations, attention: TabularAttention, lengths: Sequence[int], loss: Loss
) -> Float[np.ndarray, " lengths"]:
    """Return ``laplace_risk`` at each of the lengths; all lengths share the same matrix powers."""
    return placement_risks(law, attention, _shape_laws(law, lengths), loss)


def placement_risks(
    law: PlantedCorrelations, attention: TabularAttention, shape_laws: Sequence[OffsetDistribution], loss: Loss
) -> Float[np.ndarray, " shape_laws"]:
    """Return the exact risk for each of ``shape_laws``, which are distributions of the planted set. Derived here."""
    labels, label_index = np.unique(np.array(law.labels), axis=0, return_inverse=True)
    if isinstance(loss, TotalVariationLoss):
        _check_output_probabilities(law, attention)
        costs, default_costs = 1 - np.einsum("scl,rl->rsc", attention.values, labels), 1 - labels @ attention.default
    elif isinstance(loss, AttentionLeakageLoss):
        _check_num_tokens(law, attention)
        if attention.k != law.k:
            raise SettingError(
                f"sets of {attention.k} tokens never equal the {law.k} planted tokens, so leakage is 1; use loss 'tv'"
            )
        # Labels have no effect, so all tuples share one cost.
        label_index, default_costs = np.zeros_like(label_index), np.ones(1)
        costs = np.ones((1, *attention.log_scores.shape))
    else:
        raise SettingError(
            f"loss '{loss.name}' is not linear in the attention; use loss 'tv', 'leakage' or sampled_risk"
        )
    weights = np.where(label_index.ravel() == np.arange(len(default_costs))[:, None], np.array(law.probabilities), 0.0)
    insertion = WeightedPlantedTuples(
        np.array(law.tuples), weights, planted_is_free=isinstance(loss, AttentionLeakageLoss)
    )
    chain = TokenMarkovChain(law, attention.shapes, attention.log_scores, costs)
    first, last, underflow = _integration_range(chain, shape_laws)
    log_s = np.append(np.arange(first, last, LOG_STEP), underflow)
    value, derivative = compute_laplace_transforms(chain, insertion, shape_laws, log_s)
    # At the last node, exp(-s a) is the probability that no set has weight; the output is then the default.
    return np.asarray(LOG_STEP * derivative.sum(axis=(0, 2)) + default_costs @ value[:, :, -1])


def laplace_log_loss(law: PlantedCorrelations, attention: TabularAttention, length: int) -> float:
    """Return the exact log loss ``E[-log f_y]`` in nats, where f_y is the predicted probability of the label y.

    The numerical error is about 1e-12. The loss is infinite if f_y is 0 with a probability above 0. The computation
    uses ``log(a / a_y) = int_0^inf (exp(-s a_y) - exp(-s a)) ds / s``, where a is the sum of all scores and a_y is the
    sum of scores times values of label y. Raises the same errors as ``laplace_risk``. Derived here.
    """
    shape_laws = _shape_laws(law, [length])
    _check_output_probabilities(law, attention)
    return sum(_log_loss(law, attention, shape_laws, label) for label in range(law.num_labels))


def _log_loss(
    law: PlantedCorrelations, attention: TabularAttention, shape_laws: list[OffsetDistribution], label: int
) -> float:
    weights = np.array(law.probabilities)[None] * np.array(law.labels)[:, label]
    has_label = weights[0] > 0
    insertion = WeightedPlantedTuples(np.array(law.tuples)[has_label], weights[:, has_label], planted_is_free=False)
    with np.errstate(divide="ignore"):
        log_values, default_loss = np.log(attention.values[:, :, label]), -float(np.log(attention.default[label]))
    chains = [
        TokenMarkovChain(law, attention.shapes, log_scores, np.zeros((1, *log_scores.shape)))
        for log_scores in (attention.log_scores + log_values, attention.log_scores)
    ]
    first, last, underflow = np.array([_integration_range(chain, shape_laws) for chain in chains]).T
    log_s = np.append(np.arange(first.min(), last.max(), LOG_STEP), underflow.max())
    label_decay, total_decay = (
        compute_laplace_transforms(chain, insertion, shape_laws, log_s)[0][0, 0] for chain in chains
    )
    # The last node gives the probability of a sum of 0.
    if label_decay[-1] > total_decay[-1] * (1 + PROBABILITY_TOLERANCE):
        return np.inf
    zero_sum_loss = float(total_decay[-1]) * default_loss if total_decay[-1] > 0 else 0.0
    return LOG_STEP * float((label_decay - total_decay)[:-1].sum()) + zero_sum_loss


def _shape_laws(law: PlantedCorrelations, lengths: Sequence[int]) -> list[OffsetDistribution]:
    if law.placement.max_span is None:
        raise SettingError(
            f"placement '{law.placement.name}' has no span, but laplace_risk needs one; use enumerated_risk or "
            "sampled_risk"
        )
    return [law.placement.offset_distribution(length) for length in lengths]


def _integration_range(chain: TokenMarkovChain, shape_laws: Sequence[OffsetDistribution]) -> tuple[float, float, float]:
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


def _check_num_tokens(law: PlantedCorrelations, attention: TabularAttention) -> None:
    if attention.num_tokens != law.num_tokens:
        raise SettingError(
            f"the attention has {attention.num_tokens} tokens and the law has {law.num_tokens}; use the same number"
        )


def _check_output_probabilities(law: PlantedCorrelations, attention: TabularAttention) -> None:
    _check_num_tokens(law, attention)
    num_outputs = len(attention.default)
    if num_outputs != law.num_labels:
        raise SettingError(
            f"{num_outputs} outputs do not match {law.num_labels} labels; use an attention with one output per label"
        )
    min_output = min(float(attention.values.min()), float(attention.default.min()))
    if min_output < 0:
        raise SettingError(f"invalid output probability {min_output:.3g}; use values between 0 and 1")
