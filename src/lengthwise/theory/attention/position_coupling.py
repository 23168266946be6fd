"""Position coupling: tokens with one ID make one super-token, and what is far apart in tokens may be near in IDs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.placement import Local, Placement, ShapeLaw, check_fits
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention, normalized

# The ID of every token of a sequence of a length; IDs count from 0 without a hole.
Coupling = Callable[[int], Int[np.ndarray, " length"]]

# How far two probabilities of one thing may differ by rounding.
ROUNDING = 1e-9


def folded(length: int) -> Int[np.ndarray, " length"]:
    """The coupling ``psi(i) = i mod length / 2``: a token of the first half and its like in the second share an ID."""
    return np.arange(length) % max(length // 2, 1)


def blocks(length: int) -> Int[np.ndarray, " length"]:
    """The coupling of neighbours: tokens 0 and 1 share an ID, tokens 2 and 3, and so on."""
    return np.arange(length) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """The placement of two tokens half the length apart, at a uniform place: no span holds them at all lengths."""

    name: ClassVar[str] = "halves"
    summary: ClassVar[str] = "two tokens half the length apart, at a uniform place"

    @property
    def k(self) -> int:
        """Two."""
        return 2

    @property
    def span(self) -> int | None:
        """None: it grows with the length."""
        return None

    @property
    def min_length(self) -> int:
        """Room for both."""
        return 2

    def law(self, length: int) -> ShapeLaw:
        """One shape, uniform among the places where it fits."""
        return self._at(length).law(length)

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size k"]:
        """Draw the first token."""
        return self._at(length).sample(length, size, rng)

    def _at(self, length: int) -> Local:
        check_fits(self, length)
        return Local(shapes=((0, length // 2),), weights=(1.0,))


@dataclass(frozen=True, slots=True, kw_only=True)
class CoupledPlacement:
    """Which super-tokens hold what is planted: the IDs of the sets of another placement.

    A length is here a number of super-tokens, each of ``fibre`` tokens; ``k`` is how many different IDs a set has.
    """

    placement: Placement
    coupling: Coupling
    fibre: int
    k: int

    name: ClassVar[str] = "coupled"
    summary: ClassVar[str] = "the position IDs of the sets of another placement"

    @property
    def span(self) -> int | None:
        """Known for single IDs alone."""
        return 1 if self.k == 1 else None

    @property
    def min_length(self) -> int:
        """Super-tokens for the shortest sequence that has a set."""
        return -(-self.placement.min_length // self.fibre)

    def law(self, length: int) -> ShapeLaw:
        """Sets with the same IDs count together."""
        sets, probability = self.placement.law(length * self.fibre).sets()
        rows: dict[tuple[int, ...], Float[np.ndarray, " length"]] = {}
        for ids, share in zip(self._ids(length, sets), probability, strict=True):
            rows.setdefault(tuple(int(each) for each in ids - ids[0]), np.zeros(length))[ids[0]] += share
        return ShapeLaw(shapes=np.array(list(rows)), probability=np.array(list(rows.values())))

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size k"]:
        """The IDs of drawn sets."""
        return self._ids(length, self.placement.sample(length * self.fibre, size, rng))

    def _ids(self, length: int, sets: Int[np.ndarray, "sets tokens"]) -> Int[np.ndarray, "sets k"]:
        ids = self.coupling(length * self.fibre)[sets]
        return np.array([_distinct(each, self.k) for each in ids])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CoupledAttention:
    """``f(x) = sum_S g(psi(S), x_S) h(psi(S), x_S) / sum_S g(psi(S), x_S)`` over all sets of k tokens, near or far.

    Only differences of IDs matter: a row of ``offsets`` holds the IDs of a set, in the order of its tokens, minus the
    smallest of them. They may repeat and fall. IDs of no row have score 0. The tables are those of
    ``TabularAttention``. Golowich et al. 2025 (arXiv 2502.16792), definition 3.3 and proposition 4.4; the form is
    reconstructed.
    """

    num_tokens: int
    coupling: Coupling
    offsets: Int[np.ndarray, "shapes k"]
    log_scores: Float[np.ndarray, "shapes codes"]
    values: Float[np.ndarray, "shapes codes outputs"]
    default: Float[np.ndarray, " outputs"]

    def __post_init__(self) -> None:
        rows = [tuple(row) for row in self.offsets.tolist()]
        for row in rows:
            if min(row) != 0 or rows.count(row) > 1:
                raise SettingError(f"IDs {row} are there twice or do not start at 0; write each difference once")
        # The same tables over single tokens: what is wrong with them is said there.
        TabularAttention(
            num_tokens=self.num_tokens,
            shapes=self.offsets,
            log_scores=self.log_scores,
            values=self.values,
            default=self.default,
        )

    def predict(self, tokens: Int[np.ndarray, "batch length"]) -> Float[np.ndarray, "batch outputs"]:
        """The weighted mean of the values; the default where no set has any weight. Cost: all C(length, k) sets."""
        log_scores, values = self.scored(tokens, self.coupling(tokens.shape[1]))
        weights, total = normalized(log_scores)
        return np.where(total[:, None] > 0, np.einsum("bs,bso->bo", weights, values), self.default)

    def scored(
        self, tokens: Int[np.ndarray, "batch length"], ids: Int[np.ndarray, " length"]
    ) -> tuple[Float[np.ndarray, "batch sets"], Float[np.ndarray, "batch sets outputs"]]:
        """The log score and the value of each set whose IDs have a row."""
        k = self.offsets.shape[1]
        sets = np.array(list(combinations(range(len(ids)), k))).reshape(-1, k)
        differences = ids[sets] - ids[sets].min(axis=1, keepdims=True)
        listed, shape = (differences[:, None] == self.offsets).all(axis=2).nonzero()
        codes = tokens[:, sets[listed]] @ self.num_tokens ** np.arange(k - 1, -1, -1)
        return self.log_scores[shape, codes], self.values[shape, codes]


def places_of_ids(ids: Int[np.ndarray, " length"]) -> Int[np.ndarray, "ids fibre"]:
    """The tokens of each ID, in order; ``SettingError`` unless all IDs have equally many."""
    if len(ids) == 0 or ids.min() < 0:
        raise SettingError("a coupling gives no ID or a negative one; count IDs from 0")
    count = np.bincount(ids)
    if count.min() < count.max():
        raise SettingError(
            f"ID {count.argmin()} has {count.min()} tokens and ID {count.argmax()} has {count.max()}; "
            "couple equally many tokens everywhere, such as two at every even length"
        )
    return np.argsort(ids, kind="stable").reshape(len(count), -1)


def super_tokens(
    tokens: Int[np.ndarray, "batch length"], coupling: Coupling, num_tokens: int
) -> Int[np.ndarray, "batch ids"]:
    """One number for the tokens that share an ID, read in their order, the first leading."""
    places = places_of_ids(coupling(tokens.shape[1]))
    return np.asarray(tokens[:, places] @ num_tokens ** np.arange(places.shape[1] - 1, -1, -1))


def super_attention(attention: CoupledAttention, length: int) -> TabularAttention:
    """The same function, of super-tokens: relative and local in IDs, whatever the distances between tokens.

    Its ``predict(super_tokens(x, ...))`` is ``attention.predict(x)``. ``length`` is one at which all offsets fit; that
    the tokens of neighbouring IDs interleave alike wherever they stand is checked there. ``SettingError`` where they
    do not, or where some sets have more different IDs than others. Derived here (the proposition on coupling in
    ``docs/theory.md``).
    """
    places = places_of_ids(attention.coupling(length))
    k = len(np.unique(attention.offsets[0]))
    shapes = sorted({tuple(_distinct(row, k).tolist()) for row in attention.offsets})
    digits = _digits(attention.num_tokens, places.shape[1] * k)
    tables = []
    for shape in shapes:
        order = _order(places, shape)
        # Which of the set's own IDs each token has, in the order of the tokens.
        ids = np.repeat(np.array(shape), places.shape[1])[order]
        log_scores, values = attention.scored(digits[:, order], ids)
        weights, _ = normalized(log_scores)
        tables.append((np.logaddexp.reduce(log_scores, axis=1), np.einsum("bs,bso->bo", weights, values)))
    return TabularAttention(
        num_tokens=attention.num_tokens ** places.shape[1],
        shapes=np.array(shapes),
        log_scores=np.array([scores for scores, _ in tables]),
        values=np.array([values for _, values in tables]),
        default=attention.default,
    )


def super_law(law: Planted, coupling: Coupling, length: int) -> Planted:
    """The planted law of the super-tokens: the same probabilities, with IDs in place of token indexes.

    ``SettingError`` where it is none: unequal fibres, sets with more different IDs than others, or planted super-tokens
    whose law is not the same wherever they stand; all looked at for sequences of ``length`` tokens. Derived here.
    """
    k, joint = _planted_law(law, coupling, length)
    share = joint.sum(axis=1)
    drawn = np.flatnonzero(share)
    fibre = places_of_ids(coupling(length)).shape[1]
    count = law.num_tokens**fibre
    base = count ** np.arange(k - 1, -1, -1)
    mu = np.array(law.background)
    return Planted(
        background=tuple(mu[_digits(law.num_tokens, fibre)].prod(axis=1).tolist()),
        tuples=tuple(tuple((code // base % count).tolist()) for code in drawn),
        probabilities=tuple(share[drawn].tolist()),
        labels=tuple(tuple(row) for row in (joint[drawn] / share[drawn, None]).tolist()),
        placement=CoupledPlacement(placement=law.placement, coupling=coupling, fibre=fibre, k=k),
    )


def _planted_law(law: Planted, coupling: Coupling, length: int) -> tuple[int, Float[np.ndarray, "codes labels"]]:
    """How many super-tokens hold what is planted, and their joint law with the label, the same for all IDs."""
    ids, places = coupling(length), places_of_ids(coupling(length))
    sets, probability = law.placement.law(length).sets()
    k = len(np.unique(ids[sets[0]]))
    digits = _digits(law.num_tokens, k * places.shape[1])
    mu, zero = np.array(law.background), np.zeros((len(digits), law.num_labels))
    tables: dict[tuple[int, ...], np.ndarray] = {}
    for planted, share in zip(sets, probability, strict=True):
        group = _distinct(ids[planted], k)
        columns = (places[group].ravel() == planted[:, None]).argmax(axis=1)
        codes = law.codes(digits[:, columns])
        around = mu[np.delete(digits, columns, axis=1)].prod(axis=1)
        table = (law.tuple_law[codes] * around)[:, None] * law.label_law[codes]
        named = tuple(int(each) for each in group)
        tables[named] = tables.get(named, zero) + share * table
    first = next(iter(tables))
    for named, table in tables.items():
        if np.abs(table / table.sum() - tables[first] / tables[first].sum()).max() > ROUNDING:
            raise SettingError(
                f"what is planted at IDs {named} has another law than at IDs {first}; choose a coupling "
                "that puts the planted tokens at the same places of their super-tokens everywhere"
            )
    return k, tables[first] / tables[first].sum()


def _distinct(ids: Int[np.ndarray, " tokens"], count: int) -> Int[np.ndarray, " k"]:
    found = np.unique(ids)
    if len(found) != count:
        raise SettingError(
            f"a set has {len(found)} different IDs and another {count}; couple so that all have equally many"
        )
    return found


def _order(places: Int[np.ndarray, "ids fibre"], shape: Sequence[int]) -> Int[np.ndarray, " tokens"]:
    """How the tokens of IDs ``c + shape``, listed ID by ID, lie in the sequence; the same for every c."""
    room = len(places) - shape[-1]
    if room < 1:
        raise SettingError(f"IDs {tuple(shape)} do not fit the {len(places)} IDs of this length; use a longer one")
    orders = [np.argsort(places[start + np.array(shape)].ravel()) for start in range(room)]
    for order in orders:
        if not np.array_equal(order, orders[0]):
            raise SettingError(
                f"tokens with IDs {tuple(shape)} apart change their order along the sequence; choose a coupling that "
                "interleaves them alike everywhere"
            )
    return orders[0]


def _digits(base: int, count: int) -> Int[np.ndarray, "tuples count"]:
    """All tuples, in the order of their codes."""
    return np.array(list(product(range(base), repeat=count)))
