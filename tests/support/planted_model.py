"""Models with a target loss that depends on chosen far tokens in a known way."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

VOCABULARY, TARGET = 50, 7
# Maps the visibility of far tokens (1, 0, or a gate in between) to the log-probability of the target.
TargetLogProb = Callable[[Tensor], Tensor]


def additive_log_prob(weights: dict[int, float]) -> TargetLogProb:
    """Every token adds its weight to the log-probability."""
    return lambda visible: -3.0 + sum(weight * visible[..., index] for index, weight in weights.items())


def conjunction_log_prob(first: int, second: int) -> TargetLogProb:
    """Raise the log-probability only if both tokens are visible."""
    return lambda visible: -3.0 + 2.0 * visible[..., first] * visible[..., second]


def redundant_log_prob(first: int, second: int) -> TargetLogProb:
    """Raise the log-probability if one of the two tokens is visible."""
    return lambda visible: -3.0 + 2.0 * (1 - (1 - visible[..., first]) * (1 - visible[..., second]))


def no_effect(visible: Tensor) -> Tensor:
    """Return 0 for all visibilities."""
    return 0 * visible.sum(dim=-1)


class States(NamedTuple):
    """Position IDs of the tokens, and the visibility of far tokens to the first near token if it is one of them."""

    ids: Tensor
    relayed: Tensor | None


class PlantedModel:
    """A ``NextTokenModel`` that identifies far tokens by their position IDs.

    The last token reads far tokens, and ``target_log_prob`` depends on them. The first near token reads them too and
    passes on what it has read: ``relayed_log_prob`` depends on its far tokens, and is added.
    """

    name, vocabulary_size, num_parameters, dtype = "planted", VOCABULARY, 0, "float32"
    weights_digest = "planted"
    num_positions = trained_distance = None
    forward_tokens = 2048

    def __init__(
        self, target_log_prob: TargetLogProb, num_far: int, relayed_log_prob: TargetLogProb = no_effect
    ) -> None:
        self.target_log_prob, self.num_far, self.relayed_log_prob = target_log_prob, num_far, relayed_log_prob
        self.num_queries = 0

    def assign_position_ids(self, tokens: Tensor) -> Tensor:
        """Return the token indexes."""
        return torch.arange(len(tokens))

    def log_probs(self, tokens: Tensor, position_ids: Tensor, states: States | None = None) -> Tensor:
        """Return the log-probabilities, with the far tokens that occur in the position IDs or the states visible."""
        if states is not None:
            position_ids = torch.cat([states.ids.expand(len(tokens), -1), position_ids], dim=1)
        visible = torch.zeros(len(tokens), self.num_far)
        for row, ids in enumerate(position_ids):
            visible[row, ids[ids < self.num_far]] = 1.0
        return self._log_probs(visible, visible)

    def last_log_probs(self, tokens: Tensor, position_ids: Tensor, num_last: int) -> Tensor:
        """Return the log-probabilities after each of the last tokens."""
        ends = range(len(tokens) - num_last + 1, len(tokens) + 1)
        return torch.cat([self.log_probs(tokens[None, :end], position_ids[None, :end]) for end in ends])

    def log_probs_without_cache(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the log-probabilities, with the far tokens in the rows of the two reading tokens visible."""
        mask = torch.ones(len(tokens), len(tokens)).tril() if mask is None else mask.float()
        reads = torch.zeros(len(tokens), self.num_far)
        reads[:, : len(tokens)] = mask[:, : self.num_far]
        return self._log_probs(reads[-1], reads[min(self.num_far, len(tokens) - 1)])

    def rounding_tolerance(self, tokens: Tensor) -> float:
        """Return a constant tolerance in nats."""
        return 1e-5

    def prefill(self, tokens: Tensor, position_ids: Tensor, num_prefix: int, mask: Tensor | None = None) -> States:
        """Return the position IDs of the prefix; its tokens have read all far tokens."""
        return States(position_ids[:num_prefix], torch.ones(self.num_far) if num_prefix > self.num_far else None)

    def extend_states(self, states: States, tokens: Tensor, position_ids: Tensor, visible: Tensor) -> States:
        """Return the position IDs of the states and the tokens, of which the first has read the visible far tokens."""
        ids, relayed = torch.cat([states.ids, position_ids]), states.relayed
        return States(ids, self._visible_far(states, visible[None])[0] if relayed is None else relayed)

    def log_probs_with_mask(self, states: States, near_tokens: Tensor, position_ids: Tensor, visible: Tensor) -> Tensor:
        """Return the log-probabilities, with hidden tokens treated as absent."""
        visible_far = self._visible_far(states, visible)
        visible_far[:, position_ids[position_ids < self.num_far]] = 1.0
        return self._log_probs(visible_far, visible_far if states.relayed is None else states.relayed)

    def _visible_far(self, states: States, visible: Tensor) -> Tensor:
        visible_far, is_far = torch.zeros(len(visible), self.num_far), states.ids < self.num_far
        visible_far[:, states.ids[is_far]] = visible[:, is_far].float()
        return visible_far

    def attention_gate_gradient(self, states: States, near_tokens, position_ids, log_gates, objective) -> Tensor:
        """Return the gradient of the objective by the gates, where a gate is a partial visibility."""
        log_gates = log_gates.clone().requires_grad_()
        far_queries = position_ids[position_ids < self.num_far]
        rows = log_gates.expand(len(near_tokens), -1)[:, : self.num_far].exp()
        # Far tokens among the queries are visible to later ones.
        gates = rows.index_fill(1, far_queries, 1.0)
        relayed = gates[len(far_queries)] if states.relayed is None else states.relayed
        log_probs = self._log_probs(gates[-1], relayed)
        return torch.autograd.grad(objective(log_probs), log_gates)[0]

    def attention_weights(self, states: States, near_tokens: Tensor, position_ids: Tensor) -> Tensor:
        """Return uniform weights over all far tokens."""
        return torch.full((self.num_far,), 1 / self.num_far)

    def _log_probs(self, visible: Tensor, relayed: Tensor) -> Tensor:
        """Spread the remaining probability evenly over the other tokens."""
        if visible.dim() == 2:
            self.num_queries += len(visible)
        target = self.target_log_prob(visible) + self.relayed_log_prob(relayed) + 0 * visible.sum(dim=-1)
        other = torch.log1p(-target.exp()) - math.log(VOCABULARY - 1)
        log_probs = other[..., None].repeat(*[1] * other.dim(), VOCABULARY)
        log_probs[..., TARGET] = target
        return log_probs
