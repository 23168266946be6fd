"""The ``diagnose`` command, which finds the causes of failures at a length."""

from pathlib import Path
from typing import Annotated

from typer import Option

from lengthwise.cli import options
from lengthwise.cli.terminal import print_json, print_line, print_table, show_stages
from lengthwise.core.defaults import DIAGNOSIS_EXAMPLES


def diagnose(
    folder: options.RunFolder,
    length: Annotated[int, options.integer_option("Length to diagnose, larger than the training lengths.")],
    num_examples: Annotated[int, options.integer_option("Number of examples per length.")] = DIAGNOSIS_EXAMPLES,
    task: options.TaskName = None,
    scheme: options.SchemeName = None,
    encoding: options.EncodingName = None,
    seed: options.ExampleSeed = 0,
    out: Annotated[Path | None, Option("--out", help="Output folder for diagnosis.json and a figure.")] = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Find the causes of failures at a length, from the first errors of examples and the effects of interventions.

    If the run was trained on a JSONL file, pass a file with longer examples as --task FILE.jsonl.
    """
    from lengthwise.cli.experiment_options import load_run_with_overrides
    from lengthwise.evaluation.diagnosis.report import (
        describe_diagnosis,
        diagnosis_tables,
        diagnosis_to_json,
        write_report,
    )
    from lengthwise.experiments.run_evaluation import diagnose_run
    from lengthwise.tasks import task_result_fields

    run = load_run_with_overrides(folder, task, scheme, encoding)
    with show_stages(f"diagnosing {folder} at length {length}") as report:
        diagnosis = diagnose_run(run, length, num_examples=num_examples, seed=seed, report=report)
    if as_json:
        print_json({**task_result_fields(run.experiment.task), **diagnosis_to_json(diagnosis)})
    else:
        if not diagnosis.fits:
            print_line("the run does not fit its training lengths; its failures do not show a limit of extrapolation")
        for title, header, body in diagnosis_tables(diagnosis):
            print_table(title, header, body, wrap=True)
        for sentence in describe_diagnosis(diagnosis):
            print_line(sentence)
    if out is not None:
        figure = write_report(diagnosis, out)
        if not as_json:
            print_line(f"figure: {figure}")
