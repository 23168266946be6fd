"""Interface of encodings, which add position IDs to the computations of the decoder, and biases by ID distance."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Real
from torch import Tensor, nn

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_types


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingSize:
    """Decoder sizes that an encoding needs: decoder width, number of heads, head width and number of blocks."""

    d_model: int
    num_heads: int
    d_head: int
    num_layers: int = 1


# Arguments and results of the hooks.
QueryIDs = Real[Tensor, "batch query"]
KeyIDs = Real[Tensor, "batch key"]
QueryVectors = Float[Tensor, "batch heads query d_head"]
KeyVectors = Float[Tensor, "batch heads key d_head"]
Scores = Float[Tensor, "batch heads query key"]
Bias = Float[Tensor, "#batch heads query key"]
TokenIDs = Real[Tensor, "batch seq"]
IsVisible = Bool[Tensor, "query key"]
HeadVectors = Float[Tensor, "batch heads seq d_head"]
TokenVectors = Float[Tensor, "batch seq d_model"]
TokenFeatures = Float[Tensor, "batch heads seq extra"]
HOOKS = ("embed", "rotate", "token_features", "bias", "scores", "adjust_scores")
# Class variables that must be True if a class overrides a hook.
FLAGS = {
    "token_features": "has_token_features",
    "bias": "has_bias",
    "scores": "has_scores",
    "adjust_scores": "has_scores",
}


class Encoding(nn.Module):
    """Base class of encodings, without any effect on the decoder.

    A subclass overrides one or more of the hooks ``embed``, ``rotate``, ``token_features``, ``bias``, ``scores`` and
    ``adjust_scores``. ``has_bias``: attention adds ``bias`` to the scores and can use the fused kernel.
    ``has_scores``: the encoding computes or changes the scores (``scores``, ``adjust_scores``), so attention stores
    them, one chunk of queries at a time. ``has_token_features``: ``scores`` needs values that ``token_features``
    computes from the hidden states of each token. ``is_relative``: the score of a query and a key depends on IDs only
    through the difference of their two IDs, so evaluation can leave out keys that are provably too far.
    """

    is_relative: ClassVar[bool] = False
    has_token_features: ClassVar[bool] = False
    has_bias: ClassVar[bool] = False
    has_scores: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise ``SettingError`` if a subclass overrides a hook but does not set the flag of this hook."""
        super().__init_subclass__(**kwargs)
        if "rotate" in vars(cls) and "rotate_queries_and_keys" not in vars(cls):
            # An inherited method could ignore the new rotation.
            cls.rotate_queries_and_keys = Encoding.rotate_queries_and_keys  # type: ignore[method-assign]
        for hook, flag in FLAGS.items():
            if getattr(cls, hook) is not getattr(Encoding, hook) and not getattr(cls, flag):
                raise SettingError(
                    f"{cls.__name__} overrides {hook} but {flag} is False; set {flag} = True in the class"
                )

    @property
    def uses_position_ids(self) -> bool:
        """True if the class overrides any hook; a subclass whose hooks do not use the IDs returns False."""
        return any(getattr(type(self), hook) is not getattr(Encoding, hook) for hook in HOOKS)

    def embed(self, x: TokenVectors, position_ids: TokenIDs) -> TokenVectors:
        """Return the token embeddings ``x`` with position information added."""
        return x

    def rotate(self, x: HeadVectors, position_ids: TokenIDs) -> HeadVectors:
        """Return the queries or keys ``x``, transformed according to their position IDs."""
        return x

    def rotate_queries_and_keys(
        self, query: QueryVectors, key: KeyVectors, key_ids: KeyIDs
    ) -> tuple[QueryVectors, KeyVectors]:
        """Return ``rotate`` of queries and keys; the queries belong to the last tokens of the keys.

        A subclass can override this method to compute the angles of queries and keys only once.
        """
        num_queries, num_keys = query.shape[2], key.shape[2]
        if num_queries == num_keys:
            # Rotate queries and keys together to compute the angles once; for one token, they dominate the time.
            query, key = self.rotate(torch.cat([query, key], dim=1), key_ids).chunk(2, dim=1)
            return query, key
        return self.rotate(query, key_ids[:, num_keys - num_queries :]), self.rotate(key, key_ids)

    def token_features(self, hidden: TokenVectors, position_ids: TokenIDs, layer: int) -> TokenFeatures:
        """Return values of each token, in at least float32; called only if ``has_token_features`` is True.

        ``hidden`` is the normalized input of the attention in block number ``layer``. The values follow the rotated
        components of the token's queries and keys, are cached with the keys, and reach ``scores`` unchanged.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement token_features")

    def bias(self, query_ids: QueryIDs, key_ids: KeyIDs) -> Bias:
        """Return additive attention scores for one chunk of queries; called only if ``has_bias`` is True."""
        raise NotImplementedError(f"{type(self).__name__} does not implement bias")

    def scores(self, query: QueryVectors, key: KeyVectors, query_ids: QueryIDs, key_ids: KeyIDs) -> Scores:
        """Return unscaled scores of one chunk of rotated queries and keys; called only if ``has_scores`` is True.

        With ``has_token_features``, the last components of each query and key are those of ``token_features``. The last
        key and the last query belong to the same token, so query i of n cannot see the last n - 1 - i keys.
        """
        return query @ key.mT

    def adjust_scores(self, scores: Scores, query_ids: QueryIDs, key_ids: KeyIDs, is_visible: IsVisible) -> Scores:
        """Return adjusted attention scores, which must not depend on invisible keys. Requires ``has_scores = True``."""
        return scores


@runtime_checkable
class EncodingSettings(Protocol):
    """Frozen settings of an encoding; the method ``build`` returns the module.

    A subclass must set ``name``, and the other class variables if they differ from these defaults.
    ``real_valued``: IDs may be real numbers. ``shift_invariant``: a constant added to all IDs has no effect
    (according to the paper). ``reads_order``: scores depend on the token order as well as on the IDs.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    real_valued: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = False
    reads_order: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the types of all fields, and then their values."""
        check_types(self)
        self._check()

    def _check(self) -> None:
        """Raise ``SettingError`` for a value out of range."""
        return  # Without a statement, the method of a protocol would be abstract.

    @property
    def num_position_ids(self) -> int | None:
        """Upper limit of the IDs, exclusive; ``None`` if the encoding accepts any ID."""
        return None

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return a module for the given sizes; raise ``SettingError`` for sizes that it does not support."""
        ...


