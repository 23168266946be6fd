"""The chain of the last tokens: expectations of ``exp(-s a)`` and ``s b exp(-s a)``, token by token. Derived here."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.placement import ShapeLaw
from lengthwise.tasks.planted.planted_task import Planted

# More scores than this, over all states and next tokens, are not followed; for so many states, matrices are multiplied.
MOST_SCORES = 1 << 16
MOST_DENSE = 128
# How many numbers one step may hold: s are worked off in blocks.
BLOCK = 1 << 18
# No larger exponent is taken: the exponential of minus its exponential is 0 long before.
LARGEST = 700.0


@dataclass(frozen=True, slots=True)
class Dual:
    """A number and its change, per row of costs: products follow the product rule. Leading axes may be of size 1."""

    value: Float[np.ndarray, "#rows s from to"]
    change: Float[np.ndarray, "rows s from to"]

    def __matmul__(self, other: "Dual") -> "Dual":
        """First this, then the other."""
        return Dual(self.value @ other.value, self.change @ other.value + self.value @ other.change)

    def __add__(self, other: "Dual") -> "Dual":
        """Either."""
        return Dual(self.value + other.value, self.change + other.change)

    def times(self, weight: Float[np.ndarray, " rows"] | float) -> "Dual":
        """Every row by its weight."""
        by_row = np.reshape(weight, (-1, 1, 1, 1))
        return Dual(self.value * by_row, self.change * by_row)


@dataclass(frozen=True, kw_only=True)
class Chain:
    """What the next token adds to the sum of scores, and what share of it is cost, given the last ``span - 1`` tokens.

    A state has fewer tokens near the start of the sequence. Only tokens that occur at all are among ``tokens``.
    """

    tokens: Int[np.ndarray, " tokens"]
    background: Float[np.ndarray, " tokens"]
    shapes: Int[np.ndarray, "shapes k"]
    successor: Int[np.ndarray, "states tokens"]
    log_scores: Float[np.ndarray, "shapes states tokens"]
    costs: Float[np.ndarray, "rows shapes states tokens"]

    @classmethod
    def of(
        cls,
        law: Planted,
        shapes: Int[np.ndarray, "shapes k"],
        log_scores: Float[np.ndarray, "shapes codes"],
        costs: Float[np.ndarray, "rows shapes codes"],
    ) -> "Chain":
        """The chain of the tokens of a law under given scores and costs of all sets; refuses too many states."""
        mu = np.array(law.background)
        tokens = np.union1d(np.flatnonzero(mu), np.unique(law.tuples))
        memory = int(shapes[:, -1].max())
        scores = len(shapes) * len(tokens) ** (memory + 1)
        if scores > MOST_SCORES:
            raise SettingError(
                f"{len(shapes)} shapes in {memory + 1} of {len(tokens)} tokens make {scores:,} scores, more than the "
                f"{MOST_SCORES:,} that are followed; use a smaller span, fewer tokens, or sampled_risk"
            )
        # -1 stands for what was before the first token.
        listed = [
            (-1,) * (memory - known) + last for known in range(memory + 1) for last in product(tokens, repeat=known)
        ]
        states = np.array(listed, dtype=np.int64).reshape(len(listed), memory)
        windows = np.concatenate(
            [np.repeat(states, len(tokens), axis=0), np.tile(tokens, len(states))[:, None]], axis=1
        ).reshape(len(states), len(tokens), memory + 1)
        numbers = {tuple(state): number for number, state in enumerate(states.tolist())}
        successor = [[numbers[tuple(window[1:])] for window in row] for row in windows.tolist()]
        chosen = windows[:, :, memory - shapes[:, -1:] + shapes]  # states tokens shapes k
        codes = np.moveaxis(chosen @ law.num_tokens ** np.arange(shapes.shape[1] - 1, -1, -1), 2, 0)
        inside = (np.moveaxis(chosen, 2, 0) >= 0).all(axis=3)
        every, codes = np.arange(len(shapes))[:, None, None], np.where(inside, codes, 0)
        return cls(
            tokens=tokens,
            background=mu[tokens],
            shapes=shapes,
            successor=np.array(successor),
            log_scores=np.where(inside, log_scores[every, codes], -np.inf),
            costs=costs[:, every, codes],
        )

    @property
    def num_states(self) -> int:
        """How many ways the last tokens can be."""
        return len(self.successor)

    @cached_property
    def log_weight(self) -> Float[np.ndarray, "states tokens"]:
        """The log of the scores of all sets that end at the new token."""
        return np.asarray(np.logaddexp.reduce(self.log_scores, axis=0))

    def cost(self, own: Int[np.ndarray, " k"] | None = None) -> Float[np.ndarray, "rows states tokens"]:
        """The mean cost of the sets that end at the new token, by their scores; one of shape ``own`` costs nothing."""
        kept = np.ones(len(self.shapes), dtype=bool) if own is None else (self.shapes != own).any(axis=1)
        share = np.exp(self.log_scores - np.where(np.isfinite(self.log_weight), self.log_weight, 0.0))
        return np.asarray((share * self.costs)[:, kept].sum(axis=1))


@dataclass(frozen=True, slots=True)
class Insertion:
    """What is planted: each tuple with its weight in every row of costs.

    With ``spare_own`` the planted set itself costs nothing.
    """

    tuples: Int[np.ndarray, "tuples k"]
    weights: Float[np.ndarray, "rows tuples"]
    spare_own: bool


@dataclass(frozen=True, slots=True)
class Totals:
    """Expectations over everything that is drawn, but for the row: ``exp(-s a)`` and ``s b exp(-s a)``."""

    value: Float[np.ndarray, "rows placed s"]
    change: Float[np.ndarray, "rows placed s"]


def chain_totals(
    chain: Chain, insertion: Insertion, placed: Sequence[ShapeLaw], log_s: Float[np.ndarray, " s"]
) -> Totals:
    """The totals of every law of the planted set, at every s."""
    rows, states = len(insertion.weights), chain.num_states
    held = rows * states * len(chain.tokens) * (states if states <= MOST_DENSE else 1)
    size = max(1, BLOCK // held)
    blocks = [_block(chain, insertion, placed, log_s[first : first + size]) for first in range(0, len(log_s), size)]
    return Totals(*(np.concatenate([getattr(block, each) for block in blocks], axis=2) for each in ("value", "change")))


def _block(chain: Chain, insertion: Insertion, placed: Sequence[ShapeLaw], log_s: Float[np.ndarray, " s"]) -> Totals:
    operator = _Operator(chain, insertion, log_s)
    shape = (len(insertion.weights), len(placed), len(log_s))
    value, change = np.zeros(shape), np.zeros(shape)
    for place, each in enumerate(placed):
        for planted, probability in zip(each.shapes, each.probability, strict=True):
            if probability.any():
                total = operator.total(planted, probability[: each.length - planted[-1]])
                value[:, place] += total.value.sum(axis=(2, 3))
                change[:, place] += total.change.sum(axis=(2, 3))
    return Totals(value, change)


class _Operator:
    """Background and planted tokens as operators on distributions over states, for one block of s."""

    def __init__(self, chain: Chain, insertion: Insertion, log_s: Float[np.ndarray, " s"]) -> None:
        self.chain, self.insertion = chain, insertion
        # Scaled by s, the change stays within the range of floats where scores do not.
        self.exponent = np.exp(np.minimum(log_s[:, None, None] + chain.log_weight, LARGEST))  # s states tokens
        self.decay = np.exp(-self.exponent)
        self.cost = chain.cost()
        self.powers: dict[tuple[int, ...], list[tuple[Dual, Dual]]] = {}

    def total(self, planted: Int[np.ndarray, " k"], probability: Float[np.ndarray, " starts"]) -> Dual:
        """Over all starts of the planted set: background up to it, the set, background to the end."""
        before = self._unit(np.eye(1, self.chain.num_states))
        after = before.times(np.zeros(len(self.insertion.weights)))
        edges = np.flatnonzero(np.diff(probability)) + 1
        for stretch in np.split(probability, edges):
            before, after = self._stretch(before, after, planted, float(stretch[0]), len(stretch))
        return after

    def _stretch(
        self, before: Dual, after: Dual, planted: Int[np.ndarray, " k"], weight: float, starts: int
    ) -> tuple[Dual, Dual]:
        """So many starts of the same probability."""
        # One matrix costs as much as a step from each of the states.
        if starts <= self.chain.num_states or self.chain.num_states > MOST_DENSE:
            for _ in range(starts):
                after = self._step(after) + self._insert(before, planted).times(weight)
                before = self._step(before)
            return before, after
        for bit in range(starts.bit_length()):
            if starts >> bit & 1:
                background, inserted = self._power(planted, bit)
                after = after @ background + (before @ inserted).times(weight)
                before = before @ background
        return before, after

    def _power(self, planted: Int[np.ndarray, " k"], bit: int) -> tuple[Dual, Dual]:
        """``2 ** bit`` tokens of background, and the sum over all ways to plant the set between one fewer."""
        powers = self.powers.setdefault(tuple(planted.tolist()), [])
        if not powers:
            unit = self._unit(np.eye(self.chain.num_states))
            powers.append((self._step(unit), self._insert(unit, planted)))
        while len(powers) <= bit:
            background, inserted = powers[-1]
            powers.append((background @ background, inserted @ background + background @ inserted))
        return powers[bit]

    def _insert(self, at: Dual, planted: Int[np.ndarray, " k"]) -> Dual:
        """The planted tokens and the background between them, all tuples together."""
        own = self.chain.cost(planted) if self.insertion.spare_own else self.cost
        inserted = at.times(np.zeros(len(self.insertion.weights)))
        for each, weight in zip(self.insertion.tuples, self.insertion.weights.T, strict=True):
            token_at = dict(zip(planted.tolist(), each.tolist(), strict=True))
            now = at
            for step in range(planted[-1] + 1):
                now = self._step(now, token_at.get(step), own if step == planted[-1] else self.cost)
            inserted = inserted + now.times(weight)
        return inserted

    def _step(
        self, at: Dual, token: int | None = None, cost: Float[np.ndarray, "rows states tokens"] | None = None
    ) -> Dual:
        """One more token: drawn by the background, or given."""
        chain, cost = self.chain, self.cost if cost is None else cost
        drawn = chain.background if token is None else (chain.tokens == token).astype(float)
        kept = np.flatnonzero(drawn)
        decay = (self.decay[..., kept] * drawn[kept])[:, None]  # s 1 states tokens
        rise = cost[:, None, None, :, kept] * self.exponent[:, None][..., kept]  # rows s 1 states tokens
        value = at.value[..., None] * decay
        change = at.change[..., None] * decay + value * rise
        return Dual(*(_gathered(flow, chain.successor[:, kept]) for flow in (value, change)))

    def _unit(self, states: Float[np.ndarray, "from to"]) -> Dual:
        value = np.broadcast_to(states, (1, len(self.exponent), *states.shape))
        return Dual(value, np.zeros((len(self.cost), *value.shape[1:])))


def _gathered(
    flow: Float[np.ndarray, "rows s from states tokens"], successor: Int[np.ndarray, "states tokens"]
) -> Float[np.ndarray, "rows s from states"]:
    """What flows into each state."""
    flat = successor.ravel()
    order = flat.argsort(kind="stable")
    reached, first = np.unique(flat[order], return_index=True)
    into = np.zeros(flow.shape[:-1])
    into[..., reached] = np.add.reduceat(flow.reshape(*flow.shape[:-2], -1)[..., order], first, axis=-1)
    return into
