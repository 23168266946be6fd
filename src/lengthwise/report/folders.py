"""Folders of a report: runs, comparisons, sweeps, claims, evaluations and influence studies as plain records."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lengthwise.core.errors import RunFolderError, shorten_name
from lengthwise.core.files import read_file
from lengthwise.core.json_parsing import parse_json
from lengthwise.core.type_checks import is_finite, is_nonnegative_integer, is_number
from lengthwise.evaluation.result_rows import Rows, is_skipped, label_with_variant, label_without_variant
from lengthwise.experiments.reproduction import MEASUREMENTS_FILE
from lengthwise.experiments.run_folder import (
    COMPARISON_FOLDER,
    COMPARISON_ROWS,
    EXPERIMENT,
    RESULTS,
    RUN_FOLDER,
    STUDY_FOLDER,
    SWEEP_FOLDER,
    read_description,
    read_rows,
    read_rows_with_digest,
)
from lengthwise.experiments.run_states import RunState, read_run_states
from lengthwise.influence.report.study_report import PAGE_FILE
from lengthwise.influence.study import SUMMARY_FILE

# Fields that a row of a model that this library did not train may lack.
MODEL_FIELDS = {"task": "own examples", "train_lengths": None, "steps": 0, "fitted": None}
# Settings of an evaluation that are part of a label if they differ within a folder.
EVALUATION_SETTINGS = ("model", "tokenizer", "shots", "shot_length", "decode")
STUDY_DATA = re.compile(r'<script type="application/json" id="study">(.*?)</script>', re.DOTALL)


# States of runs that the page shows even if they have results.
WORKING = ("running", "stale", "failed")
# Largest loss with a perplexity that a chart can show; exp overflows soon above it.
MAX_LOSS = 690
# Maximum number of rows that the page names when it leaves rows out.
MAX_NAMES = 3

# Test of a value, and the values that pass it, for errors.
Check = tuple[Callable[[Any], bool], str]


def _is_positive(value: Any) -> bool:
    return is_nonnegative_integer(value) and value > 0


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_positive, value)) and value[0] <= value[1]


TEXT: Check = (lambda value: isinstance(value, str), "a string")
COUNT: Check = (is_nonnegative_integer, "a whole number of at least 0")
POSITIVE: Check = (_is_positive, "a whole number of at least 1")
NUMBER: Check = (lambda value: value is None or is_number(value), "a number or null")
# Values that every result row has, besides exact match or loss.
ROW_CHECKS: Mapping[str, Check] = {
    "row": TEXT,
    "task": TEXT,
    "seed": COUNT,
    "length": POSITIVE,
    "num_examples": POSITIVE,
    "train_lengths": (
        lambda lengths: lengths is None or _is_range(lengths),
        "a list of two increasing lengths such as [1, 20]",
    ),
    "low": NUMBER,
    "high": NUMBER,
    "steps": COUNT,
    "fitted": NUMBER,
}
EXACT_MATCH: Check = (
    lambda value: NUMBER[0](value) and (not is_finite(value) or 0 <= value <= 1),
    "a number from 0 to 1",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Run with its label in the report, its folder and its description."""

    label: str
    folder: Path
    description: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Runs with common charts: a comparison, a sweep, a claim, all single runs, or all evaluations without runs.

    ``rows`` contains the result rows with their label (``row``), also rows with numbers that are not finite.
    ``measurements`` contains values of a claim by run. ``states`` contains the states of unfinished runs and of runs
    without results.
    """

    name: str
    kind: str
    rows: Rows
    runs: tuple[RunRecord, ...]
    measurements: Rows = ()
    states: tuple[RunState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """Complete influence study: its summary, and the texts and targets of its page, or None without a page."""

    name: str
    folder: Path
    summary: Mapping[str, Any]
    texts: Mapping[str, Any] | None


def read_folders(folders: Sequence[Path]) -> tuple[list[RunGroup], list[StudyRecord]]:
    """Read the groups of runs and the studies of a report, in the order of their folders.

    Single runs form one group, and so do folders that contain only results, which ``evaluate --out`` and the callback
    `EvaluateByLength` write. A folder that is passed twice, also by another path, counts once. Raises
    ``RunFolderError`` for a folder without results of lengthwise, for an unfinished study, and for damaged files.
    """
    run_folders: list[Path] = []
    evaluations: list[Path] = []
    groups: list[RunGroup] = []
    studies: list[StudyRecord] = []
    distinct_folders: dict[str, Path] = {}
    for folder in folders:
        distinct_folders.setdefault(os.path.realpath(folder), folder)
    for folder in distinct_folders.values():
        if (folder / RUN_FOLDER.file).is_file():
            run_folders.append(folder)
        elif (folder / COMPARISON_FOLDER.file).is_file() or (folder / SWEEP_FOLDER.file).is_file():
            groups.append(_read_group(folder))
        elif (folder / STUDY_FOLDER.file).is_file():
            studies.append(_read_study(folder))
        elif (folder / RESULTS).is_file():
            evaluations.append(folder)
        else:
            problem = "has no files of a run" if folder.is_dir() else "is not a folder"
            raise RunFolderError(
                f"{folder} {problem}; pass an output folder of train, compare, sweep, reproduce, influence, evaluate "
                "--out, or a Trainer with EvaluateByLength"
            )
    return [*_group_runs(run_folders), *groups, *_group_evaluations(evaluations)], studies


def _group_runs(folders: Sequence[Path]) -> Iterator[RunGroup]:
    """Yield one group of all single runs; without runs, yield nothing."""
    runs: list[RunRecord] = []
    rows: list[Mapping[str, Any]] = []
    states: list[RunState] = []
    for folder, label in _label_folders(folders):
        runs.append(RunRecord(label=label, folder=folder, description=read_description(folder, RUN_FOLDER)))
        run_rows = [
            {**row, "row": label_with_variant(label, row.get("variant"))} for row in read_rows(folder / RESULTS)
        ]
        check_rows(run_rows, folder / RESULTS)
        rows += _latest_rows(run_rows)
        run_states = [replace(state, name=label) for state in read_run_states(folder) if state.name == "."]
        states += [state for state in run_states if not run_rows or state.state in WORKING]
    if runs:
        name = runs[0].label if len(runs) == 1 else f"{len(runs)} runs"
        kind = "run" if len(runs) == 1 else "runs"
        yield RunGroup(name=name, kind=kind, rows=rows, runs=tuple(runs), states=tuple(states))


def _group_evaluations(folders: Sequence[Path]) -> Iterator[RunGroup]:
    """Yield one group of the rows of folders without runs; without folders, yield nothing."""
    labels: list[str] = []
    rows: list[Mapping[str, Any]] = []
    for folder, label in _label_folders(folders):
        labels.append(label)
        saved_rows = read_rows(folder / RESULTS)
        differing = [name for name in EVALUATION_SETTINGS if len({str(row.get(name)) for row in saved_rows}) > 1]
        labeled_rows = []
        for row in saved_rows:
            settings = ", ".join([label, *(f"{name} {row.get(name)}" for name in differing)])
            labeled_rows.append({**MODEL_FIELDS, **row, "row": label_with_variant(settings, row.get("variant"))})
        check_rows(labeled_rows, folder / RESULTS)
        rows += _latest_rows(labeled_rows)
    if labels:
        kind = "evaluation" if len(labels) == 1 else "evaluations"
        yield RunGroup(name=", ".join(labels), kind=kind, rows=rows, runs=())


def _latest_rows(rows: Rows) -> Iterable[Mapping[str, Any]]:
    """Return the rows without those that a later evaluation of the same label, task and length replaces."""
    return {(row["row"], row["task"], row["length"]): row for row in rows}.values()


def _label_folders(folders: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Yield each folder with its name, or with its path if several folders have this name."""
    names = list(map(_folder_name, folders))
    for folder, name in zip(folders, names, strict=True):
        yield folder, name if names.count(name) == 1 else str(folder)


