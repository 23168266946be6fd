"""Processes that train one run together, each on its share of the examples of every step (data parallelism).

The processes use plain all-reduce instead of ``DistributedDataParallel``, for two reasons. The loss is a mean over the
scored tokens of all processes, and a share can have any number of them, so gradients have to be added, not averaged.
The decoder trains several batches in one pass, which is not its ``forward``, so the hooks of the wrapper do not apply.
All processes then clip and apply the same gradient, so their weights stay equal.
"""

import atexit
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from lengthwise.core.errors import DeviceError, WorkerError
from lengthwise.training.launch import LaunchInfo

Result = TypeVar("Result")

# A process waits for the others at most this long, for example while the first one measures exact match.
TIMEOUT = timedelta(hours=2)
# Number of values that are sent together; larger messages take more memory and hardly less time.
BUCKET_SIZE = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """Processes that train one run; ``rank`` is the index of this process, and the process of rank 0 writes all files.

    Every process has to call the same methods in the same order. With one process, they do nothing. They raise
    ``WorkerError`` if another process has ended.
    """

    rank: int = 0
    size: int = 1

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor, in place, by the sum of this tensor over all processes; all have the same type."""
        if self.size == 1:
            return
        for bucket in _buckets(tensors):
            joined = torch.cat([tensor.flatten() for tensor in bucket])
            with _report_lost_process():
                distributed.all_reduce(joined)
            totals = torch.split(joined, [tensor.numel() for tensor in bucket])
            for tensor, total in zip(bucket, totals, strict=True):
                tensor.copy_(total.view_as(tensor))

    def sum_counts(self, counts: list[Tensor]) -> list[Tensor]:
        """Return the sums of scalar tensors over all processes."""
        if self.size == 1:
            return counts
        total = torch.stack(counts)
        self.all_reduce_sum([total])
        return list(total.unbind())

    def any_process(self, condition: bool) -> bool:
        """Return True if the condition is true in any process."""
        if self.size == 1:
            return condition
        total = torch.tensor([int(condition)])
        self.all_reduce_sum([total])
        return total.item() > 0

    def broadcast_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Replace the values of tensors, in place, by those of the first process."""
        if self.size > 1:
            for tensor in tensors:
                with _report_lost_process():
                    distributed.broadcast(tensor, 0)

    def call_in_all(self, function: Callable[[], Result]) -> Result:
        """Return the result of a function that every process calls; an error in one process is raised in all."""
        if self.size == 1:
            return function()
        results: list[Result] = []
        error: Exception | None = None
        try:
            results.append(function())
        except Exception as caught:
            error = caught
        errors: list[Exception | None] = [None] * self.size
        with _report_lost_process():
            distributed.all_gather_object(errors, error)
        for first_error in errors:
            if first_error is not None:
                raise first_error if error is None else error
        return results[0]

    def call_in_first(self, function: Callable[[], Result]) -> Result:
        """Call a function in the first process only, and return its result, or raise its error, in all processes."""
        if self.size == 1:
            return function()
        results: list[Any] = [self.call_in_all(function if self.rank == 0 else lambda: None)]
        with _report_lost_process():
            distributed.broadcast_object_list(results, 0)
        result: Result = results[0]
        return result


ONE_PROCESS = ProcessGroup()


def join_processes(launch: LaunchInfo, device_type: str) -> ProcessGroup:
    """Connect the processes of a launch, and return their group; a process connects only once.

    Raises ``DeviceError`` if this machine has fewer GPUs than processes.
    """
    if launch.size == 1:
        return ONE_PROCESS
    if device_type == "cuda":
        num_gpus = torch.cuda.device_count()
        if launch.local_rank >= num_gpus:
            raise DeviceError(
                f"every process needs a GPU, but this machine has {num_gpus} for at least {launch.local_rank + 1} "
                f"processes; use --nproc-per-node {num_gpus}, or --device cpu"
            )
        torch.cuda.set_device(launch.local_rank)
    if not distributed.is_initialized():
        with _report_lost_process():
            # A program may train on the CPU first, and on GPUs later.
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            distributed.init_process_group(backend, timeout=TIMEOUT)
        # Connecting again after disconnecting would read the old addresses from the store of the launcher.
        atexit.register(distributed.destroy_process_group)
    return ProcessGroup(rank=distributed.get_rank(), size=distributed.get_world_size())


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the tensors in lists with at most ``BUCKET_SIZE`` values, or one tensor."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(member.numel() for member in bucket) + tensor.numel() > BUCKET_SIZE:
            yield bucket
            bucket = []
        bucket.append(tensor)
    yield bucket


@contextmanager
def _report_lost_process() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise WorkerError(
            f"lost the connection to another process of this run ({str(error).splitlines()[0]}); "
            "fix its error, and continue with --resume"
        ) from None
