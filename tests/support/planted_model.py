"""A model built by hand: the target's loss depends on known far tokens, in a known way."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

VOCABULARY, TARGET = 50, 7
# Shares of far tokens seen (1 or 0, or a gate between) to the target's log-probability.
Reads = Callable[[Tensor], Tensor]


def additive(weights: dict[int, float]) -> Reads:
    return lambda seen: -3.0 + sum(weight * seen[..., place] for place, weight in weights.items())


def exclusive_or(first: int, second: int) -> Reads:
    """Only both together tell the target; one alone says nothing."""
    return lambda seen: -3.0 + 2.0 * seen[..., first] * seen[..., second]


def copies(first: int, second: int) -> Reads:
    """Either of two tells it."""
    return lambda seen: -3.0 + 2.0 * (1 - (1 - seen[..., first]) * (1 - seen[..., second]))


class PlantedModel:
    """A ``NextTokenModel`` that knows far tokens by their position IDs."""

    name, vocabulary_size, num_parameters, dtype = "planted", VOCABULARY, 0, "float32"
    weights_digest = "planted"
    num_positions = trained_distance = None
    forward_tokens = 2048

    def __init__(self, reads: Reads, far: int) -> None:
        self.reads, self.far = reads, far
        self.rows_asked = 0

    def log_probs(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """Which far tokens a row holds is told by its IDs."""
        seen = torch.zeros(len(tokens), self.far)
        for row, ids in enumerate(position_ids):
            seen[row, ids[ids < self.far]] = 1.0
        return self._all(seen)

    def losses(self, tokens: Tensor, position_ids: Tensor, targets: Tensor) -> Tensor:
        """The same for all of the last tokens."""
        return -self.log_probs(tokens, position_ids).gather(1, targets)

    def plain_log_probs(self, tokens: Tensor, seen: Tensor | None = None) -> Tensor:
        """The last token sees what it needs."""
        return self._all(torch.ones(self.far) if seen is None else seen[-1, : self.far].float())

    def rounding_tolerance(self, tokens: Tensor) -> float:
        """Hardly any."""
        return 1e-5

    def prefill(self, tokens: Tensor, position_ids: Tensor, num_read: int) -> Tensor:
        """The IDs are all there is to keep."""
        return position_ids[:num_read]

    def log_probs_with_prefix(self, states: Tensor, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """The states are IDs, which are put before the row."""
        ids = torch.cat([states.expand(len(tokens), -1), position_ids], dim=1)
        return self.log_probs(torch.zeros_like(ids), ids)

    def log_probs_with_mask(self, states: Tensor, near: Tensor, position_ids: Tensor, visible: Tensor) -> Tensor:
        """Hiding a token and leaving it out are the same here."""
        return self._all(visible.float())

    def gate_gradient(self, states, near, position_ids, log_gates, objective) -> Tensor:
        """A gate is a share of a token."""
        gates = log_gates.clone().requires_grad_()
        return torch.autograd.grad(objective(self._all(gates.exp())), gates)[0]

    def attention_weights(self, states: Tensor, near: Tensor, position_ids: Tensor) -> Tensor:
        """Attention tells nothing."""
        return torch.full((self.far,), 1 / self.far)

    def _all(self, seen: Tensor) -> Tensor:
        """The rest of the probability is spread evenly."""
        if seen.dim() == 2:
            self.rows_asked += len(seen)
        target = self.reads(seen) + 0 * seen.sum(dim=-1)
        rest = torch.log1p(-target.exp()) - math.log(VOCABULARY - 1)
        made = rest[..., None].repeat(*[1] * rest.dim(), VOCABULARY)
        made[..., TARGET] = target
        return made
