"""The verb compare."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from lengthwise.cli.flags import WHOLE, Corpus, Device, Json, Out, Quick, TaskName, Variants
from lengthwise.cli.parsing import on_corpus, rows_of, tested, varied
from lengthwise.cli.terminal import print_json, print_table, say, tell, working
from lengthwise.core.interruption import StoppedError
from lengthwise.evaluation.tables_and_figures import draw, heading, table
from lengthwise.experiments.comparison import compare
from lengthwise.experiments.recipes import quick


def compare_(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="RECIPE...", help="Recipes, or one comparison such as demo.")
    ] = None,
    task: TaskName = None,
    rows: Annotated[
        str | None, typer.Option(help="With --task: scheme/encoding,...; of a named comparison, some of its rows.")
    ] = None,
    train_lengths: Annotated[str | None, typer.Option(help="Shortest and longest, such as 1:20.")] = None,
    steps: Annotated[int | None, typer.Option(**WHOLE, help="Training steps of every row.")] = None,
    lengths: Annotated[str | None, typer.Option(help="Test lengths, such as 20,200,2000.")] = None,
    num_examples: Annotated[str | None, typer.Option(help="Examples per length; one number, or one for each.")] = None,
    variants: Variants = None,
    corpus: Corpus = None,
    seeds: Annotated[int, typer.Option(**WHOLE, help="Seeds per row.")] = 1,
    seed: Annotated[int, typer.Option(**WHOLE, help="The first of them.")] = 0,
    jobs: Annotated[int | None, typer.Option(**WHOLE, help="Processes at a time; one per core by default.")] = None,
    device: Device = "auto",
    out: Out = Path("runs/compare"),
    small: Quick = False,
    as_json: Json = False,
) -> None:
    """Train and evaluate several experiments; one table and one figure."""
    experiments = rows_of(names or [], task, rows)
    for label, experiment in experiments.items():
        asked = quick(experiment) if small else experiment
        asked = varied(asked, train_lengths=train_lengths, steps=steps)
        evaluation = tested(asked.evaluation, lengths, num_examples, variants, task=None)
        experiments[label] = on_corpus(replace(asked, evaluation=evaluation, seed=seed), corpus)
    with working(f"{len(experiments) * seeds} runs, into {out}"):
        comparison = compare(experiments, out, num_seeds=seeds, jobs=jobs, device=device, report=say)
    for warning in comparison.warnings:
        say(f"warning: {warning}")
    if not comparison.finished:
        raise StoppedError("stopped; what was trained is saved: the same command goes on")
    figure = draw(comparison.rows, out, title=", ".join(sorted({row["task"] for row in comparison.rows})))
    if as_json:
        print_json({"results": comparison.rows, "diverged": comparison.diverged, "figure": str(figure)})
        return
    diverged = [cell["row"] for cell in comparison.diverged]
    print_table(heading(comparison.rows), *table(comparison.rows, diverged))
    tell(f"figure: {figure}")
