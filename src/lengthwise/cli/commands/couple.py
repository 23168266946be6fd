"""The ``couple`` command, which finds the tokens that each answer depends on."""

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from lengthwise.cli import options
from lengthwise.cli.terminal import print_json, print_line, print_message, print_table
from lengthwise.core.defaults import (
    AUTO,
    COUPLING_METHODS,
    DEPENDENCE,
    MAX_COUPLED_TOKENS,
    SAMPLES_PER_LENGTH,
    SEARCH_MINUTES,
)
from lengthwise.core.errors import SettingError
from lengthwise.core.files import check_output_file
from lengthwise.core.progress_line import ProgressLine, err_console

# Maximum number of tokens of the example that the command prints.
MAX_EXAMPLE_ROWS = 100


def couple(
    source: Annotated[str, Argument(metavar="FILE.jsonl|TASK", help="File of prompts and responses, or task.")],
    out: Annotated[Path | None, Option("--out", help="File for the records with their coupling.")] = None,
    lengths: Annotated[
        str | None, Option(help="Lengths to read, such as 2,3,4.", show_default="file: all; task: 2 to 8")
    ] = None,
    num_examples: Annotated[
        int, options.integer_option("Number of examples per length that a task samples.")
    ] = SAMPLES_PER_LENGTH,
    method: Annotated[str, Option(help=f"One of {', '.join(COUPLING_METHODS)}.")] = AUTO,
    max_tokens: Annotated[
        int, options.integer_option("Largest number of tokens that an answer may depend on.")
    ] = MAX_COUPLED_TOKENS,
    allow_noise: Annotated[
        bool, Option("--allow-noise", help="Accept a rule whose wrong answers do not look like independent noise.")
    ] = False,
    minutes: Annotated[
        float,
        options.number_option(
            "Time limit of the search in minutes, without the training of a model.", "a number such as 2.5"
        ),
    ] = SEARCH_MINUTES,
    seed: Annotated[int, options.integer_option("Random seed.")] = 0,
    as_json: options.JsonFlag = False,
) -> None:
    """Find which earlier tokens each answer depends on, and the position IDs for PPC that follow from this."""
    check_output_file(out)
    # The imports take seconds.
    print_message(f"searching for the tokens that each answer of {source} depends on")
    import numpy as np

    from lengthwise.experiments.coupling_methods import find_coupling
    from lengthwise.experiments.experiment import load_task
    from lengthwise.tasks import JSONLTask, is_task_file
    from lengthwise.tasks.coupling.found_coupling import sample_task_file
    from lengthwise.tasks.coupling.report import (
        describe_coupling,
        describe_rule_conditions,
        example_table,
        write_coupled_records,
    )

    if out is not None and not is_task_file(str(out)):
        raise SettingError(f"--out {out} is not a task file; use a name that ends in .jsonl")
    parsed_lengths = None if lengths is None else options.parse_integers(lengths, "--lengths")
    with tempfile.TemporaryDirectory() as folder:
        task = load_task(source)
        if not isinstance(task, JSONLTask):
            # A sampled file can have more examples, which is faster than a model.
            method = DEPENDENCE if method == AUTO else method
            task = sample_task_file(task, parsed_lengths, num_examples, seed, Path(folder) / "records.jsonl")
        with ProgressLine(err_console) as progress:
            found = find_coupling(
                task,
                parsed_lengths,
                method=method,
                max_tokens=max_tokens,
                allow_noise=allow_noise,
                minutes=minutes,
                seed=seed,
                report=progress.show_search,
            )
        lengths_read = sorted(task.available_lengths if parsed_lengths is None else parsed_lengths)
        vocabulary, first_length = task.vocabulary, lengths_read[min(2, len(lengths_read) - 1)]
        example = task.records_at(first_length, np.array([0]))
        conditions = describe_rule_conditions(task, found, parsed_lengths, seed)
        counts = {"records": None} if out is None else write_coupled_records(task, found, lengths_read, out)
    if as_json:
        print_json({**asdict(found), "rule": found.rule.saved_texts, "conditions": conditions, **counts})
        return
    for line in (*describe_coupling(found, vocabulary), *conditions):
        print_line(line)
    rows = example_table(found, example, vocabulary)
    part = f" (the first {MAX_EXAMPLE_ROWS} of {len(rows):,} tokens)" if len(rows) > MAX_EXAMPLE_ROWS else ""
    print_table(
        f"one example: prompt, <mark>, <start>, response{part}",
        ["index", "token", *(f"ID {level + 1}" for level in range(found.num_levels))],
        rows[:MAX_EXAMPLE_ROWS],
    )
    if out is not None:
        print_line(
            f"{counts['records']:,} records with their coupling: {out}; left out: {counts['repeated']:,} that repeat "
            f"another one, and {counts['other_lengths']:,} of other lengths"
        )
