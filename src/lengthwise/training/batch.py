"""Batches, and a sampler that reproduces the examples of any training step from the seed and the step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int, Real
from torch import Tensor
from torch.nn.functional import pad

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.positions import Assignment, PositionScheme
from lengthwise.tasks import Task, lengths_between
from lengthwise.tasks.examples import Examples

# Largest share of fill in the tokens of a training step.
MAX_FILL = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Examples with their position IDs, as tensors; ``length`` is the length of the longest example.

    ``example_length`` contains the length of each example. Shorter examples are filled on the right. Fill is never
    scored, and no other token depends on it. If ``prompt_range`` is set, all prompt lengths are in this range, both
    ends included, so nobody has to read them.
    ``places`` is set for the share of a batch that one of several processes trains on; see ``take_shard``.
    """

    length: int
    tokens: Int[Tensor, "batch seq"]
    position_ids: Real[Tensor, "level batch seq"]
    example_length: Int[Tensor, " batch"]
    prompt_length: Int[Tensor, " batch"]
    token_scored: Bool[Tensor, "batch seq"]
    id_scored: Bool[Tensor, "batch seq"]
    prompt_range: tuple[int, int] | None = None
    places: range | None = None

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on another device."""
        moved = self.map_tensors(lambda tensor: tensor.to(device, non_blocking=True))
        # Reading the lengths on a GPU would wait for all earlier work.
        return moved if device.type == "cpu" else replace(moved, prompt_range=self.find_prompt_range())

    def find_prompt_range(self) -> tuple[int, int]:
        """Return ``prompt_range``, or the smallest and largest prompt length if it is not set."""
        return self.prompt_range or (int(self.prompt_length.min()), int(self.prompt_length.max()))

    def select_examples(self, indices: slice | Int[np.ndarray, " some"]) -> "Batch":
        """Return the examples at ``indices`` of the batch axis."""
        # Tensors with three axes have a leading level axis.
        selected = self.map_tensors(lambda tensor: tensor[indices] if tensor.dim() < 3 else tensor[:, indices])
        return selected if self.places is None else replace(selected, places=None)

    def take_shard(self, index: int, num_shares: int) -> "Batch":
        """Return every ``num_shares``-th example from ``index`` on, with its place in the whole batch.

        Scheduled sampling and dilution depend on the place. A share without examples has one that is not scored.
        """
        total = len(self.tokens)
        if places := range(index, total, num_shares):
            return replace(self.select_examples(slice(index, None, num_shares)), places=places)
        return replace(
            self.select_examples(slice(0, 1)),
            token_scored=torch.zeros_like(self.token_scored[:1]),
            id_scored=torch.zeros_like(self.id_scored[:1]),
            places=range(0, total, total),
        )

    def find_example_indexes(self) -> range:
        """Return the indexes of the examples in the whole batch, whose size is the ``stop`` of this range."""
        return range(len(self.tokens)) if self.places is None else self.places

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Return a batch with ``change`` applied to every tensor."""
        tensors: dict[str, Any] = {name: change(getattr(self, name)) for name in TENSORS}
        return replace(self, **tensors)


TENSORS = tuple(part.name for part in fields(Batch) if part.name not in ("length", "prompt_range", "places"))


def to_batch(length: int, examples: Examples, assignment: Assignment) -> Batch:
    """Convert examples and their IDs from NumPy arrays to tensors."""
    return Batch(
        length=length,
        tokens=_tensor(examples.tokens),
        position_ids=_tensor(assignment.position_ids),
        example_length=torch.full((len(examples.tokens),), length),
        prompt_length=_tensor(examples.prompt_length),
        token_scored=_tensor(assignment.token_scored),
        id_scored=_tensor(assignment.id_scored),
    )


def _tensor(array: np.ndarray) -> Tensor:
    # A tensor needs writable memory, which a broadcast view does not have.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def pad_sequences(tensor: Tensor, num_fill: int) -> Tensor:
    """Repeat the last token or ID of each sequence, or add unscored tokens."""
    if tensor.dtype == torch.bool:
        return pad(tensor, (0, num_fill))
    return torch.cat([tensor, tensor[..., -1:].expand(*tensor.shape[:-1], num_fill)], dim=-1)


