"""Scores of subsets of far tokens for measures, and the objectives that define a score."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.influence.probing.hidden_context import WindowEvaluator

# target: the loss of the true next token. prediction: the divergence from the prediction with the whole context, which
# is also available to a method that drops keys and values.
OBJECTIVES = ("target", "prediction")


@dataclass(frozen=True, slots=True)
class TargetLoss:
    """Objective ``target``: the loss (nats) of the true next token."""

    target: int

    def __call__(self, log_probs: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
        """Return the loss of the target for each prediction."""
        return -log_probs[..., self.target]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Objective ``prediction``: the Kullback-Leibler divergence (nats) from the prediction with the whole context."""

    log_probs_long: Float[Tensor, " vocab"]

    def __call__(self, log_probs: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
        """Return the divergence for each prediction, in nats."""
        probabilities = self.log_probs_long.exp()
        # A token of probability 0 adds nothing, even if its log-probability is -inf in both predictions.
        return torch.where(probabilities > 0, probabilities * (self.log_probs_long - log_probs), 0.0).sum(dim=-1)


Objective = TargetLoss | Divergence


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsetScorer:
    """Scorer of subsets of the far tokens of one window, for one objective and one of ``MODES``.

    ``candidates`` contains the indices of far tokens that a measure may select.
    """

    evaluator: WindowEvaluator
    mode: str
    objective: Objective
    candidates: Int[np.ndarray, " candidates"]

    @property
    def num_far(self) -> int:
        """Number of far tokens, including tokens that are not candidates."""
        return self.evaluator.window.num_far

    def visibility_mask(self, indices: Sequence[int]) -> Bool[np.ndarray, " far"]:
        """Return a visibility mask of the far tokens, which is True at ``indices`` and False elsewhere."""
        return self.evaluator.window.visibility_mask(indices)

    def restrict(self, candidates: Int[np.ndarray, " candidates"]) -> "SubsetScorer":
        """Return a copy with other candidates."""
        return replace(self, candidates=np.sort(candidates))

    def scores(self, visibility_masks: Bool[np.ndarray, "queries far"]) -> Float[np.ndarray, " queries"]:
        """Return the exact value of the objective for each visibility mask; lower values are better."""
        scores = np.empty(len(visibility_masks))
        for queries, log_probs in self.evaluator.log_probs(visibility_masks, self.mode):
            scores[queries] = self.objective(log_probs).double().cpu().numpy()
        return scores

    def gradient(self, *, context: str) -> Float[np.ndarray, " far"]:
        """Return the negative gradient of the objective with respect to a gate on the attention to each far token.

        With ``context`` "all", the gates are open. With "none", they reduce the attention weight of all far tokens
        together to about the weight of one token. Far tokens attend to each other, so the gradient is an approximation
        in strict mode.
        """
        num_start = len(self.evaluator.window.start)
        gates = torch.zeros(num_start + self.num_far)
        if context == "none":
            gates[num_start:] = -math.log(self.num_far)
        evaluator, objective = self.evaluator, self.objective
        gradient = evaluator.model.gate_gradient(evaluator.states, evaluator.near, evaluator.near_ids, gates, objective)
        return -gradient[num_start:].double().cpu().numpy()

    def attention(self) -> Float[np.ndarray, " far"]:
        """Return the attention weights of the last near token on the far tokens, averaged over layers and heads."""
        evaluator = self.evaluator
        weights = evaluator.model.attention_weights(evaluator.states, evaluator.near, evaluator.near_ids)
        return weights[len(evaluator.window.start) :].double().cpu().numpy()
