"""Randomized positions: the IDs are a random subset of a range, in order."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.type_checks import check_types
from lengthwise.positions.scheme import (
    Assignment,
    PositionScheme,
    check_num_position_ids,
    room_above,
    scored_everywhere,
    token_indexes,
)
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Randomized(PositionScheme):
    """Training and evaluation alike: as many of the IDs below ``num_position_ids`` as there are tokens, in order.

    All subsets are equally likely, and each sequence has one of its own. No sequence can be longer than the range.
    """

    num_position_ids: int = 20_480

    name: ClassVar[str] = "randomized"
    summary: ClassVar[str] = "an ordered random subset of the IDs, at evaluation too"
    paper: ClassVar[str] = "Ruoss et al. 2023 (arXiv 2305.16843)"
    draws_at_evaluation: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_types(self)
        check_num_position_ids(self.num_position_ids)

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """One subset per sequence."""
        room_above(token_indexes(examples), self.num_position_ids)
        size, seq = examples.tokens.shape
        return scored_everywhere(examples, subsets(rng, self.num_position_ids, size, seq)[None])


def subsets(rng: np.random.Generator, num_position_ids: int, size: int, seq: int) -> Int[np.ndarray, "batch seq"]:
    """``size`` sorted subsets of ``seq`` numbers below ``num_position_ids``, uniform over all such subsets."""
    # Where repeats would be frequent, a permutation of the whole range is faster.
    if 8 * seq > num_position_ids:
        whole = np.broadcast_to(np.arange(num_position_ids), (size, num_position_ids))
        return np.sort(rng.permuted(whole, axis=1)[:, :seq], axis=1)
    ids = np.sort(rng.integers(0, num_position_ids, size=(size, seq)), axis=1)
    # What comes twice is drawn again. Nothing here prefers one number to another, hence no subset to another.
    while (repeated := ids[:, 1:] == ids[:, :-1]).any():
        ids[:, 1:][repeated] = rng.integers(0, num_position_ids, size=int(repeated.sum()))
        ids.sort(axis=1)
    return ids
