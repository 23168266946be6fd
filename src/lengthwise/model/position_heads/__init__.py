"""Position heads predict position IDs (PPC). Each head has its own file; ``POSITION_HEADS`` lists all heads."""

from lengthwise.model.position_heads.absolute import Absolute
from lengthwise.model.position_heads.head import NextIDs, PositionHead, Prompt, read_prompt
from lengthwise.model.position_heads.increment import Increment
from lengthwise.model.position_heads.pointer import Pointer, WidePointer
from lengthwise.model.position_heads.rank import Rank
from lengthwise.model.position_heads.search import Search

POSITION_HEADS: dict[str, type[PositionHead]] = {
    "pointer": Pointer,
    "wide_pointer": WidePointer,
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
    "WidePointer",
    "read_prompt",
]
