"""Causal `transformers` language model, with the interface that an influence study needs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from lengthwise.core.checkpoint import weights_digest
from lengthwise.core.devices import forward_token_budget
from lengthwise.hf.compatibility import check_compatibility, has_causal_mask_table, longest_context, rounding_error
from lengthwise.hf.model_inputs import additive_mask, causal_mask
from lengthwise.hf.model_parts import ATTENTIONS_WITH_MASK, device_of

# Number of queries per packed sequence. A larger number copies the keys less often, but masks more keys of other
# queries. benchmarks/influence_speed.py measures the best value.
PACK_SIZE = 8


class ReadOnlyLayer(DynamicLayer):
    """Cache layer with fixed keys and values, so that a call does not add its tokens to the cache."""

    @classmethod
    def from_layer(cls, layer: Any, num_tokens: int) -> "ReadOnlyLayer":
        """Return a layer with the keys and values of the first ``num_tokens`` tokens of another layer."""
        fixed = cls()
        fixed.lazy_initialization(layer.keys, layer.values)
        fixed.keys, fixed.values = (layer.keys[..., :num_tokens, :], layer.values[..., :num_tokens, :])
        return fixed

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return the stored keys and values, repeated for every row, followed by the new keys and values."""
        keys, values, batch = self.keys, self.values, len(key_states)
        assert keys is not None
        assert values is not None
        keys, values = keys.expand(batch, -1, -1, -1), values.expand(batch, -1, -1, -1)
        return torch.cat([keys, key_states], dim=-2), torch.cat([values, value_states], dim=-2)


