"""Functions that convert the values of options to experiments and settings."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from lengthwise.cli import options
from lengthwise.cli.terminal import print_json, print_line, print_message
from lengthwise.core.devices import training_threads
from lengthwise.core.errors import SettingError, unknown_name
from lengthwise.core.progress_line import ProgressLine, err_console
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import (
    Experiment,
    SettingChange,
    changed_train_lengths,
    load_task,
    resolve_override,
)
from lengthwise.experiments.recipes import COMPARISONS, RECIPES, experiment_for, recipe
from lengthwise.experiments.recipes.fitted_encodings import describe_settings
from lengthwise.experiments.run import Run
from lengthwise.experiments.run_folder import EXPERIMENT
from lengthwise.positions import Discovered
from lengthwise.tasks import HasLengths, Task, Text, default_lengths, is_task_file
from lengthwise.tasks.text.corpus import open_corpus
from lengthwise.training.launch import read_launch

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
        _refuse_task_file(name)
    if name is not None and (task, scheme, encoding) != (None, None, None):
        raise SettingError(f"recipe '{name}' sets task, scheme and encoding; leave out the recipe or these flags")
    if name in COMPARISONS:
        raise SettingError(f"'{name}' is a comparison of several experiments; use lengthwise compare {name}")
    if name is not None:
        return recipe(name)
    if task is None:
        raise SettingError(f"no experiment to train; add the name of a recipe ({', '.join(RECIPES)}) or --task")
    scheme = "predicted" if scheme is None else scheme
    with ProgressLine(err_console) as progress:
        return experiment_for(task, scheme, encoding, train_lengths=train_lengths, report=progress.show_search)


def override_training(
    experiment: Experiment,
    *,
    train_lengths: str | None = None,
    num_position_ids: int | None = None,
    head: str | None = None,
    **training_settings: int | None,
) -> Experiment:
    """Return the experiment with the values of the training flags; None keeps the value of the experiment.

    ``training_settings`` are fields of ``TrainingSettings``.
    """
    changes: dict[str, Any] = {name: value for name, value in training_settings.items() if value is not None}
    training = replace(experiment.training, **changes)
    scheme = experiment.scheme
    if num_position_ids is not None:
        if scheme.num_position_ids is None:
            raise SettingError(f"scheme {scheme.name} has no ID range; leave out --num-position-ids")
        scheme_settings = {field.name: getattr(scheme, field.name) for field in fields(scheme)}  # type: ignore[arg-type]
        scheme = type(scheme)(**{**scheme_settings, "num_position_ids": num_position_ids})
    decoder = experiment.decoder if head is None else replace(experiment.decoder, head=head)
    lengths = experiment.train_lengths if train_lengths is None else options.parse_range(train_lengths)
    return replace(experiment, training=training, scheme=scheme, decoder=decoder, train_lengths=lengths)


def override_corpus(experiment: Experiment, corpus: Path | None) -> Experiment:
    """Return the experiment with the absolute path of a corpus, so that the run loads from any working folder."""
    if corpus is None:
        return experiment
    task = experiment.task
    if not isinstance(task, Text):
        raise SettingError(f"task {task.name} uses no corpus; leave out --corpus, or train the recipe language_model")
    open_corpus(corpus)
    return replace(experiment, task=replace(task, corpus=str(corpus.absolute())))


def override_evaluation(
    settings: EvaluationSettings,
    lengths: str | None,
    num_examples: str | None,
    variants: str | None,
    *,
    task: Task | None,
) -> EvaluationSettings:
    """Return the settings with the values of the evaluation flags; without ``lengths``, a JSONL ``task`` sets them."""
    first_number = settings.num_examples[:1]
    if lengths is None and isinstance(task, HasLengths):
        settings = replace(settings, lengths=default_lengths(task), num_examples=first_number)
    if lengths is not None:
        settings = replace(settings, lengths=options.parse_integers(lengths, "--lengths"), num_examples=first_number)
    if num_examples is not None:
        settings = replace(settings, num_examples=options.parse_integers(num_examples, "--num-examples"))
    if variants is not None:
        settings = replace(settings, variants=options.split_names(variants))
    return settings


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
        labels = tuple(experiments) if labels is None else labels
        return {label: _comparison_row(experiments, label, names[0]) for label in labels}
    if names and (task is not None or rows is not None):
        raise SettingError("recipes cannot be combined with --task and --rows; use only recipes or only these flags")
    if names:
        return {name: _load_recipe(name) for name in names}
    if task is None or labels is None:
        known_names = ", ".join((*RECIPES, *COMPARISONS))
        raise SettingError(f"no experiments to compare; add names of recipes ({known_names}), or --task and --rows")
    # All rows share one task object, so a JSONL file is read only once.
    shared_task = load_task(task) if is_task_file(task) else task
    return {label: _experiment_from_label(shared_task, label, train_lengths) for label in labels}


def _comparison_row(experiments: Mapping[str, Experiment], label: str, comparison: str) -> Experiment:
    if label not in experiments:
        raise unknown_name(f"row of {comparison}", label, experiments)
    return experiments[label]


def _refuse_task_file(name: str) -> None:
    if is_task_file(name):
        raise SettingError(f"'{name}' is a task file, not a recipe; use --task {name}")


def _load_recipe(name: str) -> Experiment:
    _refuse_task_file(name)
    if name in COMPARISONS:
        raise SettingError(
            f"comparison '{name}' cannot be combined with other names; use only one comparison, or only recipes"
        )
    if name not in RECIPES:
        raise unknown_name("recipe", name, (*RECIPES, *COMPARISONS))
    return recipe(name)


def _experiment_from_label(task: str | Task, label: str, train_lengths: tuple[int, int] | None) -> Experiment:
    if label.count("/") != 1:
        raise SettingError(f"invalid row '{label}'; use a scheme and an encoding, such as predicted/rotary")
    with ProgressLine(err_console) as progress:
        return experiment_for(task, *label.split("/"), train_lengths=train_lengths, report=progress.show_search)


def parse_overrides(**names: str | None) -> dict[str, Any]:
    """Return the classes or tasks that replace the task, scheme or encoding of a saved run, by kind."""
    return {kind: resolve_override(kind, name) for kind, name in names.items() if name is not None}


def load_model_task(model: str, task: str | None) -> Task:
    """Return the task of a language model; raise ``SettingError`` if there is no name of a task."""
    if task is None:
        raise SettingError(
            f"{model} is not a run folder (it has no {EXPERIMENT}), and a model needs a task; "
            "pass the output folder of lengthwise train, or add a task such as --task parity"
        )
    return load_task(task)


def report_run(run: Run, threads: int | None, *, is_quick: bool, as_json: bool) -> None:
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
    if run.facts["misfit"] is not None and not is_quick and read_launch().rank == 0:
        sys.exit(1)


def describe_run(run: Run, threads: int | None, *, is_quick: bool) -> str:
    """Return a line about a trained run; without ``threads``, their number follows from the size of the model."""
    num_threads = training_threads(run.experiment.decoder.d_model, threads)
    on_cpu = next(run.decoder.parameters()).device.type == "cpu"
    place = f"{num_threads} thread{'s' if num_threads > 1 else ''}" if on_cpu else "a GPU"
    num_processes = read_launch().size
    place = f"{num_processes} processes with {place} each" if num_processes > 1 else place
    smallest_id, largest_id = run.facts["id_range"]
    fit, length = run.facts["fitted"], run.experiment.train_lengths[1]
    fit_text = "" if fit is None else f"exact match {fit:.3f} at length {length}; "
    misfit_text = "" if run.facts["misfit"] is None else f"; the run does not fit: {run.facts['misfit']}"
    if misfit_text:
        advice = "--quick is not meant to fit" if is_quick else "use more --steps, or another --seed"
        misfit_text = f"{misfit_text}; {advice}"
    steps, max_steps = run.facts["steps"], run.experiment.training.steps
    # A run ends early once it fits.
    steps_text = f"{steps}" if steps == max_steps else f"{steps} of at most {max_steps}"
    return (
        f"{steps_text} steps in {run.facts['train_s']:.0f} s on {place}; {fit_text}"
        f"training IDs {smallest_id:,} to {largest_id:,}; saved in {run.folder}{misfit_text}"
    )


def read_train_lengths(flag: str | None, changes: Sequence[SettingChange]) -> tuple[int, int] | None:
    """Return the training lengths of the flag, or else of the changes; None without any."""
    return changed_train_lengths(changes) if flag is None else options.parse_range(flag)


def named_experiment(
    name: str | None, names: Mapping[str, str | None], train_lengths: tuple[int, int] | None
) -> Experiment:
    """Return a recipe, or the experiment with these names of task, scheme and encoding, and these training lengths."""
    experiment = experiment_from_names(name, **names, train_lengths=train_lengths)
    if names["scheme"] == Discovered.name:
        print_message(f"found a coupling in the examples; lengthwise couple {names['task']} describes it")
    return experiment


def saved_run(name: str | None, task: str | None, resumed: Path | None, start: Path | None) -> Path | None:
    """Return the run folder with the settings of the experiment, or None if a recipe or flags name the experiment."""
    if name is not None:
        return None
    if resumed is not None and (task is None or (resumed / EXPERIMENT).is_file()):
        return resumed
    return start