def id_distances(query_ids: QueryIDs, key_ids: KeyIDs) -> Real[Tensor, "batch query key"]:
    """Return the query's ID minus the key's ID; coupled IDs can give a negative distance to a visible key."""
    return query_ids[:, :, None] - key_ids[:, None, :]


def bias_by_distance(
    bias_function: Callable[[Float[Tensor, " pairs"]], Float[Tensor, "heads pairs"]],
    query_ids: QueryIDs,
    key_ids: KeyIDs,
) -> Scores:
    """Return the value of ``bias_function`` at the signed ID distance of every query and key."""
    distance = id_distances(query_ids, key_ids)
    # Integer distances repeat, so a CPU computes each value once. On a GPU, reading the range would synchronize.
    if distance.numel() and not distance.is_floating_point() and distance.device.type == "cpu":
        min_distance, max_distance = (int(bound) for bound in distance.aminmax())
        if max_distance - min_distance < distance.numel():
            bias_table = bias_function(torch.arange(min_distance, max_distance + 1).float())
            return _unflatten_pairs(bias_table.index_select(1, (distance - min_distance).flatten()), distance.shape)
    return _unflatten_pairs(bias_function(distance.flatten().float()), distance.shape)


def _unflatten_pairs(bias: Float[Tensor, "heads pairs"], distance_shape: torch.Size) -> Scores:
    return bias.view(len(bias), *distance_shape).transpose(0, 1)
