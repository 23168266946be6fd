"""Reproduce: run a claim's experiments at a size, and read off what they show."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lengthwise.core.files import StrPath
from lengthwise.core.type_checks import check_arguments
from lengthwise.evaluation.tables_and_figures import Rows, heading, table
from lengthwise.experiments.comparison import COMPARED, Comparison, compare
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.reproductions.claim import FIRST_SEED, Claim, Table
from lengthwise.experiments.run import load_run
from lengthwise.experiments.run_folder import read_sealed, run_folder, seal_rows, write_rows

# What a claim reads of a run, in its folder; of all of them, beside the results.
READING, READINGS = "reading.jsonl", "readings.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """The rows of all runs, what was read of them, the tables made of both, and the path of the figure.

    While something that was asked for is unfinished, there are no tables, and the figure is None.
    """

    comparison: Comparison
    readings: list[dict[str, Any]]
    tables: list[Table]
    figure: Path | None


@check_arguments
def reproduce(  # noqa: PLR0913  (a setting of the call each)
    claim: Claim,
    size: str,
    out: StrPath,
    *,
    num_seeds: int | None = None,
    first_seed: int = FIRST_SEED,
    jobs: int | None = None,
    only: Collection[str] | None = None,
    report: Callable[[str], None] | None = None,
) -> Reproduction:
    """Train and evaluate what shows a claim, at a size of ``SIZES``; the same call goes on where it was stopped.

    ``gpu`` is the full size on a CUDA device, the others run on the CPU. ``num_seeds`` (by default as many as the size
    has) are counted from ``first_seed``, by default the first of those that are kept for claims. ``only`` these rows
    (by default those that the size has) are run now, and shown with those that earlier calls finished.
    ``UnknownNameError`` for another size, or another row.
    """
    out = Path(out)
    experiments, usual = claim.experiments_at(size, first_seed)
    device = "cuda" if size == "gpu" else "cpu"
    comparison = compare(
        experiments,
        out,
        num_seeds=usual if num_seeds is None else num_seeds,
        jobs=jobs,
        device=device,
        only=claim.default_labels(size) if only is None else only,
        report=report,
    )
    if not comparison.finished:
        return Reproduction(comparison=comparison, readings=[], tables=[], figure=None)
    rows = comparison.rows
    readings = _readings(claim, experiments, rows, out, device)
    return Reproduction(
        comparison=comparison,
        readings=readings,
        tables=tables_of(claim, rows, readings, comparison.diverged),
        figure=claim.draw(rows, readings, out, claim.name.replace("_", " ")),
    )


def tables_of(claim: Claim, rows: Rows, readings: Rows, diverged: Rows = ()) -> list[Table]:
    """Exact match by length, a table per task, and what the claim reads off its rows and readings."""
    tables: list[Table] = []
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        failed = [cell["row"] for cell in diverged if cell["task"] == task]
        tables.append((f"{task.replace('_', ' ')}: {heading(own)}", *table(own, failed)))
    return tables + claim.tables(rows, readings)


def _readings(
    claim: Claim, experiments: Mapping[str, Experiment], rows: Rows, out: Path, device: str
) -> list[dict[str, Any]]:
    """One of each run that has rows; what an earlier call read is not read again."""
    if claim.read is None:
        return []
    seeds, readings = sorted({row["seed"] for row in rows}), []
    for label in experiments:
        for seed in seeds:
            folder = run_folder(out, label, seed)
            if not (folder / COMPARED).exists():
                continue
            if not (folder / READING).exists():
                found = claim.read(load_run(folder, device=device), read_sealed(folder / COMPARED))
                seal_rows(folder / READING, [{"row": label, "seed": seed, **found}])
            readings += read_sealed(folder / READING)
    write_rows(out / READINGS, readings)
    return readings
