"""Position coupling: tokens with the same ID form a super-token, even if they are far apart."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.placement import (
    LocalPlacement,
    LocalPlacementAtLength,
    OffsetDistribution,
    Placement,
    check_length,
)
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.attention.tabular import TabularAttention, normalize_scores, weighted_mean

# A function from a length to the ID of every token; IDs count from 0 without gaps.
Coupling = Callable[[int], Int[np.ndarray, " length"]]

# Tolerance for the difference of two computed probabilities of the same event.
ROUNDING = 1e-9


def couple_sequence_halves(length: int) -> Int[np.ndarray, " length"]:
    """Couple both halves, ``psi(i) = i mod length / 2``: token i of each half has ID i."""
    return np.arange(length) % max(length // 2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfLengthPlacement(LocalPlacementAtLength):
    """Placement of two tokens half the length apart, with a uniform start; the span grows with the length."""

    name: ClassVar[str] = "halves"
    summary: ClassVar[str] = "two tokens half the length apart, with a uniform start"
    k: ClassVar[int] = 2
    max_span: ClassVar[None] = None
    min_length: ClassVar[int] = 2

    def local(self, length: int) -> LocalPlacement:
        """Return the placement with one shape, whose two tokens are half this length apart."""
        check_length(self, length)
        return LocalPlacement(shapes=((0, length // 2),), weights=(1.0,))


@dataclass(frozen=True, slots=True, kw_only=True)
class CoupledPlacement:
    """Placement of super-tokens: the position IDs of the sets of token indexes that ``placement`` samples.

    Lengths count super-tokens of ``tokens_per_id`` tokens each; ``k`` is the number of different IDs in a set.
    """

    placement: Placement
    coupling: Coupling
    tokens_per_id: int
    k: int

    name: ClassVar[str] = "coupled"
    summary: ClassVar[str] = "position IDs of the sets of another placement"

    @property
    def max_span(self) -> int | None:
        """Span of the sets in IDs: 1 if k is 1, otherwise None, because it is unknown."""
        return 1 if self.k == 1 else None

    @property
    def min_length(self) -> int:
        """Number of super-tokens of the shortest sequence with a planted set."""
        return -(-self.placement.min_length // self.tokens_per_id)

    def offset_distribution(self, length: int) -> OffsetDistribution:
        """Return the distribution of the IDs of a planted set."""
        sets, probability = self.placement.offset_distribution(length * self.tokens_per_id).sets()
        by_shape: dict[tuple[int, ...], Float[np.ndarray, " length"]] = {}
        for ids, set_probability in zip(self._find_ids(length, sets), probability, strict=True):
            by_shape.setdefault(tuple((ids - ids[0]).tolist()), np.zeros(length))[ids[0]] += set_probability
        return OffsetDistribution(shapes=np.array(list(by_shape)), probability=np.array(list(by_shape.values())))

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size k"]:
        """Sample planted sets as IDs."""
        return self._find_ids(length, self.placement.sample(length * self.tokens_per_id, size, rng))

    def _find_ids(self, length: int, sets: Int[np.ndarray, "sets tokens"]) -> Int[np.ndarray, "sets k"]:
        ids = self.coupling(length * self.tokens_per_id)[sets]
        return np.array([_unique_ids(set_ids, self.k) for set_ids in ids])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CoupledAttention:
    """Attention ``f(x) = sum_S g(psi(S), x_S) h(psi(S), x_S) / sum_S g(psi(S), x_S)`` over all sets of k tokens.

    Scores and values depend only on differences of IDs. Each row of ``offsets`` lists the IDs of a set in token order,
    minus the smallest ID; entries may repeat or decrease. Sets whose offsets are not listed have score 0. The tables
    are indexed as in ``TabularAttention``. Golowich et al. 2025 (arXiv 2502.16792), definition 3.3 and
    proposition 4.4; the form is reconstructed.
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
                raise SettingError(f"invalid offsets {row}; list each row of offsets once, with a minimum of 0")
        # The constructor checks the shapes and the values of the tables.
        scores, values, default = self.log_scores, self.values, self.default
        TabularAttention(
            num_tokens=self.num_tokens, shapes=self.offsets, log_scores=scores, values=values, default=default
        )

    def predict(self, tokens: Int[np.ndarray, "batch length"]) -> Float[np.ndarray, "batch outputs"]:
        """Return the weighted mean of the values over all sets, or the default if no set has weight."""
        return weighted_mean(*self.score_token_sets(tokens, self.coupling(tokens.shape[1])), self.default)

    def score_token_sets(
        self, tokens: Int[np.ndarray, "batch length"], ids: Int[np.ndarray, " length"]
    ) -> tuple[Float[np.ndarray, "batch sets"], Float[np.ndarray, "batch sets outputs"]]:
        """Return the log score and the value of each set of k tokens whose offsets are listed in ``offsets``."""
        k = self.offsets.shape[1]
        sets = np.array(list(combinations(range(len(ids)), k))).reshape(-1, k)
        differences = ids[sets] - ids[sets].min(axis=1, keepdims=True)
        listed_sets, shape = (differences[:, None] == self.offsets).all(axis=2).nonzero()
        codes = tokens[:, sets[listed_sets]] @ self.num_tokens ** np.arange(k - 1, -1, -1)
        return self.log_scores[shape, codes], self.values[shape, codes]


