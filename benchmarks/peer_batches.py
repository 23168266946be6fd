"""Batches of parity examples from a plain Python generator, with the same fields as batches of lengthwise."""

import random
from collections.abc import Iterator

import torch
from torch import Tensor

from lengthwise.positions import PositionScheme, Sequential

EQUALS, END = 2, 3


def parity_examples(length: int, scheme: PositionScheme, rng: random.Random) -> Iterator[dict[str, list[int] | int]]:
    """Yield parity examples with a scratchpad, with sequential IDs or with coupled IDs, random gaps and a shift."""
    while True:
        bits = [rng.randrange(2) for _ in range(length)]
        parities, parity = [], 0
        for bit in bits:
            parity ^= bit
            parities.append(parity)
        tokens = [*bits, EQUALS, 0, *parities, END]
        prompt_length = length + 2
        ids = list(range(len(tokens)))
        if not isinstance(scheme, Sequential):
            groups = [*range(1, length + 1), length + 1, *range(1, length + 2), length + 2]
            ids = insert_gaps(groups, scheme, rng)
        token_scored = [int(index >= prompt_length) for index in range(len(tokens))]
        id_scored = [int(prompt_length - 1 <= index < len(tokens) - 1) for index in range(len(tokens))]
        yield {
            "tokens": tokens,
            "position_ids": ids,
            "prompt_length": prompt_length,
            "token_scored": token_scored,
            "id_scored": id_scored,
        }


def insert_gaps(groups: list[int], scheme: PositionScheme, rng: random.Random) -> list[int]:
    """Return the group numbers with random gaps between groups and a random shift, below the scheme's number of IDs."""
    num_position_ids = scheme.num_position_ids or len(groups)
    num_unused, last_group = num_position_ids - 1 - max(groups), max(groups)
    fractions = [rng.random() for _ in range(rng.randint(0, getattr(scheme, "max_gaps", 0)))]
    total = max(sum(fractions), 1.0)
    added = [0] * (last_group + 1)
    for fraction in fractions:
        added[int(rng.random() * last_group) + 1] += int(fraction / total * num_unused)
    offset, offsets = 0, []
    for gap in added:
        offset += gap
        offsets.append(offset)
    shift = rng.randint(0, num_unused - offset)
    return [group + offsets[group] + shift for group in groups]


def python_batch(length: int, batch_size: int, scheme: PositionScheme, seed: int = 0) -> dict[str, Tensor]:
    """Return a batch as tensors, from lists of examples made one by one."""
    examples = parity_examples(length, scheme, random.Random(seed))
    rows = [next(examples) for _ in range(batch_size)]
    masks = ("token_scored", "id_scored")
    return {
        name: torch.tensor([row[name] for row in rows], dtype=torch.bool if name in masks else torch.int64)
        for name in rows[0]
    }
