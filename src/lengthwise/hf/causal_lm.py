"""Causal `transformers` model as a ``NextTokenModel``, and checks that a model is supported."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from lengthwise.core.checkpoint import weights_digest
from lengthwise.core.devices import max_tokens_per_forward
from lengthwise.core.errors import ModelError
from lengthwise.evaluation.language_model import (
    CALL_ERRORS,
    Batch,
    BatchIDs,
    LogGates,
    LogProbs,
    Near,
    NearIDs,
    ScoreFunction,
    StateValues,
    WindowIDs,
    WindowTokens,
    first_line,
    max_log_prob_difference,
)
from lengthwise.hf.model_inputs import additive_mask, causal_mask
from lengthwise.hf.model_parts import device_of, use_maskable_attention
from lengthwise.hf.position_id_generation import PositionIDGenerationMixin

# Layer types that can hide single keys. Windowed layers attend to the full context while it fits into the window.
FULL_ATTENTION, WINDOWED_ATTENTION = {"full_attention", "attention"}, {"sliding_attention", "chunked_attention"}
WINDOW_SETTINGS = ("sliding_window", "attention_chunk_size")
# Largest change of earlier logits by a later token that counts as rounding, relative to the largest logit.
LEAK_TOLERANCE, HALF_PRECISION_LEAK_TOLERANCE = 1e-4, 0.02
# Number of forward passes with random rounding, and the safety factor for their largest difference.
NUM_ROUNDING_SAMPLES, ROUNDING_MARGIN = 5, 2.0
# Smallest tolerance (nats), far below the effects that a study measures.
MIN_ROUNDING_ERROR = 1e-3


def smallest_attention_window(config: Any) -> int | None:
    """Return the smallest attention window (tokens) of a configuration, or None if all layers use full attention."""
    layer_types = set(getattr(config, "layer_types", None) or [])
    if layer_types and not layer_types & WINDOWED_ATTENTION:
        return None
    # GPT-Neo stores its window in another setting.
    has_local_layers = "local" in (getattr(config, "attention_layers", None) or [])
    names = (*WINDOW_SETTINGS, "window_size") if has_local_layers else WINDOW_SETTINGS
    return _smallest(config, *names)


def full_attention_advice(config: Any) -> str:
    """Return the configuration settings that enable full attention in every layer, as text for an error message."""
    if (layers := getattr(config, "layer_types", None)) is not None:
        return f"layer_types=['full_attention'] * {len(layers)}"
    if (layers := getattr(config, "attention_layers", None)) is not None:
        return f"attention_types=[[['global'], {len(layers)}]]"
    return " and ".join(f"{name}=None" for name in WINDOW_SETTINGS if getattr(config, name, None))


def _smallest(config: Any, *names: str) -> int | None:
    """Return the smallest of these settings, or None if none is set."""
    values = {name: getattr(config, name, None) for name in names}
    for name, value in values.items():
        if value is not None and type(value) is not int:
            raise ModelError(f"the configuration has the {name} {value!r:.40}; use a whole number")
    return min((value for value in values.values() if value), default=None)


def _check_architecture(name: str, model: PreTrainedModel) -> None:
    """Raise ``ModelError`` for a model that cannot hide tokens, or accepts no position IDs or cache."""
    if isinstance(model, PositionIDGenerationMixin):
        raise ModelError(
            f"{name} is a wrapped model or predicts its position IDs, but consecutive IDs are needed here; use "
            "a causal model without a wrapper, or the run folder that the model was exported from"
        )
    layer_types = set(getattr(model.config.get_text_config(), "layer_types", None) or [])
    if recurrent_types := layer_types - FULL_ATTENTION - WINDOWED_ATTENTION:
        raise ModelError(
            f"{name} has layers of type {', '.join(sorted(recurrent_types))}, which cannot hide single tokens; use a "
            "model with attention in every layer"
        )
    arguments = inspect.signature(model.forward).parameters
    if missing_arguments := [name for name in ("position_ids", "past_key_values") if name not in arguments]:
        raise ModelError(
            f"{name} does not accept {' and '.join(missing_arguments)}; use a model that accepts them, such as Llama, "
            "Qwen, Mistral, OLMo, GPT-NeoX or GPT-2"
        )


def check_causal(name: str, model: PreTrainedModel) -> None:
    """Raise ``ModelError`` for a model in which a token changes earlier predictions."""
    tokens = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5]], device=device_of(model))
    try:
        with torch.no_grad():
            tokens = tokens % model.config.get_text_config().vocab_size
            first_logits = model(input_ids=tokens, use_cache=False).logits[:, 0].float()
    except torch.OutOfMemoryError:
        raise
    except CALL_ERRORS as error:
        raise ModelError(
            f"{name} fails if it is called with only input_ids ({type(error).__name__}: {first_line(error)}); fix its "
            "configuration, or choose another model"
        ) from error
    # The sequences differ only in their last token.
    tolerance = LEAK_TOLERANCE if model.dtype in (torch.float32, torch.float64) else HALF_PRECISION_LEAK_TOLERANCE
    if (first_logits[0] - first_logits[1]).abs().max() > tolerance * first_logits.abs().max():
        raise ModelError(
            f"{name} is not causal: a token changes earlier predictions; use a causal language model, such as Llama "
            "or GPT-2"
        )


@contextmanager
def _random_rounding(model: nn.Module, seed: int) -> Iterator[None]:
    """Multiply the outputs of all layers by random factors that differ from 1 by at most the machine epsilon."""
    generators: dict[torch.device, torch.Generator] = {}

    def perturb(layer: nn.Module, args: Any, output: Any) -> Any:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return output
        if output.device not in generators:
            generators[output.device] = torch.Generator(output.device).manual_seed(seed)
        random_numbers = torch.rand(output.shape, generator=generators[output.device], device=output.device) * 2 - 1
        return (output.double() * (1 + torch.finfo(output.dtype).eps * random_numbers)).to(output.dtype)

    layers = [layer for layer in model.modules() if not list(layer.children()) and not isinstance(layer, nn.Dropout)]
    hooks = [layer.register_forward_hook(perturb) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


# Number of queries per packed sequence. A larger number copies the keys less often, but masks more keys of other
# queries. benchmarks/influence_speed.py measures the best value.
PACK_SIZE = 8
# A pack has at least this number of tokens: with a single near token, it holds many queries.
MIN_PACKED_TOKENS = 256


class ReadOnlyCacheLayer(DynamicLayer):
    """Cache layer with fixed keys and values, so that a call does not add its tokens to the cache."""

    @classmethod
    def from_layer(cls, layer: Any, num_tokens: int, rows: slice = slice(None)) -> "ReadOnlyCacheLayer":
        """Return a layer with the keys and values of the first ``num_tokens`` tokens of ``rows`` of another layer."""
        fixed = cls()
        fixed.lazy_initialization(layer.keys, layer.values)
        fixed.keys, fixed.values = (layer.keys[rows, :, :num_tokens], layer.values[rows, :, :num_tokens])
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
    as the start of another packed text and hides the earlier tokens. Raises ``ModelError`` for a model that is not
    causal, cannot hide tokens, or accepts no position IDs or cache; ``check_exact_hiding`` compares its predictions.
    """

    def __init__(self, model: PreTrainedModel, name: str | None = None) -> None:
        self.name = name if name is not None else str(model.config.name_or_path or model.config.model_type)
        _check_architecture(self.name, model)
        use_maskable_attention(model)
        self.model = model.eval()
        check_causal(self.name, model)
        config = model.config.get_text_config()
        self.vocabulary_size = int(config.vocab_size)
        # Length of the longest context that every layer attends to in full.
        max_positions = _smallest(config, "max_position_embeddings")
        limits = [limit for limit in (max_positions, smallest_attention_window(config)) if limit is not None]
        self.num_positions = min(limits, default=None)
        # The training data of the model are unknown.
        self.trained_distance: int | float | None = None
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        num_heads = getattr(config, "num_attention_heads", 1)
        self.forward_tokens = max_tokens_per_forward(device_of(model), int(config.hidden_size), num_heads)
        # A model with a table of the causal mask over token indexes (GPT-Neo) cannot read packed tokens.
        mask_shape, buffers = (max_positions, max_positions), list(model.buffers())
        has_mask_table = any(buffer.dtype == torch.bool and buffer.shape[-2:] == mask_shape for buffer in buffers)
        self.pack_size = 1 if has_mask_table else PACK_SIZE

    @cached_property
    def weights_digest(self) -> str:
        """Digest that identifies the weights."""
        return weights_digest(self.model.state_dict())

    def assign_position_ids(self, tokens: WindowTokens) -> WindowIDs:
        """Return the token indexes as the position IDs of all tokens of a window."""
        return torch.arange(len(tokens))

    @torch.no_grad()
    def log_probs(self, tokens: Batch, position_ids: BatchIDs, states: DynamicCache | None = None) -> LogProbs:
        """Return the log-probabilities (nats) of the token after each sequence, which follows the states (if any)."""
        seq = tokens.shape[1]
        num_states = None if states is None else states.get_seq_length()
        mask = self._causal_mask(position_ids) if num_states is None else self._build_causal_mask(num_states, seq)
        return self._forward(tokens, position_ids, mask, cache=states).logits[:, 0].float().log_softmax(dim=-1)

    @torch.no_grad()
    def last_log_probs(self, tokens: WindowTokens, position_ids: WindowIDs, num_last: int) -> LogProbs:
        """Return the log-probabilities (nats) of the token after each of the last ``num_last`` tokens."""
        indexes = torch.arange(len(tokens) - num_last, len(tokens))
        mask = self._causal_mask(position_ids[None])
        logits = self._forward(tokens[None], position_ids[None], mask, logit_indexes=indexes).logits
        return logits[0].float().log_softmax(dim=-1)

    @torch.no_grad()
    def log_probs_without_cache(
        self, tokens: WindowTokens, mask: Bool[Tensor, "seq seq"] | None = None
    ) -> Float[Tensor, " vocab"]:
        """Return the log-probabilities (nats) of the next token, from one forward pass without a cache.

        ``mask`` (query, key) is True where the query attends to the key. With a mask, position IDs count from 0.
        """
        device = device_of(self.model)
        if mask is None:
            logits = self.model(input_ids=tokens[None].to(device), use_cache=False).logits
        else:
            logits = self._forward(
                tokens[None], self.assign_position_ids(tokens)[None], self._additive_mask(mask)
            ).logits
        return logits[0, -1].float().log_softmax(dim=-1)

    def rounding_tolerance(self, tokens: WindowTokens) -> float:
        """Estimate the rounding error (nats) of this model's log-probabilities.

        Source: stochastic arithmetic (Vignes 1993, A stochastic arithmetic for reliable scientific computation).
        """
        expected_log_probs, differences = self.log_probs_without_cache(tokens), []
        for seed in range(NUM_ROUNDING_SAMPLES):
            with _random_rounding(self.model, seed):
                differences.append(max_log_prob_difference(self.log_probs_without_cache(tokens), expected_log_probs))
        return max(MIN_ROUNDING_ERROR, ROUNDING_MARGIN * max(differences))

    @torch.no_grad()
    def prefill(
        self,
        tokens: WindowTokens,
        position_ids: WindowIDs,
        num_prefix: int,
        mask: Bool[Tensor, "seq seq"] | None = None,
    ) -> DynamicCache:
        """Return the keys and values of the first ``num_prefix`` tokens; ``mask`` (query, key) limits the attention.

        The model reads all tokens, because some rotary angles (longrope, dynamic) depend on the largest ID of a call.
        """
        cache = DynamicCache()
        if num_prefix == 0:
            return cache
        score_mask = self._causal_mask(position_ids[None]) if mask is None else self._additive_mask(mask)
        self._forward(tokens[None], position_ids[None], score_mask, cache=cache)
        cache.layers = [ReadOnlyCacheLayer.from_layer(layer, num_prefix) for layer in cache.layers]
        return cache

    @torch.no_grad()
    def extend_states(
        self,
        states: DynamicCache,
        tokens: WindowTokens,
        position_ids: WindowIDs,
        visibility_mask: Bool[Tensor, " states"],
    ) -> DynamicCache:
        """Return the keys and values of the states and of ``tokens``, which attend to the visible states."""
        cache, seq, layers = DynamicCache(), len(tokens), list[Any](states.layers)
        for index, layer in enumerate(layers):
            cache.update(layer.keys, layer.values, index)
        mask = torch.cat([visibility_mask.expand(seq, -1), torch.ones(seq, seq, dtype=torch.bool).tril()], dim=1)
        self._forward(tokens[None], position_ids[None], self._additive_mask(mask), cache=cache)
        cache.layers = [ReadOnlyCacheLayer.from_layer(layer, mask.shape[1]) for layer in cache.layers]
        return cache

    @torch.no_grad()
    def log_probs_with_mask(
        self,
        states: DynamicCache,
        near_tokens: Near,
        position_ids: NearIDs,
        visibility_masks: Bool[Tensor, "batch states"],
    ) -> LogProbs:
        """Return the log-probabilities (nats) of the token after ``near_tokens``, for each row of ``visibility_masks``.

        ``states`` contains the keys and values of the earlier tokens. The near tokens attend only to the states where
        a mask is True. One sequence packs several copies of the near tokens, one per mask. The copies
        share the keys of the states and do not attend to each other.
        """
        seq = len(near_tokens)
        _, num_copies = self.pack_shape(seq, len(visibility_masks))
        tokens, ids, mask = self.pack(near_tokens, position_ids, visibility_masks)
        logits = self._forward(
            tokens,
            ids,
            additive_mask(mask[:, None].to(device_of(self.model)), self.model.dtype),
            logit_indexes=torch.arange(seq - 1, num_copies * seq, seq),
            cache=states,
        ).logits
        return logits.flatten(0, 1)[: len(visibility_masks)].float().log_softmax(dim=-1)

    def pack_shape(self, num_near: int, num_masks: int) -> tuple[int, int]:
        """Return the number of packed sequences for ``num_masks`` masks, and of copies of the near tokens in each."""
        pack_size = 1 if self.pack_size == 1 else max(self.pack_size, MIN_PACKED_TOKENS // num_near)
        num_packs = -(-num_masks // pack_size)
        return num_packs, -(-num_masks // num_packs)

    def pack(
        self, near_tokens: Near, position_ids: NearIDs, visibility_masks: Bool[Tensor, "batch states"]
    ) -> tuple[Int[Tensor, "packs query"], Real[Tensor, "packs query"], Bool[Tensor, "packs query key"]]:
        """Return the tokens, IDs and masks of sequences that pack one copy of the near tokens per mask."""
        seq, (num_packs, num_copies) = len(near_tokens), self.pack_shape(len(near_tokens), len(visibility_masks))
        # Repeat the last row to fill the last pack.
        rows = torch.arange(num_packs * num_copies).clamp(max=len(visibility_masks) - 1)
        visible_by_copy = visibility_masks[rows].view(num_packs, num_copies, -1)
        near_mask = torch.block_diag(*[torch.ones(seq, seq, dtype=torch.bool).tril()] * num_copies)
        mask = torch.cat([visible_by_copy.repeat_interleave(seq, dim=1), near_mask.expand(num_packs, -1, -1)], dim=2)
        tokens, ids = (each.repeat(num_copies).expand(num_packs, -1) for each in (near_tokens, position_ids))
        return tokens, ids, mask

    def attention_gate_gradient(
        self,
        states: DynamicCache,
        near_tokens: Near,
        position_ids: NearIDs,
        log_gates: LogGates,
        objective: ScoreFunction,
    ) -> LogGates:
        """Return the gradient of ``objective`` with respect to ``log_gates``.

        ``objective`` maps next-token log-probabilities to a number. Every layer adds ``log_gates`` to the attention
        scores of the near tokens on each state. Gates can differ between near tokens; minus infinity hides a state.
        """
        gates = log_gates.to(device_of(self.model)).requires_grad_()
        with torch.enable_grad():
            mask = self._build_causal_mask(log_gates.shape[-1], len(near_tokens))
            mask = mask + torch.nn.functional.pad(gates, (0, len(near_tokens))).to(mask.dtype)
            logits = self._forward(near_tokens[None], position_ids[None], mask, cache=states).logits
            objective_value = objective(logits[0, 0].float().log_softmax(dim=-1))
            return torch.autograd.grad(objective_value, gates)[0]

    @torch.no_grad()
    def attention_weights(self, states: DynamicCache, near_tokens: Near, position_ids: NearIDs) -> StateValues:
        """Return the attention weights of the last near token on the states, averaged over layers and heads."""
        num_states, attention = states.get_seq_length(), self.model.config._attn_implementation
        mask = self._build_causal_mask(num_states, len(near_tokens))
        # Fused kernels do not return attention weights.
        self.model.set_attn_implementation("eager")
        try:
            output = self._forward(near_tokens[None], position_ids[None], mask, cache=states, output_attentions=True)
        finally:
            self.model.set_attn_implementation(attention)
        weights = torch.stack([layer[0, :, -1, :num_states].float().mean(dim=0) for layer in output.attentions])
        return weights.mean(dim=0)

    def _additive_mask(self, mask: Bool[Tensor, "query key"]) -> Float[Tensor, "1 1 query key"]:
        return additive_mask(mask[None, None].to(device_of(self.model)), self.model.dtype)

    def _causal_mask(self, position_ids: BatchIDs) -> Float[Tensor, "1 1 seq seq"] | None:
        # Consecutive IDs need no mask. Fused attention is then faster, because it skips later keys.
        if bool((position_ids.diff() == 1).all()):
            return None
        return self._build_causal_mask(0, position_ids.shape[1])

    def _build_causal_mask(self, num_states: int, num_queries: int) -> Float[Tensor, "1 1 query key"]:
        is_token = torch.ones(1, num_states + num_queries, dtype=torch.bool)
        return causal_mask(is_token, num_cached=num_states, dtype=self.model.dtype).to(device_of(self.model))

    def _forward(
        self,
        tokens: Batch,
        position_ids: BatchIDs,
        mask: Float[Tensor, "#batch 1 seq key"] | None,
        *,
        logit_indexes: Int[Tensor, " index"] | None = None,
        cache: DynamicCache | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call the model, with logits at ``logit_indexes`` (default: at the last token)."""
        device = device_of(self.model)
        logit_indexes = torch.tensor([tokens.shape[1] - 1]) if logit_indexes is None else logit_indexes
        return self.model(
            input_ids=tokens.to(device),
            position_ids=position_ids.to(device),
            attention_mask=None if mask is None else mask.expand(len(tokens), -1, -1, -1),
            past_key_values=cache,
            use_cache=cache is not None,
            logits_to_keep=logit_indexes.to(device),
            **kwargs,
        )
