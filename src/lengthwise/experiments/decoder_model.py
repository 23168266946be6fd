"""Decoder of a run with the interface of a language model."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Real
from torch import Tensor

from lengthwise.core.checkpoint import weights_digest
from lengthwise.core.devices import max_tokens_per_forward
from lengthwise.core.errors import ModelError
from lengthwise.core.randomness import random_stream
from lengthwise.evaluation.language_model import (
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
)
from lengthwise.experiments.run import Run
from lengthwise.model.attention_scores import NO_HOOKS, AttentionHooks
from lengthwise.model.cache import KVCache
from lengthwise.model.decoder import Decoder
from lengthwise.tasks import GradedByLoss

# Effect of float32 rounding on a log-probability, in nats.
ROUNDING_TOLERANCE = 1e-3
# Keys and values of the tokens before a call, if there are any.
States = KVCache | None
# Function of the tokens of a window that returns their position IDs.
IDAssignment = Callable[[WindowTokens], WindowIDs]


class DecoderModel:
    """Trained decoder as a ``NextTokenModel``. Raises ``ModelError`` if its embeddings depend on earlier tokens.

    ``assign`` returns the position IDs of a window; by default, they are the token indexes.
    Hidden tokens also have an effect if an encoding mixes the scores of neighboring keys (DAPE V2) or counts keys
    (CoPE, Selective RoPE), which ``check_exact_hiding`` detects. Options that depend on the number of tokens, such as
    length scaling, count visible tokens only.
    """

    def __init__(
        self,
        decoder: Decoder,
        name: str,
        num_positions: int | None = None,
        trained_distance: int | float | None = None,
        assign: IDAssignment = lambda tokens: torch.arange(len(tokens)),
    ) -> None:
        self.assign = assign
        self.decoder, self.name, self.num_positions = decoder.eval(), name, num_positions
        self.trained_distance, self.dtype = trained_distance, str(decoder.embedding.dtype).removeprefix("torch.")
        self.vocabulary_size = len(decoder.embedding)
        self.num_parameters = sum(parameter.numel() for parameter in decoder.parameters())
        self.device = decoder.embedding.device
        self.forward_tokens = max_tokens_per_forward(
            self.device, decoder.embedding.shape[1], decoder.settings.num_heads
        )
        counts_separators = decoder.segment is not None and bool(decoder.separators)
        leaks = {
            "previous_token_mix adds the previous token to each near token": decoder.previous_share is not None,
            "segments count the separators before near tokens": counts_separators,
        }
        for description, has_leak in leaks.items():
            if has_leak:
                raise ModelError(f"{name} cannot be measured exactly: {description}; train without this option")

    @cached_property
    def weights_digest(self) -> str:
        """Digest that identifies the weights."""
        return weights_digest(self.decoder.state_dict())

    def assign_position_ids(self, tokens: WindowTokens) -> WindowIDs:
        """Return the position IDs of all tokens of a window."""
        return self.assign(tokens)

    @torch.no_grad()
    def log_probs(self, tokens: Batch, position_ids: BatchIDs, states: States = None) -> LogProbs:
        """Return the log-probabilities (nats) of the token after each sequence, which follows the states (if any)."""
        cache = None if states is None else _expand(states, len(tokens))
        last_index, ids = tokens.shape[1] - 1, self._decoder_ids(position_ids)
        hidden, _ = self.decoder(tokens.to(self.device), ids, cache, query_start=last_index if cache is None else 0)
        return self._last_log_probs(hidden)

    @torch.no_grad()
    def last_log_probs(self, tokens: WindowTokens, position_ids: WindowIDs, num_last: int) -> LogProbs:
        """Return the log-probabilities (nats) of the token after each of the last ``num_last`` tokens."""
        ids = self._decoder_ids(position_ids[None])
        hidden, _ = self.decoder(tokens[None].to(self.device), ids, query_start=len(tokens) - num_last)
        return self.decoder.token_logits(hidden[0]).log_softmax(dim=-1)

    @torch.no_grad()
    def log_probs_without_cache(
        self, tokens: WindowTokens, mask: Bool[Tensor, "seq seq"] | None = None
    ) -> Float[Tensor, " vocab"]:
        """Return the log-probabilities of the token after the sequence, from one pass with an optional mask."""
        hooks = NO_HOOKS if mask is None else AttentionHooks(score_bias=_score_bias(mask[None].to(self.device)))
        ids = self._decoder_ids(self.assign_position_ids(tokens)[None])
        hidden, _ = self.decoder(tokens[None].to(self.device), ids, hooks=hooks)
        return self._last_log_probs(hidden)[0]

    def rounding_tolerance(self, tokens: WindowTokens) -> float:
        """Return the largest difference (nats) that rounding in float32 can cause."""
        return ROUNDING_TOLERANCE

    @torch.no_grad()
    def prefill(
        self,
        tokens: WindowTokens,
        position_ids: WindowIDs,
        num_prefix: int,
        mask: Bool[Tensor, "seq seq"] | None = None,
    ) -> States:
        """Return the keys and values of the first ``num_prefix`` tokens, or None if ``num_prefix`` is 0."""
        if num_prefix == 0:
            return None
        prefix_ids, hooks = self._decoder_ids(position_ids[None, ..., :num_prefix]), NO_HOOKS
        if mask is not None:
            hooks = AttentionHooks(score_bias=_score_bias(mask[None, :num_prefix, :num_prefix].to(self.device)))
        return self.decoder(tokens[None, :num_prefix].to(self.device), prefix_ids, hooks=hooks)[1]

    @torch.no_grad()
    def extend_states(
        self, states: States, tokens: WindowTokens, position_ids: WindowIDs, visibility_mask: Bool[Tensor, " states"]
    ) -> States:
        """Return the keys and values of the states and of ``tokens``, which attend to the visible states."""
        bias = torch.nn.functional.pad(_score_bias(visibility_mask.to(self.device)), (0, len(tokens)))
        hooks = AttentionHooks(score_bias=bias.expand(1, len(tokens), -1))
        ids = self._decoder_ids(position_ids[None])
        return self.decoder(tokens[None].to(self.device), ids, states, hooks=hooks)[1]

    @torch.no_grad()
    def log_probs_with_mask(
        self, states: States, near_tokens: Near, position_ids: NearIDs, visibility_masks: Bool[Tensor, "batch states"]
    ) -> LogProbs:
        """Return the log-probabilities of the token after ``near_tokens`` for each mask of visible states."""
        bias = _score_bias(visibility_masks.to(self.device))
        return self._log_probs_with_bias(states, near_tokens, position_ids, bias)

    def attention_gate_gradient(
        self, states: States, near_tokens: Near, position_ids: NearIDs, log_gates: LogGates, objective: ScoreFunction
    ) -> LogGates:
        """Return the gradient of ``objective`` with respect to gates on the attention scores of each state."""
        gates = log_gates.to(self.device).requires_grad_()
        with torch.enable_grad():
            log_probs = self._log_probs_with_bias(states, near_tokens, position_ids, gates[None])
            return torch.autograd.grad(objective(log_probs[0]), gates)[0]

    @torch.no_grad()
    def attention_weights(self, states: States, near_tokens: Near, position_ids: NearIDs) -> StateValues:
        """Return the attention weights of the last near token on each state, averaged over layers and heads."""
        layer_weights: list[Tensor] = []

        def record_weights(weights: Float[Tensor, "batch heads query key"]) -> None:
            layer_weights.append(weights[0, :, -1, : -len(near_tokens)].mean(dim=0))

        hooks = AttentionHooks(on_weights=record_weights)
        self.decoder(near_tokens[None].to(self.device), self._decoder_ids(position_ids[None]), states, hooks=hooks)
        return torch.stack(layer_weights).mean(dim=0)

    def _log_probs_with_bias(
        self, states: States, near_tokens: Near, position_ids: NearIDs, state_bias: Float[Tensor, "batch *query states"]
    ) -> LogProbs:
        batch, seq = len(state_bias), len(near_tokens)
        bias = torch.nn.functional.pad(state_bias, (0, seq)).view(batch, -1, state_bias.shape[-1] + seq)
        bias = bias.expand(-1, seq, -1)
        tokens = near_tokens.to(self.device).expand(batch, -1)
        ids = self._decoder_ids(position_ids.expand(batch, *position_ids.shape))
        cache = None if states is None else _expand(states, batch)
        hidden, _ = self.decoder(tokens, ids, cache, hooks=AttentionHooks(score_bias=bias))
        return self._last_log_probs(hidden)

    def _decoder_ids(self, position_ids: BatchIDs) -> Real[Tensor, "*level batch seq"]:
        """Return the IDs on the device of the decoder, with the level axis (if any) before the batch axis."""
        return position_ids.movedim(0, -2).to(self.device)

    def _last_log_probs(self, hidden: Float[Tensor, "batch seq d_model"]) -> LogProbs:
        return self.decoder.token_logits(hidden[:, -1:])[:, 0].log_softmax(dim=-1)


def wrap_run_as_model(run: Run, name: str) -> DecoderModel:
    """Return the decoder of a run on text as a model with this name, and with the IDs of its scheme at evaluation.

    Raises ``ModelError`` if its embeddings depend on earlier tokens.
    """
    trained_distance = run.facts["trained_distance"] if run.decoder.uses_position_ids else None
    task, scheme = run.experiment.task, run.experiment.scheme
    assert isinstance(task, GradedByLoss)

    def assign(tokens: WindowTokens) -> WindowIDs:
        # A scheme with random IDs assigns the same IDs to all windows of equal length.
        rng = random_stream(0, "influence positions")
        assignment = scheme.assign(task.tokens_to_examples(tokens[None].numpy()), rng, training=False)
        return torch.from_numpy(assignment.position_ids[:, 0].copy())

    return DecoderModel(run.decoder, name, run.experiment.encoding.num_position_ids, trained_distance, assign)


def _score_bias(visibility_mask: Bool[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the bias on attention scores: 0 for visible keys, minus infinity for hidden keys."""
    return torch.zeros(visibility_mask.shape, device=visibility_mask.device).masked_fill(~visibility_mask, -math.inf)


def _expand(states: KVCache, batch: int) -> KVCache:
    """Repeat the states of one sequence ``batch`` times, without a copy of the data."""
    return replace(
        states,
        position_ids=states.position_ids.expand(-1, batch, -1),
        last_embedding=states.last_embedding.expand(batch, -1, -1),
        num_separators=states.num_separators.expand(batch, -1),
        keys=[key.expand(batch, -1, -1, -1) for key in states.keys],
        values=[value.expand(batch, -1, -1, -1) for value in states.values],
    )
