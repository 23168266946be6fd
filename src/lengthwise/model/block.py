"""Block of the decoder: attention, then an MLP."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from einops import rearrange
from jaxtyping import Float, Real
from torch import Tensor, nn

from lengthwise.encodings.levels import LevelEncoding
from lengthwise.model.attention import attend, attend_with_scores, dilute_attention
from lengthwise.model.attention_scores import NO_HOOKS, AttentionHooks, LengthScale, ScoreChunks
from lengthwise.model.attention_weights import make_weight_function, softmax
from lengthwise.model.cache import ExtendLayer
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.model.linear import Linear, linear
from lengthwise.model.near_attention import LayerInputs
from lengthwise.model.rms_norm import RMSNorm
from lengthwise.model.token_groups import TokenGroup, join_tokens, select_queries, split_queries, split_tokens


class Block(nn.Module):
    """Attention with normalized queries and keys, then an MLP; the initial outputs of both are zero."""

    def __init__(self, settings: DecoderSettings, layer: int) -> None:
        super().__init__()
        d_model, d_head = settings.d_model, settings.d_model // settings.num_heads
        self.settings = settings
        self.layer = layer
        self.attention_norm = RMSNorm(d_model)
        self.project = Linear(d_model, 3 * d_model, bias=False)
        self.query_norm = RMSNorm(d_head)
        self.key_norm = RMSNorm(d_head)
        self.log_temperature = nn.Parameter(torch.full((settings.num_heads, 1, 1), math.log(settings.temperature)))
        self.length_scale = LengthScale(settings.num_heads) if settings.length_scaling == "learned" else None
        self.weight_function = make_weight_function(settings.weights, k=settings.top_k, alpha=settings.entmax_alpha)
        self.mix_heads = Linear(d_model, d_model, bias=False)
        self.mlp_norm = RMSNorm(d_model)
        self.widen = Linear(d_model, settings.mlp_factor * d_model)
        self.narrow = Linear(settings.mlp_factor * d_model, d_model)
        for output in (self.mix_heads, self.narrow):
            nn.init.zeros_(output.weight)
        nn.init.zeros_(self.narrow.bias)

    def forward(
        self,
        x: Float[Tensor, "token d_model"],
        groups: Sequence[TokenGroup],
        encoding: LevelEncoding,
        extend: ExtendLayer | None,
        hooks: AttentionHooks,
    ) -> tuple[Float[Tensor, "query d_model"], Tensor, Tensor]:
        """Return the hidden states of the groups' queries, and the keys and values of the last group.

        ``extend`` adds the keys and values of earlier tokens; it requires a single group.
        """
        normalized, d_model, weight = self.attention_norm(x), x.shape[1], self.project.weight
        split_heads = partial(rearrange, pattern="b s (part h d) -> part b h s d", h=self.settings.num_heads)
        if not any(group.query_start for group in groups):
            projected = [split_heads(part, part=3) for part in split_tokens(self.project(normalized), groups)]
        else:
            queries = linear(select_queries(normalized, groups), weight[:d_model])
            keys_values = linear(normalized, weight[d_model:])
            pairs = zip(split_queries(queries, groups), split_tokens(keys_values, groups), strict=True)
            projected = [(*split_heads(query, part=1), *split_heads(pair, part=2)) for query, pair in pairs]
        attended = []
        hidden_parts = split_tokens(normalized, groups)
        for group, hidden, (raw_query, raw_key, new_value) in zip(groups, hidden_parts, projected, strict=True):
            num_queries, num_keys = raw_query.shape[2], group.position_ids.shape[2]
            scales = self.log_temperature.exp() * self.length_factor(num_queries, num_keys, hooks, x.device)
            known_scales = scales if hooks.near is None else None
            query, key = self._rotate(raw_query, raw_key, hidden, group, encoding, known_scales)
            value = new_value
            if extend is not None:
                key, value = extend(key, value)
            if hooks.near is None:
                ids = group.position_ids[:, :, num_keys - num_queries :], group.position_ids
                heads = self.attend(query, key, value, ids, encoding, hooks)
                if self.training and self.settings.dilution:
                    heads = dilute_attention(heads, value, self.settings.dilution, group.places)
            else:
                unrotated = self.query_norm(raw_query), self.key_norm(raw_key)
                inputs = LayerInputs(split_tokens(x, groups)[0], *unrotated, query, key, value, scales)
                heads = hooks.near.attend(inputs, encoding, group.position_ids)
            attended.append(rearrange(heads, "b h s d -> b s (h d)"))
        x = select_queries(x, groups) + self.mix_heads(join_tokens(attended))
        return x + self.narrow(nn.functional.gelu(self.widen(self.mlp_norm(x)))), key, value

    def _rotate(
        self,
        query: Tensor,
        key: Tensor,
        hidden: Tensor,
        group: TokenGroup,
        encoding: LevelEncoding,
        scales: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return normalized, rotated, annotated queries, multiplied by ``scales``, and keys.

        Both have shape (batch, heads, seq, d_extended); without annotations, the last axis is ``d_head``.
        """
        new_ids = group.position_ids[:, :, group.position_ids.shape[2] - group.seq :]
        # On a GPU, queries are multiplied together with the weights of their norm, so they are read only once.
        norm_scales = scales if query.device.type != "cpu" else None
        query, key = encoding.rotate_both(self.query_norm(query, norm_scales), self.key_norm(key), new_ids)
        if norm_scales is None and scales is not None:
            query = query * scales
        if not encoding.has_annotations:
            return query, key
        annotations = encoding.annotate(hidden, new_ids, self.layer)
        query_annotations = [values[:, :, values.shape[2] - query.shape[2] :] for values in annotations]
        return encoding.append(query, query_annotations), encoding.append(key, annotations)

    def attend(
        self,
        query: Float[Tensor, "batch heads query d_extended"],
        key: Float[Tensor, "batch heads key d_extended"],
        value: Float[Tensor, "batch heads key d_head"],
        ids: tuple[Real[Tensor, "level batch query"], Real[Tensor, "level batch key"]],
        encoding: LevelEncoding,
        hooks: AttentionHooks,
    ) -> Float[Tensor, "batch heads query d_head"]:
        """Return the output of attention for queries that are multiplied by the temperature and the length factor.

        ``ids`` has the IDs of the queries and those of the keys.
        """
        if hooks is NO_HOOKS and not (encoding.has_bias or encoding.has_scores or self.weight_function):
            return attend(query.to(value.dtype), key.to(value.dtype), value)
        chunks = ScoreChunks(encoding, query, key, *ids, hooks.score_bias)
        weight_function = softmax if self.weight_function is None else self.weight_function
        if hooks.on_weights is not None:
            hooks.on_weights(chunks.weights(weight_function))
        if encoding.has_scores or self.weight_function is not None:
            return attend_with_scores(chunks.scores, value, query.shape[2], weight_function)
        bias = chunks.bias if chunks.has_bias else None
        return attend(query.to(value.dtype), key.to(value.dtype), value, bias)

    def length_factor(
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