class CausalLM:
    """Causal `transformers` model for inference, on the model's current device and in its current precision.

    If IDs are not consecutive, calls pass a mask built from token indexes. Without a mask, `transformers` treats a gap
    as the start of another packed text and hides the earlier tokens. Raises ``ModelError`` for an unsupported model.
    """

    def __init__(self, model: PreTrainedModel, name: str | None = None) -> None:
        if model.config._attn_implementation not in ATTENTIONS_WITH_MASK:
            model.set_attn_implementation("sdpa")
        self.model = model.eval()
        self.name = name if name is not None else str(model.config.name_or_path or model.config.model_type)
        config = model.config.get_text_config()
        self.vocabulary_size = int(config.vocab_size)
        self.num_positions = longest_context(config)
        # The training data of the model are unknown.
        self.trained_distance: int | float | None = None
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        self.weights_digest = weights_digest(model.state_dict())
        num_heads = getattr(config, "num_attention_heads", 1)
        self.forward_tokens = forward_token_budget(device_of(model), int(config.hidden_size), num_heads)
        self.pack_size = 1 if has_causal_mask_table(model) else PACK_SIZE
        check_compatibility(self, model)

    def assign_ids(self, tokens: Int[Tensor, " seq"]) -> Int[Tensor, " seq"]:
        """Return the token indexes as the position IDs of all tokens of a window."""
        return torch.arange(len(tokens))

    @torch.no_grad()
    def log_probs(
        self, tokens: Int[Tensor, "batch seq"], position_ids: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch vocab"]:
        """Return the log-probabilities (nats) of the next token of each sequence, computed independently."""
        last_index = torch.tensor([tokens.shape[1] - 1])
        logits = self._logits(tokens, position_ids, self._causal_mask(position_ids), logit_indexes=last_index)
        return logits[:, 0].float().log_softmax(dim=-1)

    @torch.no_grad()
    def losses(
        self, tokens: Int[Tensor, "batch seq"], position_ids: Int[Tensor, "batch seq"], targets: Int[Tensor, "batch t"]
    ) -> Float[Tensor, "batch t"]:
        """Return the losses (nats) of ``targets``, the tokens that follow the last ``t`` tokens of each sequence."""
        seq = tokens.shape[1]
        indexes = torch.arange(seq - targets.shape[1], seq)
        logits = self._logits(tokens, position_ids, self._causal_mask(position_ids), logit_indexes=indexes).float()
        labels = targets.to(logits.device).flatten()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels, reduction="none").view(targets.shape)

    @torch.no_grad()
    def plain_log_probs(
        self, tokens: Int[Tensor, " seq"], mask: Bool[Tensor, "seq seq"] | None = None
    ) -> Float[Tensor, " vocab"]:
        """Return the log-probabilities (nats) of the next token, from one forward pass without a cache.

        ``mask`` (query, key) is True where the query attends to the key. With a mask, position IDs count from 0.
        """
        device = device_of(self.model)
        if mask is None:
            logits = self.model(input_ids=tokens[None].to(device), use_cache=False).logits
        else:
            position_ids, last_index = self.assign_ids(tokens)[None], torch.tensor([len(tokens) - 1])
            score_mask = additive_mask(mask[None, None].to(device), self.model.dtype)
            logits = self._logits(tokens[None], position_ids, score_mask, logit_indexes=last_index)
        return logits[0, -1].float().log_softmax(dim=-1)

    def rounding_tolerance(self, tokens: Int[Tensor, " seq"]) -> float:
        """Estimate the rounding error (nats) of this model's log-probabilities."""
        return rounding_error(self.model, lambda: self.plain_log_probs(tokens))

    @torch.no_grad()
    def prefill(self, tokens: Int[Tensor, " seq"], position_ids: Int[Tensor, " seq"], num_prefix: int) -> DynamicCache:
        """Return the keys and values of the first ``num_prefix`` tokens.

        The model reads all tokens, because some rotary angles (longrope, dynamic) depend on the largest ID of a call.
        """
        cache = DynamicCache()
        if num_prefix == 0:
            return cache
        mask, last_index = self._causal_mask(position_ids[None]), torch.tensor([len(tokens) - 1])
        self._logits(tokens[None], position_ids[None], mask, logit_indexes=last_index, cache=cache)
        cache.layers = [ReadOnlyLayer.from_layer(layer, num_prefix) for layer in cache.layers]
        return cache

    @torch.no_grad()
    def log_probs_with_prefix(
        self, states: DynamicCache, tokens: Int[Tensor, "batch seq"], position_ids: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch vocab"]:
        """Return the next-token log-probabilities (nats) of sequences ``tokens`` that continue the cached tokens."""
        seq = tokens.shape[1]
        mask = self._build_causal_mask(states.get_seq_length(), seq)
        logits = self._logits(tokens, position_ids, mask, logit_indexes=torch.tensor([seq - 1]), cache=states)
        return logits[:, -1].float().log_softmax(dim=-1)

    @torch.no_grad()
    def log_probs_with_mask(
        self,
        states: DynamicCache,
        near_tokens: Int[Tensor, " near"],
        position_ids: Int[Tensor, " near"],
        visibility_masks: Bool[Tensor, "batch states"],
    ) -> Float[Tensor, "batch vocab"]:
        """Return the log-probabilities (nats) of the token after ``near_tokens``, for each row of ``visibility_masks``.

        ``states`` contains the keys and values of the earlier tokens. The near tokens attend only to the states where
        a mask is True. One sequence packs several copies of the near tokens, one per mask. The copies
        share the keys of the states and do not attend to each other.
        """
        seq, num_packs = len(near_tokens), -(-len(visibility_masks) // self.pack_size)
        num_copies = -(-len(visibility_masks) // num_packs)
        # Repeat the last row to fill the last pack.
        rows = torch.arange(num_packs * num_copies).clamp(max=len(visibility_masks) - 1)
        visible_by_copy = visibility_masks[rows].view(num_packs, num_copies, -1)
        near_mask = torch.block_diag(*[torch.ones(seq, seq, dtype=torch.bool).tril()] * num_copies)
        mask = torch.cat([visible_by_copy.repeat_interleave(seq, dim=1), near_mask.expand(num_packs, -1, -1)], dim=2)
        logits = self._logits(
            near_tokens.repeat(num_copies).expand(num_packs, -1),
            position_ids.repeat(num_copies).expand(num_packs, -1),
            additive_mask(mask[:, None], self.model.dtype).to(device_of(self.model)),
            logit_indexes=torch.arange(seq - 1, num_copies * seq, seq),
            cache=states,
        )
        return logits.flatten(0, 1)[: len(visibility_masks)].float().log_softmax(dim=-1)

    def gate_gradient(
        self,
        states: DynamicCache,
        near_tokens: Int[Tensor, " near"],
        position_ids: Int[Tensor, " near"],
        log_gates: Float[Tensor, " states"],
        objective: Callable[[Float[Tensor, " vocab"]], Float[Tensor, ""]],
    ) -> Float[Tensor, " states"]:
        """Return the gradient of ``objective`` with respect to ``log_gates``.

        ``objective`` maps next-token log-probabilities to a number. Every layer adds ``log_gates`` to the attention
        scores of the near tokens on each state.
        """
        gates = log_gates.to(device_of(self.model)).requires_grad_()
        last_index = torch.tensor([len(near_tokens) - 1])
        with torch.enable_grad():
            mask = self._build_causal_mask(len(log_gates), len(near_tokens))
            mask = mask + torch.nn.functional.pad(gates, (0, len(near_tokens))).to(mask.dtype)
            logits = self._logits(near_tokens[None], position_ids[None], mask, logit_indexes=last_index, cache=states)
            objective_value = objective(logits[0, 0].float().log_softmax(dim=-1))
            return torch.autograd.grad(objective_value, gates)[0]

    @torch.no_grad()
    def attention_weights(
        self, states: DynamicCache, near_tokens: Int[Tensor, " near"], position_ids: Int[Tensor, " near"]
    ) -> Float[Tensor, " states"]:
        """Return the attention weights of the last near token on the states, averaged over layers and heads."""
        num_states, last = states.get_seq_length(), torch.tensor([len(near_tokens) - 1])
        mask = self._build_causal_mask(num_states, len(near_tokens))
        with self._eager_attention():
            output = self._forward(
                near_tokens[None], position_ids[None], mask, logit_indexes=last, cache=states, output_attentions=True
            )
        weights = torch.stack([layer[0, :, -1, :num_states].float().mean(dim=0) for layer in output.attentions])
        return weights.mean(dim=0)

    @contextmanager
    def _eager_attention(self) -> Iterator[None]:
        # Fused kernels do not return attention weights.
        previous_attention = self.model.config._attn_implementation
        self.model.set_attn_implementation("eager")
        try:
            yield
        finally:
            self.model.set_attn_implementation(previous_attention)

    def _causal_mask(self, position_ids: Int[Tensor, "batch seq"]) -> Float[Tensor, "1 1 seq seq"] | None:
        # Consecutive IDs need no mask. Fused attention is then faster, because it skips later keys.
        if bool((position_ids.diff() == 1).all()):
            return None
        return self._build_causal_mask(0, position_ids.shape[1])

    def _build_causal_mask(self, num_states: int, num_queries: int) -> Float[Tensor, "1 1 query key"]:
        is_token = torch.ones(1, num_states + num_queries, dtype=torch.bool)
        return causal_mask(is_token, num_cached=num_states, dtype=self.model.dtype).to(device_of(self.model))

    def _logits(self, *args: Any, **kwargs: Any) -> Float[Tensor, "batch index vocab"]:
        logits: Tensor = self._forward(*args, **kwargs).logits
        return logits

    def _forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        position_ids: Int[Tensor, "batch seq"],
        mask: Float[Tensor, "#batch 1 seq key"] | None,
        *,
        logit_indexes: Int[Tensor, " index"],
        cache: DynamicCache | None = None,
        **kwargs: Any,
    ) -> Any:
        device = device_of(self.model)
        return self.model(
            input_ids=tokens.to(device),
            position_ids=position_ids.to(device),
            attention_mask=None if mask is None else mask.expand(len(tokens), -1, -1, -1),
            past_key_values=cache,
            use_cache=cache is not None,
            logits_to_keep=logit_indexes.to(device),
            **kwargs,
        )
