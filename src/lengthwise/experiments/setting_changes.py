"""Changes of an experiment by the names of its settings in ``experiment.json``, such as ``training.steps``.

Configuration files, ``--set``, the flags of the command line and the grid of a sweep all become changes.
"""

import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from lengthwise.core.errors import LengthwiseError, SettingError, UnknownNameError, unknown_name
from lengthwise.core.type_checks import check_value
from lengthwise.experiments.experiment import NESTED_TABLES, TABLES, build_entry

Setting = TypeVar("Setting")


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
    changed: Setting = _change_group(settings, changes, label)
    return changed


def changed_train_lengths(changes: Sequence[SettingChange]) -> tuple[int, int] | None:
    """Return the training lengths after the changes, or None if they set none; ``change_settings`` checks the value."""
    values = [change.value for change in changes if change.path == "train_lengths"]
    if not values or not isinstance(values[-1], list | tuple) or [type(length) for length in values[-1]] != [int, int]:
        return None
    shortest, longest = values[-1]
    return shortest, longest


def _change_group(group: Any, changes: Sequence[SettingChange], label: str) -> Any:
    """Return a dataclass with changed fields; ``label`` is its name in errors."""
    setting_fields = {setting.name: setting for setting in fields(group) if setting.compare}
    by_name: dict[str, list[SettingChange]] = {}
    for change in changes:
        name, _, remaining_path = change.path.partition(".")
        if name == "name" and hasattr(type(group), "name"):
            _check_name(group, change, label)
        elif name not in setting_fields:
            full_label = f"{label} {group.name}" if hasattr(type(group), "name") else label
            if not setting_fields:
                raise SettingError(f"{change.source}: {full_label} has no settings; leave it out")
            error = unknown_name(f"setting of {full_label}", name, setting_fields)
            raise UnknownNameError(f"{change.source}: {error}")
        else:
            by_name.setdefault(name, []).append(replace(change, path=remaining_path))
    values = {name: _new_value(setting_fields[name], getattr(group, name), named) for name, named in by_name.items()}
    try:
        return replace(group, **values)
    except LengthwiseError as error:
        # The group checks its settings together, so the error can be about several of them.
        named = [name for name in by_name if re.search(rf"\b{name}\b", str(error))]
        sources = dict.fromkeys(change.source for name in named or by_name for change in by_name[name][-1:])
        raise type(error)(f"{', '.join(sources)}: {error}") from None


def _check_name(group: Any, change: SettingChange, label: str) -> None:
    if change.value != group.name:
        advice = f"use --{label} to choose another {label}" if label in TABLES else "use the same name"
        raise SettingError(f"{change.source}: the {label} is '{group.name}', not {change.value!r:.40}; {advice}")


def _new_value(setting: Field[Any], old_value: Any, changes: Sequence[SettingChange]) -> Any:
    """Return the value of a field after its changes; their paths begin within the field."""
    if is_dataclass(old_value):
        parts = [part for change in changes for part in _split_group(setting.name, old_value, change)]
        return _change_group(old_value, parts, setting.name)
    change = changes[-1]
    if change.path:
        raise SettingError(
            f"{change.source}: {setting.name} is a single setting without '{change.path}'; use only {setting.name}"
        )
    try:
        value = _to_setting(setting.name, change.value)
        check_value(setting.name, value, setting.type)
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
    return build_entry(name, value) if isinstance(value, Mapping) and name in NESTED_TABLES else value


def _with_floats(value: Any, annotation: Any) -> Any:
    """Convert whole numbers to floats where a setting is a float, so that 1 and 1.0 give the same experiment."""
    type_args = typing.get_args(annotation)
    if isinstance(value, tuple) and typing.get_origin(annotation) is tuple:
        element_types = type_args[:1] * len(value) if type_args[-1] is ... else type_args
        return tuple(map(_with_floats, value, element_types))
    return float(value) if type(value) is int and float in (annotation, *type_args) else value
