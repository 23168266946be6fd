"""Multi-level position coupling (Cho et al. 2025): each token has one ID per level of the task's coupling."""

from dataclasses import dataclass
from typing import ClassVar

from lengthwise.positions.scheme import RandomGapScheme


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiLevel(RandomGapScheme):
    """Position coupling with one ID per token and level; training adds independent gaps and shifts to each level.

    At evaluation, the decoder receives the IDs of prompt and response. With one level, the IDs are as in ``coupled``.
    """

    name: ClassVar[str] = "multilevel"
    summary: ClassVar[str] = "all levels of the task's coupling; random gaps in training"
    paper: ClassVar[str] = "Cho et al. 2025 (arXiv 2410.15787); gaps after PoSE (arXiv 2309.10400)"
    needs: ClassVar[str | None] = "coupling"
