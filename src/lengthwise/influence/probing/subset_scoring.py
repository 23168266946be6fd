"""Scores of subsets of far tokens: objectives, and the interface through which a measure evaluates a window."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.influence.probing.hidden_context import WindowEvaluator

# target: the loss of the true next token. prediction: the model's own prediction, the only information available to a
# method that drops keys and values.
OBJECTIVES = ("target", "prediction")


@dataclass(frozen=True, slots=True)
class TargetLoss:
    """Loss of the target, in nats."""

    target: int

    def __call__(self, log_probs: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
        """Return the loss under each prediction."""
        return -log_probs[..., self.target]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Kullback-Leibler divergence from the prediction with the whole context, in nats."""

    log_probs_long: Float[Tensor, " vocab"]

    def __call__(self, log_probs: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
        """Return the divergence of each prediction."""
        probs = self.log_probs_long.exp()
        # A token of probability 0 adds nothing, even if its log-probability is -inf in both predictions.
        return torch.where(probs > 0, probs * (self.log_probs_long - log_probs), 0.0).sum(dim=-1)


Objective = TargetLoss | Divergence


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsetScorer:
    """Scorer of subsets of the far tokens of one window, for one objective and one of ``MODES``.

    A measure selects among ``candidates``, indices of far tokens.
    """

    evaluator: WindowEvaluator
    mode: str
    objective: Objective
    candidates: Int[np.ndarray, " candidates"]

    @property
    def num_far(self) -> int:
        """Number of far tokens, including those that are not candidates."""
        return self.evaluator.window.num_far

    def only(self, indices: Sequence[int]) -> Bool[np.ndarray, " far"]:
        """Return the visibility mask of the far tokens that is True at ``indices`` only."""
        return self.evaluator.window.only(indices)

    def restrict(self, candidates: Int[np.ndarray, " candidates"]) -> "SubsetScorer":
        """Return a copy with other candidates."""
        return replace(self, candidates=np.sort(candidates))

    def scores(self, visible: Bool[np.ndarray, "queries far"]) -> Float[np.ndarray, " queries"]:
        """Return the exact objective for each visibility mask; lower is better."""
        scores = np.empty(len(visible))
        for queries, log_probs in self.evaluator.log_probs(visible, self.mode):
            scores[queries] = self.objective(log_probs).double().cpu().numpy()
        return scores

    def gradient(self, *, around: str) -> Float[np.ndarray, " far"]:
        """Return the first-order decrease of the objective as the near tokens attend more to each far token.

        ``around`` is "all" (the whole context) or "none" (all far tokens together weigh about as much as one). Far
        states come from the pass that hides nothing, so in strict mode the gradient is only an approximation.
        """
        start = len(self.evaluator.window.start)
        gates = torch.zeros(start + self.num_far)
        if around == "none":
            gates[start:] = -math.log(self.num_far)

        def objective(log_probs: Float[Tensor, " vocab"]) -> Float[Tensor, ""]:
            return self.objective(log_probs)

        evaluator = self.evaluator
        gradient = evaluator.model.gate_gradient(evaluator.states, evaluator.near, evaluator.near_ids, gates, objective)
        return -gradient[start:].double().cpu().numpy()

    def attention(self) -> Float[np.ndarray, " far"]:
        """Return the attention weights of the last near token on the far tokens, averaged over layers and heads."""
        evaluator = self.evaluator
        weights = evaluator.model.attention_weights(evaluator.states, evaluator.near, evaluator.near_ids)
        return weights[len(evaluator.window.start) :].double().cpu().numpy()
