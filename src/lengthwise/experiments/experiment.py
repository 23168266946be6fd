"""Experiment: all settings of a run in one frozen dataclass, with conversion to and from JSON, and changes by name."""

import importlib
import json
import os
import re
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from lengthwise.core.errors import LengthwiseError, RunFolderError, SettingError, UnknownNameError, unknown_name_error
from lengthwise.core.randomness import random_stream
from lengthwise.core.type_checks import check_setting_value, check_types
from lengthwise.encodings import ENCODINGS, EncodingSettings, Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.model.decoder import Decoder, build_decoder_in_memory
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import SCHEMES, PositionScheme, Predicted
from lengthwise.positions.scheme import SchemeWithLevels
from lengthwise.tasks import (
    BACKGROUNDS,
    PLACEMENTS,
    TASKS,
    HasFilesToSave,
    HasPlaceholderExample,
    HasRecords,
    JSONLTask,
    Parity,
    Task,
    is_task_file,
    wrong_task_file_error,
)
from lengthwise.training.batch import TrainingSampler
from lengthwise.training.training_settings import TrainingSettings

Setting = TypeVar("Setting")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Settings of a run: task, position scheme, encoding, decoder, training and evaluation.

    ``train_lengths`` is the range of training lengths, both ends included.
    """

    task: Task = field(default_factory=Parity)
    scheme: PositionScheme = field(default_factory=Predicted)
    encoding: EncodingSettings = field(default_factory=Rotary)
    decoder: DecoderSettings = field(default_factory=DecoderSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    train_lengths: tuple[int, int] = (1, 20)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        for name in (*TABLES, *SETTINGS_CLASSES):
            value = getattr(self, name)
            if value is None or isinstance(value, type | str | int | float | dict):
                advice = "use an instance, such as encoding=Rotary()"
                raise SettingError(f"{name} {value!r} is not a settings object; {advice}")


# Classes by saved name. A custom class (module:Name) must be passed again when the run is loaded.
TABLES: dict[str, Mapping[str, type[Any]]] = {"task": TASKS, "scheme": SCHEMES, "encoding": ENCODINGS}
# Settings that contain an entry of a table or a tuple of entries (a task within a task, the laws of a placement).
NESTED_TABLES: dict[str, Mapping[str, type[Any]]] = {
    **TABLES,
    "placement": PLACEMENTS,
    "laws": PLACEMENTS,
    "background": BACKGROUNDS,
}
CONTRACTS: dict[str, type[Any]] = {"task": Task, "scheme": PositionScheme, "encoding": EncodingSettings}
SETTINGS_CLASSES: dict[str, type[Any]] = {
    "decoder": DecoderSettings,
    "training": TrainingSettings,
    "evaluation": EvaluationSettings,
}


def look_up_class(kind: str, name: str) -> type[Any]:
    """Return the class for a built-in name or ``module:Name``; ``UnknownNameError`` suggests the most similar name."""
    if ":" in name:
        return _import_class(kind, name)
    if kind == "task" and Path(name).suffix:
        raise wrong_task_file_error(name)
    if name not in TABLES[kind]:
        raise unknown_name_error(kind, name, TABLES[kind])
    return TABLES[kind][name]


def load_task(name: str) -> Task:
    """Return a task with default settings by name or ``module:Name``, or read it from a JSONL file."""
    return JSONLTask(file=name).read() if is_task_file(name) else look_up_class("task", name)()


def _import_class(kind: str, name: str) -> type[Any]:
    def error(problem: str) -> SettingError:
        return SettingError(f"{kind} '{name}' {problem}")

    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        # Search the working folder too, as python -m does. It comes last, so that it hides no other module.
        sys.path.append(os.getcwd())
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as cause:
        raise error(f"cannot be imported ({cause}); use module:Name of a class on the Python path") from None
    if not isinstance(cls, type) or not hasattr(cls, "name"):
        raise error("is not a class with the attribute 'name'; use module:Name, where Name is such a class")
    if missing := _missing_members(kind, cls):
        raise error(f"lacks {', '.join(missing)}; add these members (see {CONTRACTS[kind].__name__})")
    if TABLES[kind].get(cls.name, cls) is not cls:
        raise error(f"has the name '{cls.name}' of a built-in {kind}; choose another name")
    if not is_dataclass(cls):
        raise error("is not a dataclass, so its settings cannot be saved; add @dataclass(frozen=True)")
    try:
        cls()
    except TypeError as cause:
        raise error(f"cannot be built without arguments ({cause}); give every setting a default value") from None
    return cls


def _missing_members(kind: str, cls: type[Any]) -> list[str]:
    # Only entries of a table need a summary and a paper.
    contract, optional = CONTRACTS[kind], ("summary", "paper")
    members = [name for name in (*vars(contract), *contract.__annotations__) if name[0] != "_" and name not in optional]
    # The other members of a base class are defaults.
    required_methods = (
        ["vocabulary", "separators", "sample", "example_from_prompt"] if kind == "task" else ["assign", "build"]
    )
    return [
        name
        for name in dict.fromkeys(members)
        if not hasattr(cls, name) or (name in required_methods and getattr(cls, name) is getattr(contract, name, None))
    ]


def num_levels(experiment: Experiment) -> int:
    """Return the number of ID levels that the scheme assigns to the tokens of the task."""
    rng, task = random_stream(experiment.seed, "levels"), experiment.task
    if isinstance(experiment.scheme, SchemeWithLevels):
        return experiment.scheme.num_levels
    if isinstance(task, HasPlaceholderExample):
        examples = task.placeholder_example()
    else:
        examples = task.sample(length=experiment.train_lengths[0], size=1, rng=rng)
    return len(experiment.scheme.assign(examples, rng, training=False).position_ids)


def describe_fit_lengths(experiment: Experiment) -> str:
    """Return the lengths in words at which the fit of a run is measured; a file can have few records of the longest."""
    lengths = "lengths up to" if isinstance(experiment.task, HasRecords) else "length"
    return f"{lengths} {experiment.train_lengths[1]}"


def build_decoder(experiment: Experiment) -> Decoder:
    """Return a decoder with initial weights that depend only on the settings and the seed.

    Raises ``SettingError`` if the decoder does not fit into the memory of this machine.
    """
    vocabulary = experiment.task.vocabulary
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(random_stream(experiment.seed, "initial weights").integers(2**63)))
        return build_decoder_in_memory(
            experiment.decoder,
            experiment.encoding,
            vocabulary_size=len(vocabulary),
            separators=tuple(vocabulary.index(separator) for separator in experiment.task.separators),
            num_predicted_ids=(experiment.scheme.num_position_ids or 1) if experiment.scheme.predicts_ids else None,
            num_levels=num_levels(experiment),
        )


def build_sampler(experiment: Experiment, lengths: tuple[int, int]) -> TrainingSampler:
    """Return a sampler of training batches; ``lengths`` is the shortest and the longest length."""
    return TrainingSampler(
        task=experiment.task,
        scheme=experiment.scheme,
        lengths=lengths,
        batch_size=experiment.training.batch_size,
        lengths_per_batch=experiment.training.lengths_per_batch,
        seed=experiment.seed,
    )


def to_dict(value: Any) -> Any:
    """Convert settings to plain JSON values; tasks, schemes, encodings and placements include their name."""
    if is_dataclass(value) and not isinstance(value, type):
        name_entry = {"name": getattr(value, "name", None)} if hasattr(type(value), "name") else {}
        # Fields with compare=False are locations, not settings.
        settings = [setting.name for setting in fields(value) if setting.compare]
        return name_entry | {name: to_dict(getattr(value, name)) for name in settings}
    return [to_dict(element) for element in value] if isinstance(value, tuple) else value


def from_dict(
    tree: Mapping[str, Any], *, overrides: Mapping[str, Any] | None = None, folder: Path | None = None
) -> Experiment:
    """Restore an experiment from the JSON values of ``to_dict``, without importing custom classes.

    ``overrides`` replaces the saved ``task``, ``scheme`` or ``encoding`` by an instance or a class. A class receives
    the saved settings that it also has. For example, an encoding that replaces rotary keeps the trained rotary angles.
    A task reads its saved files from ``folder``. Raises ``RunFolderError`` for invalid values.
    """
    overrides = {} if overrides is None else overrides
    try:
        parts = {part.name: _restore_part(part.name, tree[part.name], overrides) for part in fields(Experiment)}
        if folder is not None and isinstance(parts["task"], HasFilesToSave):
            parts["task"] = parts["task"].from_run_folder(folder)
        return Experiment(**parts)
    except SettingError as error:
        if overrides:
            raise
        raise RunFolderError(f"the saved experiment has an invalid setting: {error}; or train the run again") from None
    except LengthwiseError:
        raise
    except (KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"the saved experiment cannot be read ({error!r}); train the run again") from None


def _restore_part(name: str, value: Any, overrides: Mapping[str, Any]) -> Any:
    """Return one field of an experiment from its saved value or, if ``overrides`` contains it, from the override."""
    if (name in TABLES or name in SETTINGS_CLASSES) and not isinstance(value, Mapping):
        raise TypeError(f"{name} is {value!r:.40} instead of a JSON object")
    if name in overrides:
        return _apply_override(overrides[name], value)
    if name in TABLES:
        return _restore_entry(name, value)
    if name in SETTINGS_CLASSES:
        return SETTINGS_CLASSES[name](**_restore_settings(value))
    return tuple(value) if isinstance(value, list) else value


def build_from_json(kind: str, tree: Mapping[str, Any]) -> Any:
    """Build an object of ``kind`` (such as a placement) from user-written JSON; raise ``SettingError`` if invalid."""
    try:
        return _restore_entry(kind, tree)
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise SettingError(f"invalid {kind} ({error}); use an object with its name and its settings as keys") from None


def _apply_override(override: Any, saved_settings: Mapping[str, Any]) -> Any:
    if not isinstance(override, type):
        return override
    # Pass only the settings that differ from the default, because a custom class may not accept them.
    defaults = json.loads(json.dumps(to_dict(override())))
    changed = {name: value for name, value in saved_settings.items() if name in defaults and value != defaults[name]}
    return override(**_restore_settings(changed))


def _restore_entry(kind: str, saved_settings: Mapping[str, Any]) -> Any:
    name, table = saved_settings["name"], NESTED_TABLES[kind]
    if name not in table:
        advice = f"pass --{kind} module:Name" if kind in TABLES else "pass --task module:Name of a task that builds it"
        raise UnknownNameError(f"unknown saved {kind} '{name}'; if it is custom, {advice}")
    return table[name](**_restore_settings(saved_settings))


def _restore_settings(saved_settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _restore_value(name, value) for name, value in saved_settings.items() if name != "name"}


def _restore_value(name: str, value: Any) -> Any:
    """Restore one setting: JSON saves a tuple as a list, and a nested task or placement as an object."""
    if isinstance(value, list):
        return tuple(_restore_value(name, element) for element in value)
    is_entry = name in TABLES or (name in NESTED_TABLES and isinstance(value, Mapping))
    return _restore_entry(name, value) if is_entry else value


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """New value of a setting.

    ``path`` is the dotted name of the setting, and ``value`` is its value in JSON: a list for a tuple, an object for a
    group of settings. ``source`` is the place of the change for errors, such as ``config.toml line 4``.
    """

    path: str
    value: Any
    source: str


def change_settings(settings: Setting, changes: Sequence[SettingChange], label: str = "experiment") -> Setting:
    """Return an experiment, or a group of its settings, with all changes at once; the last change of a setting wins.

    ``label`` is the name of the group, and the paths of the changes begin within it. A task, scheme or encoding keeps
    its class. Raises ``UnknownNameError`` for an unknown setting and ``SettingError`` for an invalid value. The message
    starts with the source of the change.
    """
    group: Any = settings
    setting_fields = {setting.name: setting for setting in fields(group) if setting.compare}
    by_name: dict[str, list[SettingChange]] = {}
    for change in changes:
        name, _, remaining_path = change.path.partition(".")
        if name == "name" and hasattr(type(group), "name"):
            if change.value != group.name:
                advice = f"use --{label} to choose another {label}" if label in TABLES else "use the same name"
                raise SettingError(
                    f"{change.source}: the {label} is '{group.name}', not {change.value!r:.40}; {advice}"
                )
        elif name not in setting_fields:
            full_label = f"{label} {group.name}" if hasattr(type(group), "name") else label
            if not setting_fields:
                raise SettingError(f"{change.source}: {full_label} has no settings; leave it out")
            error = unknown_name_error(f"setting of {full_label}", name, setting_fields)
            raise UnknownNameError(f"{change.source}: {error}")
        else:
            by_name.setdefault(name, []).append(replace(change, path=remaining_path))
    values = {name: _new_value(setting_fields[name], getattr(group, name), named) for name, named in by_name.items()}
    try:
        changed: Setting = replace(group, **values)
        return changed
    except LengthwiseError as error:
        # The group checks its settings together, so the error can be about several of them.
        named = [name for name in by_name if re.search(rf"\b{name}\b", str(error))]
        sources = dict.fromkeys(change.source for name in named or by_name for change in by_name[name][-1:])
        raise type(error)(f"{', '.join(sources)}: {error}") from None


def find_changed_train_lengths(changes: Sequence[SettingChange]) -> tuple[int, int] | None:
    """Return the training lengths after the changes, or None if they set none; ``change_settings`` checks the value."""
    values = [change.value for change in changes if change.path == "train_lengths"]
    if not values or not isinstance(values[-1], list | tuple) or [type(length) for length in values[-1]] != [int, int]:
        return None
    shortest, longest = values[-1]
    return shortest, longest


def _new_value(setting: Field[Any], old_value: Any, changes: Sequence[SettingChange]) -> Any:
    """Return the value of a field after its changes; their paths begin within the field."""
    if is_dataclass(old_value):
        parts = [part for change in changes for part in _split_group(setting.name, old_value, change)]
        return change_settings(old_value, parts, setting.name)
    change = changes[-1]
    if change.path:
        raise SettingError(
            f"{change.source}: {setting.name} is a single setting without '{change.path}'; use only {setting.name}"
        )
    try:
        value = _to_setting(setting.name, change.value)
        check_setting_value(setting.name, value, setting.type)
    except LengthwiseError as error:
        raise type(error)(f"{change.source}: {error}") from None
    return _with_floats(value, setting.type)


def _split_group(name: str, group: Any, change: SettingChange) -> list[SettingChange]:
    """Return the changes of single settings that a change of a whole group consists of."""
    if change.path:
        return [change]
    if not isinstance(change.value, Mapping):
        choice = f", or --{name} to choose another {name}" if name in TABLES else ""
        known = ", ".join(setting.name for setting in fields(group) if setting.compare)
        raise SettingError(
            f"{change.source}: {name} is a group of settings ({known}); use a name such as {name}.SETTING{choice}"
        )
    return [replace(change, path=key, value=value) for key, value in change.value.items()]


def _to_setting(name: str, value: Any) -> Any:
    """Convert a JSON value: a list becomes a tuple, and an object an entry of a table such as a placement."""
    if isinstance(value, list | tuple):
        return tuple(_to_setting(name, element) for element in value)
    return build_from_json(name, value) if isinstance(value, Mapping) and name in NESTED_TABLES else value


def _with_floats(value: Any, annotation: Any) -> Any:
    """Convert whole numbers to floats where a setting is a float, so that 1 and 1.0 give the same experiment."""
    type_args = typing.get_args(annotation)
    if isinstance(value, tuple) and typing.get_origin(annotation) is tuple:
        element_types = type_args[:1] * len(value) if type_args[-1] is ... else type_args
        return tuple(map(_with_floats, value, element_types))
    return float(value) if type(value) is int and float in (annotation, *type_args) else value
