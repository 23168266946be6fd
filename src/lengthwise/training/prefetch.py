"""Preparation of the next step's batches in a thread, while a GPU computes the current step."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Prepared = TypeVar("Prepared")


class Prefetcher(Generic[Prepared]):
    """Values of a function of a stage and a step, which a thread can compute in advance."""

    def __init__(self, prepare: Callable[[int, int], Prepared]) -> None:
        self.prepare = prepare
        self.executor = ThreadPoolExecutor(1, "lengthwise-batches")
        self.pending: dict[tuple[int, int], Future[Prepared]] = {}

    def start(self, stage: int, step: int) -> None:
        """Start to compute the value of a step, and forget the value of any other step."""
        self.pending = {(stage, step): self.executor.submit(self.prepare, stage, step)}

    def get(self, stage: int, step: int) -> Prepared:
        """Return the value of a step."""
        future = self.pending.pop((stage, step), None)
        return self.prepare(stage, step) if future is None else future.result()
