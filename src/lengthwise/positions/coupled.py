"""Position coupling (Cho et al. 2024): IDs come from the task's own coupling, on one level."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import UnsupportedTaskError
from lengthwise.positions.gaps import GappedScheme
from lengthwise.positions.scheme import require_coupling
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Coupled(GappedScheme):
    """Position coupling with one ID per token; in training, random gaps move all tokens of a group together.

    The decoder receives all IDs at evaluation. The published method has no gaps (``max_gaps=0``).
    """

    name: ClassVar[str] = "coupled"
    summary: ClassVar[str] = "the task's coupling; random gaps in training"
    paper: ClassVar[str] = "Cho et al. 2024 (arXiv 2405.20671); gaps after PoSE (arXiv 2309.10400)"
    needs: ClassVar[str | None] = "coupling"

    def groups(self, examples: Examples) -> Int[np.ndarray, "level batch seq"]:
        """Return the task's coupling; raise ``UnsupportedTaskError`` unless it has one level."""
        groups = require_coupling(examples)
        if len(groups) != 1:
            raise UnsupportedTaskError(
                f"this task has a coupling of {len(groups)} levels but coupled assigns one ID per token; "
                "use the scheme multilevel or predicted"
            )
        return groups
