"""What a measure may ask about one window: how good a choice of far tokens is, and cheap hints where to look."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.influence.probing.hidden_context import Masked
from lengthwise.influence.probing.next_token_model import NextTokenModel
from lengthwise.influence.probing.objective import Objective
from lengthwise.influence.probing.prefix import strict_of_one
from lengthwise.influence.probing.window import Window


class Reading:
    """A window and the model; the pass over its far tokens is shared by all that asks about them."""

    def __init__(self, model: NextTokenModel, window: Window) -> None:
        self.model, self.window = model, window

    @cached_property
    def masked(self) -> Masked:
        """The far tokens, read when they are first asked about."""
        return Masked(self.model, self.window)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One window, one of ``MODES``, one objective; a measure chooses among ``candidates``, places of far tokens."""

    reading: Reading
    mode: str
    objective: Objective
    candidates: Int[np.ndarray, " candidates"]

    @property
    def num_far(self) -> int:
        """How many far tokens there are, candidates or not."""
        return self.reading.window.num_far

    def only(self, kept: Sequence[int]) -> Bool[np.ndarray, " far"]:
        """Which far tokens are visible when these alone are."""
        return self.reading.window.only(kept)

    def among(self, candidates: Int[np.ndarray, " candidates"]) -> "Probe":
        """The same with fewer tokens to choose from; the others stay what they are, only no choice."""
        return replace(self, candidates=np.sort(candidates))

    def scores(self, visible: Bool[np.ndarray, "rows far"]) -> Float[np.ndarray, " rows"]:
        """The objective with these far tokens visible and no others, exactly; lower is better."""
        if self.mode == "strict":
            answers = strict_of_one(self.reading.model, self.reading.window, visible)
        else:
            answers = self.reading.masked.log_probs(visible)
        scores = np.empty(len(visible))
        for rows, log_probs in answers:
            scores[rows] = self.objective(log_probs).double().cpu().numpy()
        return scores

    def gradient(self, *, around: str) -> Float[np.ndarray, " far"]:
        """How fast the objective falls as near tokens attend more to each far token, to first order.

        ``around`` "all": from the whole context. "none": from a context in which all far tokens together weigh about as
        much as one. Far states are those of the full pass in both modes: under strict hiding this is a hint only.
        """
        masked = self.reading.masked
        start = len(masked.window.start)
        gates = torch.zeros(start + self.num_far)
        if around == "none":
            gates[start:] = -math.log(self.num_far)

        def objective(log_probs: Float[Tensor, " vocab"]) -> Float[Tensor, ""]:
            return self.objective(log_probs)

        found = self.reading.model.gate_gradient(masked.states, masked.near, masked.near_ids, gates, objective)
        return -found[start:].double().cpu().numpy()

    def attention(self) -> Float[np.ndarray, " far"]:
        """The attention weight of the target's query on each far token, mean over layers and heads."""
        masked = self.reading.masked
        found = self.reading.model.attention_weights(masked.states, masked.near, masked.near_ids)
        return found[len(masked.window.start) :].double().cpu().numpy()
