"""The verb train."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from lengthwise.cli.flags import WHOLE, Corpus, Device, EncodingName, Json, Quick, SchemeName, TaskName
from lengthwise.cli.parsing import parse_overrides, chosen, on_corpus, varied
from lengthwise.cli.progress import ProgressLine
from lengthwise.cli.terminal import err_console, print_json, tell
from lengthwise.core.interruption import StoppedError, catch_interrupts
from lengthwise.experiments.recipes import quick
from lengthwise.experiments.run import train
from lengthwise.experiments.run_folder import EXPERIMENT, read_experiment


def train_(
    name: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="A recipe; or name --task and --scheme.")
    ] = None,
    task: TaskName = None,
    scheme: SchemeName = None,
    encoding: EncodingName = None,
    train_lengths: Annotated[str | None, typer.Option(help="Shortest and longest, such as 1:20.")] = None,
    steps: Annotated[int | None, typer.Option(**WHOLE, help="Training steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(**WHOLE, help="Sequences per step.")] = None,
    num_position_ids: Annotated[
        int | None, typer.Option(**WHOLE, help="Training IDs stay below this: the longest test's largest ID and 1.")
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="How IDs are predicted: pointer, rank, increment, search or class.")
    ] = None,
    corpus: Corpus = None,
    seed: Annotated[int | None, typer.Option(**WHOLE, help="Of the data and the initial weights.")] = None,
    device: Device = "auto",
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder to write; runs/TASK-SCHEME-SEED by default.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest complete checkpoint.")] = False,
    small: Quick = False,
    as_json: Json = False,
) -> None:
    """Train one experiment: a recipe, or a task with a scheme and an encoding."""
    parts = {"task": task, "scheme": scheme, "encoding": encoding}
    if resume and out is not None and name is None and (task is None or (out / EXPERIMENT).is_file()):
        experiment = read_experiment(out, overrides=parse_overrides(**parts))
    else:
        experiment = chosen(name, task, scheme, encoding)
    # The flags come last: what is asked for by name is never overruled.
    experiment = varied(
        quick(experiment) if small else experiment,
        train_lengths=train_lengths,
        steps=steps,
        batch_size=batch_size,
        num_position_ids=num_position_ids,
        head=head,
    )
    experiment = on_corpus(replace(experiment, seed=experiment.seed if seed is None else seed), corpus)
    folder = (
        out if out is not None else Path("runs") / f"{experiment.task.name}-{experiment.scheme.name}-{experiment.seed}"
    )
    progress_line = ProgressLine(err_console, experiment.training.steps, longest=experiment.train_lengths[1])
    with progress_line as progress, catch_interrupts() as stop:
        run = train(experiment, folder, resume=resume, device=device, report=progress.trained, stop=stop)
    if run is None:
        own = "".join(f" --{kind} {part}" for kind, part in parts.items() if part is not None and ":" in part)
        raise StoppedError(f"stopped and saved; go on with: lengthwise train --resume --out {folder}{own}")
    if as_json:
        print_json({"folder": str(folder), **run.facts})
        return
    smallest, largest = run.facts["id_range"]
    fitted = run.facts["fitted"]
    matched = "" if fitted is None else f"exact match {fitted:.3f} at length {experiment.train_lengths[1]}; "
    tell(
        f"{run.facts['steps']} steps in {run.facts['train_s']:.0f} s; {matched}"
        f"IDs met in training: {smallest:,} to {largest:,}; saved in {folder}",
    )