def group_tokens_by_id(ids: Int[np.ndarray, " length"]) -> Int[np.ndarray, "ids tokens_per_id"]:
    """Return the token indexes of each ID; raise ``SettingError`` if IDs have different numbers of tokens."""
    if len(ids) == 0 or ids.min() < 0:
        raise SettingError("the coupling returned no IDs or a negative ID; return IDs that count from 0, one per token")
    counts = np.bincount(ids)
    if counts.min() < counts.max():
        raise SettingError(
            f"ID {counts.argmin()} has {counts.min()} tokens and ID {counts.argmax()} has {counts.max()}; "
            "use a coupling with the same number of tokens per ID"
        )
    return np.argsort(ids, kind="stable").reshape(len(counts), -1)


def build_super_token_attention(attention: CoupledAttention, length: int) -> TabularAttention:
    """Return a relative, local attention over super-tokens that computes the same function as ``attention``.

    A super-token is the number whose digits are the tokens of an ID, in token order. All offsets must fit ``length``
    tokens. Raises ``SettingError`` if the token order of neighboring IDs changes along such a sequence, or if sets have
    different numbers of IDs. Derived here (the proposition on coupling in ``docs/theory.md``).
    """
    tokens_by_id = group_tokens_by_id(attention.coupling(length))
    k = len(np.unique(attention.offsets[0]))
    shapes = sorted({tuple(_unique_ids(offset_row, k).tolist()) for offset_row in attention.offsets})
    tuples = _list_tuples(attention.num_tokens, tokens_by_id.shape[1] * k)
    log_scores, values = [], []
    for shape in shapes:
        token_order = _find_token_order(tokens_by_id, shape)
        # The IDs of the tokens in the set, in token order.
        ids = np.repeat(np.array(shape), tokens_by_id.shape[1])[token_order]
        set_scores, set_values = attention.score_token_sets(tuples[:, token_order], ids)
        log_scores.append(np.logaddexp.reduce(set_scores, axis=1))
        values.append(np.einsum("bs,bso->bo", normalize_scores(set_scores)[0], set_values))
    return TabularAttention(
        num_tokens=attention.num_tokens ** tokens_by_id.shape[1],
        shapes=np.array(shapes),
        log_scores=np.array(log_scores),
        values=np.array(values),
        default=attention.default,
    )


