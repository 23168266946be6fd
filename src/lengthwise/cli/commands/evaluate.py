"""The verbs that ask a trained run: evaluate and generate."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from lengthwise.cli.flags import (
    WHOLE,
    Corpus,
    Device,
    EncodingName,
    Json,
    SchemeName,
    TaskName,
    Variants,
)
from lengthwise.cli.parsing import parse_overrides, on_corpus, refuse, tested
from lengthwise.cli.progress import ProgressLine
from lengthwise.cli.terminal import err_console, print_json, print_table, tell
from lengthwise.core.errors import SettingError
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.tables_and_figures import length_table
from lengthwise.experiments.experiment import load_task
from lengthwise.experiments.generate_from_prompt import generate_from_prompt
from lengthwise.experiments.run import evaluate, load_run
from lengthwise.experiments.run_folder import EXPERIMENT
from lengthwise.hf.language_models import Asking, evaluate_language_model, is_run
from lengthwise.tasks import Task
from lengthwise.tasks.text_format import SHOTS

# What a model is asked where nothing else is: lengths that any context has room for.
ASKED = EvaluationSettings(lengths=(5, 10, 20), num_examples=(64,))


def evaluate_(
    name: Annotated[
        str, typer.Argument(metavar="RUN|MODEL", help="A run's folder; a model's, or its name on the hub.")
    ],
    lengths: Annotated[
        str | None, typer.Option(help="Such as 20,200,2000; by default the recipe's, or those of --task FILE.jsonl.")
    ] = None,
    num_examples: Annotated[str | None, typer.Option(help="Examples per length; one number, or one for each.")] = None,
    task: TaskName = None,
    scheme: SchemeName = None,
    encoding: EncodingName = None,
    variants: Variants = None,
    corpus: Corpus = None,
    decode: Annotated[
        str, typer.Option(help="forced (one forward) or free (token by token, with a cache).")
    ] = "forced",
    shots: Annotated[
        int | None,
        typer.Option(**WHOLE, help="Of a model: examples shown before each that is asked.", show_default=str(SHOTS)),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Of a model: float32, or bfloat16, float16.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Of a model: a folder for its results.jsonl.")] = None,
    seed: Annotated[int, typer.Option(**WHOLE, help="Of the examples.")] = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Measure exact match by length, or loss by context length, of a run, which keeps the rows, or of a language model.

    A model of transformers is asked a --task in plain text, as it is.
    """
    flags = {"lengths": lengths, "num_examples": num_examples, "variants": variants}
    if is_run(name):
        refuse("of a model; a run is measured as it was trained", shots=shots, dtype=dtype, out=out)
        run = load_run(Path(name), overrides=parse_overrides(task=task, scheme=scheme, encoding=encoding), device=device)
        run = replace(run, experiment=on_corpus(run.experiment, corpus))
        named = None if task is None else run.experiment.task
        settings = replace(tested(run.experiment.evaluation, **flags, task=named), decode=decode, seed=seed)
        with ProgressLine(err_console) as progress:
            rows = evaluate(run, settings, report=progress.evaluated)
    else:
        refuse("of a run; a model is asked in text, as it is", scheme=scheme, encoding=encoding, corpus=corpus)
        chosen = _task_of(name, task)
        settings = replace(tested(ASKED, **flags, task=chosen), decode=decode, seed=seed)
        precision = {} if dtype is None else {"dtype": dtype}
        asking = Asking(shots=SHOTS if shots is None else shots, device=device, **precision)
        with ProgressLine(err_console) as progress:
            rows = evaluate_language_model(name, chosen, settings, asking=asking, out=out, report=progress.evaluated)
    if as_json:
        print_json({"results": rows})
        return
    print_table(f"{name}, {decode}", *length_table(rows))


def _task_of(model: str, task: str | None) -> Task:
    """What a model is asked."""
    if task is None:
        raise SettingError(
            f"{model} is no run folder (it has no {EXPERIMENT}), and of a model it is not known what to ask; give a "
            "folder that train --out made, or a --task such as parity"
        )
    return load_task(task)


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
    run = load_run(folder, overrides=parse_overrides(task=task, scheme=scheme, encoding=encoding), device=device)
    answer = generate_from_prompt(run, prompt, max_new_tokens)
    if as_json:
        shown = {"tokens": answer.tokens, "position_ids": answer.position_ids}
        print_json({**shown, "right": answer.correct, "expected": answer.expected})
        return
    # Several levels: one column each.
    levels = answer.position_ids if isinstance(answer.position_ids[0], list) else [answer.position_ids]
    header = ["token", *("ID" if len(levels) == 1 else f"ID {level}" for level in range(1, len(levels) + 1))]
    columns = [answer.tokens, *([str(place) for place in level] for level in levels)]
    print_table("written", header, [list(row) for row in zip(*columns, strict=True)])
    if answer.expected:
        verdict = {True: "right", False: "wrong", None: "right so far"}[answer.correct]
        known = "" if answer.correct else f"; the answer is {' '.join(answer.expected)}"
        tell(verdict + known)
