"""Recording of GPU work as CUDA graphs, which take less time to start than the single kernels."""

import gc
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

Result = TypeVar("Result")


@runtime_checkable
class ReplayableGraph(Protocol):
    """Recorded work, such as a ``torch.cuda.CUDAGraph``."""

    def replay(self) -> None:
        """Run the recorded work once more."""

    def pool(self) -> Any:
        """Return the memory pool, which other graphs can use, too."""


def record_graph(function: Callable[[], Result], pool: Any = None) -> tuple[ReplayableGraph, Result]:
    """Record the GPU work of a function without running it, and return the graph and the result.

    The function may not wait for the GPU. A replay of the graph writes the values of the result, whose memory comes
    from ``pool``, the memory pool of another graph.
    """
    graph = torch.cuda.CUDAGraph()
    # If Python freed another graph during a recording, the recording would be invalid.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        # Other threads may use the GPU in the meantime.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            result = function()
    finally:
        if was_enabled:
            gc.enable()
    return graph, result
