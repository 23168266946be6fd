"""The ``sweep`` command, which trains and evaluates a grid of experiments."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from lengthwise.cli import options
from lengthwise.cli.terminal import print_json, print_line, print_table, print_warnings
from lengthwise.core.interruption import FailedRunsError
from lengthwise.core.progress_line import ProgressLine, err_console


def sweep_(
    file: Annotated[
        Path, Argument(metavar="SWEEP", help="Sweep file: a JSON file with a grid, or a Python file with EXPERIMENTS.")
    ],
    executor: options.ExecutorName = "local",
    address: options.ClusterAddress = None,
    workers: options.NumWorkers = None,
    seeds: Annotated[
        int | None,
        options.integer_option("Number of seeds, instead of the seeds of the file.", show_default="set by the file"),
    ] = None,
    device: options.DeviceName = "auto",
    tracker: options.TrackerNames = None,
    out: options.OutputFolder = Path("runs/sweep"),
    as_json: options.JsonFlag = False,
) -> None:
    """Train and evaluate a grid of experiments and seeds. After an interruption, repeat the command."""
    from lengthwise.evaluation.tables_and_figures import result_tables
    from lengthwise.experiments.run_folder import RESULTS
    from lengthwise.experiments.runner import sweep

    with ProgressLine(err_console, whole_average=True) as progress:
        comparison = sweep(
            file,
            out,
            seeds=seeds,
            executor=executor,
            address=address,
            workers=workers,
            device=device,
            report=progress.show_run_count,
            trackers=() if tracker is None else tracker,
        )
    print_warnings(comparison.warnings, is_complete=comparison.is_complete)
    if as_json:
        facts = {"diverged": comparison.diverged, "failed": comparison.failed, "folder": str(out)}
        print_json({"results": comparison.rows, **facts})
    elif comparison.rows:
        for table in result_tables(comparison.rows, [run["row"] for run in comparison.diverged]):
            print_table(*table)
        print_line(f"rows: {out / RESULTS}")
    if comparison.diverged or comparison.failed:
        raise FailedRunsError("some runs diverged or failed (see the warnings); repeat the command to train them again")
