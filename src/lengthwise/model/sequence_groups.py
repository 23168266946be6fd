"""Groups of sequences in one forward pass: linear layers take all tokens at once, and attention one group at a time."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Real
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceGroup:
    """Sequences with equal numbers of tokens.

    ``position_ids`` has the IDs of the tokens, and ``key_ids`` those of earlier (cached) tokens too. ``query_start`` is
    the first token whose hidden state the last block computes. ``places`` are the indexes of the sequences in their
    whole batch, whose size is ``places.stop``; None means that they are the whole batch.
    """

    position_ids: Real[Tensor, "level batch seq"]
    key_ids: Real[Tensor, "level batch key"]
    query_start: int = 0
    places: range | None = None

    @property
    def size(self) -> int:
        """Number of sequences."""
        return self.position_ids.shape[1]

    @property
    def seq(self) -> int:
        """Number of tokens per sequence."""
        return self.position_ids.shape[2]

    @property
    def num_queries(self) -> int:
        """Number of tokens per sequence from ``query_start`` on."""
        return self.seq - self.query_start


def join_tokens(parts: Sequence[Float[Tensor, "_batch _seq width"]]) -> Float[Tensor, "token width"]:
    """Join the tokens of all groups along one axis."""
    return parts[0].flatten(0, 1) if len(parts) == 1 else torch.cat([part.flatten(0, 1) for part in parts])


def split_tokens(
    x: Float[Tensor, "token width"], groups: Sequence[SequenceGroup]
) -> list[Float[Tensor, "_batch _seq width"]]:
    """Split joined tokens into the groups."""
    return _split(x, [(group.size, group.seq) for group in groups])


def split_queries(
    x: Float[Tensor, "query width"], groups: Sequence[SequenceGroup]
) -> list[Float[Tensor, "_batch _query width"]]:
    """Split joined queries into the groups."""
    return _split(x, [(group.size, group.num_queries) for group in groups])


def select_queries(x: Float[Tensor, "token width"], groups: Sequence[SequenceGroup]) -> Float[Tensor, "query width"]:
    """Return the joined tokens from the ``query_start`` of each group on."""
    if not any(group.query_start for group in groups):
        return x
    pairs = zip(split_tokens(x, groups), groups, strict=True)
    return join_tokens([part[:, group.query_start :] for part, group in pairs])


def _split(x: Float[Tensor, "token width"], sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
    if len(sizes) == 1:
        return [x.reshape(*sizes[0], x.shape[1])]
    parts = torch.split(x, [size * seq for size, seq in sizes])
    return [part.reshape(size, seq, x.shape[1]) for part, (size, seq) in zip(parts, sizes, strict=True)]
