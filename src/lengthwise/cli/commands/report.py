"""The ``report`` command, which writes one self-contained page about runs and studies."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from lengthwise.cli import options
from lengthwise.cli.terminal import print_json, print_line, print_message, show_status


def report(
    folders: Annotated[
        list[Path],
        Argument(
            metavar="DIR...",
            help="Output folders of train, compare, sweep, reproduce, influence, evaluate or a Trainer.",
        ),
    ],
    out: Annotated[Path, Option("--out", help="Output file.")] = Path("report.html"),
    diagnosis: Annotated[
        bool, Option(help="Diagnose up to three runs of each folder at the shortest length that they fail at.")
    ] = True,
    as_json: options.JsonFlag = False,
) -> None:
    """Write one page with the charts, tables and diagnoses of runs and studies; it opens without a network."""
    from lengthwise.report.page import write_report

    with show_status(f"report of {len(folders)} folders"):
        counts = write_report(folders, out, diagnose=diagnosis, report=print_message)
    if as_json:
        print_json({"page": str(out), **counts})
        return
    print_line(f"runs: {counts['runs']:,}; result rows: {counts['rows']:,}; influence studies: {counts['studies']:,}")
    if counts["runs"] and not counts["rows"]:
        print_line("these runs have no results yet; lengthwise evaluate RUN adds accuracy by length")
    print_line(f"page: {out}")
