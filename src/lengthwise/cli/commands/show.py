"""The ``show`` command, which draws one example with its position IDs and links."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from lengthwise.cli import options
from lengthwise.cli.terminal import out_console, print_json, print_line
from lengthwise.core.progress_line import ProgressLine, err_console


def show_(
    target: Annotated[
        str, Argument(metavar="TASK|FILE.jsonl|RUN", help="Task, file of prompts and responses, or run folder.")
    ],
    length: Annotated[int, options.integer_option("Length of the example.")],
    scheme: options.SchemeName = None,
    task: options.TaskName = None,
    encoding: options.EncodingName = None,
    training: Annotated[
        bool, Option("--training", help="Show the IDs of a training example, with random gaps and shifts.")
    ] = False,
    seed: options.ExampleSeed = 0,
    out: Annotated[Path | None, Option("--out", metavar="FILE.svg", help="SVG file for the picture.")] = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Draw one example: tokens, position IDs and what each answer depends on; with a run, also what it predicts.

    Without --scheme, a task with a coupling has the scheme predicted, and any other task has sequential.
    """
    from lengthwise.cli.experiment_options import load_run_with_overrides
    from lengthwise.evaluation.picture.text_drawing import draw_text
    from lengthwise.experiments.show import show

    if Path(target).is_dir():
        run = load_run_with_overrides(target, task, scheme, encoding)
        picture = show(run, length, seed=seed, training=training, out=out)
    else:
        options.reject_flags("needs a run folder", task=task, encoding=encoding)
        with ProgressLine(err_console) as progress:
            picture = show(
                target, length, scheme=scheme, seed=seed, training=training, out=out, report=progress.show_search
            )
    if as_json:
        print_json(asdict(picture))
        return
    for line in draw_text(picture, out_console.width):
        out_console.print(line)
    if out is not None:
        print_line(f"picture: {out}")
