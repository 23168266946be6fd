"""The verbs that ask a trained run: evaluate and generate."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from lengthwise.choices import brought, on_corpus, tested
from lengthwise.errors import SettingError
from lengthwise.progress import ProgressLine
from lengthwise.report import length_table
from lengthwise.run import evaluate, generate_from_prompt, load_run
from lengthwise.terminal import err_console, out_console, print_json, print_table
from lengthwise.verbs.flags import WHOLE, Corpus, Device, EncodingName, Json, SchemeName, TaskName, Variants


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
