"""Position heads predict position IDs (PPC). Each head has its own file; ``POSITION_HEADS`` lists all heads."""

from lengthwise.model.position_heads.absolute import AbsoluteIDHead
from lengthwise.model.position_heads.head import NextIDDistribution, PositionHead, PromptKeys, build_prompt_keys
from lengthwise.model.position_heads.increment import IncrementHead
from lengthwise.model.position_heads.pointer import PointerHead, StatePointerHead, WidePointerHead
from lengthwise.model.position_heads.rank import RankHead
from lengthwise.model.position_heads.search import ContentSearchHead

POSITION_HEADS: dict[str, type[PositionHead]] = {
    "pointer": PointerHead,
    "wide_pointer": WidePointerHead,
    "state_pointer": StatePointerHead,
    "rank": RankHead,
    "increment": IncrementHead,
    "search": ContentSearchHead,
    "class": AbsoluteIDHead,
}

__all__ = [
    "POSITION_HEADS",
    "AbsoluteIDHead",
    "ContentSearchHead",
    "IncrementHead",
    "NextIDDistribution",
    "PointerHead",
    "PositionHead",
    "PromptKeys",
    "RankHead",
    "StatePointerHead",
    "WidePointerHead",
    "build_prompt_keys",
]
