"""Reproduce: run a claim's experiments at a size, and read off what they show."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from lengthwise.claims.claim import Claim, Table
from lengthwise.comparison import Comparison, compare
from lengthwise.report import heading, table


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """The rows of all runs, the tables made of them, and the path of the figure; None where nothing is finished."""

    comparison: Comparison
    tables: list[Table]
    figure: Path | None


def reproduce(
    claim: Claim,
    size: str,
    out: Path,
    *,
    jobs: int | None = None,
    only: Collection[str] | None = None,
    report: Callable[[str], None] | None = None,
) -> Reproduction:
    """Train and evaluate what shows a claim, at a size of ``SIZES``; the same call goes on where it was stopped.

    ``gpu`` is the full size on a CUDA device, the others run on the CPU. ``only`` these rows are run now, and shown
    with those that earlier calls finished. ``UnknownNameError`` for another size, or another row.
    """
    experiments, num_seeds = claim.at(size)
    device = "cuda" if size == "gpu" else "cpu"
    comparison = compare(experiments, out, num_seeds=num_seeds, jobs=jobs, device=device, only=only, report=report)
    if not comparison.finished:
        return Reproduction(comparison=comparison, tables=[], figure=None)
    diverged = [cell["row"] for cell in comparison.diverged]
    by_length = (heading(comparison.rows), *table(comparison.rows, diverged))
    return Reproduction(
        comparison=comparison,
        tables=[by_length, *claim.tables(comparison.rows)],
        figure=claim.draw(comparison.rows, out, claim.name.replace("_", " ")),
    )
