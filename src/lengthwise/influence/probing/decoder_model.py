"""The decoder of this package as a model whose influences can be measured."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.core.checkpoint import weights_digest
from lengthwise.core.devices import forward_token_budget
from lengthwise.core.errors import ModelError
from lengthwise.influence.probing.exactness_checks import check_exact
from lengthwise.model.attention_scores import NO_HOOKS, AttentionHooks
from lengthwise.model.decoder import Cache, Decoder

# What rounding may do to a log-probability in float32, nats.
ROUNDING = 1e-3


class DecoderModel:
    """A trained decoder, for inference. ``ModelError`` where what is hidden would be seen.

    That is so for encodings that look at neighbouring scores (DAPE V2), and for options by which a token carries what
    was before it. What reads the number of tokens, such as a length scale, counts those visible.
    """

    def __init__(
        self,
        decoder: Decoder,
        name: str,
        num_positions: int | None = None,
        trained_distance: int | float | None = None,
    ) -> None:
        self.decoder, self.name, self.num_positions = decoder.eval(), name, num_positions
        self.trained_distance, self.dtype = trained_distance, str(decoder.embedding.dtype).removeprefix("torch.")
        self.vocabulary_size = len(decoder.embedding)
        self.num_parameters = sum(parameter.numel() for parameter in decoder.parameters())
        self.weights_digest = weights_digest(decoder.state_dict())
        self.device = decoder.embedding.device
        self.forward_tokens = forward_token_budget(self.device, decoder.embedding.shape[1], decoder.settings.num_heads)
        carried = {
            "previous_token_mix mixes the token before into each": decoder.previous_share is not None,
            "segments count the separators before each": decoder.segment is not None and bool(decoder.separators),
        }
        for how, there in carried.items():
            if there:
                raise ModelError(f"{name} cannot be measured exactly: {how} near token; train without this option")
        check_exact(self)

    @torch.no_grad()
    def log_probs(
        self, tokens: Int[Tensor, "rows seq"], position_ids: Int[Tensor, "rows seq"]
    ) -> Float[Tensor, "rows vocab"]:
        """Log-probabilities (nats) of what follows each row; a row sees nothing but itself."""
        last = tokens.shape[1] - 1
        hidden, _ = self.decoder(tokens.to(self.device), position_ids.to(self.device), query_start=last)
        return self.decoder.token_logits(hidden)[:, 0].log_softmax(dim=-1)

    @torch.no_grad()
    def losses(
        self, tokens: Int[Tensor, "rows seq"], position_ids: Int[Tensor, "rows seq"], targets: Int[Tensor, "rows last"]
    ) -> Float[Tensor, "rows last"]:
        """Minus the log-probabilities (nats) of the targets, which follow the last tokens."""
        first = tokens.shape[1] - targets.shape[1]
        hidden, _ = self.decoder(tokens.to(self.device), position_ids.to(self.device), query_start=first)
        logits, wanted = self.decoder.token_logits(hidden), targets.to(self.device)
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none")
        return losses.view(targets.shape)

    @torch.no_grad()
    def plain_log_probs(
        self, tokens: Int[Tensor, " seq"], seen: Bool[Tensor, "seq seq"] | None = None
    ) -> Float[Tensor, " vocab"]:
        """Log-probabilities after the last token by one plain pass; ``seen`` says which token attends to which."""
        hooks = NO_HOOKS if seen is None else AttentionHooks(score_bias=_hiding(~seen[None].to(self.device)))
        ids = torch.arange(len(tokens), device=self.device)
        hidden, _ = self.decoder(tokens[None].to(self.device), ids[None], hooks=hooks)
        return self.decoder.token_logits(hidden[:, -1:])[0, 0].log_softmax(dim=-1)

    def rounding_tolerance(self, tokens: Int[Tensor, " seq"]) -> float:
        """Return the largest difference (nats) that rounding explains; a decoder computes in float32."""
        return ROUNDING

    @torch.no_grad()
    def prefill(self, tokens: Int[Tensor, " seq"], position_ids: Int[Tensor, " seq"], num_read: int) -> Cache | None:
        """Keys and values of the first ``num_read`` tokens; None of none. No encoding reads the largest ID."""
        if num_read == 0:
            return None
        return self.decoder(tokens[None, :num_read].to(self.device), position_ids[None, :num_read].to(self.device))[1]

    @torch.no_grad()
    def log_probs_with_prefix(
        self, states: Cache | None, tokens: Int[Tensor, "rows seq"], position_ids: Int[Tensor, "rows seq"]
    ) -> Float[Tensor, "rows vocab"]:
        """Log-probabilities after rows that begin with the tokens of ``states``."""
        cache = None if states is None else _repeated(states, len(tokens))
        hidden, _ = self.decoder(tokens.to(self.device), position_ids.to(self.device), cache)
        return self.decoder.token_logits(hidden[:, -1:])[:, 0].log_softmax(dim=-1)

    @torch.no_grad()
    def log_probs_with_mask(
        self,
        states: Cache | None,
        near: Int[Tensor, " near"],
        position_ids: Int[Tensor, " near"],
        visible: Bool[Tensor, "rows read"],
    ) -> Float[Tensor, "rows vocab"]:
        """Log-probabilities after the near tokens, once per row of ``visible``."""
        hidden = _hiding(~visible.to(self.device))
        return self._after(states, near, position_ids, self._added(hidden, len(near)))

    def gate_gradient(
        self,
        states: Cache | None,
        near: Int[Tensor, " near"],
        position_ids: Int[Tensor, " near"],
        log_gates: Float[Tensor, " read"],
        objective: Callable[[Float[Tensor, " vocab"]], Float[Tensor, ""]],
    ) -> Float[Tensor, " read"]:
        """The gradient of an objective by what is added to the near tokens' scores of each state, in every layer."""
        gates = log_gates.to(self.device).requires_grad_()
        with torch.enable_grad():
            log_probs = self._after(states, near, position_ids, self._added(gates[None], len(near)))
            return torch.autograd.grad(objective(log_probs[0]), gates)[0]

    @torch.no_grad()
    def attention_weights(
        self, states: Cache | None, near: Int[Tensor, " near"], position_ids: Int[Tensor, " near"]
    ) -> Float[Tensor, " read"]:
        """The last near token's attention weight on each state, the mean over layers and heads."""
        layers: list[Tensor] = []

        def watch(weights: Float[Tensor, "batch heads query key"]) -> None:
            layers.append(weights[0, :, -1, : -len(near)].mean(dim=0))

        self.decoder(
            near[None].to(self.device), position_ids[None].to(self.device), states, hooks=AttentionHooks(on_weights=watch)
        )
        return torch.stack(layers).mean(dim=0)

    def _added(self, before: Float[Tensor, "rows read"], near: int) -> Float[Tensor, "rows near read_near"]:
        return torch.nn.functional.pad(before, (0, near))[:, None].expand(-1, near, -1)

    def _after(
        self,
        states: Cache | None,
        near: Int[Tensor, " near"],
        position_ids: Int[Tensor, " near"],
        added: Float[Tensor, "rows near read_near"],
    ) -> Float[Tensor, "rows vocab"]:
        rows = len(added)
        hidden, _ = self.decoder(
            near.to(self.device).expand(rows, -1),
            position_ids.to(self.device).expand(rows, -1),
            None if states is None else _repeated(states, rows),
            hooks=AttentionHooks(score_bias=added),
        )
        return self.decoder.token_logits(hidden[:, -1:])[:, 0].log_softmax(dim=-1)


def _hiding(hidden: Bool[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """What is added to the scores: minus infinity where a key is hidden."""
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill(hidden, -math.inf)


def _repeated(states: Cache, rows: int) -> Cache:
    """The same states for every row, as views."""
    return replace(
        states,
        position_ids=states.position_ids.expand(-1, rows, -1),
        last_embedding=states.last_embedding.expand(rows, -1, -1),
        separators_seen=states.separators_seen.expand(rows, -1),
        keys=[key.expand(rows, -1, -1, -1) for key in states.keys],
        values=[value.expand(rows, -1, -1, -1) for value in states.values],
    )
