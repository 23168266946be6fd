"""What a sequence is: one file per task, one table of all."""

from lengthwise.tasks.addition import Addition
from lengthwise.tasks.copy import Copy
from lengthwise.tasks.index_hints import IndexHints
from lengthwise.tasks.jsonl_task import JSONLTask, is_task_file
from lengthwise.tasks.multi_addition import MultiAddition
from lengthwise.tasks.multiplication import Multiplication
from lengthwise.tasks.parity import Parity
from lengthwise.tasks.planted.placement import PLACEMENTS, Placement
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.tasks.recall import Recall
from lengthwise.tasks.reverse import Reverse
from lengthwise.tasks.sort import Sort
from lengthwise.tasks.sparse_parity import SparseParity
from lengthwise.tasks.task import (
    GradedByLoss,
    HasLengths,
    HasRecords,
    HasRunFiles,
    HasSource,
    HasStages,
    Task,
    TokenizedDocument,
    default_lengths,
    is_graded_by_loss,
    lengths_between,
    nearest_length,
    num_shared_records,
    record_facts,
    task_facts,
)
from lengthwise.tasks.text.text_task import Text
from lengthwise.tasks.variable_assignment import VariableAssignment

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        Parity,
        Copy,
        Reverse,
        Addition,
        MultiAddition,
        VariableAssignment,
        Multiplication,
        IndexHints,
        Text,
        Planted,
        SparseParity,
        Recall,
        JSONLTask,
        Sort,
    )
}

__all__ = [
    "PLACEMENTS",
    "TASKS",
    "Addition",
    "Copy",
    "GradedByLoss",
    "HasLengths",
    "HasRecords",
    "HasSource",
    "IndexHints",
    "HasRunFiles",
    "MultiAddition",
    "Multiplication",
    "Parity",
    "Placement",
    "Planted",
    "Recall",
    "Reverse",
    "JSONLTask",
    "Sort",
    "SparseParity",
    "HasStages",
    "Task",
    "Text",
    "TokenizedDocument",
    "VariableAssignment",
    "is_graded_by_loss",
    "is_task_file",
    "lengths_between",
    "nearest_length",
    "num_shared_records",
    "record_facts",
    "default_lengths",
    "task_facts",
]
