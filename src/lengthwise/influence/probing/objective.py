"""What a choice of far tokens is judged by: the target's loss, or how near the prediction comes to the full one."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

# A selection that knows the target asks whether k tokens suffice; one that knows the prediction with the whole context
# is what a key-value budget could do.
OBJECTIVES = ("target", "prediction")


@dataclass(frozen=True, slots=True)
class TargetLoss:
    """Minus the log-probability of the target, nats."""

    target: int

    def __call__(self, log_probs: Float[Tensor, "*rows vocab"]) -> Float[Tensor, "*rows"]:
        """The loss in each row."""
        return -log_probs[..., self.target]


@dataclass(frozen=True, slots=True)
class Divergence:
    """The Kullback-Leibler divergence from the prediction with the whole context, nats."""

    log_probs_long: Float[Tensor, " vocab"]

    def __call__(self, log_probs: Float[Tensor, "*rows vocab"]) -> Float[Tensor, "*rows"]:
        """The divergence of each row."""
        share = self.log_probs_long.exp()
        # What has no share adds nothing, however unlikely it has become.
        return torch.where(share > 0, share * (self.log_probs_long - log_probs), 0.0).sum(dim=-1)


Objective = TargetLoss | Divergence
