"""How a decoder predicts position IDs (PPC): one file per head, one table of all."""

from lengthwise.position_heads.absolute import Absolute
from lengthwise.position_heads.head import NextIDs, PositionHead, Prompt, read_prompt
from lengthwise.position_heads.increment import Increment
from lengthwise.position_heads.pointer import Pointer
from lengthwise.position_heads.rank import Rank
from lengthwise.position_heads.search import Search

POSITION_HEADS: dict[str, type[PositionHead]] = {
    "pointer": Pointer,
    "rank": Rank,
    "increment": Increment,
    "search": Search,
    "class": Absolute,
}

__all__ = [
    "POSITION_HEADS",
    "Absolute",
    "Increment",
    "NextIDs",
    "Pointer",
    "PositionHead",
    "Prompt",
    "Rank",
    "Search",
    "read_prompt",
]
