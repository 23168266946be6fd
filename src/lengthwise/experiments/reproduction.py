"""Reproduction of a claim: experiments that test it, run at one of four sizes, with tables and a figure.

A claim is a folder in ``benchmarks/claims`` of a checkout of lengthwise, with its code (``claim.py``, which defines a
``Claim`` called ``CLAIM``), page, result rows and figure. The name of the claim is the name of the folder.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from lengthwise.core.defaults import FIRST_SEED
from lengthwise.core.errors import SettingError, unknown_name_error
from lengthwise.core.files import StrPath
from lengthwise.core.type_checks import check_arguments
from lengthwise.evaluation.result_rows import Rows
from lengthwise.evaluation.tables_and_figures import draw_result_figure, result_tables
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.progress_reports import AUTO
from lengthwise.experiments.recipes import quick_version
from lengthwise.experiments.run import Run, load_run
from lengthwise.experiments.run_folder import (
    COMPARISON_ROWS,
    read_rows_with_digest,
    run_folder,
    write_rows,
    write_rows_with_digest,
)
from lengthwise.experiments.runner import Comparison, compare

# A table: title, header and body.
Table = tuple[str, list[str], list[list[str]]]
SIZES = ("quick", "laptop", "full", "gpu")
# Files of extracted values: one file in the folder of each run, and one file of all runs next to the results.
MEASUREMENT_FILE, MEASUREMENTS_FILE = "measurement.jsonl", "measurements.jsonl"
CLAIMS_FOLDER = Path("benchmarks/claims")


@dataclass(frozen=True, slots=True, kw_only=True)
class SizePreset:
    """Part of a claim that one size runs.

    ``labels`` contains the labels of the experiments (None: all). ``max_length`` limits the test lengths, and
    ``max_steps`` the training steps (None: no limit).
    """

    num_seeds: int
    labels: tuple[str, ...] | None = None
    max_length: int | None = None
    max_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Statement from the paper or an extension of it, with the experiments that test it.

    ``name`` is the name of its folder; ``load_claim`` sets it. ``experiments`` returns the full-size experiments by
    label. ``measure`` computes more values from a trained run and its result rows, for example the training FLOPs. With
    the label (``row``) and the ``seed`` of the run, they form a measurement. ``tables`` builds tables from the result
    rows and measurements of all runs, in addition to exact match by length. ``draw`` writes a figure of the rows and
    measurements into a folder and returns its path.
    """

    summary: str
    paper: str
    experiments: Callable[[], dict[str, Experiment]]
    laptop: SizePreset
    name: str = ""
    full: SizePreset = SizePreset(num_seeds=5)
    measure: Callable[[Run, Rows], Mapping[str, Any]] | None = None
    tables: Callable[[Rows, Rows], list[Table]] = lambda rows, measurements: []
    draw: Callable[[Rows, Rows, Path, str], Path] = lambda rows, measurements, folder, title: draw_result_figure(
        rows, folder, title
    )

    def experiments_at_size(self, size: str, first_seed: int = FIRST_SEED) -> tuple[dict[str, Experiment], int]:
        """Return the experiments of a size by label, with the seed ``first_seed``, and the number of seeds of each.

        ``quick`` has a tiny version of every experiment; ``gpu`` has the same experiments as ``full``.
        """
        if size not in SIZES:
            raise unknown_name_error("size", size, SIZES)
        experiments = {label: replace(experiment, seed=first_seed) for label, experiment in self.experiments().items()}
        if size == "quick":
            return {label: quick_version(experiment) for label, experiment in experiments.items()}, 1
        preset = self.full if size in ("full", "gpu") else self.laptop
        labels = experiments if preset.labels is None else preset.labels
        return {label: _limit_size(experiments[label], preset) for label in labels}, preset.num_seeds


def folders_by_claim() -> dict[str, Path]:
    """Return the folder of every claim by name, from the checkout that this package runs from.

    Claims are code, so no other folder is searched: the current folder can be anybody's. Raises ``SettingError`` if the
    package is not in a checkout of lengthwise.
    """
    folder = Path(__file__).resolve().parents[3] / CLAIMS_FOLDER
    if folder.is_dir():
        return {path.parent.name: path.parent for path in sorted(folder.glob("*/claim.py"))}
    raise SettingError(
        f"found no claims: they are in the folder {CLAIMS_FOLDER} of the source repository of lengthwise, which is "
        "not part of the installed package; run make setup and the command in a clone of the repository"
    )


def import_claim(name: str) -> ModuleType:
    """Return the module ``claim.py`` of a claim; raise ``UnknownNameError`` for an unknown name."""
    folders = folders_by_claim()
    if name not in folders:
        raise unknown_name_error("claim", name, folders)
    # At the end of the path, so that the modules of benchmarks hide no other module.
    benchmarks = str(folders[name].parents[1])
    if benchmarks not in sys.path:
        sys.path.append(benchmarks)
    return import_module(f"claims.{name}.claim")


