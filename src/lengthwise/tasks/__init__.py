"""Tasks, which define sequences and their coupling, and the table ``TASKS`` of all tasks."""

from lengthwise.tasks.addition import Addition
from lengthwise.tasks.copy_reverse import Copy, Reverse
from lengthwise.tasks.index_hints import IndexHints
from lengthwise.tasks.jsonl_task import JSONLTask, is_task_file, wrong_task_file_error
from lengthwise.tasks.multi_addition import MultiAddition
from lengthwise.tasks.multi_query_recall import MultiQueryRecall
from lengthwise.tasks.multiplication import Multiplication
from lengthwise.tasks.parity import Parity
from lengthwise.tasks.planted.background import BACKGROUNDS, Background, MarkovChain, NaturalText
from lengthwise.tasks.planted.placement import PLACEMENTS, Placement
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.tasks.recall import Recall
from lengthwise.tasks.sort import Sort
from lengthwise.tasks.sparse_parity import SparseParity
from lengthwise.tasks.task import (
    GradedByLoss,
    HasFilesToSave,
    HasFixedLengths,
    HasPlaceholderExample,
    HasRecords,
    Task,
    TokenizedDocument,
    default_lengths,
    lengths_between,
    nearest_length,
    num_shared_records,
    record_count_field,
    task_result_fields,
)
from lengthwise.tasks.text.text_task import Text
from lengthwise.tasks.variable_assignment import VariableAssignment

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        *(Parity, Copy, Reverse, Addition, MultiAddition, VariableAssignment, Multiplication, IndexHints),
        *(Text, PlantedCorrelations, SparseParity, Recall, JSONLTask, Sort, MultiQueryRecall),
    )
}

__all__ = [
    "BACKGROUNDS",
    "PLACEMENTS",
    "TASKS",
    "Addition",
    "Background",
    "Copy",
    "GradedByLoss",
    "HasFilesToSave",
    "HasFixedLengths",
    "HasPlaceholderExample",
    "HasRecords",
    "IndexHints",
    "JSONLTask",
    "MarkovChain",
    "MultiAddition",
    "MultiQueryRecall",
    "Multiplication",
    "NaturalText",
    "Parity",
    "Placement",
    "PlantedCorrelations",
    "Recall",
    "Reverse",
    "Sort",
    "SparseParity",
    "Task",
    "Text",
    "TokenizedDocument",
    "VariableAssignment",
    "default_lengths",
    "is_task_file",
    "lengths_between",
    "nearest_length",
    "num_shared_records",
    "record_count_field",
    "task_result_fields",
    "wrong_task_file_error",
]
