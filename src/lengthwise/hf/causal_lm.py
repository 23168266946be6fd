"""Any causal language model of `transformers` as a model whose influences can be measured."""

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
from lengthwise.hf.model_parts import device_of

# Questions whose near tokens stand behind one another. More: a pack's keys are copied for fewer packs. Fewer: less of
# what a token attends to is masked, being another question's. Measured: benchmarks/influence_speed.py.
PACKED = 8


class ReadOnlyLayer(DynamicLayer):
    """Keys and values that are attended to and never grow: near tokens of one question stay out of the next."""

    @classmethod
    def of(cls, layer: Any, num_read: int) -> "ReadOnlyLayer":
        """The keys and values of the first tokens that a layer has read."""
        kept = cls()
        kept.lazy_initialization(layer.keys, layer.values)
        kept.keys, kept.values = layer.keys[..., :num_read, :], layer.values[..., :num_read, :]
        return kept

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The kept keys and values, the same for every row, with the new ones behind them."""
        keys, values, rows = self.keys, self.values, len(key_states)
        assert keys is not None
        assert values is not None
        return (
            torch.cat([keys.expand(rows, -1, -1, -1), key_states], dim=-2),
            torch.cat([values.expand(rows, -1, -1, -1), value_states], dim=-2),
        )


class CausalLM:
    """A `transformers` model for inference, on its own device and in its own precision.

    Wherever IDs jump, a call passes a mask made from token indexes: without one, `transformers` takes the jump for the
    start of another packed text and hides what came before. Raises ``ModelError`` for a model that cannot be asked so.
    """

    def __init__(self, model: PreTrainedModel, name: str | None = None) -> None:
        if model.config._attn_implementation not in ("sdpa", "eager"):
            # The others take no mask of one's own.
            model.set_attn_implementation("sdpa")
        self.model = model.eval()
        self.name = name if name is not None else str(model.config.name_or_path or model.config.model_type)
        config = model.config.get_text_config()
        self.vocabulary_size = int(config.vocab_size)
        self.num_positions = longest_context(config)
        # What it was trained on is not known.
        self.trained_distance: int | float | None = None
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        self.weights_digest = weights_digest(model.state_dict())
        heads = getattr(config, "num_attention_heads", 1)
        self.forward_tokens = forward_token_budget(device_of(model), int(config.hidden_size), heads)
        self.packed = 1 if masks_by_index(model) else PACKED
        check_compatibility(self, model)

    @torch.no_grad()
    def log_probs(
        self, tokens: Int[Tensor, "rows seq"], position_ids: Int[Tensor, "rows seq"]
    ) -> Float[Tensor, "rows vocab"]:
        """Log-probabilities (nats) of what follows each row; a row sees nothing but itself."""
        made = self._forward(
            tokens, position_ids, self._causal_mask(position_ids), keep=torch.tensor([tokens.shape[1] - 1])
        )
        return made.logits[:, 0].float().log_softmax(dim=-1)

    @torch.no_grad()
    def losses(
        self, tokens: Int[Tensor, "rows seq"], position_ids: Int[Tensor, "rows seq"], targets: Int[Tensor, "rows last"]
    ) -> Float[Tensor, "rows last"]:
        """Minus the log-probabilities (nats) of the targets, which follow the last tokens."""
        seq, last = tokens.shape[1], targets.shape[1]
        made = self._forward(tokens, position_ids, self._causal_mask(position_ids), keep=torch.arange(seq - last, seq))
        logits = made.logits.float()
        wanted = targets.to(logits.device).flatten()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted, reduction="none").view(targets.shape)

    @torch.no_grad()
    def plain_log_probs(
        self, tokens: Int[Tensor, " seq"], seen: Bool[Tensor, "seq seq"] | None = None
    ) -> Float[Tensor, " vocab"]:
        """Log-probabilities after the last token by one plain pass; ``seen`` says which token attends to which."""
        if seen is None:
            made = self.model(input_ids=tokens[None].to(device_of(self.model)), use_cache=False)
        else:
            mask = additive_mask(seen[None, None].to(device_of(self.model)), self.model.dtype)
            last = torch.tensor([len(tokens) - 1])
            made = self._forward(tokens[None], torch.arange(len(tokens))[None], mask, keep=last)
        return made.logits[0, -1].float().log_softmax(dim=-1)

    def rounding_tolerance(self, tokens: Int[Tensor, " seq"]) -> float:
        """Return the largest difference (nats) that rounding explains, measured with this model."""
        return rounding_error(self.model, lambda: self.plain_log_probs(tokens))

    @torch.no_grad()
    def prefill(self, tokens: Int[Tensor, " seq"], position_ids: Int[Tensor, " seq"], num_read: int) -> DynamicCache:
        """Keys and values of the first ``num_read`` tokens.

        All tokens are read: the angles of some models (longrope, dynamic) depend on the largest ID of a call.
        """
        cache = DynamicCache()
        if num_read == 0:
            return cache
        mask = self._causal_mask(position_ids[None])
        self._forward(tokens[None], position_ids[None], mask, keep=torch.tensor([len(tokens) - 1]), cache=cache)
        cache.layers = [ReadOnlyLayer.of(layer, num_read) for layer in cache.layers]
        return cache

    @torch.no_grad()
    def log_probs_with_prefix(
        self, states: DynamicCache, tokens: Int[Tensor, "rows seq"], position_ids: Int[Tensor, "rows seq"]
    ) -> Float[Tensor, "rows vocab"]:
        """Log-probabilities after rows that begin with the tokens of ``states``, which they do not change."""
        seq, read = tokens.shape[1], states.get_seq_length()
        keep = torch.tensor([seq - 1])
        made = self._forward(tokens, position_ids, self._causal_after(read, seq), keep=keep, cache=states)
        return made.logits[:, -1].float().log_softmax(dim=-1)

    @torch.no_grad()
    def log_probs_with_mask(
        self,
        states: DynamicCache,
        near: Int[Tensor, " near"],
        position_ids: Int[Tensor, " near"],
        visible: Bool[Tensor, "rows read"],
    ) -> Float[Tensor, "rows vocab"]:
        """Log-probabilities after the near tokens, once per row of ``visible``.

        The near tokens of some rows stand behind one another in one sequence, each seeing its own row alone: they share
        the states, whose keys are copied once for all of them.
        """
        seq, packs = len(near), -(-len(visible) // self.packed)
        packed = -(-len(visible) // packs)
        # The last pack is filled up with the last row.
        rows = visible[torch.arange(packs * packed).clamp(max=len(visible) - 1)].view(packs, packed, -1)
        own = torch.block_diag(*[torch.ones(seq, seq, dtype=torch.bool).tril()] * packed)
        seen = torch.cat([rows.repeat_interleave(seq, dim=1), own.expand(packs, -1, -1)], dim=2)
        made = self._forward(
            near.repeat(packed).expand(packs, -1),
            position_ids.repeat(packed).expand(packs, -1),
            additive_mask(seen[:, None], self.model.dtype).to(device_of(self.model)),
            keep=torch.arange(seq - 1, packed * seq, seq),
            cache=states,
        )
        return made.logits.flatten(0, 1)[: len(visible)].float().log_softmax(dim=-1)

    def gate_gradient(
        self,
        states: DynamicCache,
        near: Int[Tensor, " near"],
        position_ids: Int[Tensor, " near"],
        log_gates: Float[Tensor, " read"],
        objective: Callable[[Float[Tensor, " vocab"]], Float[Tensor, ""]],
    ) -> Float[Tensor, " read"]:
        """The gradient of an objective by what is added to the near tokens' scores of each state, in every layer."""
        gates = log_gates.to(device_of(self.model)).requires_grad_()
        with torch.enable_grad():
            mask = self._causal_after(len(log_gates), len(near))
            added = torch.nn.functional.pad(gates, (0, len(near))).to(mask.dtype)
            made = self._forward(
                near[None], position_ids[None], mask + added, keep=torch.tensor([len(near) - 1]), cache=states
            )
            value = objective(made.logits[0, 0].float().log_softmax(dim=-1))
            return torch.autograd.grad(value, gates)[0]

    @torch.no_grad()
    def attention_weights(
        self, states: DynamicCache, near: Int[Tensor, " near"], position_ids: Int[Tensor, " near"]
    ) -> Float[Tensor, " read"]:
        """The last near token's attention weight on each state, the mean over layers and heads."""
        read = states.get_seq_length()
        mask = self._causal_after(read, len(near))
        with self._showing_weights():
            made = self._forward(
                near[None],
                position_ids[None],
                mask,
                keep=torch.tensor([len(near) - 1]),
                cache=states,
                output_attentions=True,
            )
        return torch.stack([layer[0, :, -1, :read].float().mean(dim=0) for layer in made.attentions]).mean(dim=0)

    @contextmanager
    def _showing_weights(self) -> Iterator[None]:
        # The fused kernels do not give their weights away.
        before = self.model.config._attn_implementation
        self.model.set_attn_implementation("eager")
        try:
            yield
        finally:
            self.model.set_attn_implementation(before)

    def _causal_mask(self, position_ids: Int[Tensor, "rows seq"]) -> Float[Tensor, "1 1 seq seq"] | None:
        # Where no ID jumps, `transformers` may be left to it: fused attention then skips the half that is hidden.
        if bool((position_ids.diff() == 1).all()):
            return None
        return self._causal_after(0, position_ids.shape[1])

    def _causal_after(self, read: int, near: int) -> Float[Tensor, "1 1 near read_near"]:
        inside = torch.ones(1, read + near, dtype=torch.bool)
        return causal_mask(inside, past=read, dtype=self.model.dtype).to(device_of(self.model))

    def _forward(
        self,
        tokens: Int[Tensor, "rows seq"],
        position_ids: Int[Tensor, "rows seq"],
        mask: Float[Tensor, "#rows 1 seq key"] | None,
        *,
        keep: Int[Tensor, " kept"],
        cache: DynamicCache | None = None,
        **also: Any,
    ) -> Any:
        device = device_of(self.model)
        return self.model(
            input_ids=tokens.to(device),
            position_ids=position_ids.to(device),
            attention_mask=None if mask is None else mask.expand(len(tokens), -1, -1, -1),
            past_key_values=cache,
            use_cache=cache is not None,
            logits_to_keep=keep.to(device),
            **also,
        )
