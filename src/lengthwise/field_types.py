"""Types of settings: a value of another type than its field declares is refused where it is given."""

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lengthwise.errors import SettingError

# From here on not every whole number is a float.
LARGEST = 2**53
NAMES = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", tuple: "a tuple"}


def check_types(settings: Any) -> None:
    """Raise ``SettingError`` for the first field whose value is of another type than declared, too large or not finite.

    Checks numbers, texts, booleans and tuples of these, also where None is allowed; fields of any other type are left
    to whoever declares them. A whole number serves where a number is asked for; True and False do not.
    Call it first in ``__post_init__``, before values are compared.
    """
    for field in fields(settings):
        check_value(field.name, getattr(settings, field.name), field.type)


def check_values(declared: type, values: Mapping[str, Any]) -> None:
    """Raise ``SettingError`` unless there is a value for each field of a dataclass, as ``check_types`` wants it."""
    for field in fields(declared):
        if field.name not in values:
            raise SettingError(f"{field.name} is missing")
        check_value(field.name, values[field.name], field.type)


def check_value(name: str, value: Any, declared: Any) -> None:
    """Raise ``SettingError`` unless a value is of its declared type, not too large and finite."""
    if not _fits(value, declared):
        raise SettingError(f"{name} {value!r} has the wrong type; give {_name(declared)}")
    if not _in_range(value):
        raise SettingError(f"{name} {value!r} is too large; use a number below 2^53")
    if not _finite(value):
        raise SettingError(f"{name} {value!r} is no finite number; use one")


def _fits(value: Any, declared: Any) -> bool:
    origin, parts = typing.get_origin(declared), typing.get_args(declared)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, part) for part in parts)
    if origin is tuple:
        return isinstance(value, tuple) and _fit_each(value, parts)
    if declared is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if declared is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if declared in (bool, str, types.NoneType):
        return isinstance(value, declared)
    return True


def _finite(value: Any) -> bool:
    """Whether a number, and each within a tuple, is one: what is no number passes every comparison that refuses."""
    if isinstance(value, tuple):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _in_range(value: Any) -> bool:
    """Whether a whole number, and each within a tuple, is one that arrays and other programs hold exactly."""
    if isinstance(value, tuple):
        return all(map(_in_range, value))
    return not isinstance(value, int) or abs(value) < LARGEST


def _fit_each(values: tuple[Any, ...], declared: tuple[Any, ...]) -> bool:
    if declared[1:] == (...,):
        return all(_fits(value, declared[0]) for value in values)
    return len(values) == len(declared) and all(map(_fits, values, declared))


def _name(declared: Any) -> str:
    """Return a type in words."""
    origin, parts = typing.get_origin(declared), typing.get_args(declared)
    if origin in (types.UnionType, typing.Union):
        return " or ".join("None" if part is types.NoneType else _name(part) for part in parts)
    if origin is tuple:
        kinds = ", ".join("..." if part is ... else _name(part) for part in parts)
        return f"a tuple of ({kinds})"
    return NAMES.get(declared, getattr(declared, "__name__", str(declared)))
