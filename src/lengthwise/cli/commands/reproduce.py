"""The ``reproduce`` command, which runs the experiments of a claim."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from lengthwise.cli import options
from lengthwise.cli.terminal import print_json, print_line, print_message, print_table, print_warnings, show_status
from lengthwise.core.defaults import FIRST_SEED


def reproduce_(
    claim: Annotated[str, Argument(metavar="CLAIM", help="Name of a claim; see lengthwise list claims.")],
    size: Annotated[str, Option(help="Size: quick, laptop (minutes), full (hours) or gpu.")] = "laptop",
    seeds: Annotated[int | None, options.integer_option("Number of seeds.", show_default="depends on the size")] = None,
    first_seed: Annotated[int, options.integer_option("First random seed.")] = FIRST_SEED,
    workers: options.NumWorkers = None,
    executor: options.ExecutorName = "local",
    address: options.ClusterAddress = None,
    corpus: options.CorpusFolder = None,
    row: Annotated[
        list[str] | None, Option(help="Label of a row to run; repeat the flag for more rows.", show_default="all")
    ] = None,
    out: Annotated[Path | None, Option(help="Output folder.", show_default="runs/CLAIM-SIZE")] = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Run the experiments of a claim, print tables and save a figure. After an interruption, repeat the command.

    Claims are folders in benchmarks/claims of the source repository, so run the command in a clone of it.
    """
    from lengthwise.cli import experiment_options
    from lengthwise.experiments.reproduction import load_claim, reproduce

    loaded = load_claim(claim)
    experiments = {
        label: experiment_options.override_corpus(experiment, corpus)
        for label, experiment in loaded.experiments().items()
    }
    out = Path("runs") / f"{claim}-{size}" if out is None else out
    with show_status(f"{claim}, {size}, in {out}"):
        result = reproduce(
            replace(loaded, experiments=lambda: experiments),
            size,
            out,
            seeds=seeds,
            first_seed=first_seed,
            workers=workers,
            executor=executor,
            address=address,
            only=row,
            report=print_message,
        )
    print_warnings(result.comparison.warnings, is_complete=result.comparison.is_complete)
    if as_json:
        rows = {"results": result.comparison.rows, "diverged": result.comparison.diverged}
        rest = {"measurements": result.measurements, "figure": str(result.figure)}
        print_json({"claim": claim, "size": size, **rows, **rest})
        return
    for title, header, body in result.tables:
        print_table(title, header, body)
    print_line(f"figure: {result.figure}")
