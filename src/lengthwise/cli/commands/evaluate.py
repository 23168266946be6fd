"""The ``evaluate`` and ``generate`` commands, for trained runs and language models."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from lengthwise.cli import options
from lengthwise.cli.terminal import print_json, print_line, print_table
from lengthwise.core.defaults import DEFAULT_NUM_SHOTS
from lengthwise.core.errors import SettingError
from lengthwise.core.progress_line import ProgressLine, err_console


def evaluate_(
    name: Annotated[
        str,
        Argument(metavar="RUN|MODEL", help="Run folder, model folder, GGUF file or name on the Hugging Face Hub."),
    ],
    lengths: Annotated[
        str | None,
        Option(help="Test lengths, such as 20,200,2000.", show_default="set by the recipe or the JSONL file"),
    ] = None,
    num_examples: options.NumExamples = None,
    task: options.TaskName = None,
    scheme: options.SchemeName = None,
    encoding: options.EncodingName = None,
    variants: options.VariantNames = None,
    corpus: options.CorpusFolder = None,
    decode: Annotated[str, Option(help="Decoding mode: forced (teacher forcing) or free (token by token).")] = "forced",
    shots: Annotated[
        int | None,
        options.integer_option(
            "Number of solved examples before each question to a language model.", show_default=str(DEFAULT_NUM_SHOTS)
        ),
    ] = None,
    shot_length: Annotated[
        int | None,
        options.integer_option("Length of the solved examples.", show_default="the length of the question"),
    ] = None,
    in_tokens: Annotated[
        bool, Option("--in-tokens", help="Read --lengths as numbers of tokens of the text for a language model.")
    ] = False,
    tokenizer: options.TokenizerName = None,
    dtype: Annotated[str | None, Option(help="Data type of a language model: float32, bfloat16 or float16.")] = None,
    out: Annotated[Path | None, Option("--out", help="Output folder for the results of a language model.")] = None,
    seed: options.ExampleSeed = 0,
    device: options.DeviceName = "auto",
    as_json: options.JsonFlag = False,
) -> None:
    """Measure the exact match by length of a run or a language model, or the loss of a run by context length.

    Results of a run are saved in its folder. A language model needs --task, and reads the examples as plain text.
    """
    from lengthwise.cli import experiment_options
    from lengthwise.evaluation.tables_and_figures import length_table
    from lengthwise.experiments.experiment import load_task
    from lengthwise.experiments.run_evaluation import evaluate
    from lengthwise.experiments.run_folder import EXPERIMENT, is_run_folder

    flags = {"lengths": lengths, "num_examples": num_examples, "variants": variants}
    if is_run_folder(name):
        model_flags = {"shots": shots, "shot-length": shot_length, "in-tokens": in_tokens or None}
        options.reject_flags("needs a model, not a run", **model_flags, tokenizer=tokenizer, dtype=dtype, out=out)
        run = experiment_options.load_run_with_overrides(name, task, scheme, encoding, device)
        run = replace(run, experiment=experiment_options.override_corpus(run.experiment, corpus))
        replacement_task = None if task is None else run.experiment.task
        settings = experiment_options.override_evaluation(run.experiment.evaluation, **flags, task=replacement_task)
        settings = replace(settings, decode=decode, seed=seed)
        with ProgressLine(err_console) as progress:
            rows = evaluate(run, settings, report=progress.show_example_count, report_row=progress.show_result)
    else:
        # Imports `transformers`, which takes seconds.
        from lengthwise.hf.language_models import PromptingConfig, evaluate_language_model

        options.reject_flags("needs a run, not a model", scheme=scheme, encoding=encoding, corpus=corpus)
        if task is None:
            raise SettingError(
                f"{name} is not a run folder (it has no {EXPERIMENT}), and a model needs a task; "
                "pass the output folder of lengthwise train, or add a task such as --task parity"
            )
        model_task = load_task(task)
        settings = experiment_options.override_evaluation(experiment_options.MODEL_SETTINGS, **flags, task=model_task)
        settings = replace(settings, decode=decode, seed=seed)
        prompting = PromptingConfig(
            shots=DEFAULT_NUM_SHOTS if shots is None else shots,
            shot_length=shot_length,
            in_tokens=in_tokens,
            tokenizer=tokenizer,
            device=device,
            dtype="float32" if dtype is None else dtype,
        )
        with ProgressLine(err_console) as progress:
            rows = evaluate_language_model(
                name,
                model_task,
                settings,
                prompting=prompting,
                out=out,
                report=progress.show_example_count,
                report_row=progress.show_result,
            )
    if as_json:
        print_json({"results": rows})
        return
    title = "teacher forcing" if decode == "forced" else "token by token"
    print_table(f"{name}, {title}", *length_table(rows))


def generate_(
    folder: options.RunFolder,
    prompt: Annotated[str, Option(help="Prompt in the format of the task, such as 0110 or 57+68.")],
    task: options.TaskName = None,
    scheme: options.SchemeName = None,
    encoding: options.EncodingName = None,
    max_new_tokens: Annotated[
        int | None,
        options.integer_option(
            "Maximum number of generated tokens.", show_default="the length of the answer; 64 for text"
        ),
    ] = None,
    device: options.DeviceName = "auto",
    as_json: options.JsonFlag = False,
) -> None:
    """Generate the response to one prompt, and print its tokens with their position IDs."""
    from lengthwise.cli.experiment_options import load_run_with_overrides
    from lengthwise.experiments.run_evaluation import generate_from_prompt

    run = load_run_with_overrides(folder, task, scheme, encoding, device)
    completion = generate_from_prompt(run, prompt, max_new_tokens)
    if as_json:
        output = {"prompt": prompt, "tokens": completion.tokens, "position_ids": completion.position_ids}
        print_json({**output, "right": completion.correct, "expected": completion.expected})
        return
    print_line(f"prompt: {prompt}")
    # The table has one column of IDs per level.
    ids = completion.position_ids
    levels = ids if isinstance(ids[0], list) else [ids]
    header = ["token", *("ID" if len(levels) == 1 else f"ID {level + 1}" for level in range(len(levels)))]
    # No token uses the ID of the end token, so it is not trained.
    columns = [
        completion.tokens,
        *(
            ["" if token == "end" else str(number) for token, number in zip(completion.tokens, level_ids, strict=True)]
            for level_ids in levels
        ),
    ]
    print_table("generated", header, [list(row) for row in zip(*columns, strict=True)])
    if completion.expected:
        verdict = {True: "correct", False: "incorrect", None: "correct so far"}[completion.correct]
        expected_text = "" if completion.correct else f"; expected {' '.join(completion.expected)}"
        print_line(verdict + expected_text)
