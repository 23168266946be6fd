"""What a sequence is: one file per task, one table of all."""

from lengthwise.tasks.addition import Addition
from lengthwise.tasks.copy import Copy
from lengthwise.tasks.index_hints import IndexHints
from lengthwise.tasks.jsonl_task import Rows, is_row_file
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
    HasRows,
    HasSource,
    KeepsFiles,
    Staged,
    Task,
    TokenizedDocument,
    graded_by_loss,
    lengths_between,
    nearest_length,
    num_shared_rows,
    row_facts,
    spread_lengths,
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
        Rows,
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
    "HasRows",
    "HasSource",
    "IndexHints",
    "KeepsFiles",
    "MultiAddition",
    "Multiplication",
    "Parity",
    "Placement",
    "Planted",
    "Recall",
    "Reverse",
    "Rows",
    "Sort",
    "SparseParity",
    "Staged",
    "Task",
    "Text",
    "TokenizedDocument",
    "VariableAssignment",
    "graded_by_loss",
    "is_row_file",
    "lengths_between",
    "nearest_length",
    "num_shared_rows",
    "row_facts",
    "spread_lengths",
    "task_facts",
]
