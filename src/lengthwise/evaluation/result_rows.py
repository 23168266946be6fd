"""What rows of results tell, and whether rows that were read from a file are such."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lengthwise.core.type_checks import check_values
from lengthwise.evaluation.evaluator import Evaluator

HELD_OUT = "name rows that were held out, with --task FILE.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a row says about its run, beside what was measured."""

    variant: str | None
    seed: int
    steps: int
    trained_distance: float
    train_seconds: float


def check_row(row: Mapping[str, Any], evaluator: Evaluator) -> None:
    """``SettingError`` unless a row holds numbers where an evaluation has written them."""
    check_values(evaluator.result_type, row)
    check_values(RunFacts, row)


def seen_lengths(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the lengths of rows of which some examples were trained on, with commas between them."""
    return ", ".join(f"{length:,}" for length in sorted({row["length"] for row in rows if row.get("seen_in_training")}))
