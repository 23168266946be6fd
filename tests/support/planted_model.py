"""Models built by hand whose target loss depends on given far tokens in a known way."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

VOCABULARY, TARGET = 50, 7
# Maps the visibility of far tokens (1, 0, or a gate in between) to the log-probability of the target.
TargetLogProb = Callable[[Tensor], Tensor]


def additive(weights: dict[int, float]) -> TargetLogProb:
    return lambda visible: -3.0 + sum(weight * visible[..., index] for index, weight in weights.items())


def exclusive_or(first: int, second: int) -> TargetLogProb:
    """Only both tokens together raise the log-probability."""
    return lambda visible: -3.0 + 2.0 * visible[..., first] * visible[..., second]


def copies(first: int, second: int) -> TargetLogProb:
    """Either of two tokens raises the log-probability."""
    return lambda visible: -3.0 + 2.0 * (1 - (1 - visible[..., first]) * (1 - visible[..., second]))


class PlantedModel:
    """``NextTokenModel`` that identifies far tokens by their position IDs."""

    name, vocabulary_size, num_parameters, dtype = "planted", VOCABULARY, 0, "float32"
    weights_digest = "planted"
    num_positions = trained_distance = None
    forward_tokens = 2048

    def __init__(self, target_log_prob: TargetLogProb, far: int) -> None:
        self.target_log_prob, self.far = target_log_prob, far
        self.num_queries = 0

    def log_probs(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """Derive the visible far tokens from the position IDs."""
        visible = torch.zeros(len(tokens), self.far)
        for row, ids in enumerate(position_ids):
            visible[row, ids[ids < self.far]] = 1.0
        return self._log_probs(visible)

    def losses(self, tokens: Tensor, position_ids: Tensor, targets: Tensor) -> Tensor:
        """Return the same prediction at all token indexes."""
        return -self.log_probs(tokens, position_ids).gather(1, targets)

    def plain_log_probs(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Derive the visible far tokens from the mask of the last token."""
        return self._log_probs(torch.ones(self.far) if mask is None else mask[-1, : self.far].float())

    def rounding_tolerance(self, tokens: Tensor) -> float:
        """Return a constant tolerance in nats."""
        return 1e-5

    def prefill(self, tokens: Tensor, position_ids: Tensor, num_read: int) -> Tensor:
        """Return the position IDs as states."""
        return position_ids[:num_read]

    def log_probs_with_prefix(self, states: Tensor, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """Prepend the IDs of the prefix to each row."""
        ids = torch.cat([states.expand(len(tokens), -1), position_ids], dim=1)
        return self.log_probs(torch.zeros_like(ids), ids)

    def log_probs_with_mask(self, states: Tensor, near: Tensor, position_ids: Tensor, visible: Tensor) -> Tensor:
        """Treat hidden tokens as absent."""
        return self._log_probs(visible.float())

    def gate_gradient(self, states, near, position_ids, log_gates, objective) -> Tensor:
        """Interpret a gate as partial visibility."""
        gates = log_gates.clone().requires_grad_()
        return torch.autograd.grad(objective(self._log_probs(gates.exp())), gates)[0]

    def attention_weights(self, states: Tensor, near: Tensor, position_ids: Tensor) -> Tensor:
        """Return uniform weights over all far tokens."""
        return torch.full((self.far,), 1 / self.far)

    def _log_probs(self, visible: Tensor) -> Tensor:
        """Spread the remaining probability evenly over the other tokens."""
        if visible.dim() == 2:
            self.num_queries += len(visible)
        target = self.target_log_prob(visible) + 0 * visible.sum(dim=-1)
        rest = torch.log1p(-target.exp()) - math.log(VOCABULARY - 1)
        log_probs = rest[..., None].repeat(*[1] * rest.dim(), VOCABULARY)
        log_probs[..., TARGET] = target
        return log_probs
