"""Skip-wise positions (PoSE, Zhu et al. 2024): consecutive IDs with random gaps between chunks."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.positions.scheme import RandomGapScheme, token_indexes
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipwise(RandomGapScheme):
    """Consecutive IDs; training adds random gaps between chunks of any length, and a random shift.

    In the paper's terms, ``max_gaps + 1`` is the maximum number of chunks, and ``num_position_ids`` the target window.
    Short training sequences contain distances up to this window. At evaluation, the ID is the token index.
    """

    name: ClassVar[str] = "skipwise"
    summary: ClassVar[str] = "consecutive IDs with random gaps between chunks (PoSE)"
    paper: ClassVar[str] = "Zhu et al. 2024, PoSE (arXiv 2309.10400)"

    def ids_before_gaps(self, examples: Examples) -> Int[np.ndarray, "level batch seq"]:
        """Return the token index of every token."""
        return token_indexes(examples)
