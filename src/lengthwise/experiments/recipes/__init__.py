"""Recipes (experiments with tested settings by name), comparisons, and the experiment of a task without a recipe."""

import warnings
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from lengthwise.core.errors import DefaultSettingsWarning, unknown_name_error
from lengthwise.core.type_checks import check_arguments
from lengthwise.encodings import Learned, Rotary
from lengthwise.experiments.coupling_methods import find_coupling
from lengthwise.experiments.experiment import Experiment, build_sampler, load_task, look_up_class
from lengthwise.experiments.recipes.comparisons import COMPARISONS as COMPARISONS
from lengthwise.experiments.recipes.recipe_table import DEFAULT_RECIPES as DEFAULT_RECIPES
from lengthwise.experiments.recipes.recipe_table import RECIPES as RECIPES
from lengthwise.experiments.recipes.tuned_encodings import is_baseline_scheme, with_found_coupling, with_tuned_settings
from lengthwise.positions import DiscoveredCoupling
from lengthwise.tasks import HasFixedLengths, JSONLTask, Task, default_lengths, lengths_between, nearest_length

# Number of IDs for a task file, whose longest test is unknown.
NUM_POSITION_IDS = 4096


@check_arguments
def recipe(name: str) -> Experiment:
    """Return the experiment of the recipe ``name``; ``UnknownNameError`` suggests the most similar name."""
    if name not in RECIPES:
        raise unknown_name_error("recipe", name, RECIPES)
    return RECIPES[name]()


