"""The ``export`` command: write runs and tasks in the formats of other programs."""

from pathlib import Path
from typing import Annotated

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
FORMATS = ("hf", "run", "lm-eval")


def export(
    name: Annotated[str, typer.Argument(metavar="RUN|TASK", help="Run folder; for lm-eval, a task as in --task.")],
    out: options.Out,
    form: Annotated[
        str, typer.Option("--format", help="hf (for transformers), run (from hf), or lm-eval (lm-evaluation-harness).")
    ],
    task: options.TaskName = None,
    scheme: options.SchemeName = None,
    encoding: options.EncodingName = None,
    lengths: Annotated[
        str | None, typer.Option(help="Lengths of the examples.", show_default="5,10,20; for a JSONL file, its lengths")
    ] = None,
    num_examples: Annotated[str, typer.Option(help="Examples per length: one number, or one per length.")] = "64",
    shots: Annotated[int, options.integer("Number of examples in the prompt.")] = SHOTS,
    seed: options.ExampleSeed = 0,
    as_json: options.Json = False,
) -> None:
    """Convert a run or a task to the format of another program."""
    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    parts = {"task": task, "scheme": scheme, "encoding": encoding}
    if form == "hf":
        export_hf(Path(name), out, overrides=options.parse_overrides(**parts))
        use = f"import lengthwise; AutoModelForCausalLM.from_pretrained('{out}')"
    else:
        options.reject_flags("needs a run and --format hf", **parts)
    if form == "run":
        import_hf(Path(name), out)
        use = f"lengthwise evaluate {out}"
    if form == "lm-eval":
        source, settings = load_task(name), EvaluationSettings(lengths=LENGTHS, seed=seed)
        settings = options.with_evaluation(settings, lengths, num_examples, None, task=source)
        group = export_to_harness(source, out, settings, shots=shots)
        use = f"lm_eval --include_path {out} --tasks {group}"
    if as_json:
        print_json({"folder": str(out), "use": use})
        return
    print_line(f"saved in {out}; {use}")
