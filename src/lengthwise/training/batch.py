"""Sampler: a task and a scheme make the batch of any step, again and on any machine, from (seed, purpose, step)."""

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
    """Examples with their IDs, as tensors; all of one length."""

    length: int
    tokens: Int[Tensor, "batch seq"]
    position_ids: Real[Tensor, "level batch seq"]
    prompt_length: Int[Tensor, " batch"]
    token_scored: Bool[Tensor, "batch seq"]
    id_scored: Bool[Tensor, "batch seq"]

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def rows(self, rows: slice | Int[np.ndarray, " some"]) -> "Batch":
        """Some of its sequences."""
        # The batch axis is the last but one, and the only one of the prompt lengths.
        return self._map(lambda tensor: tensor[rows] if tensor.dim() < 3 else tensor[:, rows])

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        tensors = {part.name: change(getattr(self, part.name)) for part in fields(self) if part.name != "length"}
        return Batch(length=self.length, **tensors)


def to_batch(length: int, examples: Examples, assignment: Assignment) -> Batch:
    """NumPy in, tensors out."""
    return Batch(
        length=length,
        tokens=_tensor(examples.tokens),
        position_ids=_tensor(assignment.position_ids),
        prompt_length=_tensor(examples.prompt_length),
        token_scored=_tensor(assignment.token_scored),
        id_scored=_tensor(assignment.id_scored),
    )


def _tensor(array: np.ndarray) -> Tensor:
    # A broadcast view is read-only and has no memory of its own: tensors need both.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """Training batches: one length per batch, drawn uniformly from ``lengths`` (both ends included).

    Where the task has examples of some lengths only, it is one of these.
    """

    task: Task
    scheme: PositionScheme
    lengths: tuple[int, int]
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        first, last = self.lengths
        if first < 1:
            raise SettingError(f"training length {first} is no length; lengths start at 1")
        if last < first:
            raise SettingError(f"training lengths {first}:{last} run backwards; write the smaller one first")
        if self.batch_size < 1:
            raise SettingError(f"batch size {self.batch_size} trains on nothing; use at least 1")

    def batch(self, step: int) -> Batch:
        """The batch of a training step; asking twice gives the same one."""
        lengths = lengths_between(self.task, *self.lengths)
        rng = stream(self.seed, "training examples", step)
        length = lengths[int(rng.integers(0, len(lengths)))]
        examples = self.task.sample(length=length, size=self.batch_size, rng=rng)
        assignment = self.scheme.assign(examples, stream(self.seed, "training positions", step), training=True)
        return to_batch(length, examples, assignment)
