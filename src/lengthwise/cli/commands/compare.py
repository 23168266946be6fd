"""The ``compare`` command, which trains and evaluates several experiments."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from lengthwise.cli import options
from lengthwise.cli.terminal import print_json, print_line, print_message, print_table, print_warnings, show_status


def compare_(
    names: Annotated[
        list[str] | None,
        Argument(
            metavar="RECIPE...",
            help="Names of recipes, or one comparison such as demo.",
            autocompletion=options.suggest_completions("lengthwise.experiments.recipes", "RECIPES", "COMPARISONS"),
        ),
    ] = None,
    task: options.TaskName = None,
    rows: Annotated[
        str | None,
        Option(help="Rows to run, separated by commas: scheme/encoding with --task, or row labels of a comparison."),
    ] = None,
    train_lengths: options.TrainLengthRange = None,
    steps: Annotated[
        int | None, options.integer_option("Number of training steps per run.", show_default="set by the recipe")
    ] = None,
    lengths: Annotated[
        str | None, Option(help="Test lengths, such as 20,200,2000.", show_default="set by the recipe")
    ] = None,
    num_examples: options.NumExamples = None,
    variants: options.VariantNames = None,
    corpus: options.CorpusFolder = None,
    assignments: options.Assignments = None,
    config: options.ConfigFile = None,
    seeds: Annotated[int, options.integer_option("Number of seeds per row.")] = 1,
    seed: Annotated[int | None, options.integer_option("First random seed.", show_default="0")] = None,
    workers: options.NumWorkers = None,
    executor: options.ExecutorName = "local",
    address: options.ClusterAddress = None,
    device: options.DeviceName = "auto",
    out: options.OutputFolder = Path("runs/compare"),
    tracker: options.TrackerNames = None,
    use_quick: options.QuickFlag = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Train and evaluate several experiments, and print one table and one figure.

    With --task and --rows, a scheme without a coupling has the settings that are known to fit with its encoding.
    """
    given_options = locals().copy()
    from lengthwise.cli import experiment_options
    from lengthwise.cli.config_file import read_setting_changes
    from lengthwise.evaluation.tables_and_figures import draw_result_figure, result_tables
    from lengthwise.experiments.experiment import change_settings, find_changed_train_lengths
    from lengthwise.experiments.recipes import quick_version
    from lengthwise.experiments.runner import compare

    changes = read_setting_changes(given_options)
    experiments = experiment_options.experiments_from_names(
        names or [], task, rows, find_changed_train_lengths(changes)
    )
    for label, experiment in experiments.items():
        base_experiment = replace(quick_version(experiment) if use_quick else experiment, seed=0)
        if lengths is not None:
            evaluation = experiment_options.with_one_example_count(base_experiment.evaluation)
            base_experiment = replace(base_experiment, evaluation=evaluation)
        experiments[label] = change_settings(base_experiment, changes)
    with show_status(f"{len(experiments) * seeds} runs in {out}"):
        comparison = compare(
            experiments,
            out,
            seeds=seeds,
            workers=workers,
            device=device,
            executor=executor,
            address=address,
            report=print_message,
            trackers=() if tracker is None else tracker,
        )
    print_warnings(comparison.warnings, is_complete=comparison.is_complete)
    figure = draw_result_figure(comparison.rows, out, title=", ".join(sorted({row["task"] for row in comparison.rows})))
    if as_json:
        print_json({"results": comparison.rows, "diverged": comparison.diverged, "figure": str(figure)})
        return
    for table in result_tables(comparison.rows, [run["row"] for run in comparison.diverged]):
        print_table(*table)
    print_line(f"figure: {figure}")
