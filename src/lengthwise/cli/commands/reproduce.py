"""The verb reproduce."""

from pathlib import Path
from typing import Annotated

import typer

from lengthwise.cli.flags import WHOLE, Json
from lengthwise.cli.terminal import print_json, print_table, say, tell, working
from lengthwise.core.errors import unknown_name
from lengthwise.core.interruption import StoppedError
from lengthwise.experiments.reproductions import CLAIMS, reproduce
from lengthwise.experiments.reproductions.claim import FIRST_SEED


def reproduce_(
    claim: Annotated[str, typer.Argument(metavar="CLAIM", help="A claim by name, see list claims.")],
    size: Annotated[str, typer.Option(help="quick, laptop (minutes), full (hours) or gpu.")] = "laptop",
    seeds: Annotated[int | None, typer.Option(**WHOLE, help="How many; as many as the size has by default.")] = None,
    first_seed: Annotated[int, typer.Option(**WHOLE, help="The first of them.")] = FIRST_SEED,
    jobs: Annotated[int | None, typer.Option(**WHOLE, help="Processes at a time; one per core by default.")] = None,
    row: Annotated[
        list[str] | None, typer.Option(help="Run this row only; repeat it for more. All by default.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write; runs/CLAIM-SIZE by default.")] = None,
    as_json: Json = False,
) -> None:
    """Run the experiments that show a claim; tables and a figure. Stopped, the same command goes on."""
    if claim not in CLAIMS:
        raise unknown_name("claim", claim, CLAIMS)
    folder = Path("runs") / f"{claim}-{size}" if out is None else out
    with working(f"{claim}, {size}, into {folder}"):
        found = reproduce(
            CLAIMS[claim], size, folder, num_seeds=seeds, first_seed=first_seed, jobs=jobs, only=row, report=say
        )
    for warning in found.comparison.warnings:
        say(f"warning: {warning}")
    if found.figure is None:
        raise StoppedError("stopped; what was trained is saved: the same command goes on")
    if as_json:
        rows, diverged, readings = found.comparison.rows, found.comparison.diverged, found.readings
        shown = {"results": rows, "diverged": diverged, "readings": readings, "figure": str(found.figure)}
        print_json({"claim": claim, "size": size, **shown})
        return
    for title, header, body in found.tables:
        print_table(title, header, body)
    tell(f"figure: {found.figure}")