@check_arguments
def experiment(
    task: str | Task,
    scheme: str,
    encoding: str | None = None,
    *,
    train_lengths: tuple[int, int] | None = None,
    quick: bool = False,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> Experiment:
    """Return the experiment of a task with a scheme and an encoding, given by name or ``module:Name``.

    ``task`` is a name, the path of a JSONL file, or a task. Settings of its recipe (ID range, gaps, rotary angles)
    carry over if the new scheme or encoding has them. If the recipe uses a coupling and the scheme does not, the
    decoder, the training and the rotary angles are those that fit with this encoding (``with_tuned_settings``).
    A task without a recipe has the settings of ``parity``, and a ``DefaultSettingsWarning`` names them.

    The scheme ``discovered`` searches for a coupling in examples of the task (see ``find_coupling``, which uses
    ``report``), and replaces the decoder and the training of the recipe. ``train_lengths`` replaces the training
    lengths; in a task file, the search reads the records of these lengths only. ``quick`` returns the
    ``quick_version`` of the experiment.
    """
    name = task if isinstance(task, str) else task.name
    default, by_scheme = DEFAULT_RECIPES.get(name, ("parity", {}))
    base = RECIPES[by_scheme.get(scheme, default)]()
    if name not in DEFAULT_RECIPES or not isinstance(task, str):
        base = _with_task_lengths(replace(base, task=load_task(task) if isinstance(task, str) else task))
    if train_lengths is not None:
        base = replace(base, train_lengths=train_lengths)
    full = with_scheme_and_encoding(base, scheme, report=report)
    if not is_baseline_scheme(full.scheme) or is_baseline_scheme(base.scheme):
        full = _with_encoding(full, encoding)
    else:
        plain = replace(full, encoding=Rotary())
        encoding = full.encoding.name if encoding is None else encoding
        full = with_tuned_settings(_with_encoding(plain, encoding))
    if name not in DEFAULT_RECIPES:
        _warn_of_defaults(full)
    return quick_version(full) if quick else full


def _warn_of_defaults(experiment: Experiment) -> None:
    """Warn about the settings of an experiment that come from another task."""
    parity = RECIPES["parity"]()
    parts = [part for part in ("decoder", "training") if getattr(experiment, part) == getattr(parity, part)]
    if experiment.evaluation.lengths == parity.evaluation.lengths:
        parts.append("test lengths")
    if parts:
        message = f"task {experiment.task.name} has no recipe; its {', '.join(parts)} are those of the recipe parity"
        warnings.warn(message, DefaultSettingsWarning, stacklevel=4)


def with_scheme_and_encoding(
    experiment: Experiment,
    scheme: str | None = None,
    encoding: str | None = None,
    *,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> Experiment:
    """Return the experiment with another scheme and encoding; see ``experiment`` for the settings that they keep.

    None keeps the scheme or the encoding of the experiment.
    """
    if scheme == DiscoveredCoupling.name:
        experiment = _with_found_coupling(experiment, report)
    elif scheme is not None:
        scheme_class = look_up_class("scheme", scheme)
        experiment = replace(experiment, scheme=scheme_class(**_shared_settings(scheme_class, experiment.scheme)))
    return _with_encoding(experiment, encoding)


def _with_found_coupling(experiment: Experiment, report: Callable[[dict[str, Any]], None] | None) -> Experiment:
    """Return an experiment with a coupling that is found in its task; raise ``CouplingError`` if none is found.

    In a task file, the search reads the records with training lengths only, so that longer records remain a test.
    """
    num_position_ids = experiment.scheme.num_position_ids
    # The sampler checks the training lengths, whose records the search reads.
    build_sampler(experiment, experiment.train_lengths)
    is_file = isinstance(experiment.task, JSONLTask)
    if num_position_ids is None or is_file:
        num_position_ids = NUM_POSITION_IDS
    lengths = lengths_between(experiment.task, *experiment.train_lengths) if is_file else None
    rule = find_coupling(experiment.task, lengths, report=report).rule
    return with_found_coupling(experiment, rule.saved_texts, num_position_ids=num_position_ids)


def _with_encoding(experiment: Experiment, encoding: str | None) -> Experiment:
    """Return the experiment with another encoding, which keeps the settings of the former one that it also has."""
    if encoding is None or encoding == experiment.encoding.name:
        return experiment
    encoding_class = look_up_class("encoding", encoding)
    if encoding_class is Learned and experiment.scheme.num_position_ids is not None:
        return replace(experiment, encoding=Learned(num_position_ids=experiment.scheme.num_position_ids))
    return replace(experiment, encoding=encoding_class(**_shared_settings(encoding_class, experiment.encoding)))


def _with_task_lengths(experiment: Experiment) -> Experiment:
    task = experiment.task
    if not isinstance(task, HasFixedLengths):
        return experiment
    lengths = default_lengths(task)
    evaluation = replace(experiment.evaluation, lengths=lengths, num_examples=experiment.evaluation.num_examples[:1])
    return replace(experiment, train_lengths=(lengths[0], lengths[-1]), evaluation=evaluation)


def _shared_settings(target_class: type[Any], source: Any) -> dict[str, Any]:
    names = {setting.name for setting in fields(target_class)} if is_dataclass(target_class) else set()
    return {setting.name: getattr(source, setting.name) for setting in fields(source) if setting.name in names}


@check_arguments
def quick_version(experiment: Experiment) -> Experiment:
    """Return the experiment with few steps, short lengths and few examples, to check that it runs without errors."""
    task = experiment.task
    available_lengths = task.available_lengths if isinstance(task, HasFixedLengths) else None
    # Some tasks have no examples of length 1, and a file has examples of some lengths only.
    min_length = min(experiment.train_lengths[0], 2) if available_lengths is None else available_lengths[0]
    lengths = (4, 8) if available_lengths is None else available_lengths[:2]
    # One length per step takes less time, but a tilt over lengths needs two.
    lengths_per_batch = 2 if experiment.training.length_tilt else 1
    short: dict[str, Any] = {"steps": 20, "batch_size": 8, "warmup_steps": 5, "lengths_per_batch": lengths_per_batch}
    short |= {"log_every": 5, "checkpoint_every": 10}
    return replace(
        experiment,
        training=replace(experiment.training, **short),
        evaluation=replace(experiment.evaluation, lengths=lengths, num_examples=(16,)),
        train_lengths=(min_length, nearest_length(task, 4)),
    )