def join_batches(parts: Sequence[Batch]) -> Batch:
    """Join batches along the batch axis; fill repeats the last token and the last ID of each sequence.

    The examples of each part are spread evenly over the batch, because scheduled sampling and dilution depend on the
    index of an example.
    """
    if len(parts) == 1:
        return parts[0]
    seq = max(part.tokens.shape[1] for part in parts)
    places = torch.cat([(torch.arange(len(part.tokens)) + 0.5) / len(part.tokens) for part in parts])
    order = places.argsort(stable=True)

    def join(name: str) -> Tensor:
        tensors = [getattr(part, name) for part in parts]
        if tensors[0].dim() == 1:
            return torch.cat(tensors)[order]
        filled = [pad_sequences(tensor, seq - tensor.shape[-1]) for tensor in tensors]
        return torch.cat(filled, dim=-2)[..., order, :]

    tensors: dict[str, Any] = {name: join(name) for name in TENSORS}
    return Batch(length=max(part.length for part in parts), **tensors)


def group_batches_by_size(parts: Sequence[Batch]) -> list[Batch]:
    """Join batches of similar token counts, as far as the share of fill in all tokens stays below ``MAX_FILL``."""
    groups = [[part] for part in sorted(parts, key=lambda part: part.tokens.shape[1])]
    num_tokens = sum(part.tokens.numel() for part in parts)
    fill = 0
    while len(groups) > 1:
        # Adjacent groups whose join adds the fewest fill tokens.
        added, left = min((_added_fill(*pair), left) for left, pair in enumerate(pairwise(groups)))
        if fill + added > MAX_FILL * (num_tokens + fill + added):
            break
        fill += added
        groups[left : left + 2] = [groups[left] + groups[left + 1]]
    return [join_batches(group) for group in groups]


def _added_fill(shorter: list[Batch], longer: list[Batch]) -> int:
    growth = longer[-1].tokens.shape[1] - shorter[-1].tokens.shape[1]
    return growth * sum(len(part.tokens) for part in shorter)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSampler:
    """Training examples of lengths sampled uniformly from ``lengths``, both ends included.

    A step has ``batch_size`` examples of ``lengths_per_batch`` different lengths (or of all lengths, if there are
    fewer). Only lengths with examples are sampled. Raises ``SettingError`` for a range without lengths or an empty
    batch.
    """

    task: Task
    scheme: PositionScheme
    lengths: tuple[int, int]
    batch_size: int
    seed: int
    lengths_per_batch: int = 8

    def __post_init__(self) -> None:
        first, last = self.lengths
        if first < 1:
            raise SettingError(f"training length {first} is too small; lengths start at 1")
        if last < first:
            raise SettingError(f"training lengths {first}:{last} are reversed; put the smaller one first")
        for name in ("batch_size", "lengths_per_batch"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name.replace('_', ' ')} {getattr(self, name)} is too small; use at least 1")

    def batches(self, step: int) -> list[Batch]:
        """Return the examples of a training step, the same on every call, in batches of similar token counts."""
        rng, id_rng = (
            random_stream(self.seed, "training examples", step),
            random_stream(self.seed, "training positions", step),
        )
        parts = []
        for length, size in self._sizes(rng):
            examples = self.task.sample(length=length, size=size, rng=rng)
            parts.append(to_batch(length, examples, self.scheme.assign(examples, id_rng, training=True)))
        return group_batches_by_size(parts)

    def _sizes(self, rng: np.random.Generator) -> list[tuple[int, int]]:
        """Return the lengths of a step, and the number of examples of each length."""
        lengths = lengths_between(self.task, *self.lengths)
        num = min(self.lengths_per_batch, len(lengths), self.batch_size)
        if num == 1:
            return [(lengths[int(rng.integers(0, len(lengths)))], self.batch_size)]
        sampled = rng.choice(len(lengths), size=num, replace=False)
        size, remainder = divmod(self.batch_size, num)
        return [(lengths[index], size + (rank < remainder)) for rank, index in enumerate(sampled.tolist())]
