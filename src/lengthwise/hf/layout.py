"""Where the tokens of each example stand in a batch: alone in a row, or packed behind one another."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The row and the token index of every token, example by example, and the number of its example in the row."""

    shape: tuple[int, int]
    rows: Int[np.ndarray, " tokens"]
    columns: Int[np.ndarray, " tokens"]
    members: Int[np.ndarray, " tokens"]

    def place(self, values: Sequence[np.ndarray], fill: int) -> Int[Tensor, "batch seq"]:
        """One array of whole numbers per example at its place, and ``fill`` everywhere else."""
        return self._filled(np.concatenate(values), fill)

    @property
    def sequence_ids(self) -> Int[Tensor, "batch seq"]:
        """The number of each token's example in its row, from 0; -1 for padding."""
        return self._filled(self.members, -1)

    def _filled(self, values: Int[np.ndarray, " tokens"], fill: int) -> Int[Tensor, "batch seq"]:
        placed = np.full(self.shape, fill, dtype=np.int64)
        placed[self.rows, self.columns] = values
        return torch.from_numpy(placed)


def lay_out(lengths: Sequence[int], *, pack_to: int | None, left: bool, multiple: int | None) -> Layout:
    """Rows of one example each, or of as many as fit into ``pack_to`` tokens; as wide as the longest, rounded up."""
    packs = [[example] for example in range(len(lengths))] if pack_to is None else first_fit(lengths, pack_to)
    used = [sum(lengths[example] for example in pack) for pack in packs]
    width = max(used)
    if multiple is not None:
        width = -(-width // multiple) * multiple
    # Row, first column and number in the row of each example.
    starts = np.zeros((len(lengths), 3), dtype=np.int64)
    for row, pack in enumerate(packs):
        column = width - used[row] if left else 0
        for member, example in enumerate(pack):
            starts[example] = row, column, member
            column += lengths[example]
    rows, first, members = starts.repeat(lengths, axis=0).T
    index = np.concatenate([np.arange(length) for length in lengths])
    return Layout(shape=(len(packs), width), rows=rows, columns=first + index, members=members)


def first_fit(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Packs of at most ``room`` tokens: the longest example first, each into the first pack that has room for it."""
    packs: list[list[int]] = []
    left: list[int] = []
    for example in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        found = next((pack for pack, free in enumerate(left) if free >= lengths[example]), len(packs))
        if found == len(packs):
            packs.append([])
            left.append(room)
        packs[found].append(example)
        left[found] -= lengths[example]
    return packs
