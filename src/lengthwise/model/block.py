"""Block of the decoder: attention, then an MLP, each after a normalization."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Real
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, rms_norm

from lengthwise.encodings.multi_level import MultiLevelEncoding
from lengthwise.model.attention import (
    attend,
    attend_with_scores,
    future_mask,
    make_weight_function,
    mix_in_uniform_attention,
    softmax,
)
from lengthwise.model.attention_scores import NO_HOOKS, AttentionHooks, LogLengthScale
from lengthwise.model.cache import ExtendLayer
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.model.sequence_groups import SequenceGroup, join_tokens, select_queries, split_queries, split_tokens


class _RMSNorm(torch.autograd.Function):
    """``y = x * r * weight`` with ``r = 1 / sqrt(mean(x^2) + eps)``; the backward pass is one fused call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse_rms = (torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / x.shape[-1] + eps).rsqrt()
        ctx.save_for_backward(x, weight, inverse_rms)
        return rms_norm(x, (x.shape[-1],), weight, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """Call LayerNorm's fused backward pass with mean 0, then undo its correction for the mean."""
        x, weight, inverse_rms = ctx.saved_tensors
        gradient, width = gradients[0].contiguous(), x.shape[-1]
        d_x, d_weight, _ = torch.ops.aten.native_layer_norm_backward(
            gradient, x, [width], torch.zeros_like(inverse_rms), inverse_rms, weight, None, [True, True, False]
        )
        mean_correction = (gradient @ weight)[..., None] * (inverse_rms / width)
        return d_x.add_(mean_correction), d_weight, None


class RMSNorm(nn.Module):
    """Root-mean-square normalization over the last axis, in float32 (Zhang and Sennrich 2019, arXiv 1910.07467)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = torch.finfo(torch.float32).eps

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Scale ``x`` to norm ``sqrt(width)``, and multiply it by the weights."""
        x = x.float().contiguous()
        if x.device.type != "cpu":
            # A GPU computes the gradient of the weights in less time if it is not a part of the fused backward pass.
            return rms_norm(x, (x.shape[-1],), None, self.eps) * self.weight
        if not torch.is_grad_enabled():
            # One token takes less time without the tensors that only the backward pass needs.
            return rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        normalized: Tensor = _RMSNorm.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]
        return normalized


