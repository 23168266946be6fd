"""What a sequence is: one file per task, one table of all."""

from lengthwise.tasks.addition import Addition
from lengthwise.tasks.copy import Copy
from lengthwise.tasks.index_hints import IndexHints
from lengthwise.tasks.multi_addition import MultiAddition
from lengthwise.tasks.parity import Parity
from lengthwise.tasks.reverse import Reverse
from lengthwise.tasks.task import Task

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (Parity, Copy, Reverse, Addition, MultiAddition, IndexHints)
}

__all__ = ["TASKS", "Addition", "Copy", "IndexHints", "MultiAddition", "Parity", "Reverse", "Task"]
