"""The ``train`` command, which trains one experiment."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from lengthwise.cli import options
from lengthwise.cli.terminal import print_message
from lengthwise.core.interruption import StoppedError, catch_interrupts
from lengthwise.core.progress_line import ProgressLine, err_console


def train_(
    name: Annotated[
        str | None,
        Argument(
            metavar="[RECIPE]",
            help="Name of a recipe; use either a recipe or --task.",
            autocompletion=options.suggest_completions("lengthwise.experiments.recipes", "RECIPES"),
        ),
    ] = None,
    task: options.TaskName = None,
    scheme: options.SchemeName = None,
    encoding: options.EncodingName = None,
    train_lengths: options.TrainLengthRange = None,
    steps: Annotated[
        int | None, options.integer_option("Number of training steps.", show_default="set by the recipe")
    ] = None,
    batch_size: Annotated[
        int | None, options.integer_option("Number of examples per training step.", show_default="set by the recipe")
    ] = None,
    lengths_per_batch: Annotated[
        int | None,
        options.integer_option("Number of different lengths per training step; 1 trains each step on one length."),
    ] = None,
    num_position_ids: Annotated[
        int | None,
        options.integer_option("Number of position IDs; must exceed the largest ID of the longest test sequence."),
    ] = None,
    head: Annotated[
        str | None,
        Option(help="Position head: pointer, wide_pointer, state_pointer, rank, increment, search or class."),
    ] = None,
    corpus: options.CorpusFolder = None,
    assignments: options.Assignments = None,
    config: options.ConfigFile = None,
    seed: Annotated[int | None, options.integer_option("Random seed for the data and the initial weights.")] = None,
    device: options.DeviceName = "auto",
    threads: Annotated[
        int | None,
        options.integer_option("Number of CPU threads.", show_default="1 for narrow models, else chosen by torch"),
    ] = None,
    out: Annotated[Path | None, Option("--out", help="Output folder.", show_default="runs/TASK-SCHEME-SEED")] = None,
    resume: Annotated[
        bool, Option("--resume", help="Continue from the newest checkpoint; more --steps extend a finished run.")
    ] = False,
    start: Annotated[
        Path | None,
        Option("--from", metavar="RUN", help="Finished run whose weights and settings the new run starts with."),
    ] = None,
    tracker: options.TrackerNames = None,
    use_quick: options.QuickFlag = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Train a recipe, or a task with a position scheme and an encoding.

    The exit status is 1 if the saved run does not fit its training lengths, except with --quick.
    """
    given_options = locals().copy()
    if scheme == "discovered" and task is not None and not resume:
        # The imports and the first steps of the search take seconds.
        print_message(f"searching for a coupling in examples of {task}")
    from lengthwise.cli import experiment_options
    from lengthwise.cli.config_file import read_setting_changes, select_component_names
    from lengthwise.experiments.experiment import change_settings, describe_fit_lengths, find_changed_train_lengths
    from lengthwise.experiments.recipes import quick_version
    from lengthwise.experiments.run import train
    from lengthwise.experiments.run_folder import is_run_folder, read_experiment

    changes = read_setting_changes(given_options)
    given_names = {"task": task, "scheme": scheme, "encoding": encoding}
    resumes = out is not None and resume and (task is None or is_run_folder(out))
    saved_run = None if name is not None else out if resumes else start
    if saved_run is not None:
        experiment = read_experiment(saved_run, overrides=experiment_options.parse_overrides(**given_names))
    else:
        names = given_names if name is not None else select_component_names(changes, **given_names)
        experiment = experiment_options.experiment_from_names(
            name, **names, train_lengths=find_changed_train_lengths(changes)
        )
    if use_quick and not (resume and saved_run == out):
        experiment = quick_version(experiment)
    # The flags override --set, --set overrides the file, and all of them override the settings of --quick.
    experiment = change_settings(experiment, changes)
    run_name = f"{experiment.task.name}-{experiment.scheme.name}-{experiment.seed}"
    folder = Path("runs") / run_name if out is None else out
    lengths = describe_fit_lengths(experiment)
    progress_line = ProgressLine(err_console, experiment.training.steps, fit_lengths=lengths)
    with progress_line as progress, catch_interrupts() as should_stop:
        run = train(
            experiment,
            folder,
            resume=resume,
            start=start,
            device=device,
            threads=threads,
            report=progress.show_training,
            trackers=() if tracker is None else tracker,
            stop=should_stop,
        )
    if run is None:
        flags = "".join(f" --{kind} {value}" for kind, value in given_names.items() if value and ":" in value)
        flags += " --quick" if use_quick else ""
        raise StoppedError(f"stopped and saved; continue with: lengthwise train --resume --out {folder}{flags}")
    experiment_options.print_trained_run(run, threads, is_quick=use_quick, as_json=as_json)
