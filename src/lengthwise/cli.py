"""The command line: one verb per public function; tables for people, JSON for scripts."""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lengthwise.choices import brought, chosen, on_corpus, rows_of, tested, varied
from lengthwise.comparison import compare
from lengthwise.encodings import ENCODINGS
from lengthwise.errors import (
    LengthwiseError,
    SettingError,
    SkippedTextWarning,
    UntrainedDistanceWarning,
    unknown_name,
)
from lengthwise.folder import EXPERIMENT, read_experiment
from lengthwise.influence import MEASURES
from lengthwise.interruption import StoppedError, interruptible
from lengthwise.positions import SCHEMES
from lengthwise.progress import ProgressLine
from lengthwise.recipes import COMPARISONS, RECIPES, quick
from lengthwise.report import draw, heading, length_table, table
from lengthwise.run import evaluate, generate_from_prompt, load_run, train
from lengthwise.tasks import TASKS
from lengthwise.terminal import err_console, out_console, print_json, print_table, say
from lengthwise.verbs.flags import WHOLE, Corpus, Device, EncodingName, Json, Out, Quick, SchemeName, TaskName, Variants
from lengthwise.verbs.influence import influence
from lengthwise.verbs.prepare import prepare


class Verbs(TyperGroup):
    """Unknown verbs are answered like every other unknown name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that the first argument names."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            raise unknown_name("verb", args[0], self.commands)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="lengthwise",
    help="Length generalization in transformers: train short, test long, and see why.",
    cls=Verbs,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command("list")
def list_(
    kind: Annotated[str | None, typer.Argument(help="tasks, schemes, encodings or recipes; all by default.")] = None,
    as_json: Json = False,
) -> None:
    """Show what there is: one line and the paper each."""
    rows: dict[str, list[dict[str, str]]] = {
        name: [{"name": key, "summary": entry.summary, "paper": entry.paper} for key, entry in entries.items()]
        for name, entries in (("tasks", TASKS), ("schemes", SCHEMES), ("encodings", ENCODINGS), ("measures", MEASURES))
    }
    rows["recipes"] = [
        {"name": key, "summary": (entry.__doc__ or "").split("\n")[0], "paper": ""}
        for key, entry in (*RECIPES.items(), *COMPARISONS.items())
    ]
    if kind is not None:
        if kind not in rows:
            raise unknown_name("list", kind, rows)
        rows = {kind: rows[kind]}
    if as_json:
        print_json(rows)
        return
    for name, entries in rows.items():
        print_table(name, ["name", "what it does", "paper"], [list(entry.values()) for entry in entries], wrap=True)


app.command("prepare")(prepare)
app.command("influence")(influence)


@app.command("train")
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
    head: Annotated[str | None, typer.Option(help="How IDs are predicted: pointer, rank, increment or class.")] = None,
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
        experiment = read_experiment(out, brought=brought(**parts))
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
    with ProgressLine(err_console, experiment.training.steps) as progress, interruptible() as stop:
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
    out_console.print(
        f"{run.facts['steps']} steps in {run.facts['train_seconds']:.0f} s; {matched}"
        f"IDs met in training: {smallest:,} to {largest:,}; saved in {folder}",
        markup=False,
        highlight=False,
    )


@app.command("evaluate")
def evaluate_(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    lengths: Annotated[str | None, typer.Option(help="Such as 20,200,2000; the recipe's by default.")] = None,
    num_examples: Annotated[str | None, typer.Option(help="Examples per length; one number, or one for each.")] = None,
    task: TaskName = None,
    scheme: SchemeName = None,
    encoding: EncodingName = None,
    variants: Variants = None,
    corpus: Corpus = None,
    decode: Annotated[
        str, typer.Option(help="forced (one forward) or free (token by token, with a cache).")
    ] = "forced",
    seed: Annotated[int, typer.Option(**WHOLE, help="Of the examples.")] = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Measure a run's exact match by length, or its loss by context length, and add the rows to its results.jsonl."""
    run = load_run(folder, brought=brought(task=task, scheme=scheme, encoding=encoding), device=device)
    run = replace(run, experiment=on_corpus(run.experiment, corpus))
    settings = tested(run.experiment.evaluation, lengths, num_examples, variants)
    settings = replace(settings, decode=decode, seed=seed)
    with ProgressLine(err_console) as progress:
        rows = evaluate(run, settings, report=progress.evaluated)
    if as_json:
        print_json({"results": rows})
        return
    print_table(f"{folder}, {decode}", *length_table(rows))


@app.command("compare")
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
        evaluation = tested(asked.evaluation, lengths, num_examples, variants)
        experiments[label] = on_corpus(replace(asked, evaluation=evaluation, seed=seed), corpus)
    with err_console.status(f"{len(experiments) * seeds} runs, into {out}"):
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
    out_console.print(f"figure: {figure}", markup=False, highlight=False)


@app.command("generate")
def generate_(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    prompt: Annotated[str, typer.Option(help="In the task's own form, such as 0110 or 57+68.")],
    task: TaskName = None,
    scheme: SchemeName = None,
    encoding: EncodingName = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(**WHOLE, help="No more than the right answer has, or of text 64, by default.")
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Decode one prompt freely and show the tokens with their IDs."""
    if max_new_tokens is not None and max_new_tokens < 1:
        raise SettingError(f"max-new-tokens {max_new_tokens} writes nothing; use at least 1")
    run = load_run(folder, brought=brought(task=task, scheme=scheme, encoding=encoding), device=device)
    answer = generate_from_prompt(run, prompt, max_new_tokens)
    if as_json:
        shown = {"tokens": answer.symbols, "position_ids": answer.position_ids}
        print_json({**shown, "right": answer.right, "expected": answer.expected})
        return
    # Several levels: one column each.
    levels = answer.position_ids if isinstance(answer.position_ids[0], list) else [answer.position_ids]
    header = ["token", *("ID" if len(levels) == 1 else f"ID {level}" for level in range(1, len(levels) + 1))]
    columns = [answer.symbols, *([str(place) for place in level] for level in levels)]
    print_table("written", header, [list(row) for row in zip(*columns, strict=True)])
    if answer.right is not None:
        verdict = "right" if answer.right else f"wrong; the answer is {' '.join(answer.expected)}"
        out_console.print(verdict, markup=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a verb: exit status 0 when done, 2 when the input was wrong, 1 for anything else."""
    warnings.showwarning = _show_warning
    try:
        # A verb answers nothing; the status of an interruption comes back as a number.
        if app(args=arguments, standalone_mode=False):
            raise KeyboardInterrupt
    except LengthwiseError as error:
        _fail(str(error), 2)
    except StoppedError as stopped:
        _fail(str(stopped), 1)
    except KeyboardInterrupt:
        _fail("interrupted", 1)
    except Exception as error:
        # What the argument parser raises carries its own message and exit status 2.
        if not hasattr(error, "format_message"):
            raise
        _fail(error.format_message(), 2)


def _fail(message: str, status: int) -> None:
    print(f"error: {' '.join(message.split())}" if status == 2 else message, file=sys.stderr)
    sys.exit(status)


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **rest: Any) -> None:
    if issubclass(category, UntrainedDistanceWarning | SkippedTextWarning):
        say(f"warning: {message}")