class TransformerBlock(nn.Module):
    """Attention with normalized queries and keys, then an MLP; the initial outputs of both are zero."""

    def __init__(self, settings: DecoderSettings, layer: int) -> None:
        super().__init__()
        d_model, self.d_head = settings.d_model, settings.d_model // settings.num_heads
        self.settings = settings
        self.layer = layer
        self.attention_norm = RMSNorm(d_model)
        self.project = nn.Linear(d_model, 3 * d_model, bias=False)
        self.query_norm = RMSNorm(self.d_head)
        self.key_norm = RMSNorm(self.d_head)
        self.log_temperature = nn.Parameter(torch.full((settings.num_heads, 1, 1), math.log(settings.temperature)))
        self.length_scale = LogLengthScale(settings.num_heads) if settings.length_scaling == "learned" else None
        self.weight_function = make_weight_function(settings.weights, k=settings.top_k, alpha=settings.entmax_alpha)
        self.mix_heads = nn.Linear(d_model, d_model, bias=False)
        self.mlp_norm = RMSNorm(d_model)
        self.widen = nn.Linear(d_model, settings.mlp_factor * d_model)
        self.narrow = nn.Linear(settings.mlp_factor * d_model, d_model)
        for output in (self.mix_heads, self.narrow):
            nn.init.zeros_(output.weight)
        nn.init.zeros_(self.narrow.bias)

    def forward(
        self,
        x: Float[Tensor, "token d_model"],
        groups: Sequence[SequenceGroup],
        encoding: MultiLevelEncoding,
        extend: ExtendLayer | None,
        hooks: AttentionHooks,
    ) -> tuple[Float[Tensor, "query d_model"], Tensor, Tensor]:
        """Return the hidden states of the groups' queries, and the keys and values of the last group.

        ``extend`` adds the keys and values of earlier tokens; it requires a single group.
        """
        normalized, d_model, weight = self.attention_norm(x), x.shape[1], self.project.weight
        hidden_parts = split_tokens(normalized, groups)
        if not any(group.query_start for group in groups):
            projected = [self._split_heads(part) for part in split_tokens(self.project(normalized), groups)]
        else:
            queries = split_queries(linear(select_queries(normalized, groups), weight[:d_model]), groups)
            keys_values = split_tokens(linear(normalized, weight[d_model:]), groups)
            pairs = zip(queries, keys_values, strict=True)
            projected = [self._split_heads(query) + self._split_heads(pair) for query, pair in pairs]
        attended = []
        for group, hidden, (query, new_key, new_value) in zip(groups, hidden_parts, projected, strict=True):
            heads, key, value = self._mix_tokens(x, group, hidden, query, new_key, new_value, encoding, extend, hooks)
            attended.append(heads.transpose(1, 2).flatten(2))
        x = select_queries(x, groups) + self.mix_heads(join_tokens(attended))
        return x + self.narrow(gelu(self.widen(self.mlp_norm(x)))), key, value

    def _split_heads(self, x: Float[Tensor, "batch seq width"]) -> tuple[Tensor, ...]:
        """Return the parts of the last axis (queries, keys, values), each of shape (batch, heads, seq, d_head)."""
        parts = x.reshape(*x.shape[:2], -1, self.settings.num_heads, self.d_head)
        return parts.permute(2, 0, 3, 1, 4).unbind()

    def _mix_tokens(
        self,
        x: Float[Tensor, "token d_model"],
        group: SequenceGroup,
        hidden: Float[Tensor, "batch seq d_model"],
        query: Float[Tensor, "batch heads query d_head"],
        key: Float[Tensor, "batch heads new_key d_head"],
        value: Float[Tensor, "batch heads new_key d_head"],
        encoding: MultiLevelEncoding,
        extend: ExtendLayer | None,
        hooks: AttentionHooks,
    ) -> tuple[Float[Tensor, "batch heads query d_head"], Tensor, Tensor]:
        """Return the output of attention in one group, and the keys and values of all its tokens."""
        num_queries, num_keys, new_ids = query.shape[2], group.key_ids.shape[2], group.position_ids
        scales = self.log_temperature.exp() * self.score_length_factor(num_queries, num_keys, hooks, query.device)
        unrotated = query, key = self.query_norm(query), self.key_norm(key)
        query, key = encoding.rotate_queries_and_keys(query, key, new_ids)
        if hooks.near is not None:
            near_inputs = (x.view(hidden.shape), *unrotated, query, key, value, scales)
            return hooks.near.attend(*near_inputs, encoding, group.key_ids), key, value
        query = query * scales
        if encoding.has_token_features:
            token_features = encoding.token_features(hidden, new_ids, self.layer)
            query = encoding.append_features(
                query, [values[:, :, values.shape[2] - num_queries :] for values in token_features]
            )
            key = encoding.append_features(key, token_features)
        if extend is not None:
            key, value = extend(key, value)
        ids = new_ids[:, :, group.seq - num_queries :], group.key_ids
        heads = self.attend(query, key, value, ids, encoding, hooks)
        if self.training and self.settings.dilution:
            heads = mix_in_uniform_attention(heads, value, self.settings.dilution, group.places)
        return heads, key, value

    def attend(
        self,
        query: Float[Tensor, "batch heads query d_extended"],
        key: Float[Tensor, "batch heads key d_extended"],
        value: Float[Tensor, "batch heads key d_head"],
        ids: tuple[Real[Tensor, "level batch query"], Real[Tensor, "level batch key"]],
        encoding: MultiLevelEncoding,
        hooks: AttentionHooks,
    ) -> Float[Tensor, "batch heads query d_head"]:
        """Return the output of attention for queries that are multiplied by the temperature and the length factor.

        ``ids`` has the IDs of the queries and those of the keys.
        """
        if hooks is NO_HOOKS and not (encoding.has_bias or encoding.has_scores or self.weight_function):
            return attend(query.to(value.dtype), key.to(value.dtype), value)
        query_ids, key_ids = ids
        has_bias = encoding.has_bias or hooks.score_bias is not None

        def bias(start: int, stop: int, num_keys: int) -> Tensor:
            chunk_ids = query_ids[:, :, start:stop], key_ids[:, :, :num_keys]
            if hooks.score_bias is None:
                return encoding.bias(*chunk_ids)
            score_bias = hooks.score_bias[:, None, start:stop, :num_keys]
            return encoding.bias(*chunk_ids) + score_bias if encoding.has_bias else score_bias

        def scores(start: int, stop: int, num_keys: int, visible: Tensor) -> Tensor:
            chunk_ids = query_ids[:, :, start:stop], key_ids[:, :, :num_keys]
            chunk_scores = encoding.scores(query[:, :, start:stop], key[:, :, :num_keys], *chunk_ids, visible)
            return chunk_scores + bias(start, stop, num_keys) if has_bias else chunk_scores

        weight_function, num_queries = self.weight_function or softmax, query.shape[2]
        if hooks.on_weights is not None:
            is_future = future_mask(num_queries, key.shape[2], key.device)
            all_scores = scores(0, num_queries, key.shape[2], ~is_future)
            hooks.on_weights(weight_function(all_scores.masked_fill(is_future, -math.inf)))
        if encoding.has_scores or self.weight_function is not None:
            return attend_with_scores(scores, value, num_queries, weight_function)
        return attend(query.to(value.dtype), key.to(value.dtype), value, bias if has_bias else None)

    def score_length_factor(
        self, num_queries: int, num_keys: int, hooks: AttentionHooks, device: torch.device
    ) -> Float[Tensor, "*batch heads seq 1"] | Float[Tensor, "seq 1"] | float:
        """Return the factor of the last queries' scores for their numbers of visible keys."""
        if self.settings.length_scaling == "none":
            return 1.0
        num_visible = torch.arange(num_keys - num_queries + 1, num_keys + 1, device=device)
        if hooks.visible_counts is not None:
            num_visible = hooks.visible_counts[:, None]
        elif hooks.score_bias is not None:
            num_visible = (num_visible - hooks.score_bias.isneginf().tril(num_keys - num_queries).sum(dim=-1))[:, None]
        log_num_keys = (num_visible + 1).log()[..., None]
        return log_num_keys if self.length_scale is None else self.length_scale(log_num_keys)
