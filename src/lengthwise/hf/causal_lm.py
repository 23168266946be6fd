"""Causal `transformers` language models whose influence can be measured."""

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
from lengthwise.hf.compatibility import check_compatibility, longest_context, masks_by_index, rounding_error
from lengthwise.hf.model_inputs import additive_mask, causal_mask
from lengthwise.hf.model_parts import MASK_ATTENTIONS, device_of

# Number of queries in one sequence, which share its keys. More queries copy keys less often, but mask more keys of
# other queries. Measured in benchmarks/influence_speed.py.
PACK_SIZE = 8


class ReadOnlyLayer(DynamicLayer):
    """Keys and values that do not grow, so that the near tokens of a query do not stay in the cache."""

    @classmethod
    def from_layer(cls, layer: Any, num_tokens: int) -> "ReadOnlyLayer":
        """Return the keys and values of the first tokens of a layer."""
        copy = cls()
        copy.lazy_initialization(layer.keys, layer.values)
        copy.keys, copy.values = layer.keys[..., :num_tokens, :], layer.values[..., :num_tokens, :]
        return copy

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return the stored keys and values, the same for every row, followed by the new ones."""
        keys, values, batch = self.keys, self.values, len(key_states)
        assert keys is not None
        assert values is not None
        return (
            torch.cat([keys.expand(batch, -1, -1, -1), key_states], dim=-2),
            torch.cat([values.expand(batch, -1, -1, -1), value_states], dim=-2),
        )


class CausalLM:
    """A `transformers` model for inference, on its own device and in its own precision.

    If IDs jump, calls pass a mask built from token indexes. Without it, `transformers` treats the jump as the start of
    another packed text and hides the tokens before. Raises ``ModelError`` for a model that does not support this.
    """

    def __init__(self, model: PreTrainedModel, name: str | None = None) -> None:
        if model.config._attn_implementation not in MASK_ATTENTIONS:
            model.set_attn_implementation("sdpa")
        self.model = model.eval()
        self.name = name if name is not None else str(model.config.name_or_path or model.config.model_type)
        config = model.config.get_text_config()
        self.vocabulary_size = int(config.vocab_size)
        self.num_positions = longest_context(config)
        # The training data are unknown.
        self.trained_distance: int | float | None = None
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        self.weights_digest = weights_digest(model.state_dict())
        heads = getattr(config, "num_attention_heads", 1)
        self.forward_tokens = forward_token_budget(device_of(model), int(config.hidden_size), heads)
        self.pack_size = 1 if masks_by_index(model) else PACK_SIZE
        check_compatibility(self, model)

    @torch.no_grad()
    def log_probs(
        self, tokens: Int[Tensor, "batch seq"], position_ids: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch vocab"]:
        """Return the log-probabilities (nats) of the token after each sequence, which attends only to itself."""
        keep = torch.tensor([tokens.shape[1] - 1])
        logits = self._logits(tokens, position_ids, self._causal_mask(position_ids), keep=keep)
        return logits[:, 0].float().log_softmax(dim=-1)

    @torch.no_grad()
    def losses(
        self, tokens: Int[Tensor, "batch seq"], position_ids: Int[Tensor, "batch seq"], targets: Int[Tensor, "batch t"]
    ) -> Float[Tensor, "batch t"]:
        """Return the losses (nats) of ``targets``, which are the next tokens at the last ``t`` token indexes."""
        seq = tokens.shape[1]
        keep = torch.arange(seq - targets.shape[1], seq)
        logits = self._logits(tokens, position_ids, self._causal_mask(position_ids), keep=keep).float()
        flat = targets.to(logits.device).flatten()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), flat, reduction="none").view(targets.shape)

    @torch.no_grad()
    def plain_log_probs(
        self, tokens: Int[Tensor, " seq"], mask: Bool[Tensor, "seq seq"] | None = None
    ) -> Float[Tensor, " vocab"]:
        """Return the log-probabilities after the last token from one forward pass without a cache.

        ``mask`` (query, key) is True where a token attends; IDs then count from 0.
        """
        device = device_of(self.model)
        if mask is None:
            logits = self.model(input_ids=tokens[None].to(device), use_cache=False).logits
        else:
            added, keep = additive_mask(mask[None, None].to(device), self.model.dtype), torch.tensor([len(tokens) - 1])
            logits = self._logits(tokens[None], torch.arange(len(tokens))[None], added, keep=keep)
        return logits[0, -1].float().log_softmax(dim=-1)

    def rounding_tolerance(self, tokens: Int[Tensor, " seq"]) -> float:
        """Return the largest difference (nats) that rounding explains, measured with this model."""
        return rounding_error(self.model, lambda: self.plain_log_probs(tokens))

    @torch.no_grad()
    def prefill(self, tokens: Int[Tensor, " seq"], position_ids: Int[Tensor, " seq"], num_read: int) -> DynamicCache:
        """Return the keys and values of the first ``num_read`` tokens.

        All tokens are passed, because some angles (longrope, dynamic) depend on the largest ID of a call.
        """
        cache = DynamicCache()
        if num_read == 0:
            return cache
        mask, keep = self._causal_mask(position_ids[None]), torch.tensor([len(tokens) - 1])
        self._logits(tokens[None], position_ids[None], mask, keep=keep, cache=cache)
        cache.layers = [ReadOnlyLayer.from_layer(layer, num_read) for layer in cache.layers]
        return cache

    @torch.no_grad()
    def log_probs_with_prefix(
        self, states: DynamicCache, tokens: Int[Tensor, "batch seq"], position_ids: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch vocab"]:
        """Return the log-probabilities after sequences that continue the tokens of ``states``."""
        seq = tokens.shape[1]
        mask, keep = self._cached_mask(states.get_seq_length(), seq), torch.tensor([seq - 1])
        logits = self._logits(tokens, position_ids, mask, keep=keep, cache=states)
        return logits[:, -1].float().log_softmax(dim=-1)

    @torch.no_grad()
    def log_probs_with_mask(
        self,
        states: DynamicCache,
        near: Int[Tensor, " near"],
        position_ids: Int[Tensor, " near"],
        visible: Bool[Tensor, "batch read"],
    ) -> Float[Tensor, "batch vocab"]:
        """Return the log-probabilities after the near tokens, for each row of ``visible`` states.

        Several copies of the near tokens form one sequence, in which each attends only to itself. They share one copy
        of the states' keys.
        """
        seq, num_packs = len(near), -(-len(visible) // self.pack_size)
        size = -(-len(visible) // num_packs)
        # The last row fills the last pack.
        rows = visible[torch.arange(num_packs * size).clamp(max=len(visible) - 1)].view(num_packs, size, -1)
        copies = torch.block_diag(*[torch.ones(seq, seq, dtype=torch.bool).tril()] * size)
        mask = torch.cat([rows.repeat_interleave(seq, dim=1), copies.expand(num_packs, -1, -1)], dim=2)
        logits = self._logits(
            near.repeat(size).expand(num_packs, -1),
            position_ids.repeat(size).expand(num_packs, -1),
            additive_mask(mask[:, None], self.model.dtype).to(device_of(self.model)),
            keep=torch.arange(seq - 1, size * seq, seq),
            cache=states,
        )
        return logits.flatten(0, 1)[: len(visible)].float().log_softmax(dim=-1)

    def gate_gradient(
        self,
        states: DynamicCache,
        near: Int[Tensor, " near"],
        position_ids: Int[Tensor, " near"],
        log_gates: Float[Tensor, " read"],
        objective: Callable[[Float[Tensor, " vocab"]], Float[Tensor, ""]],
    ) -> Float[Tensor, " read"]:
        """Return the gradient of ``objective`` with respect to ``log_gates``, added to the scores in every layer."""
        gates = log_gates.to(device_of(self.model)).requires_grad_()
        keep = torch.tensor([len(near) - 1])
        with torch.enable_grad():
            mask = self._cached_mask(len(log_gates), len(near))
            mask = mask + torch.nn.functional.pad(gates, (0, len(near))).to(mask.dtype)
            logits = self._logits(near[None], position_ids[None], mask, keep=keep, cache=states)
            value = objective(logits[0, 0].float().log_softmax(dim=-1))
            return torch.autograd.grad(value, gates)[0]

    @torch.no_grad()
    def attention_weights(
        self, states: DynamicCache, near: Int[Tensor, " near"], position_ids: Int[Tensor, " near"]
    ) -> Float[Tensor, " read"]:
        """Return the attention weights of the last near token on each state, averaged over layers and heads."""
        read = states.get_seq_length()
        mask, keep = self._cached_mask(read, len(near)), torch.tensor([len(near) - 1])
        with self._eager_attention():
            output = self._forward(
                near[None], position_ids[None], mask, keep=keep, cache=states, output_attentions=True
            )
        return torch.stack([layer[0, :, -1, :read].float().mean(dim=0) for layer in output.attentions]).mean(dim=0)

    @contextmanager
    def _eager_attention(self) -> Iterator[None]:
        # Fused kernels do not return their weights.
        attention = self.model.config._attn_implementation
        self.model.set_attn_implementation("eager")
        try:
            yield
        finally:
            self.model.set_attn_implementation(attention)

    def _causal_mask(self, position_ids: Int[Tensor, "batch seq"]) -> Float[Tensor, "1 1 seq seq"] | None:
        # Without jumps, the model needs no mask, and fused attention skips the hidden half.
        if bool((position_ids.diff() == 1).all()):
            return None
        return self._cached_mask(0, position_ids.shape[1])

    def _cached_mask(self, read: int, near: int) -> Float[Tensor, "1 1 near read_near"]:
        is_token = torch.ones(1, read + near, dtype=torch.bool)
        return causal_mask(is_token, past=read, dtype=self.model.dtype).to(device_of(self.model))

    def _logits(self, *args: Any, **kwargs: Any) -> Float[Tensor, "batch kept vocab"]:
        logits: Tensor = self._forward(*args, **kwargs).logits
        return logits

    def _forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        position_ids: Int[Tensor, "batch seq"],
        mask: Float[Tensor, "#batch 1 seq key"] | None,
        *,
        keep: Int[Tensor, " kept"],
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
            logits_to_keep=keep.to(device),
            **kwargs,
        )
