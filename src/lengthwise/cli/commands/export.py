"""The ``export`` command, which converts runs and tasks to the formats of other programs."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from lengthwise.cli import options
from lengthwise.cli.terminal import print_json, print_line, print_message
from lengthwise.core.defaults import DEFAULT_NUM_SHOTS
from lengthwise.core.errors import unknown_name_error

# Default lengths of the examples, unless the task is a JSONL file.
DEFAULT_LENGTHS = (5, 10, 20)
FORMATS = ("hf", "run", "lm-eval", "onnx")


def export(
    name: Annotated[str, Argument(metavar="RUN|TASK", help="Run folder or exported model; for lm-eval, also a task.")],
    out: options.OutputFolder,
    output_format: Annotated[
        str,
        Option(
            "--format",
            help="Output format: hf (model for transformers), run (run folder, from an hf folder), onnx (graph of a "
            "decoding step) or lm-eval (tasks for the evaluation harness).",
        ),
    ],
    task: options.TaskName = None,
    scheme: options.SchemeName = None,
    encoding: options.EncodingName = None,
    lengths: Annotated[
        str | None, Option(help="Lengths of the examples.", show_default="5,10,20; for a JSONL file, its lengths")
    ] = None,
    num_examples: Annotated[str, Option(help="Number of examples, or one number per length.")] = "64",
    shots: Annotated[
        int | None,
        options.integer_option(
            "Number of solved examples before each question.", show_default=f"{DEFAULT_NUM_SHOTS}; 0 for a run"
        ),
    ] = None,
    seed: options.ExampleSeed = 0,
    as_json: options.JsonFlag = False,
) -> None:
    """Convert a run or a task to the format of another program."""
    from lengthwise.cli import experiment_options
    from lengthwise.evaluation.exact_match import EvaluationSettings
    from lengthwise.experiments.experiment import load_task
    from lengthwise.experiments.run_folder import is_run_folder, read_experiment
    from lengthwise.hf.export import export_hf, export_to_lm_eval, import_hf
    from lengthwise.hf.onnx_export import export_onnx

    if output_format not in FORMATS:
        raise unknown_name_error("format", output_format, FORMATS)
    part_names = {"task": task, "scheme": scheme, "encoding": encoding}
    if output_format in ("hf", "onnx"):
        overrides = experiment_options.parse_overrides(**part_names)
    else:
        options.reject_flags("needs a run and --format hf or onnx", **part_names)
    if output_format == "hf":
        export_hf(Path(name), out, overrides=overrides)
        usage = f"import lengthwise.hf; AutoModelForCausalLM.from_pretrained('{out}')"
    if output_format == "onnx":
        print_message("tracing a decoding step, which takes up to a minute")
        usage = f"python examples/onnx_decoding.py {export_onnx(Path(name), out, overrides=overrides)}"
    if output_format == "run":
        import_hf(Path(name), out)
        usage = f"lengthwise evaluate {out}"
    if output_format == "lm-eval":
        # A run was trained on single examples.
        is_run = is_run_folder(name)
        harness_task = read_experiment(Path(name)).task if is_run else load_task(name)
        shots = (0 if is_run else DEFAULT_NUM_SHOTS) if shots is None else shots
        settings = EvaluationSettings(lengths=DEFAULT_LENGTHS, seed=seed)
        settings = experiment_options.override_evaluation(settings, lengths, num_examples, None, task=harness_task)
        task_group = export_to_lm_eval(harness_task, out, settings, shots=shots)
        program = "python -m lengthwise.hf lm_eval --model hf --model_args pretrained=FOLDER" if is_run else "lm_eval"
        usage = f"{program} --include_path {out} --tasks {task_group}"
    if as_json:
        print_json({"folder": str(out), "use": usage})
        return
    print_line(f"saved in {out}; {usage}")
