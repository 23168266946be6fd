"""Checks of the rows of a report: damaged rows raise an error, and numbers that no chart can show are left out."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lengthwise.core.errors import RunFolderError, shorten_name
from lengthwise.core.type_checks import is_count, is_finite, is_number
from lengthwise.evaluation.result_rows import Rows, is_skipped

# Largest loss with a perplexity that a chart can show; exp overflows soon above it.
MAX_LOSS = 690
# Maximum number of rows that the page names when it leaves rows out.
MAX_NAMES = 3

Check = tuple[Callable[[Any], bool], str]


def _is_positive(value: Any) -> bool:
    return is_count(value) and value > 0


def _is_optional_number(value: Any) -> bool:
    return value is None or is_number(value)


def _is_fraction(value: Any) -> bool:
    return _is_optional_number(value) and (not is_finite(value) or 0 <= value <= 1)


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_positive, value)) and value[0] <= value[1]


def _is_optional_range(value: Any) -> bool:
    return value is None or _is_range(value)


TEXT: Check = (lambda value: isinstance(value, str), "a string")
COUNT: Check = (is_count, "a whole number of at least 0")
POSITIVE: Check = (_is_positive, "a whole number of at least 1")
NUMBER: Check = (_is_optional_number, "a number or null")
# Values that every result row has, besides exact match or loss.
ROW_CHECKS: Mapping[str, Check] = {
    "row": TEXT,
    "task": TEXT,
    "seed": COUNT,
    "length": POSITIVE,
    "num_examples": POSITIVE,
    "train_lengths": (_is_optional_range, "a list of two increasing lengths such as [1, 20]"),
    "low": NUMBER,
    "high": NUMBER,
    "steps": COUNT,
    "fitted": NUMBER,
}
EXACT_MATCH: Check = (_is_fraction, "a number from 0 to 1")


def check_rows(rows: Rows, path: Path) -> None:
    """Raise ``RunFolderError`` for a result row without a value that the charts need, or with an invalid one."""
    for line, row in enumerate(rows, start=1):
        value_check = {"loss": NUMBER} if "loss" in row else {"exact_match": EXACT_MATCH}
        # A skipped length has no examples.
        count_check = {"num_examples": COUNT} if is_skipped(row) else {}
        for name, check in {**ROW_CHECKS, **value_check, **count_check}.items():
            check_value(row, name, check, path, line)
        if row.get("variant") is not None:
            check_value(row, "variant", TEXT, path, line)


def check_value(row: Mapping[str, Any], name: str, check: Check, path: Path, line: int) -> None:
    """Raise ``RunFolderError`` if a row has no value of this name, or a value that fails the check."""
    is_valid, expected = check
    advice = "delete this line, or repeat the command that writes the file"
    if name not in row:
        raise RunFolderError(f"{path} line {line} has no {name}; {advice}")
    if not is_valid(row[name]):
        raise RunFolderError(
            f"{path} line {line} has an invalid {name} {shorten_name(repr(row[name]))} instead of {expected}; {advice}"
        )


def select_finite(rows: Rows) -> tuple[Rows, list[str]]:
    """Return the rows with a value that a chart can show, and sentences about the rows and intervals left out."""
    selected_rows = [row for row in rows if _has_value(row)]
    omitted_rows = [row for row in rows if not _has_value(row)]
    sentences = []
    if omitted_rows:
        sentences.append(
            f"The charts leave out {len(omitted_rows):,} of {len(rows):,} result rows, whose value is not finite or "
            f"whose loss exceeds {MAX_LOSS}: {_names(omitted_rows)}."
        )
    if without_interval := [row for row in selected_rows if not _has_interval(row)]:
        sentences.append(
            f"The charts leave out {len(without_interval):,} intervals with bounds that are not finite: "
            f"{_names(without_interval)}."
        )
        selected_rows = [row if _has_interval(row) else {**row, "low": None, "high": None} for row in selected_rows]
    return selected_rows, sentences


def _has_value(row: Mapping[str, Any]) -> bool:
    return _is_loss(row["loss"]) if "loss" in row else is_finite(row["exact_match"])


def _has_interval(row: Mapping[str, Any]) -> bool:
    is_bound = _is_loss if "loss" in row else is_finite
    return all(row[name] is None or is_bound(row[name]) for name in ("low", "high"))


def _is_loss(value: Any) -> bool:
    return is_finite(value) and abs(value) <= MAX_LOSS


def _names(rows: Sequence[Mapping[str, Any]]) -> str:
    names = [f"{row['row']}, seed {row['seed']}, length {row['length']:,}" for row in rows[:MAX_NAMES]]
    return "; ".join([*names, *([f"{len(rows) - MAX_NAMES:,} more"] if len(rows) > MAX_NAMES else [])])
