"""Tilted loss of a training step: between the mean over all tokens and the loss of the worst length."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from lengthwise.training.process_group import ProcessGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTilt:
    """Tilted empirical risk minimization over lengths (Li et al. 2021, arXiv 2007.01162); it has no state.

    With the share ``p`` of each length in the answer tokens of a step, the mean loss of a step is the sum over lengths
    of ``p * loss``. Its tilted loss is ``log(sum(p * exp(tilt * loss))) / tilt``, which rises from the mean loss
    (``tilt`` near 0) to the largest loss of a length (large ``tilt``). Its gradient is a weighted mean of the gradients
    of the lengths, with weights in proportion to ``p * exp(tilt * loss)``. ``max_length`` is the longest training
    length.
    """

    tilt: float
    max_length: int

    def sum_by_length(
        self, values: Shaped[Tensor, " query"], lengths: Int[Tensor, " query"]
    ) -> Shaped[Tensor, " length"]:
        """Return the sum of the values of each length from 0 to ``max_length``, or the number of true values."""
        values = values.long() if values.dtype == torch.bool else values
        return values.new_zeros(self.max_length + 1).index_add(0, lengths, values)

    def loss(
        self, parts: Float[Tensor, " length"], counts: Int[Tensor, " length"], processes: ProcessGroup
    ) -> Float[Tensor, ""]:
        """Return the tilted loss in nats.

        ``parts`` contains the part of each length in the mean loss of the step, and ``counts`` the number of answer
        tokens of each length in all ``processes``. With several processes, ``parts`` and the result are those of one
        process; the results add up to the tilted loss, and their gradients to its gradient.
        """
        totals = parts.detach().clone()
        processes.add([totals])
        shares = counts / counts.sum()
        # Lengths without tokens have the weight 0.
        positive_shares = shares.clamp(min=torch.finfo(shares.dtype).tiny)
        scores = shares.log() + self.tilt * totals / positive_shares
        # The gradient of the tilted loss is that of this sum, with constant weights.
        weights = scores.softmax(dim=0) / positive_shares
        weighted = (weights * parts).sum()
        if processes.rank > 0:
            return weighted
        return weighted + scores.logsumexp(dim=0) / self.tilt - (weights * totals).sum()