def _folder_name(folder: Path) -> str:
    """Return the name of a folder, also of a relative path such as ``.``."""
    return folder.name if folder.name not in ("", "..") else Path(os.path.realpath(folder)).name


def _read_group(folder: Path) -> RunGroup:
    """Read a comparison, sweep or claim; a claim is a comparison with measurements."""
    rows, measurements = read_rows(folder / RESULTS), read_rows(folder / MEASUREMENTS_FILE)
    check_rows(rows, folder / RESULTS)
    kind = SWEEP_FOLDER if (folder / SWEEP_FOLDER.file).is_file() else COMPARISON_FOLDER
    read_description(folder, kind)
    runs = tuple(_find_runs(folder, rows))
    names_with_results = {run.folder.relative_to(folder).as_posix() for run in runs}
    order = {label: index for index, label in enumerate(dict.fromkeys(map(label_without_variant, rows)))}
    return RunGroup(
        name=_folder_name(folder),
        kind="claim" if measurements else kind.name,
        rows=rows,
        runs=tuple(sorted(runs, key=lambda run: order[run.label])),
        measurements=measurements,
        states=tuple(read_run_states(folder, skip=names_with_results)),
    )


def _find_runs(folder: Path, rows: Rows) -> Iterator[RunRecord]:
    """Yield the runs in the subfolders; their label is that of the group's row with the same content."""
    labels = {_content(row): label_without_variant(row) for row in rows}
    for path in sorted((*folder.glob(f"*/{EXPERIMENT}"), *folder.glob(f"*/*/{EXPERIMENT}"))):
        run_rows = read_rows_with_digest(path.parent / COMPARISON_ROWS)
        label = labels.get(_content(run_rows[0])) if run_rows else None
        # Earlier calls of a sweep leave runs in its folder that the last call did not contain.
        if label is not None:
            yield RunRecord(label=label, folder=path.parent, description=read_description(path.parent, RUN_FOLDER))


