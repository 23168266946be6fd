"""Functions that convert the values of options to experiments and settings."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from lengthwise.cli import options
from lengthwise.cli.config_file import read_setting_changes
from lengthwise.cli.terminal import print_json, print_line, print_message
from lengthwise.core.devices import num_training_threads
from lengthwise.core.errors import SettingError, unknown_name_error
from lengthwise.core.files import StrPath
from lengthwise.core.progress_line import ProgressLine, err_console
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments import recipes
from lengthwise.experiments.experiment import (
    Experiment,
    change_settings,
    describe_fit_lengths,
    load_task,
    look_up_class,
)
from lengthwise.experiments.recipes import COMPARISONS, RECIPES, recipe
from lengthwise.experiments.recipes.tuned_encodings import describe_settings
from lengthwise.experiments.run import Run, load_run
from lengthwise.positions import DiscoveredCoupling
from lengthwise.tasks import HasFixedLengths, JSONLTask, Task, default_lengths, is_task_file
from lengthwise.training.launch import read_launch_info

# Default settings for language models. The lengths fit into any context window.
MODEL_SETTINGS = EvaluationSettings(lengths=(5, 10, 20), num_examples=(64,))


def experiment_from_names(
    name: str | None,
    task: str | None,
    scheme: str | None,
    encoding: str | None,
    train_lengths: tuple[int, int] | None,
) -> Experiment:
    """Return the recipe with this name, or the experiment with this task, scheme, encoding and training lengths."""
    if name is not None:
        experiment = _load_recipe(name)
        if (task, scheme, encoding) != (None, None, None):
            raise SettingError(f"recipe '{name}' sets task, scheme and encoding; leave out the recipe or these flags")
        return experiment
    if task is None:
        raise SettingError(f"no experiment to train; add the name of a recipe ({', '.join(RECIPES)}) or --task")
    scheme = "predicted" if scheme is None else scheme
    with ProgressLine(err_console) as progress:
        experiment = recipes.experiment(
            task, scheme, encoding, train_lengths=train_lengths, report=progress.show_search
        )
    if scheme == DiscoveredCoupling.name:
        print_message(f"found a coupling in the examples; lengthwise couple {task} describes it")
    return experiment


def override_corpus(experiment: Experiment, corpus: Path | None) -> Experiment:
    """Return the experiment with the absolute path of a corpus, so that the run loads from any working folder."""
    return change_settings(experiment, read_setting_changes({"corpus": corpus}))


def with_one_example_count(settings: EvaluationSettings) -> EvaluationSettings:
    """Return the settings with the first number of examples for all lengths, so that the lengths can change."""
    return replace(settings, num_examples=settings.num_examples[:1])


def override_evaluation(
    settings: EvaluationSettings,
    lengths: str | None,
    num_examples: str | None,
    variants: str | None,
    *,
    task: Task | None,
) -> EvaluationSettings:
    """Return the settings with the values of the evaluation flags; without ``lengths``, a JSONL ``task`` sets them."""
    if lengths is not None:
        settings = with_one_example_count(settings)
    elif isinstance(task, HasFixedLengths):
        settings = replace(with_one_example_count(settings), lengths=default_lengths(task))
    changes = read_setting_changes({"lengths": lengths, "num_examples": num_examples, "variants": variants})
    changes = [replace(change, path=change.path.removeprefix("evaluation.")) for change in changes]
    return change_settings(settings, changes, "evaluation")


def experiments_from_names(
    names: list[str], task: str | None, rows: str | None, train_lengths: tuple[int, int] | None
) -> dict[str, Experiment]:
    """Return experiments by label.

    ``names`` are recipes or one comparison. If ``names`` is empty, ``rows`` contains pairs ``scheme/encoding`` for
    ``task`` and ``train_lengths``.
    """
    labels = None if rows is None else options.split_names(rows)
    if len(names) == 1 and names[0] in COMPARISONS and task is None:
        experiments = COMPARISONS[names[0]]()
        for label in labels or ():
            if label not in experiments:
                raise unknown_name_error(f"row of {names[0]}", label, experiments)
        return experiments if labels is None else {label: experiments[label] for label in labels}
    if names and (task is not None or rows is not None):
        raise SettingError("recipes cannot be combined with --task and --rows; use only recipes or only these flags")
    if names:
        return {name: _load_recipe(name) for name in names}
    if task is None or labels is None:
        known_names = ", ".join((*RECIPES, *COMPARISONS))
        raise SettingError(f"no experiments to compare; add names of recipes ({known_names}), or --task and --rows")
    # All rows share one task object, so a JSONL file is read only once.
    shared_task = load_task(task) if is_task_file(task) else task
    experiments = {}
    for label in labels:
        if label.count("/") != 1:
            raise SettingError(f"invalid row '{label}'; use a scheme and an encoding, such as predicted/rotary")
        scheme, encoding = label.split("/")
        with ProgressLine(err_console) as progress:
            experiments[label] = recipes.experiment(
                shared_task, scheme, encoding, train_lengths=train_lengths, report=progress.show_search
            )
    return experiments


def _load_recipe(name: str) -> Experiment:
    if is_task_file(name):
        raise SettingError(f"'{name}' is a task file, not a recipe; use --task {name}")
    if name in COMPARISONS:
        raise SettingError(f"comparison '{name}' has several experiments; use lengthwise compare {name} alone")
    if name not in RECIPES:
        raise unknown_name_error("recipe", name, (*RECIPES, *COMPARISONS))
    return recipe(name)


def parse_overrides(**names: str | None) -> dict[str, Any]:
    """Return the classes or tasks that replace the task, scheme or encoding of a saved run, by kind."""
    return {
        kind: JSONLTask(file=name) if kind == "task" and is_task_file(name) else look_up_class(kind, name)
        for kind, name in names.items()
        if name is not None
    }


def load_run_with_overrides(
    folder: StrPath, task: str | None, scheme: str | None, encoding: str | None, device: str = "cpu"
) -> Run:
    """Load a run, with another task, scheme or encoding instead of the saved one unless it is None."""
    return load_run(folder, overrides=parse_overrides(task=task, scheme=scheme, encoding=encoding), device=device)


def print_trained_run(run: Run, threads: int | None, *, is_quick: bool, as_json: bool) -> None:
    """Print a trained run, and exit with status 1 if it does not fit its training lengths, except with ``--quick``.

    Before, print where the settings of a baseline come from.

    Of several processes, only the first exits with this status, so that the launcher does not end it before it prints.
    """
    if (settings_text := describe_settings(run.experiment)) is not None:
        print_message(settings_text)
    if as_json:
        print_json({"folder": str(run.folder), **run.facts})
    else:
        print_line(describe_run(run, threads, is_quick=is_quick))
    if run.facts["misfit"] is not None and not is_quick and read_launch_info().rank == 0:
        sys.exit(1)


def describe_run(run: Run, threads: int | None, *, is_quick: bool) -> str:
    """Return a line about a trained run; without ``threads``, their number follows from the size of the model."""
    num_threads = num_training_threads(run.experiment.decoder.d_model, threads)
    on_cpu = next(run.decoder.parameters()).device.type == "cpu"
    place = f"{num_threads} thread{'s' if num_threads > 1 else ''}" if on_cpu else "a GPU"
    num_processes = read_launch_info().size
    place = f"{num_processes} processes with {place} each" if num_processes > 1 else place
    steps, max_steps = run.facts["steps"], run.experiment.training.steps
    # A run ends early once it fits.
    steps_text = f"{steps}" if steps == max_steps else f"{steps} of at most {max_steps}"
    parts = [f"{steps_text} steps in {run.facts['train_s']:.0f} s on {place}"]
    if run.facts["fitted"] is not None:
        parts.append(f"exact match {run.facts['fitted']:.3f} at {describe_fit_lengths(run.experiment)}")
    smallest_id, largest_id = run.facts["id_range"]
    parts.append(f"training IDs {smallest_id:,} to {largest_id:,}; saved in {run.folder}")
    if run.facts["misfit"] is not None:
        advice = "--quick is not meant to fit" if is_quick else "use more --steps, or another --seed"
        parts.append(f"the run does not fit: {run.facts['misfit']}; {advice}")
    return "; ".join(parts)
