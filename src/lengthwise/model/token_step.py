"""Forward pass of one new token per sequence, for cached decoding."""

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor
from torch.nn.functional import embedding, gelu, linear, rms_norm

from lengthwise.model.attention import dilute_attention
from lengthwise.model.attention_scores import NO_HOOKS, AttentionHooks
from lengthwise.model.block import Block
from lengthwise.model.cache import Cache
from lengthwise.model.decoder import Decoder
from lengthwise.model.position_heads import NextIDs, Prompt


class TokenStep:
    """Pass of a decoder for one new token per sequence, without gradients.

    The results equal those of the decoder up to rounding, in less time: constants of the weights are computed once, and
    queries and keys are normalized together. A change of the weights after construction has no effect on these.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.passes = [(block, _query_key_weight(block)) for block in decoder.passes]
        heads = decoder.position_heads() if decoder.predicts_ids else []
        self.heads = [(head, head.token_terms(decoder.embedding[None])[0]) for head in heads]

    def __call__(
        self,
        tokens: Int[Tensor, "batch 1"],
        position_ids: Real[Tensor, "level batch 1"],
        cache: Cache,
        hooks: AttentionHooks = NO_HOOKS,
    ) -> tuple[Float[Tensor, "batch 1 d_model"], Cache]:
        """Return the hidden states of ``tokens``, and the extended cache; see ``Decoder.forward``."""
        decoder, settings = self.decoder, self.decoder.settings
        embedded, new_cache = decoder.embed(tokens, decoder.check_ids(tokens, position_ids), cache)
        x = embedded[:, 0]
        for index, (block, norm_weight) in enumerate(self.passes):
            if decoder.starts_loop(index):
                x = x + embedded[:, 0]
            normalized = rms_norm(x.float(), x.shape[1:], block.attention_norm.weight, block.attention_norm.eps)
            heads = linear(normalized, block.project.weight).view(len(x), 3 * settings.num_heads, 1, -1)
            query_key, new_value = heads.tensor_split((2 * settings.num_heads,), dim=1)
            query_key = rms_norm(query_key.float(), query_key.shape[-1:], None, block.query_norm.eps) * norm_weight
            query, new_key = decoder.encoding.rotate(query_key, position_ids).chunk(2, dim=1)
            if index == 0 or settings.length_scaling == "learned":
                num_keys = new_cache.position_ids.shape[2]
                length_factor = block.length_factor(1, num_keys, hooks, x.device)
            query = query * length_factor
            if decoder.encoding.has_annotations:
                annotations = decoder.encoding.annotate(normalized[:, None], position_ids, block.layer)
                query, new_key = (decoder.encoding.append(part, annotations) for part in (query, new_key))
            key, value = cache.extend_layer(index, new_key, new_value)
            new_cache.keys.append(key)
            new_cache.values.append(value)
            ids = position_ids, new_cache.position_ids
            attended = block.attend(query, key, value, ids, decoder.encoding, hooks)
            if block.training and settings.dilution:
                attended = dilute_attention(attended, value, settings.dilution)
            x = x + linear(attended.flatten(1), block.mix_heads.weight)
            normalized = rms_norm(x.float(), x.shape[1:], block.mlp_norm.weight, block.mlp_norm.eps)
            wide = gelu(linear(normalized, block.widen.weight, block.widen.bias))
            x = x + linear(wide, block.narrow.weight, block.narrow.bias)
        return decoder.norm(x)[:, None], new_cache

    def next_ids(
        self,
        hidden: Float[Tensor, "batch 1 d_model"],
        current_ids: Int[Tensor, "level batch 1"],
        next_tokens: Int[Tensor, "batch 1"],
        prompts: list[Prompt],
    ) -> list[NextIDs]:
        """Return the distribution over the ID of each next token on each level; see ``Decoder.next_ids``."""
        levels = zip(self.heads, current_ids, prompts, strict=True)
        return [
            head.predict(hidden, ids, embedding(next_tokens, terms), prompt) for (head, terms), ids, prompt in levels
        ]


def _query_key_weight(block: Block) -> Float[Tensor, "query_key_heads 1 d_head"]:
    """Return the weights of the norms of all heads' queries and keys; those of the queries include the temperature."""
    query_weight = block.query_norm.weight * block.log_temperature.exp()
    return torch.cat([query_weight, block.key_norm.weight.expand(query_weight.shape)])
