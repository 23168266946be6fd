"""The verb that writes what other programs read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.choices import tested
from lengthwise.errors import unknown_name
from lengthwise.evaluation import EvaluationSettings
from lengthwise.experiment import task_named
from lengthwise.export import export_hf, import_hf
from lengthwise.harness import export_to_harness
from lengthwise.terminal import out_console, print_json
from lengthwise.text_form import SHOTS
from lengthwise.verbs.flags import WHOLE, Json, Out


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be exported: a name, the flags about its examples, and the folder to write."""

    name: str
    settings: EvaluationSettings
    shots: int
    out: Path


def _to_harness(asked: Asked) -> Mapping[str, Any]:
    group = export_to_harness(task_named(asked.name), asked.out, asked.settings, shots=asked.shots)
    return {"folder": str(asked.out), "use": f"lm_eval --include_path {asked.out} --tasks {group}"}


def _to_hf(asked: Asked) -> Mapping[str, Any]:
    export_hf(Path(asked.name), asked.out)
    return {"folder": str(asked.out), "use": f"import lengthwise; AutoModelForCausalLM.from_pretrained('{asked.out}')"}


def _to_run(asked: Asked) -> Mapping[str, Any]:
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
    lengths: Annotated[str, typer.Option(help="Such as 5,10,20.")] = "5,10,20",
    num_examples: Annotated[str, typer.Option(help="Examples per length; one number, or one for each.")] = "64",
    shots: Annotated[int, typer.Option(**WHOLE, help="Examples shown before each that is asked.")] = SHOTS,
    seed: Annotated[int, typer.Option(**WHOLE, help="Of the examples.")] = 0,
    as_json: Json = False,
) -> None:
    """Write a run or a task in the form of another program."""
    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    settings = tested(EvaluationSettings(seed=seed), lengths, num_examples, None)
    done = FORMATS[form](Asked(name=name, settings=settings, shots=shots, out=out))
    if as_json:
        print_json(dict(done))
        return
    out_console.print(f"saved in {done['folder']}; {done['use']}", markup=False, highlight=False, soft_wrap=True)
