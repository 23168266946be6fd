"""Transfer operator over the last tokens of a sequence, for exact risks at any length. Derived here.

It computes expectations of ``exp(-s a)`` and ``s b exp(-s a)``: a is the sum of the scores of all sets, and b is the
sum of scores times costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.placement import ShapeLaw
from lengthwise.tasks.planted.planted_task import Planted

# The largest number of scores, and the largest number of states for products of dense matrices.
MAX_SCORES = 1 << 16
MAX_DENSE_STATES = 128
# The largest number of array entries per step; the values of s are processed in blocks of this size.
MAX_BLOCK_ENTRIES = 1 << 18
# The largest exponent x; exp(-exp(x)) is 0 even for much smaller x.
MAX_LOG_EXPONENT = 700.0


@dataclass(frozen=True, slots=True)
class DualNumbers:
    """Operators on distributions over states (``value``) and their derivatives by cost, for each s."""

    value: Float[np.ndarray, "#costs s from to"]
    derivative: Float[np.ndarray, "costs s from to"]

    def __matmul__(self, other: "DualNumbers") -> "DualNumbers":
        """Apply this operator first and ``other`` second, by the product rule."""
        return DualNumbers(self.value @ other.value, self.derivative @ other.value + self.value @ other.derivative)

    def __add__(self, other: "DualNumbers") -> "DualNumbers":
        return DualNumbers(self.value + other.value, self.derivative + other.derivative)

    def multiply(self, weight: Float[np.ndarray, " costs"] | float) -> "DualNumbers":
        """Multiply values and derivatives by one weight per cost, or by one number."""
        by_cost = np.reshape(weight, (-1, 1, 1, 1))
        return DualNumbers(self.value * by_cost, self.derivative * by_cost)


# The operators without and with the planted set.
Pair = tuple[DualNumbers, DualNumbers]


@dataclass(frozen=True, kw_only=True)
class TokenChain:
    """Markov chain of tokens, whose state is the last ``span - 1`` tokens.

    ``log_scores`` and ``costs`` belong to the set of each shape that ends at the next token. States near the start of
    the sequence have fewer tokens. ``tokens`` lists the tokens with positive probability, and ``successor`` is the next
    state.
    """

    tokens: Int[np.ndarray, " tokens"]
    background: Float[np.ndarray, " tokens"]
    shapes: Int[np.ndarray, "shapes k"]
    successor: Int[np.ndarray, "states tokens"]
    log_scores: Float[np.ndarray, "shapes states tokens"]
    costs: Float[np.ndarray, "costs shapes states tokens"]

    @classmethod
    def build(
        cls,
        law: Planted,
        shapes: Int[np.ndarray, "shapes k"],
        log_scores: Float[np.ndarray, "shapes codes"],
        costs: Float[np.ndarray, "costs shapes codes"],
    ) -> "TokenChain":
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
        return cls(
            tokens=tokens,
            background=background[tokens],
            shapes=shapes,
            successor=np.array(successor),
            log_scores=np.where(is_inside, log_scores[shape_indexes, codes], -np.inf),
            costs=costs[:, shape_indexes, codes],
        )

    @property
    def num_states(self) -> int:
        """The number of states of the operator."""
        return len(self.successor)

    @cached_property
    def log_weight(self) -> Float[np.ndarray, "states tokens"]:
        """Log of the total score of the sets that end at the next token, by state and token."""
        return np.asarray(np.logaddexp.reduce(self.log_scores, axis=0))

    def cost(self, free_shape: Int[np.ndarray, " k"] | None = None) -> Float[np.ndarray, "costs states tokens"]:
        """Return the mean cost of the sets that end at the next token; the set of ``free_shape`` has cost 0."""
        has_cost = slice(None) if free_shape is None else (self.shapes != free_shape).any(axis=1)
        score_share = np.exp(self.log_scores - np.where(np.isfinite(self.log_weight), self.log_weight, 0.0))
        return np.asarray((score_share * self.costs)[:, has_cost].sum(axis=1))


@dataclass(frozen=True, slots=True)
class Insertion:
    """Planted tuples with a probability per cost and tuple; with ``planted_is_free``, the planted set has cost 0."""

    tuples: Int[np.ndarray, "tuples k"]
    weights: Float[np.ndarray, "costs tuples"]
    planted_is_free: bool


@dataclass(frozen=True, slots=True)
class Totals:
    """Expectations ``E[exp(-s a)]`` (``value``) and ``E[s b exp(-s a)]`` (``derivative``) of full sequences."""

    value: Float[np.ndarray, "costs laws s"]
    derivative: Float[np.ndarray, "costs laws s"]


def chain_totals(
    chain: TokenChain, insertion: Insertion, shape_laws: Sequence[ShapeLaw], log_s: Float[np.ndarray, " s"]
) -> Totals:
    """Compute the ``Totals`` for every distribution of the planted set in ``shape_laws`` and every s."""
    num_states = chain.num_states
    num_rows = num_states if num_states <= MAX_DENSE_STATES else 1
    size = max(1, MAX_BLOCK_ENTRIES // (len(insertion.weights) * num_states * len(chain.tokens) * num_rows))
    blocks = [
        _totals_for_block(chain, insertion, shape_laws, log_s[start : start + size])
        for start in range(0, len(log_s), size)
    ]
    value, derivative = zip(*((block.value, block.derivative) for block in blocks), strict=True)
    return Totals(np.concatenate(value, axis=2), np.concatenate(derivative, axis=2))


def _totals_for_block(
    chain: TokenChain, insertion: Insertion, shape_laws: Sequence[ShapeLaw], log_s: Float[np.ndarray, " s"]
) -> Totals:
    operator = _Operator(chain, insertion, log_s)
    totals_shape = (len(insertion.weights), len(shape_laws), len(log_s))
    value, derivative = np.zeros(totals_shape), np.zeros(totals_shape)
    for law_index, shape_law in enumerate(shape_laws):
        for planted_shape, probability in zip(shape_law.shapes, shape_law.probability, strict=True):
            if probability.any():
                total = operator.total(planted_shape, probability[: shape_law.length - planted_shape[-1]])
                value[:, law_index] += total.value.sum(axis=(2, 3))
                derivative[:, law_index] += total.derivative.sum(axis=(2, 3))
    return Totals(value, derivative)


class _Operator:
    """Operators that append background and planted tokens to distributions over states, for one block of s."""

    def __init__(self, chain: TokenChain, insertion: Insertion, log_s: Float[np.ndarray, " s"]) -> None:
        self.chain, self.insertion = chain, insertion
        # The factor s keeps the derivative in the range of floats even if scores exceed it.
        self.exponent = np.exp(np.minimum(log_s[:, None, None] + chain.log_weight, MAX_LOG_EXPONENT))  # s states tokens
        self.decay = np.exp(-self.exponent)
        self.cost = chain.cost()
        self.powers: dict[tuple[int, ...], list[Pair]] = {}

    def total(self, planted: Int[np.ndarray, " k"], probability: Float[np.ndarray, " starts"]) -> DualNumbers:
        """Return the operator of a full sequence: a sum over all starts of the planted set, weighted by probability."""
        without_planted = self._identity(np.eye(1, self.chain.num_states))
        prefix = without_planted, without_planted.multiply(np.zeros(len(self.insertion.weights)))
        for equal in np.split(probability, np.flatnonzero(np.diff(probability)) + 1):
            prefix = self._add_starts(prefix, planted, float(equal[0]), len(equal))
        return prefix[1]

    def _add_starts(self, prefix: Pair, shape: Int[np.ndarray, " k"], probability: float, num_starts: int) -> Pair:
        """Extend both operators over ``num_starts`` consecutive starts that have the same probability."""
        without, planted = prefix
        # A matrix product costs as much as one step for each state.
        if num_starts <= self.chain.num_states or self.chain.num_states > MAX_DENSE_STATES:
            for _ in range(num_starts):
                planted = self._step(planted) + self._insert(without, shape).multiply(probability)
                without = self._step(without)
            return without, planted
        for bit in range(num_starts.bit_length()):
            if num_starts >> bit & 1:
                background, insertion = self._compute_power(shape, bit)
                planted = planted @ background + (without @ insertion).multiply(probability)
                without = without @ background
        return without, planted

    def _compute_power(self, shape: Int[np.ndarray, " k"], bit: int) -> Pair:
        """Return operators of ``2 ** bit`` tokens: all background, and a sum over as many starts of the planted set."""
        powers = self.powers.setdefault(tuple(shape.tolist()), [])
        if not powers:
            identity = self._identity(np.eye(self.chain.num_states))
            powers.append((self._step(identity), self._insert(identity, shape)))
        while len(powers) <= bit:
            background, insertion = powers[-1]
            powers.append((background @ background, insertion @ background + background @ insertion))
        return powers[bit]

    def _insert(self, prefix: DualNumbers, planted_shape: Int[np.ndarray, " k"]) -> DualNumbers:
        """Append the planted tokens and the background tokens between them, summed over the planted tuples."""
        last_cost = self.chain.cost(planted_shape) if self.insertion.planted_is_free else self.cost
        inserted = prefix.multiply(np.zeros(len(self.insertion.weights)))
        for planted_tuple, weight in zip(self.insertion.tuples, self.insertion.weights.T, strict=True):
            token_at = dict(zip(planted_shape.tolist(), planted_tuple.tolist(), strict=True))
            extended = prefix
            for offset in range(planted_shape[-1] + 1):
                cost = last_cost if offset == planted_shape[-1] else self.cost
                extended = self._step(extended, token_at.get(offset), cost)
            inserted = inserted + extended.multiply(weight)
        return inserted

    def _step(
        self,
        prefix: DualNumbers,
        token: int | None = None,
        cost: Float[np.ndarray, "costs states tokens"] | None = None,
    ) -> DualNumbers:
        """Append one token: ``token``, or a random background token if it is None."""
        chain, cost = self.chain, self.cost if cost is None else cost
        probability = chain.background if token is None else (chain.tokens == token).astype(float)
        indexes = np.flatnonzero(probability)
        decay = (self.decay[..., indexes] * probability[indexes])[:, None]  # s 1 states tokens
        gain = cost[:, None, None, :, indexes] * self.exponent[:, None][..., indexes]  # costs s 1 states tokens
        value = prefix.value[..., None] * decay
        derivative = prefix.derivative[..., None] * decay + value * gain
        return DualNumbers(*(_sum_by_successor(flow, chain.successor[:, indexes]) for flow in (value, derivative)))

    def _identity(self, states: Float[np.ndarray, "from to"]) -> DualNumbers:
        value = np.broadcast_to(states, (1, len(self.exponent), *states.shape))
        return DualNumbers(value, np.zeros((len(self.cost), *value.shape[1:])))


def _sum_by_successor(
    flow: Float[np.ndarray, "costs s from states tokens"], successor: Int[np.ndarray, "states tokens"]
) -> Float[np.ndarray, "costs s from states"]:
    """Return the sum of ``flow`` over all states and tokens with the same successor state."""
    order = successor.ravel().argsort(kind="stable")
    reached, group_starts = np.unique(successor.ravel()[order], return_index=True)
    totals = np.zeros(flow.shape[:-1])
    totals[..., reached] = np.add.reduceat(flow.reshape(*flow.shape[:-2], -1)[..., order], group_starts, axis=-1)
    return totals