def _content(row: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in row.items() if name != "row"}, sort_keys=True)


def _read_study(folder: Path) -> StudyRecord:
    if not (folder / SUMMARY_FILE).is_file():
        raise RunFolderError(f"the study in {folder} is unfinished; repeat its command with --resume")
    page = folder / PAGE_FILE
    try:
        summary = parse_json(read_file(folder / SUMMARY_FILE))
        found = STUDY_DATA.search(page.read_text(encoding="utf-8")) if page.is_file() else None
        texts = None if found is None else parse_json(found.group(1).encode())
    except ValueError as error:
        raise RunFolderError(f"the summary or page in {folder} is damaged ({error}); repeat the study") from None
    return StudyRecord(name=_folder_name(folder), folder=folder, summary=summary, texts=texts)


def check_rows(rows: Rows, path: Path) -> None:
    """Raise ``RunFolderError`` for a result row without a value that the charts need, or with an invalid one."""
    for line, row in enumerate(rows, start=1):
        value_check = {"loss": NUMBER} if "loss" in row else {"exact_match": EXACT_MATCH}
        # A skipped length has no examples.
        count_check = {"num_examples": COUNT} if is_skipped(row) else {}
        for name, check in {**ROW_CHECKS, **value_check, **count_check}.items():
            check_row_field(row, name, check, path, line)
        if row.get("variant") is not None:
            check_row_field(row, "variant", TEXT, path, line)


def check_row_field(row: Mapping[str, Any], name: str, check: Check, path: Path, line: int) -> None:
    """Raise ``RunFolderError`` if a row has no value of this name, or a value that fails the check."""
    is_valid, expected = check
    advice = "delete this line, or repeat the command that writes the file"
    if name not in row:
        raise RunFolderError(f"{path} line {line} has no {name}; {advice}")
    if not is_valid(row[name]):
        raise RunFolderError(
            f"{path} line {line} has an invalid {name} {shorten_name(repr(row[name]))} instead of {expected}; {advice}"
        )


def select_finite_rows(rows: Rows) -> tuple[Rows, list[str]]:
    """Return the rows with a value that a chart can show, and sentences about the rows and intervals left out."""
    selected_rows: list[Mapping[str, Any]] = []
    omitted_rows: list[Mapping[str, Any]] = []
    without_interval: list[Mapping[str, Any]] = []
    for row in rows:
        if not _is_drawable(row, "loss" if "loss" in row else "exact_match"):
            omitted_rows.append(row)
        elif all(row[name] is None or _is_drawable(row, name) for name in ("low", "high")):
            selected_rows.append(row)
        else:
            without_interval.append(row)
            selected_rows.append({**row, "low": None, "high": None})
    sentences = []
    if omitted_rows:
        sentences.append(
            f"The charts leave out {len(omitted_rows):,} of {len(rows):,} result rows, whose value is not finite or "
            f"whose loss exceeds {MAX_LOSS}: {_names(omitted_rows)}."
        )
    if without_interval:
        sentences.append(
            f"The charts leave out {len(without_interval):,} intervals with bounds that are not finite: "
            f"{_names(without_interval)}."
        )
    return selected_rows, sentences


def _is_drawable(row: Mapping[str, Any], name: str) -> bool:
    return is_finite(row[name]) and ("loss" not in row or abs(row[name]) <= MAX_LOSS)


def _names(rows: Sequence[Mapping[str, Any]]) -> str:
    names = [f"{row['row']}, seed {row['seed']}, length {row['length']:,}" for row in rows[:MAX_NAMES]]
    return "; ".join([*names, *([f"{len(rows) - MAX_NAMES:,} more"] if len(rows) > MAX_NAMES else [])])
