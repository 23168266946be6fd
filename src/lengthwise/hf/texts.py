"""The texts of a call: which tokens are prompt, and each text in a row of its own where several were packed."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lengthwise.hf.columns import UNSCORED
from lengthwise.model.position_heads import PositionHead, Prompt, read_prompt


def before_labels(
    labels: Int[Tensor, "batch seq"], sequence_ids: Int[Tensor, "batch seq"] | None
) -> Bool[Tensor, "batch seq"]:
    """The tokens before the first that is scored, of each text."""
    scored = labels != UNSCORED
    # Nothing foretells a text's first token, labelled or not.
    scored[:, 0] = False
    if sequence_ids is None:
        return scored.cumsum(dim=1) == 0
    starts = torch.ones_like(scored)
    starts[:, 1:] = sequence_ids[:, 1:] != sequence_ids[:, :-1]
    scored &= ~starts
    so_far = scored.cumsum(dim=1)
    return so_far == torch.where(starts, so_far, 0).cummax(dim=1).values


@dataclass(frozen=True, slots=True)
class Places:
    """Where the tokens of each text stand: flat indexes into (batch, seq), and which of them are none."""

    index: Int[Tensor, "text longest"]
    inside: Bool[Tensor, "text longest"]

    def apart(self, packed: Tensor, fill: int) -> Tensor:
        """A row per text of what was (batch, seq) or (batch, seq, d)."""
        rows = packed.flatten(0, 1)[self.index]
        return rows.masked_fill(~self.inside.view(*self.inside.shape, *[1] * (rows.ndim - 2)), fill)


def places_of(sequence_ids: Int[Tensor, "batch seq"]) -> Places:
    """Where the texts are that ``sequence_ids`` tell apart in their rows; -1 is fill."""
    rows = torch.arange(len(sequence_ids), device=sequence_ids.device)[:, None]
    key = (rows * (int(sequence_ids.max()) + 1) + sequence_ids).flatten()
    flat = (sequence_ids >= 0).flatten().nonzero()[:, 0]
    _, text, counts = key[flat].unique_consecutive(return_inverse=True, return_counts=True)
    within = torch.arange(len(flat), device=flat.device) - (counts.cumsum(0) - counts)[text]
    index = torch.zeros(len(counts), int(counts.max()), dtype=torch.long, device=flat.device)
    inside = torch.zeros_like(index, dtype=torch.bool)
    index[text, within], inside[text, within] = flat, True
    return Places(index, inside)


def prompts_of(
    head: PositionHead,
    embed: Callable[[Tensor], Tensor],
    tokens: Int[Tensor, "batch seq"],
    position_ids: Int[Tensor, "batch seq"],
    is_prompt: Bool[Tensor, "batch seq"],
) -> Prompt:
    """What the head has to know of the prompts, wherever in their rows they stand."""
    lengths = is_prompt.sum(dim=1)
    # Prompt tokens first, in their order.
    order = (~is_prompt).long().argsort(dim=1, stable=True)[:, : max(int(lengths.max()), 1)]
    return read_prompt(head, embed(tokens.gather(1, order)), position_ids.gather(1, order), lengths)
