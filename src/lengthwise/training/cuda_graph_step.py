"""Training steps on a GPU: those of small models are recorded as CUDA graphs, and those of large models compiled."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lengthwise.model.fast.cuda_graphs import ReplayableGraph, record_graph
from lengthwise.model.fast.switch import fast_paths_enabled
from lengthwise.training.batch import TENSORS, Batch, TrainingSampler, join_batches, pad_sequences
from lengthwise.training.loss import AnswerLoss

# Up to this product of parameters and tokens, starting the kernels of a step takes longer than their work.
MAX_RECORDED_WORK = 1 << 36
# The number of tokens per sequence is a multiple of this, so that few shapes have to be recorded.
SEQ_STEP = 16
MAX_RECORDINGS = 64
# From this product of parameters and tokens of all steps, a run takes less time with the time of compilation.
MIN_COMPILED_WORK = 1 << 51


def is_compilation_worthwhile(sampler: TrainingSampler, num_steps: int, num_parameters: int) -> bool:
    """Return True if compiled steps, which need batches of one shape, take less time in total."""
    step_work = num_parameters * sampler.batch_size * sampler.lengths[1]
    has_one_length = sampler.lengths[0] == sampler.lengths[1]
    return (
        fast_paths_enabled()
        and has_one_length
        and step_work > MAX_RECORDED_WORK
        and step_work * num_steps >= MIN_COMPILED_WORK
    )


def join_to_fixed_shape(batches: Sequence[Batch]) -> Batch:
    """Join the batches of a step into one batch whose tensors and prompt range depend only on a rounded length."""
    batch = join_batches(batches)
    # The decoder reads all tokens except the last.
    num_read = batch.tokens.shape[1] - 1
    fill = -num_read % SEQ_STEP
    filled = batch.map_tensors(lambda tensor: tensor if tensor.dim() == 1 else pad_sequences(tensor, fill))
    return replace(filled, prompt_range=(1, num_read + fill))


@dataclass(frozen=True, slots=True)
class _Recording:
    graph: ReplayableGraph
    batch: Batch
    outcome: AnswerLoss


class CUDAGraphTrainingStep:
    """Training steps on a GPU that are recorded once per shape of the batch; later steps only repeat the kernels.

    All examples of a recorded step are in one batch, which is filled to a rounded length, so the losses differ from
    those of several batches only by rounding. Larger steps are not recorded.
    """

    def __init__(self, update: Callable[[Sequence[Batch]], AnswerLoss], num_parameters: int) -> None:
        """Initialize without recordings; ``update`` must not wait for the GPU."""
        self.update = update
        self.num_parameters = num_parameters
        # None after the first step of a shape, which initializes libraries and is not recorded.
        self.recordings: dict[torch.Size, _Recording | None] = {}
        self.max_recordings = MAX_RECORDINGS

    def can_record(self, batches: Sequence[Batch]) -> bool:
        """Return True if a step with these batches is small enough to be recorded."""
        num_tokens = sum(len(batch.tokens) for batch in batches) * max(batch.tokens.shape[1] for batch in batches)
        return fast_paths_enabled() and num_tokens * self.num_parameters <= MAX_RECORDED_WORK

    def prepare_batches(self, batches: Sequence[Batch]) -> list[Batch]:
        """Return batches, on the CPU, that ``step`` accepts."""
        return [join_to_fixed_shape(batches)] if self.can_record(batches) else list(batches)

    def step(self, batches: Sequence[Batch], device: torch.device) -> AnswerLoss:
        """Update the weights with batches from ``prepare_batches``, and return their loss."""
        batch, shape = batches[0], batches[0].position_ids.shape
        if shape not in self.recordings:
            if batch.prompt_range is not None and len(self.recordings) < self.max_recordings:
                self.recordings[shape] = None
            return self.update([batch.to(device) for batch in batches])
        recording = self.recordings[shape] or self._record(batch.to(device))
        if recording is None:
            return self.update([batch.to(device)])
        for name in TENSORS:
            target: Tensor = getattr(recording.batch, name)
            target.copy_(getattr(batch, name), non_blocking=True)
        recording.graph.replay()
        return recording.outcome

    def _record(self, batch: Batch) -> _Recording | None:
        """Record a step, or warn and stop recording if PyTorch cannot record the operations of this model."""
        pools = [recording.graph.pool() for recording in self.recordings.values() if recording is not None]
        try:
            graph, outcome = record_graph(lambda: self.update([batch]), pools[0] if pools else None)
        except RuntimeError as error:
            warnings.warn(f"training is slower, because its steps cannot be recorded: {error}", stacklevel=2)
            self.recordings, self.max_recordings = {}, 0
            return None
        recording = self.recordings[batch.position_ids.shape] = _Recording(graph, batch, outcome)
        return recording