def load_claim(name: str) -> Claim:
    """Return a claim by name; raise ``UnknownNameError`` for an unknown name."""
    claim: Claim = import_claim(name).CLAIM
    return replace(claim, name=name)


def load_claims() -> dict[str, Claim]:
    """Return all claims by name."""
    return {name: load_claim(name) for name in folders_by_claim()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """Comparison of a claim's runs, with measurements, tables and figure; these are empty while a run is unfinished."""

    comparison: Comparison
    measurements: list[dict[str, Any]]
    tables: list[Table]
    figure: Path | None


@check_arguments
def reproduce(
    claim: Claim | str,
    size: str,
    out: StrPath,
    *,
    seeds: int | None = None,
    first_seed: int = FIRST_SEED,
    workers: int | None = None,
    only: Collection[str] | None = None,
    executor: str = "local",
    address: str | None = None,
    report: Callable[[str], None] | str | None = AUTO,
) -> Reproduction:
    """Train and evaluate the experiments of a claim at one of ``SIZES``; repeat the call to continue after a stop.

    ``claim`` is a ``Claim``, or the name of one in ``benchmarks/claims`` of a checkout of lengthwise. ``gpu`` runs the
    full size on a CUDA device; the other sizes run on the CPU. Seeds start at ``first_seed``; their default number
    depends on the size. ``only`` contains the labels to run in this call (default: the labels of the size). The result
    also includes the runs of earlier calls. ``workers``, ``executor``, ``address`` and ``report`` are those of
    ``compare``. Raises ``UnknownNameError`` for an unknown claim, size or label.
    """
    claim = load_claim(claim) if isinstance(claim, str) else claim
    out = Path(out)
    experiments, default_seeds = claim.experiments_at_size(size, first_seed)
    device = "cuda" if size == "gpu" else "cpu"
    seeds = default_seeds if seeds is None else seeds
    only = claim.laptop.labels if only is None and size == "quick" else only
    place: dict[str, Any] = {"workers": workers, "device": device, "executor": executor, "address": address}
    comparison = compare(experiments, out, seeds=seeds, only=only, report=report, **place)
    if not comparison.is_complete:
        return Reproduction(comparison=comparison, measurements=[], tables=[], figure=None)
    rows = comparison.rows
    measurements = _collect_measurements(claim, experiments, rows, out, device)
    tables = build_claim_tables(claim, rows, measurements, comparison.diverged)
    figure = claim.draw(rows, measurements, out, claim.name.replace("_", " "))
    return Reproduction(comparison=comparison, measurements=measurements, tables=tables, figure=figure)


def build_claim_tables(claim: Claim, rows: Rows, measurements: Rows, diverged: Rows = ()) -> list[Table]:
    """Return the tables of exact match by length for each task, followed by the tables that ``claim.tables`` builds."""
    tables: list[Table] = []
    for task in dict.fromkeys(row["task"] for row in rows):
        task_rows = [row for row in rows if row["task"] == task]
        diverged_labels = [run["row"] for run in diverged if run["task"] == task]
        tables += [
            (f"{task.replace('_', ' ')}: {title}", header, body)
            for title, header, body in result_tables(task_rows, diverged_labels)
        ]
    return tables + claim.tables(rows, measurements)


def _collect_measurements(
    claim: Claim, experiments: Mapping[str, Experiment], rows: Rows, out: Path, device: str
) -> list[dict[str, Any]]:
    """Return the measurement of every run that has result rows; a saved one is loaded instead of computed again."""
    if claim.measure is None:
        return []
    seeds, measurements = sorted({row["seed"] for row in rows}), []
    for label in experiments:
        for seed in seeds:
            folder = run_folder(out, label, seed)
            if not (folder / COMPARISON_ROWS).exists():
                continue
            if not (folder / MEASUREMENT_FILE).exists():
                run = load_run(folder, device=device)
                measurement = claim.measure(run, read_rows_with_digest(folder / COMPARISON_ROWS))
                write_rows_with_digest(folder / MEASUREMENT_FILE, [{"row": label, "seed": seed, **measurement}])
            measurements += read_rows_with_digest(folder / MEASUREMENT_FILE)
    write_rows(out / MEASUREMENTS_FILE, measurements)
    return measurements


def _limit_size(experiment: Experiment, preset: SizePreset) -> Experiment:
    training, evaluation = experiment.training, experiment.evaluation
    if preset.max_steps is not None and training.steps > preset.max_steps:
        training = replace(training, steps=preset.max_steps)
    if preset.max_length is not None:
        evaluation = evaluation.with_max_length(preset.max_length)
    return replace(experiment, training=training, evaluation=evaluation)