def build_super_token_task(law: PlantedCorrelations, coupling: Coupling, length: int) -> PlantedCorrelations:
    """Return the planted law of the super-tokens in sequences from ``law``; derived here, not in the paper.

    Raises ``SettingError`` if, at ``length`` tokens, IDs have different numbers of tokens, sets have different numbers
    of IDs, or the distribution of planted super-tokens depends on their IDs.
    """
    k, joint_law = _planted_super_tokens(law, coupling, length)
    codes = np.flatnonzero(joint_law.sum(axis=1))
    probability = joint_law[codes].sum(axis=1)
    tokens_per_id = group_tokens_by_id(coupling(length)).shape[1]
    num_super_tokens = law.num_tokens**tokens_per_id
    digits = codes[:, None] // num_super_tokens ** np.arange(k - 1, -1, -1) % num_super_tokens
    background = law.independent_background[_list_tuples(law.num_tokens, tokens_per_id)].prod(axis=1)
    return PlantedCorrelations(
        background=tuple(background.tolist()),
        tuples=tuple(map(tuple, digits.tolist())),
        probabilities=tuple(probability.tolist()),
        labels=tuple(map(tuple, (joint_law[codes] / probability[:, None]).tolist())),
        placement=CoupledPlacement(placement=law.placement, coupling=coupling, tokens_per_id=tokens_per_id, k=k),
    )


def _planted_super_tokens(
    law: PlantedCorrelations, coupling: Coupling, length: int
) -> tuple[int, Float[np.ndarray, "codes labels"]]:
    """Return the number of planted super-tokens, and the joint distribution of all their tokens and the label."""
    ids, tokens_by_id = coupling(length), group_tokens_by_id(coupling(length))
    sets, probability = law.placement.offset_distribution(length).sets()
    k = len(np.unique(ids[sets[0]]))
    tuples = _list_tuples(law.num_tokens, k * tokens_by_id.shape[1])
    background_law, zero_law = law.independent_background, np.zeros((len(tuples), law.num_labels))
    joint_laws: dict[tuple[int, ...], np.ndarray] = {}
    for planted_set, set_probability in zip(sets, probability, strict=True):
        planted_ids = _unique_ids(ids[planted_set], k)
        columns = (tokens_by_id[planted_ids].ravel() == planted_set[:, None]).argmax(axis=1)
        codes = law.tuple_codes(tuples[:, columns])
        background = background_law[np.delete(tuples, columns, axis=1)].prod(axis=1)
        joint_law = (law.tuple_code_probabilities[codes] * background)[:, None] * law.label_probabilities[codes]
        id_tuple = tuple(planted_ids.tolist())
        joint_laws[id_tuple] = joint_laws.get(id_tuple, zero_law) + set_probability * joint_law
    first_ids, first_law = next((ids, joint_law / joint_law.sum()) for ids, joint_law in joint_laws.items())
    for id_tuple, joint_law in joint_laws.items():
        if np.abs(joint_law / joint_law.sum() - first_law).max() > ROUNDING:
            raise SettingError(
                f"planted super-tokens at IDs {id_tuple} and {first_ids} have different distributions; choose a "
                "coupling that places planted tokens at the same index of their super-tokens"
            )
    return k, first_law


def _unique_ids(ids: Int[np.ndarray, " tokens"], num_ids: int) -> Int[np.ndarray, " k"]:
    unique = np.unique(ids)
    if len(unique) != num_ids:
        difference = f"one set has {len(unique)} different IDs and another has {num_ids}"
        raise SettingError(f"{difference}; use a coupling with the same number of IDs in all sets")
    return unique


def _find_token_order(
    tokens_by_id: Int[np.ndarray, "ids tokens_per_id"], shape: Sequence[int]
) -> Int[np.ndarray, " tokens"]:
    """Return the permutation that sorts the tokens of IDs ``c + shape`` by index; it must be equal for all starts c."""
    num_starts = len(tokens_by_id) - shape[-1]
    if num_starts < 1:
        raise SettingError(
            f"a set of IDs at distances {tuple(shape)} from its first ID needs {shape[-1] + 1} IDs, but sequences "
            f"of this length have only {len(tokens_by_id)}; use a longer length"
        )
    orders = [np.argsort(tokens_by_id[start + np.array(shape)].ravel()) for start in range(num_starts)]
    if any(not np.array_equal(order, orders[0]) for order in orders):
        raise SettingError(
            f"tokens of IDs {tuple(shape)} change their order along the sequence; choose a coupling that "
            "interleaves them in the same order everywhere"
        )
    return orders[0]


def _list_tuples(num_tokens: int, k: int) -> Int[np.ndarray, "tuples k"]:
    return np.array(list(product(range(num_tokens), repeat=k)))
