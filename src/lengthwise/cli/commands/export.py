"""The command export: runs and tasks in the formats of other programs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.cli import options
from lengthwise.cli.terminal import print_json, print_line
from lengthwise.core.errors import unknown_name
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import load_task
from lengthwise.hf.export import export_hf, export_to_harness, import_hf
from lengthwise.tasks.text_format import SHOTS

# Default lengths of a task without a JSONL file.
LENGTHS = (5, 10, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """Name of the run or task, overrides of a run, settings of the examples, and output folder."""

    name: str
    overrides: Mapping[str, str | None]
    lengths: str | None
    num_examples: str
    seed: int
    shots: int
    out: Path


def _to_harness(request: _Request) -> Mapping[str, Any]:
    options.reject_flags("needs a run and --format hf", **request.overrides)
    task = load_task(request.name)
    settings = EvaluationSettings(lengths=LENGTHS, seed=request.seed)
    settings = options.with_evaluation(settings, request.lengths, request.num_examples, None, task=task)
    group = export_to_harness(task, request.out, settings, shots=request.shots)
    return {"folder": str(request.out), "use": f"lm_eval --include_path {request.out} --tasks {group}"}


def _to_hf(request: _Request) -> Mapping[str, Any]:
    export_hf(Path(request.name), request.out, overrides=options.parse_overrides(**request.overrides))
    return {
        "folder": str(request.out),
        "use": f"import lengthwise; AutoModelForCausalLM.from_pretrained('{request.out}')",
    }


def _to_run(request: _Request) -> Mapping[str, Any]:
    options.reject_flags("needs a run and --format hf", **request.overrides)
    import_hf(Path(request.name), request.out)
    return {"folder": str(request.out), "use": f"lengthwise evaluate {request.out}"}


# Each format returns the folder and a line about its use.
FORMATS: dict[str, Callable[[_Request], Mapping[str, Any]]] = {"hf": _to_hf, "run": _to_run, "lm-eval": _to_harness}


def export(
    name: Annotated[
        str,
        typer.Argument(metavar="RUN|TASK", help="Run folder; for lm-eval, a task: a name, module:Name or FILE.jsonl."),
    ],
    out: options.Out,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="hf: a run for transformers; run: an hf folder as a run; lm-eval: a task for lm-evaluation-harness.",
        ),
    ],
    task: options.TaskName = None,
    scheme: options.SchemeName = None,
    encoding: options.EncodingName = None,
    lengths: Annotated[
        str | None, typer.Option(help="Lengths of the examples.", show_default="5,10,20; those of the JSONL file")
    ] = None,
    num_examples: Annotated[str, typer.Option(help="Examples per length: one number, or one per length.")] = "64",
    shots: Annotated[int, options.integer("Examples in the prompt.")] = SHOTS,
    seed: options.ExampleSeed = 0,
    as_json: options.Json = False,
) -> None:
    """Convert a run or a task to the format of another program."""
    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    overrides = {"task": task, "scheme": scheme, "encoding": encoding}
    request = _Request(
        name=name, overrides=overrides, lengths=lengths, num_examples=num_examples, seed=seed, shots=shots, out=out
    )
    result = FORMATS[form](request)
    if as_json:
        print_json(dict(result))
        return
    print_line(f"saved in {result['folder']}; {result['use']}")
