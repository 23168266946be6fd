"""The verb that writes what other programs read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.cli.flags import WHOLE, EncodingName, Json, Out, SchemeName, TaskName
from lengthwise.cli.parsing import parse_overrides, refuse, tested
from lengthwise.cli.terminal import print_json, tell
from lengthwise.core.errors import unknown_name
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import load_task
from lengthwise.hf.export import export_hf, export_to_harness, import_hf
from lengthwise.tasks.text_format import SHOTS

# Lengths of a task that has examples of any.
LENGTHS = (5, 10, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be exported: a name, a run's own classes, the flags about examples, and the folder to write."""

    name: str
    own: Mapping[str, str | None]
    lengths: str | None
    num_examples: str
    seed: int
    shots: int
    out: Path


def _to_harness(asked: Asked) -> Mapping[str, Any]:
    refuse("for a run with --format hf", **asked.own)
    task = load_task(asked.name)
    settings = tested(
        EvaluationSettings(lengths=LENGTHS, seed=asked.seed), asked.lengths, asked.num_examples, None, task=task
    )
    group = export_to_harness(task, asked.out, settings, shots=asked.shots)
    return {"folder": str(asked.out), "use": f"lm_eval --include_path {asked.out} --tasks {group}"}


def _to_hf(asked: Asked) -> Mapping[str, Any]:
    export_hf(Path(asked.name), asked.out, overrides=parse_overrides(**asked.own))
    return {"folder": str(asked.out), "use": f"import lengthwise; AutoModelForCausalLM.from_pretrained('{asked.out}')"}


def _to_run(asked: Asked) -> Mapping[str, Any]:
    refuse("for a run with --format hf", **asked.own)
    import_hf(Path(asked.name), asked.out)
    return {"folder": str(asked.out), "use": f"lengthwise evaluate {asked.out}"}


# A format takes what was asked for and says where it is, and how it is used.
FORMATS: dict[str, Callable[[Asked], Mapping[str, Any]]] = {"hf": _to_hf, "run": _to_run, "lm-eval": _to_harness}


def export(
    name: Annotated[
        str,
        typer.Argument(
            metavar="RUN|TASK", help="A run's folder; for lm-eval a task's name, module:Name or file of rows."
        ),
    ],
    out: Out,
    form: Annotated[
        str,
        typer.Option(
            "--format", help="hf: a run for transformers; run: such a folder back; lm-eval: a task for that harness."
        ),
    ],
    task: TaskName = None,
    scheme: SchemeName = None,
    encoding: EncodingName = None,
    lengths: Annotated[str | None, typer.Option(help="5,10,20 by default; of a file of rows its own.")] = None,
    num_examples: Annotated[str, typer.Option(help="Examples per length; one number, or one for each.")] = "64",
    shots: Annotated[int, typer.Option(**WHOLE, help="Examples shown before each that is asked.")] = SHOTS,
    seed: Annotated[int, typer.Option(**WHOLE, help="Of the examples.")] = 0,
    as_json: Json = False,
) -> None:
    """Write a run or a task in the form of another program."""
    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    own = {"task": task, "scheme": scheme, "encoding": encoding}
    asked = Asked(name=name, own=own, lengths=lengths, num_examples=num_examples, seed=seed, shots=shots, out=out)
    done = FORMATS[form](asked)
    if as_json:
        print_json(dict(done))
        return
    tell(f"saved in {done['folder']}; {done['use']}")
