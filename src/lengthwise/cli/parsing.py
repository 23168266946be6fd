"""What the flags of the command line stand for: text becomes experiments, or an error that says how to write it."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from lengthwise.core.errors import SettingError, unknown_name
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment, named, load_task
from lengthwise.experiments.recipes import COMPARISONS, RECIPES, experiment_for, recipe
from lengthwise.positions import PositionScheme
from lengthwise.tasks import HasLengths, Task, Text, default_lengths, is_task_file
from lengthwise.tasks.text.corpus import open_corpus


def chosen(name: str | None, task: str | None, scheme: str | None, encoding: str | None) -> Experiment:
    """A recipe by name, or a task with a scheme and an encoding."""
    if name is not None and (task, scheme, encoding) != (None, None, None):
        raise SettingError(f"recipe '{name}' has its own task, scheme and encoding; leave out either it or the flags")
    if name in COMPARISONS:
        raise SettingError(f"'{name}' is a comparison of several experiments; run it with compare {name}")
    if name is not None:
        return recipe(name)
    if task is None:
        raise SettingError(f"nothing to train; name a recipe ({', '.join(RECIPES)}) or give --task and --scheme")
    return experiment_for(task, "predicted" if scheme is None else scheme, encoding)


def varied(
    experiment: Experiment,
    *,
    train_lengths: str | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    num_position_ids: int | None = None,
    head: str | None = None,
) -> Experiment:
    """The experiment with the flags that were given."""
    training = experiment.training
    training = training if steps is None else replace(training, steps=steps)
    training = training if batch_size is None else replace(training, batch_size=batch_size)
    scheme = experiment.scheme
    if num_position_ids is not None:
        if scheme.num_position_ids is None:
            raise SettingError(f"scheme {scheme.name} has no range of IDs; leave out --num-position-ids")
        scheme = type(scheme)(**{**_settings(scheme), "num_position_ids": num_position_ids})
    decoder = experiment.decoder if head is None else replace(experiment.decoder, head=head)
    lengths = experiment.train_lengths if train_lengths is None else span(train_lengths)
    return replace(experiment, training=training, scheme=scheme, decoder=decoder, train_lengths=lengths)


def on_corpus(experiment: Experiment, corpus: Path | None) -> Experiment:
    """The experiment on the prepared text that was named, by its whole path: a run is used from anywhere."""
    if corpus is None:
        return experiment
    task = experiment.task
    if not isinstance(task, Text):
        raise SettingError(f"task {task.name} reads no text; leave out --corpus, or train the recipe language_model")
    open_corpus(corpus)
    return replace(experiment, task=replace(task, corpus=str(corpus.absolute())))


def tested(
    settings: EvaluationSettings,
    lengths: str | None,
    num_examples: str | None,
    variants: str | None,
    *,
    task: Task | None,
) -> EvaluationSettings:
    """The evaluation with the flags that were given; the lengths of a file named as ``task`` are its own by default."""
    if lengths is None and isinstance(task, HasLengths):
        settings = replace(settings, lengths=default_lengths(task), num_examples=settings.num_examples[:1])
    if lengths is not None:
        settings = replace(settings, lengths=numbers(lengths, "--lengths"), num_examples=settings.num_examples[:1])
    if num_examples is not None:
        settings = replace(settings, num_examples=numbers(num_examples, "--num-examples"))
    if variants is not None:
        settings = replace(settings, variants=tuple(part.strip() for part in variants.split(",")))
    return settings


def rows_of(names: list[str], task: str | None, rows: str | None) -> dict[str, Experiment]:
    """The rows of a comparison by label: recipes, a named comparison or some of its rows, schemes with encodings."""
    labels = None if rows is None else [part.strip() for part in rows.split(",")]
    if len(names) == 1 and names[0] in COMPARISONS and task is None:
        found = COMPARISONS[names[0]]()
        return found if labels is None else {label: _found(found, label, names[0]) for label in labels}
    if names and (task is not None or rows is not None):
        raise SettingError("recipes and --task with --rows exclude each other; give one of the two")
    if names:
        return {name: _row_of(name) for name in names}
    if task is None or labels is None:
        known = ", ".join((*RECIPES, *COMPARISONS))
        raise SettingError(f"nothing to compare; name recipes ({known}) or give --task and --rows")
    # A file of rows is read once for all of them.
    rows_of_file = load_task(task) if is_task_file(task) else task
    return {label: _row(rows_of_file, label) for label in labels}


def _found(rows: Mapping[str, Experiment], label: str, comparison: str) -> Experiment:
    if label not in rows:
        raise unknown_name(f"row of {comparison}", label, rows)
    return rows[label]


def _row_of(name: str) -> Experiment:
    if name in COMPARISONS:
        raise SettingError(f"comparison '{name}' goes with no other row; name it alone, or recipes only")
    if name not in RECIPES:
        raise unknown_name("recipe", name, (*RECIPES, *COMPARISONS))
    return recipe(name)


def _row(task: str | Task, label: str) -> Experiment:
    if label.count("/") != 1:
        raise SettingError(f"row '{label}' is no scheme/encoding; write rows such as predicted/rotary,sequential/nope")
    return experiment_for(task, *label.split("/"))


def _settings(scheme: PositionScheme) -> dict[str, Any]:
    return {part.name: getattr(scheme, part.name) for part in fields(scheme)}  # type: ignore[arg-type]


def span(text: str) -> tuple[int, int]:
    """``1:20`` as two numbers."""
    try:
        first, last = (int(part) for part in text.split(":"))
    except ValueError:
        raise SettingError(
            f"'{text}' is no range of lengths; write the shortest and the longest such as 1:20"
        ) from None
    return first, last


def numbers(text: str, flag: str) -> tuple[int, ...]:
    """``20,200`` as numbers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SettingError(f"{flag} '{text}' is no list of whole numbers; write one such as 20,200") from None


def whole_number(text: str | int) -> int:
    """A number from the command line, or the default in its place."""
    try:
        return int(text)
    except ValueError:
        raise SettingError(f"'{text}' is no whole number; write one such as 20") from None


def share(text: str | float) -> float:
    """A part of a whole from the command line, or the default in its place."""
    try:
        return float(text)
    except ValueError:
        raise SettingError(f"'{text}' is no share; write one such as 0.1") from None


def refuse(whose: str, **flags: object) -> None:
    """One line about the first flag that was given and means nothing here."""
    for name, value in flags.items():
        if value is not None:
            raise SettingError(f"--{name} {value} is {whose}: leave it out")


def parse_overrides(**names: str | None) -> dict[str, Any]:
    """The classes, or the file of rows, that take the place of a saved run's task, scheme or encoding."""
    return {kind: named(kind, name) for kind, name in names.items() if name is not None}
