"""Sums over sets whose scores are chains: each token has a score, and so has each step from one token to the next."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lengthwise.theory.attention.product import FIRST_SPREAD, NEVER, Sequences, Values, by_slot


class ChainScores(nn.Module):
    """``g = prod_j u_j(x_(i_j)) prod_j t_j(gap_j, x_(i_(j-1)), x_(i_j))``, with ``max_gap`` and within ``span``.

    Summed slot by slot over all tokens at once: time ``O(seq k max_gap states)``. A span below what k - 1 gaps can
    reach is one more axis, the offset from the first token: times ``span``. Without ``linked`` all t are 1: products,
    made local. Reconstructed.
    """

    def __init__(self, num_tokens: int, k: int, span: int, *, max_gap: int, linked: bool = True) -> None:
        super().__init__()
        self.span = span
        self.max_gap = max_gap
        self.tokens = nn.Parameter(FIRST_SPREAD * torch.randn(k, num_tokens))
        self.links = (
            nn.Parameter(FIRST_SPREAD * torch.randn(k - 1, max_gap, num_tokens, num_tokens)) if linked else None
        )

    @property
    def tight(self) -> bool:
        """Whether the span forbids what the gaps allow."""
        return (len(self.tokens) - 1) * self.max_gap + 1 > self.span

    def ending(self, values: Values, sequences: Sequences) -> Float[Tensor, "batch seq outputs"]:
        """Slot by slot; a set goes on behind any token within the largest gap."""
        tokens, power = sequences.tokens, sequences.power
        sums = sequences.starts[None, :, None, None].expand(len(tokens), -1, 1, 1) * power
        if self.tight:
            sums = functional.pad(sums, (0, 0, 0, self.span - 1), value=NEVER)
        own = functional.embedding(tokens, power * self.tokens.T)  # batch seq k
        links = self._links(tokens, power)
        for slot in range(len(self.tokens)):
            if slot > 0:
                sums = self._later(sums, links[..., slot - 1])
            if slot == len(self.tokens) - 1 and self.tight:
                sums = sums.logsumexp(dim=2, keepdim=True)
            sums = values.read(slot, sums + own[:, :, None, slot, None], tokens)
        return sums[:, :, 0]

    def at(self, ids: Int[Tensor, "batch sets k"], tuples: Int[Tensor, "batch sets k"]) -> Float[Tensor, "batch sets"]:
        """Zero weight, ``NEVER``, beyond the largest gap and beyond the span."""
        gaps = ids.diff(dim=-1)
        scores = by_slot(self.tokens, tuples)
        if self.links is not None:
            slots = torch.arange(gaps.shape[-1])
            near = gaps.clamp(1, self.max_gap) - 1
            scores = scores + self.links[slots, near, tuples[..., :-1], tuples[..., 1:]].sum(dim=-1)
        far = (gaps > self.max_gap).any(dim=-1) | (ids[..., -1] - ids[..., 0] >= self.span)
        return torch.where(far, NEVER, scores)

    def _links(self, tokens: Int[Tensor, "batch seq"], power: float) -> Float[Tensor, "gaps batch seq slots"]:
        """The score of the step to each token, by gap from 1; before the first token stands anything."""
        seq, most = tokens.shape[1], self.max_gap
        if self.links is None:
            return self.tokens.new_zeros(1, 1, 1, 1).expand(most, *tokens.shape, len(self.tokens) - 1)
        padded = functional.pad(tokens, (most, 0))
        before = torch.stack([padded[:, most - gap : most - gap + seq] for gap in range(1, most + 1)])
        gaps = torch.arange(most, device=tokens.device)[:, None, None]
        num_tokens = self.tokens.shape[1]
        # All slots in one look-up: each look-up has a costly backward pass.
        return functional.embedding((gaps * num_tokens + before) * num_tokens + tokens, power * self.links.flatten(1).T)

    def _later(
        self, sums: Float[Tensor, "batch seq offsets states"], link: Float[Tensor, "gaps batch seq"]
    ) -> Float[Tensor, "batch seq offsets states"]:
        """Log sums over tuples that end before each token, the step to it counted."""
        seq, offsets = sums.shape[1:3]
        padded = functional.pad(sums, (0, 0, self.max_gap if self.tight else 0, 0, self.max_gap, 0), value=NEVER)
        moved = []
        for early in range(self.max_gap - 1, -1, -1):
            # One gap further on is one offset further from the first token.
            offset = early if self.tight else 0
            moved.append(padded[:, early : early + seq, offset : offset + offsets])
        return (torch.stack(moved) + link[..., None, None]).logsumexp(dim=0)
