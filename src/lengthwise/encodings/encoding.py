"""The contract of an encoding: how position IDs, and nothing else, enter the decoder."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Real
from torch import Tensor, nn

from lengthwise.core.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingSize:
    """What an encoding has to fit: the width of the decoder and of one attention head."""

    d_model: int
    num_heads: int
    d_head: int


HOOKS = ("embed", "rotate", "bias", "scores", "adjust")


class Encoding(nn.Module):
    """The identity; a subclass overrides a hook and computes it from the IDs on every call.

    ``has_bias``: ``bias`` is added to the scores, and attention stays fused. ``has_scores``: the encoding computes or
    changes the scores themselves (``scores``, ``adjust``), which are then held in full, one chunk of queries at a time.
    """

    has_bias: ClassVar[bool] = False
    has_scores: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a hook that nobody would ask."""
        super().__init_subclass__(**kwargs)
        for hook, flag in (("bias", "has_bias"), ("scores", "has_scores"), ("adjust", "has_scores")):
            if getattr(cls, hook) is not getattr(Encoding, hook) and not getattr(cls, flag):
                raise SettingError(f"{cls.__name__} has a {hook} that is never asked for; add {flag} = True to it")

    @property
    def reads_ids(self) -> bool:
        """Whether any hook is overridden: the identity reads no IDs."""
        return any(getattr(type(self), hook) is not getattr(Encoding, hook) for hook in HOOKS)

    def embed(
        self, x: Float[Tensor, "batch seq d_model"], position_ids: Real[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq d_model"]:
        """Token embeddings with the positions added."""
        return x

    def rotate(
        self, x: Float[Tensor, "batch heads seq d_head"], position_ids: Real[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch heads seq d_head"]:
        """Queries or keys with the positions in them."""
        return x

    def bias(
        self, query_ids: Real[Tensor, "batch query"], key_ids: Real[Tensor, "batch key"]
    ) -> Float[Tensor, "#batch heads query key"]:
        """What is added to the attention scores, for one chunk of queries; only where ``has_bias``."""
        raise NotImplementedError(f"{type(self).__name__} declares no bias")

    def scores(
        self,
        query: Float[Tensor, "batch heads query d_head"],
        key: Float[Tensor, "batch heads key d_head"],
        query_ids: Real[Tensor, "batch query"],
        key_ids: Real[Tensor, "batch key"],
    ) -> Float[Tensor, "batch heads query key"]:
        """Unscaled scores of a chunk of queries, both sides as ``rotate`` left them; only where ``has_scores``.

        The last of the keys is the last query's own token: query i of n sees all but the last n - 1 - i keys.
        """
        return query @ key.mT

    def adjust(
        self,
        scores: Float[Tensor, "batch heads query key"],
        query_ids: Real[Tensor, "batch query"],
        key_ids: Real[Tensor, "batch key"],
        visible: Bool[Tensor, "query key"],
    ) -> Float[Tensor, "batch heads query key"]:
        """The scaled scores, changed before the softmax; what is not ``visible`` must not be read. ``has_scores``."""
        return scores


@runtime_checkable
class EncodingSettings(Protocol):
    """The frozen settings of an encoding, which build its module.

    A class that inherits from this one has to say its name and what is not as below.
    ``real_valued``: IDs may be real numbers. ``shift_invariant``: adding one number to all IDs changes nothing, as the
    paper claims. ``reads_order``: beside the IDs, scores depend on the order of the tokens.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    real_valued: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = False
    reads_order: ClassVar[bool] = False

    @property
    def num_position_ids(self) -> int | None:
        """IDs must stay below this number; ``None`` when any ID can be encoded."""
        return None

    def build(self, size: EncodingSize) -> Encoding:
        """A module of the given size; ``SettingError`` when it cannot have that size."""
        ...
