"""Transfer operator over the last tokens, for expectations of ``exp(-s a)`` and ``s b exp(-s a)``. Derived here."""

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
    """Dual numbers by cost: operators and their derivatives, multiplied by the product rule."""

    value: Float[np.ndarray, "#costs s from to"]
    derivative: Float[np.ndarray, "costs s from to"]

    def __matmul__(self, other: "DualNumbers") -> "DualNumbers":
        """Apply this operator first and ``other`` second."""
        return DualNumbers(self.value @ other.value, self.derivative @ other.value + self.value @ other.derivative)

    def __add__(self, other: "DualNumbers") -> "DualNumbers":
        """Add the values and the derivatives separately."""
        return DualNumbers(self.value + other.value, self.derivative + other.derivative)

    def times(self, weight: Float[np.ndarray, " costs"] | float) -> "DualNumbers":
        """Multiply by one weight per cost."""
        by_cost = np.reshape(weight, (-1, 1, 1, 1))
        return DualNumbers(self.value * by_cost, self.derivative * by_cost)


@dataclass(frozen=True, kw_only=True)
class TokenChain:
    """Markov chain with the score and cost of each next token, given the state: the last ``span - 1`` tokens.

    States near the start of the sequence have fewer tokens. ``tokens`` lists the tokens with positive probability.
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
        """Build the chain from the scores and costs of all sets; raises ``SettingError`` for too many states."""
        mu = np.array(law.background)
        tokens = np.union1d(np.flatnonzero(mu), np.unique(law.tuples))
        memory = int(shapes[:, -1].max())
        num_scores = len(shapes) * len(tokens) ** (memory + 1)
        if num_scores > MAX_SCORES:
            raise SettingError(
                f"{len(shapes)} shapes, span {memory + 1} and {len(tokens)} tokens make {num_scores:,} scores, more "
                f"than the {MAX_SCORES:,} allowed; use a smaller span, fewer tokens, or sampled_risk"
            )
        # The value -1 represents a token before the sequence.
        state_tuples = [
            (-1,) * (memory - num_known) + last
            for num_known in range(memory + 1)
            for last in product(tokens, repeat=num_known)
        ]
        states = np.array(state_tuples, dtype=np.int64).reshape(len(state_tuples), memory)
        windows = np.concatenate(
            [np.repeat(states, len(tokens), axis=0), np.tile(tokens, len(states))[:, None]], axis=1
        ).reshape(len(states), len(tokens), memory + 1)
        index_of = {tuple(state): index for index, state in enumerate(states.tolist())}
        successor = [[index_of[tuple(window[1:])] for window in state_windows] for state_windows in windows.tolist()]
        sets = windows[:, :, memory - shapes[:, -1:] + shapes]  # states tokens shapes k
        codes = np.moveaxis(sets @ law.num_tokens ** np.arange(shapes.shape[1] - 1, -1, -1), 2, 0)
        is_inside = (np.moveaxis(sets, 2, 0) >= 0).all(axis=3)
        shape_indexes, codes = np.arange(len(shapes))[:, None, None], np.where(is_inside, codes, 0)
        return cls(
            tokens=tokens,
            background=mu[tokens],
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
        """Log of the total score of the sets that end at the new token."""
        return np.asarray(np.logaddexp.reduce(self.log_scores, axis=0))

    def cost(self, free_shape: Int[np.ndarray, " k"] | None = None) -> Float[np.ndarray, "costs states tokens"]:
        """Return the mean cost of the sets that end at the new token; sets of ``free_shape`` have cost 0."""
        has_cost = (
            np.ones(len(self.shapes), dtype=bool) if free_shape is None else (self.shapes != free_shape).any(axis=1)
        )
        share = np.exp(self.log_scores - np.where(np.isfinite(self.log_weight), self.log_weight, 0.0))
        return np.asarray((share * self.costs)[:, has_cost].sum(axis=1))


@dataclass(frozen=True, slots=True)
class Insertion:
    """Planted tuples with one weight per cost; with ``planted_is_free``, the planted set has cost 0."""

    tuples: Int[np.ndarray, "tuples k"]
    weights: Float[np.ndarray, "costs tuples"]
    planted_is_free: bool


@dataclass(frozen=True, slots=True)
class Totals:
    """Expectations of ``exp(-s a)`` and of ``s b exp(-s a)`` by cost and distribution of the planted set."""

    value: Float[np.ndarray, "costs laws s"]
    derivative: Float[np.ndarray, "costs laws s"]


def chain_totals(
    chain: TokenChain, insertion: Insertion, shape_laws: Sequence[ShapeLaw], log_s: Float[np.ndarray, " s"]
) -> Totals:
    """Compute the totals for every distribution of the planted set and every s."""
    num_states = chain.num_states
    num_entries = (
        len(insertion.weights) * num_states * len(chain.tokens) * (num_states if num_states <= MAX_DENSE_STATES else 1)
    )
    block_size = max(1, MAX_BLOCK_ENTRIES // num_entries)
    starts = range(0, len(log_s), block_size)
    blocks = [_totals_for_block(chain, insertion, shape_laws, log_s[start : start + block_size]) for start in starts]
    return Totals(
        *(np.concatenate([getattr(block, each) for block in blocks], axis=2) for each in ("value", "derivative"))
    )


def _totals_for_block(
    chain: TokenChain, insertion: Insertion, shape_laws: Sequence[ShapeLaw], log_s: Float[np.ndarray, " s"]
) -> Totals:
    operator = _Operator(chain, insertion, log_s)
    shape = (len(insertion.weights), len(shape_laws), len(log_s))
    value, derivative = np.zeros(shape), np.zeros(shape)
    for index, each in enumerate(shape_laws):
        for planted, probability in zip(each.shapes, each.probability, strict=True):
            if probability.any():
                total = operator.total(planted, probability[: each.length - planted[-1]])
                value[:, index] += total.value.sum(axis=(2, 3))
                derivative[:, index] += total.derivative.sum(axis=(2, 3))
    return Totals(value, derivative)


class _Operator:
    """Operators of background and planted tokens on distributions over states, for one block of s."""

    def __init__(self, chain: TokenChain, insertion: Insertion, log_s: Float[np.ndarray, " s"]) -> None:
        self.chain, self.insertion = chain, insertion
        # The factor s keeps the derivative in the range of floats even if scores exceed it.
        self.exponent = np.exp(np.minimum(log_s[:, None, None] + chain.log_weight, MAX_LOG_EXPONENT))  # s states tokens
        self.decay = np.exp(-self.exponent)
        self.cost = chain.cost()
        self.powers: dict[tuple[int, ...], list[tuple[DualNumbers, DualNumbers]]] = {}

    def total(self, planted: Int[np.ndarray, " k"], probability: Float[np.ndarray, " starts"]) -> DualNumbers:
        """Return the operator of a full sequence with the planted set, summed over all starts of the set."""
        without_planted = self._identity(np.eye(1, self.chain.num_states))
        with_planted = without_planted.times(np.zeros(len(self.insertion.weights)))
        changes = np.flatnonzero(np.diff(probability)) + 1
        for equal_starts in np.split(probability, changes):
            without_planted, with_planted = self._add_starts(
                without_planted, with_planted, planted, float(equal_starts[0]), len(equal_starts)
            )
        return with_planted

    def _add_starts(
        self,
        without_planted: DualNumbers,
        with_planted: DualNumbers,
        planted: Int[np.ndarray, " k"],
        probability: float,
        num_starts: int,
    ) -> tuple[DualNumbers, DualNumbers]:
        """Add consecutive starts with the same probability."""
        # A matrix product costs as much as one step for each state.
        if num_starts <= self.chain.num_states or self.chain.num_states > MAX_DENSE_STATES:
            for _ in range(num_starts):
                with_planted = self._step(with_planted) + self._insert(without_planted, planted).times(probability)
                without_planted = self._step(without_planted)
            return without_planted, with_planted
        for bit in range(num_starts.bit_length()):
            if num_starts >> bit & 1:
                background, inserted = self._power(planted, bit)
                with_planted = with_planted @ background + (without_planted @ inserted).times(probability)
                without_planted = without_planted @ background
        return without_planted, with_planted

    def _power(self, planted: Int[np.ndarray, " k"], bit: int) -> tuple[DualNumbers, DualNumbers]:
        """Return the operator of ``2 ** bit`` background tokens, and its sum over all insertions of the planted set."""
        powers = self.powers.setdefault(tuple(planted.tolist()), [])
        if not powers:
            unit = self._identity(np.eye(self.chain.num_states))
            powers.append((self._step(unit), self._insert(unit, planted)))
        while len(powers) <= bit:
            background, inserted = powers[-1]
            powers.append((background @ background, inserted @ background + background @ inserted))
        return powers[bit]

    def _insert(self, prefix: DualNumbers, planted: Int[np.ndarray, " k"]) -> DualNumbers:
        """Append the planted tokens and the background between them; sum over the planted tuples."""
        last_cost = self.chain.cost(planted) if self.insertion.planted_is_free else self.cost
        inserted = prefix.times(np.zeros(len(self.insertion.weights)))
        for each, weight in zip(self.insertion.tuples, self.insertion.weights.T, strict=True):
            token_at = dict(zip(planted.tolist(), each.tolist(), strict=True))
            extended = prefix
            for step in range(planted[-1] + 1):
                extended = self._step(extended, token_at.get(step), last_cost if step == planted[-1] else self.cost)
            inserted = inserted + extended.times(weight)
        return inserted

    def _step(
        self,
        prefix: DualNumbers,
        token: int | None = None,
        cost: Float[np.ndarray, "costs states tokens"] | None = None,
    ) -> DualNumbers:
        """Append one token: ``token``, or a background token if it is None."""
        chain, cost = self.chain, self.cost if cost is None else cost
        probability = chain.background if token is None else (chain.tokens == token).astype(float)
        possible = np.flatnonzero(probability)
        decay = (self.decay[..., possible] * probability[possible])[:, None]  # s 1 states tokens
        gain = cost[:, None, None, :, possible] * self.exponent[:, None][..., possible]  # costs s 1 states tokens
        value = prefix.value[..., None] * decay
        derivative = prefix.derivative[..., None] * decay + value * gain
        return DualNumbers(*(_sum_by_successor(flow, chain.successor[:, possible]) for flow in (value, derivative)))

    def _identity(self, states: Float[np.ndarray, "from to"]) -> DualNumbers:
        value = np.broadcast_to(states, (1, len(self.exponent), *states.shape))
        return DualNumbers(value, np.zeros((len(self.cost), *value.shape[1:])))


def _sum_by_successor(
    flow: Float[np.ndarray, "costs s from states tokens"], successor: Int[np.ndarray, "states tokens"]
) -> Float[np.ndarray, "costs s from states"]:
    """Add up the flow into each successor state."""
    successors = successor.ravel()
    order = successors.argsort(kind="stable")
    reached_states, group_starts = np.unique(successors[order], return_index=True)
    totals = np.zeros(flow.shape[:-1])
    totals[..., reached_states] = np.add.reduceat(flow.reshape(*flow.shape[:-2], -1)[..., order], group_starts, axis=-1)
    return totals
