"""States of the runs in a folder, read without locks or writes while other processes train in it."""

import time
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from lengthwise.core.files import read_file
from lengthwise.core.folder_lock import LOCK_FILE
from lengthwise.core.json_parsing import parse_json
from lengthwise.core.type_checks import is_nonnegative_integer, is_number
from lengthwise.experiments.run_folder import (
    COMPARISON,
    EARLIER,
    EXPERIMENT,
    FAILURE,
    MODEL,
    PLANNED_RUNS,
    RESULTS,
    run_folder,
)
from lengthwise.training.trainer import METRICS

# Seconds without a new row after which a run that has a lock file counts as stale.
STALE_S = 600.0
# Maximum number of planned runs of a comparison, because a damaged file can contain any number of seeds.
MAX_RUNS = 10_000
# Maximum number of bytes in the name of a folder, on all common file systems.
MAX_NAME_BYTES = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """State of one run: ``waiting``, ``running``, ``stale``, ``stopped``, ``failed`` or ``finished``.

    ``stale`` is a run whose process holds the folder but has logged nothing for ``STALE_S`` seconds, or was killed.
    ``stopped`` is an unfinished run that was interrupted. The training of a ``failed`` run ended with an error.
    A comparison or sweep knows its ``waiting`` runs. ``exact_match`` is that
    at the longest training length. ``results`` has the exact match, or the loss, by length and task variant. A
    value of another type in a file counts as missing.
    """

    name: str
    state: str
    step: int
    num_steps: int | None
    loss: float | None
    exact_match: float | None
    results: dict[str, float]


def read_run_states(folder: Path, *, skip: Container[str] = ()) -> list[RunState]:
    """Return the states of all runs in a folder and its subfolders, sorted by name; the folder may be missing.

    The result leaves out the runs whose names are in ``skip``.
    """
    descriptions = {path.parent: _read_object(path).get("experiment") for path in _find(folder, EXPERIMENT)}
    # Comparisons and sweeps know the runs that have not started.
    for path in _find(folder, COMPARISON):
        descriptions = {**_runs_of_comparison(path), **descriptions}
    for path in _find(folder, PLANNED_RUNS):
        descriptions = {
            **{path.parent / name: run for name, run in _read_object(path).items() if _is_folder_name(name)},
            **descriptions,
        }
    names = {run: run.relative_to(folder).as_posix() for run in descriptions}
    return [
        _read_state(run, names[run], descriptions[run])
        for run in sorted(names, key=names.__getitem__)
        if names[run] not in skip
    ]


def _find(folder: Path, file_name: str) -> list[Path]:
    try:
        paths = list(folder.rglob(file_name))
    except OSError:
        # A subfolder vanished during the search; the next call finds the others.
        return []
    return [path for path in paths if EARLIER not in path.relative_to(folder).parts]


def _runs_of_comparison(path: Path) -> dict[Path, Any]:
    """Return the experiments of a comparison by run folder, or nothing if the comparison is damaged."""
    comparison = _read_object(path).get("comparison", {})
    try:
        runs = (
            (run_folder(path.parent, label, experiment["seed"] + seed), experiment)
            for label, experiment in comparison.get("experiments", {}).items()
            for seed in range(comparison.get("num_seeds", 0))
        )
        return {
            run: experiment
            for run, experiment in islice(runs, MAX_RUNS)
            if _is_folder_name(run.name) and _is_folder_name(run.parent.name)
        }
    except (AttributeError, KeyError, TypeError):
        return {}


def _read_state(run: Path, name: str, experiment: Any) -> RunState:
    rows = [row for row in _read_complete_rows(run / METRICS) if is_nonnegative_integer(row.get("step"))]
    last_row = rows[-1] if rows else {}
    matches = [row["exact_match"] for row in rows if is_number(row.get("exact_match"))]
    training = experiment.get("training") if isinstance(experiment, dict) else None
    steps = training.get("steps") if isinstance(training, dict) else None
    last_step, loss = last_row.get("last_step", steps), last_row.get("mean_loss")
    return RunState(
        name=name,
        state=_state(run, has_rows=bool(rows)),
        step=last_row.get("step", 0),
        num_steps=last_step if is_nonnegative_integer(last_step) else None,
        loss=loss if is_number(loss) else None,
        exact_match=matches[-1] if matches else None,
        results={
            _result_name(row): value
            for row in _read_complete_rows(run / RESULTS)
            if is_number(value := row.get("exact_match", row.get("loss"))) and is_nonnegative_integer(row.get("length"))
        },
    )


def _state(run: Path, *, has_rows: bool) -> str:
    if (run / MODEL).exists():
        return "finished"
    if (run / LOCK_FILE).exists():
        return "running" if time.time() - _last_change(run) < STALE_S else "stale"
    if (run / FAILURE).exists():
        return "failed"
    return "stopped" if has_rows else "waiting"


def _last_change(run: Path) -> float:
    times = [0.0]
    for path in (run / METRICS, run / EXPERIMENT, run / LOCK_FILE):
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times)


def _result_name(row: Mapping[str, Any]) -> str:
    variant = row.get("variant")
    return f"{row['length']} {variant}" if isinstance(variant, str) else f"{row['length']}"


def _is_folder_name(name: str) -> bool:
    """Return True for the name of a folder; a name in a damaged file can be long, or the path of another folder."""
    return name not in ("", "..") and not {*name} & {"/", "\0"} and len(name.encode()) <= MAX_NAME_BYTES


def _read_object(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file, or an empty one if the file is missing or incomplete."""
    try:
        document: dict[str, Any] = parse_json(read_file(path))
    except (OSError, ValueError):
        return {}
    return document


def _read_complete_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON-lines file; skip incomplete and damaged lines."""
    try:
        lines = read_file(path).splitlines()
    except OSError:
        return
    for line in lines:
        try:
            yield parse_json(line)
        except ValueError:
            continue
