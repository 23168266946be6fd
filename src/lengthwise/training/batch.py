"""Batches, and a sampler that reproduces the batch of any training step from the seed and the step."""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Bool, Int, Real
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import stream
from lengthwise.positions import Assignment, PositionScheme
from lengthwise.tasks import Task, lengths_between
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Examples of one length with their position IDs, as tensors."""

    length: int
    tokens: Int[Tensor, "batch seq"]
    position_ids: Real[Tensor, "level batch seq"]
    prompt_length: Int[Tensor, " batch"]
    token_scored: Bool[Tensor, "batch seq"]
    id_scored: Bool[Tensor, "batch seq"]

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def select(self, indices: slice | Int[np.ndarray, " some"]) -> "Batch":
        """Return the examples at ``indices`` of the batch axis."""
        # Tensors with three axes have a leading level axis.
        return self._map(lambda tensor: tensor[indices] if tensor.dim() < 3 else tensor[:, indices])

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        tensors = {part.name: change(getattr(self, part.name)) for part in fields(self) if part.name != "length"}
        return Batch(length=self.length, **tensors)


def to_batch(length: int, examples: Examples, assignment: Assignment) -> Batch:
    """Convert examples and their IDs from NumPy arrays to tensors."""
    return Batch(
        length=length,
        tokens=_tensor(examples.tokens),
        position_ids=_tensor(assignment.position_ids),
        prompt_length=_tensor(examples.prompt_length),
        token_scored=_tensor(assignment.token_scored),
        id_scored=_tensor(assignment.id_scored),
    )


def _tensor(array: np.ndarray) -> Tensor:
    # A tensor needs writable memory, which a broadcast view does not have.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """Training batches of one length each, sampled uniformly from ``lengths``, both ends included.

    Only lengths with examples are sampled. Raises ``SettingError`` for a range without lengths or an empty batch.
    """

    task: Task
    scheme: PositionScheme
    lengths: tuple[int, int]
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        first, last = self.lengths
        if first < 1:
            raise SettingError(f"training length {first} is too small; lengths start at 1")
        if last < first:
            raise SettingError(f"training lengths {first}:{last} are reversed; put the smaller one first")
        if self.batch_size < 1:
            raise SettingError(f"batch size {self.batch_size} is too small; use at least 1")

    def batch(self, step: int) -> Batch:
        """Return the batch of a training step, the same on every call."""
        lengths = lengths_between(self.task, *self.lengths)
        rng = stream(self.seed, "training examples", step)
        length = lengths[int(rng.integers(0, len(lengths)))]
        examples = self.task.sample(length=length, size=self.batch_size, rng=rng)
        assignment = self.scheme.assign(examples, stream(self.seed, "training positions", step), training=True)
        return to_batch(length, examples, assignment)
