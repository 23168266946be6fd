"""The contract of an encoding: how position IDs, and nothing else, enter the decoder."""

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingSize:
    """What an encoding has to fit: the width of the decoder and of one attention head."""

    d_model: int
    num_heads: int
    d_head: int


class Encoding(nn.Module):
    """The identity; a subclass overrides one hook and computes it from the IDs on every call."""

    has_bias: ClassVar[bool] = False

    def embed(
        self,
        x: Float[Tensor, "batch seq d_model"],
        position_ids: Int[Tensor, "batch seq"] | Float[Tensor, "batch seq"],
    ) -> Float[Tensor, "batch seq d_model"]:
        """Token embeddings with the positions added."""
        return x

    def rotate(
        self,
        x: Float[Tensor, "batch heads seq d_head"],
        position_ids: Int[Tensor, "batch seq"] | Float[Tensor, "batch seq"],
    ) -> Float[Tensor, "batch heads seq d_head"]:
        """Queries or keys with the positions in them."""
        return x

    def bias(
        self,
        query_ids: Int[Tensor, "batch query"] | Float[Tensor, "batch query"],
        key_ids: Int[Tensor, "batch key"] | Float[Tensor, "batch key"],
    ) -> Float[Tensor, "#batch heads query key"]:
        """What is added to the attention scores, for one chunk of queries; only where ``has_bias``."""
        raise NotImplementedError(f"{type(self).__name__} declares no bias")


@runtime_checkable
class EncodingSettings(Protocol):
    """The frozen settings of an encoding, which build its module."""

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]

    @property
    def num_position_ids(self) -> int | None:
        """IDs must stay below this number; ``None`` when any ID can be encoded."""
        ...

    def build(self, size: EncodingSize) -> Encoding:
        """A module of the given size; ``SettingError`` when it cannot have that size."""
        ...
