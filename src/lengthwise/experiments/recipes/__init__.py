"""Recipes (functions that return an experiment with tested settings), and comparisons of several experiments."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from lengthwise.core.errors import unknown_name
from lengthwise.core.type_checks import check_arguments
from lengthwise.encodings import Learned, Rotary
from lengthwise.experiments.experiment import Experiment, load_task, look_up
from lengthwise.experiments.recipes.arithmetic import RECIPES as ARITHMETIC
from lengthwise.experiments.recipes.few_tokens import RECIPES as FEW_TOKENS
from lengthwise.experiments.recipes.fitted_encodings import is_baseline, with_fitted_settings
from lengthwise.experiments.recipes.found_coupling import with_found_coupling
from lengthwise.experiments.recipes.language_model import COMPARISONS as CONTEXT_LENGTHS
from lengthwise.experiments.recipes.language_model import RECIPES as LANGUAGE_MODELS
from lengthwise.experiments.recipes.scheme_encoding_grid import COMPARISONS as GRIDS
from lengthwise.experiments.recipes.scratchpads import COMPARISONS as PARITY_COMPARISONS
from lengthwise.experiments.recipes.scratchpads import RECIPES as SCRATCHPADS
from lengthwise.experiments.recipes.scratchpads import parity
from lengthwise.positions import Discovered
from lengthwise.tasks import HasLengths, Task, default_lengths, nearest_length

RECIPES: dict[str, Callable[[], Experiment]] = {
    recipe.__name__: recipe for recipe in (*SCRATCHPADS, *ARITHMETIC, *FEW_TOKENS, *LANGUAGE_MODELS)
}
# Functions that return the experiments of a comparison by label.
COMPARISONS: dict[str, Callable[[], dict[str, Experiment]]] = {**PARITY_COMPARISONS, **GRIDS, **CONTEXT_LENGTHS}


@check_arguments
def recipe(name: str) -> Experiment:
    """Return the experiment of the recipe ``name``; ``UnknownNameError`` suggests the most similar name."""
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return RECIPES[name]()


@check_arguments
def experiment_for(
    task: str | Task,
    scheme: str,
    encoding: str | None = None,
    *,
    train_lengths: tuple[int, int] | None = None,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> Experiment:
    """Return the experiment of a task with a scheme and an encoding, given by name or ``module:Name``.

    ``task`` is a name, the path of a JSONL file, or a task. Settings of its recipe (ID range, gaps, rotary angles)
    carry over if the new scheme or encoding has them. If the recipe uses a coupling and the scheme does not, the
    decoder, the training and the rotary angles are those that fit with this encoding (``with_fitted_settings``).

    The scheme ``discovered`` searches for a coupling in examples of the task (see ``find_coupling``, which uses
    ``report``), and replaces the decoder and the training of the recipe. ``train_lengths`` replaces the training
    lengths; in a task file, the search reads the records of these lengths only.
    """
    base = _base_recipe(task if isinstance(task, str) else task.name, scheme)
    if base is None or not isinstance(task, str):
        custom_task = load_task(task) if isinstance(task, str) else task
        base = _with_task_lengths(replace(parity() if base is None else base, task=custom_task))
    if train_lengths is not None:
        base = replace(base, train_lengths=train_lengths)
    experiment = with_parts(base, scheme, report=report)
    if not is_baseline(experiment.scheme) or is_baseline(base.scheme):
        return _with_encoding(experiment, encoding)
    plain = replace(experiment, encoding=Rotary())
    return with_fitted_settings(_with_encoding(plain, experiment.encoding.name if encoding is None else encoding))


def with_parts(
    experiment: Experiment,
    scheme: str | None = None,
    encoding: str | None = None,
    *,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> Experiment:
    """Return the experiment with another scheme and encoding; see ``experiment_for`` for the settings that they keep.

    None keeps the scheme or the encoding of the experiment.
    """
    if scheme == Discovered.name:
        experiment = with_found_coupling(experiment, report)
    elif scheme is not None:
        scheme_class = look_up("scheme", scheme)
        experiment = replace(experiment, scheme=scheme_class(**_shared_settings(scheme_class, experiment.scheme)))
    return _with_encoding(experiment, encoding)


def _base_recipe(task: str, scheme: str) -> Experiment | None:
    """Return the first recipe of a task with the scheme, or else the first whose coupling is not a found rule."""
    recipes = [recipe for recipe in (build() for build in RECIPES.values()) if recipe.task.name == task]
    same_scheme = [recipe for recipe in recipes if recipe.scheme.name == scheme]
    declared = [recipe for recipe in recipes if recipe.scheme.name != Discovered.name]
    return next(iter((*same_scheme, *declared)), None)


def _with_encoding(experiment: Experiment, encoding: str | None) -> Experiment:
    """Return the experiment with another encoding, which keeps the settings of the former one that it also has."""
    if encoding is None or encoding == experiment.encoding.name:
        return experiment
    encoding_class = look_up("encoding", encoding)
    if encoding_class is Learned and experiment.scheme.num_position_ids is not None:
        return replace(experiment, encoding=Learned(num_position_ids=experiment.scheme.num_position_ids))
    return replace(experiment, encoding=encoding_class(**_shared_settings(encoding_class, experiment.encoding)))


def _with_task_lengths(experiment: Experiment) -> Experiment:
    task = experiment.task
    if not isinstance(task, HasLengths):
        return experiment
    lengths = default_lengths(task)
    evaluation = replace(experiment.evaluation, lengths=lengths, num_examples=experiment.evaluation.num_examples[:1])
    return replace(experiment, train_lengths=(lengths[0], lengths[-1]), evaluation=evaluation)


def _shared_settings(target_class: type[Any], source: Any) -> dict[str, Any]:
    names = {each.name for each in fields(target_class)} if is_dataclass(target_class) else set()
    return {each.name: getattr(source, each.name) for each in fields(source) if each.name in names}


@check_arguments
def quick(experiment: Experiment) -> Experiment:
    """Return the experiment with few steps, short lengths and few examples, to check that it runs without errors."""
    task = experiment.task
    available_lengths = task.available_lengths if isinstance(task, HasLengths) else None
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
