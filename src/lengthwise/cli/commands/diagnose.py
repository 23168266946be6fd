"""The verb diagnose: why a run fails at a length."""

from pathlib import Path
from typing import Annotated

import typer

from lengthwise.cli.flags import WHOLE, EncodingName, Json, SchemeName, TaskName
from lengthwise.cli.parsing import parse_overrides
from lengthwise.cli.terminal import print_json, print_table, tell, working
from lengthwise.evaluation.diagnosis.diagnosis import EXAMPLES
from lengthwise.evaluation.diagnosis.report import sentences, tables, to_json, write
from lengthwise.experiments.run import load_run
from lengthwise.experiments.run_analysis import diagnose_run
from lengthwise.tasks import task_facts


def diagnose(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    length: Annotated[int, typer.Option(**WHOLE, help="Beyond those of training.")],
    num_examples: Annotated[int, typer.Option(**WHOLE, help="At each length that is looked at.")] = EXAMPLES,
    task: TaskName = None,
    scheme: SchemeName = None,
    encoding: EncodingName = None,
    seed: Annotated[int, typer.Option(**WHOLE, help="Of the examples, as of evaluate.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="A folder for diagnosis.json and a figure.")] = None,
    as_json: Json = False,
) -> None:
    """Find why a run fails at a length: what goes wrong first, and which change makes it right.

    A run of a file of rows is asked about the rows of another file with --task FILE.jsonl.
    """
    run = load_run(folder, overrides=parse_overrides(task=task, scheme=scheme, encoding=encoding), device="cpu")
    with working(f"diagnosing {folder}"):
        diagnosis = diagnose_run(run, length, num_examples=num_examples, seed=seed)
    if as_json:
        print_json({**task_facts(run.experiment.task), **to_json(diagnosis)})
    else:
        if not diagnosis.fits:
            tell("the run does not fit its training lengths; what follows is of a run that has not learned")
        for title, header, body in tables(diagnosis):
            print_table(title, header, body, wrap=True)
        for line in sentences(diagnosis):
            tell(line)
    if out is not None:
        figure = write(diagnosis, out)
        if not as_json:
            tell(f"figure: {figure}")
