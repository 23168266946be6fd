"""Position coupling (Cho et al. 2024): the task's coupling gives related tokens the same ID, on one level."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import UnsupportedTaskError
from lengthwise.positions.scheme import RandomGapScheme, require_coupling
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Coupled(RandomGapScheme):
    """Position coupling with one ID per token; training adds random gaps between groups of tokens with equal IDs.

    At evaluation, the decoder receives the IDs of prompt and response. The paper has no gaps (``max_gaps=0``).
    """

    name: ClassVar[str] = "coupled"
    summary: ClassVar[str] = "the task's coupling; random gaps in training"
    paper: ClassVar[str] = "Cho et al. 2024 (arXiv 2405.20671); gaps after PoSE (arXiv 2309.10400)"
    needs: ClassVar[str | None] = "coupling"

    def ids_before_gaps(self, examples: Examples) -> Int[np.ndarray, "level batch seq"]:
        """Return the task's coupling; raise ``UnsupportedTaskError`` unless it has one level."""
        group_ids = require_coupling(examples)
        if len(group_ids) != 1:
            raise UnsupportedTaskError(
                f"the coupling of this task has {len(group_ids)} levels but the scheme coupled supports only one; "
                "use the scheme multilevel or predicted"
            )
        return group_ids
