"""Types of settings and arguments: a value of another type than was declared is refused where it is given."""

import collections.abc
import functools
import inspect
import math
import os
import reprlib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, ParamSpec, TypeVar

from lengthwise.core.errors import SettingError

# From here on not every whole number is a float.
LARGEST = 2**53
NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a text",
    tuple: "a tuple",
    types.NoneType: "None",
    os.PathLike: "a path",
    collections.abc.Callable: "a function",
    Any: "anything",
}
# Each of whose values is of one type. A text is none of these here, though Python would go through its letters.
SEVERAL = (collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable)

P = ParamSpec("P")
R = TypeVar("R")


def check_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function, so that a wrong type of an argument is a ``SettingError``, before anything is done."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            check_value(name, value, signature.parameters[name].annotation, _is)
        return function(*args, **kwargs)

    return checked


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


def check_value(
    name: str, value: Any, declared: Any, is_one: Callable[[Any, Any], bool] = lambda value, declared: True
) -> None:
    """Raise ``SettingError`` unless a value is of its declared type, not too large and finite.

    ``is_one`` tells whether it is, where the type is none of numbers, texts, booleans, None and tuples.
    """
    if not _fits(value, declared, is_one):
        raise SettingError(f"{name} {reprlib.repr(value)} has the wrong type; give {_name(declared)}")
    if not _in_range(value):
        raise SettingError(f"{name} {value!r} is too large; use a number below 2^53")
    if not _finite(value):
        raise SettingError(f"{name} {value!r} is no finite number; use one")


def _fits(value: Any, declared: Any, is_one: Callable[[Any, Any], bool]) -> bool:
    origin, parts = typing.get_origin(declared), typing.get_args(declared)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, part, is_one) for part in parts)
    if origin is tuple:
        return isinstance(value, tuple) and _fit_each(value, parts, is_one)
    if declared is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if declared is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if declared in (bool, str, types.NoneType):
        return isinstance(value, declared)
    return is_one(value, declared)


def _is(value: Any, declared: Any) -> bool:
    """Whether an argument is of a type that is no plain one; iterators are not gone through."""
    origin, parts = typing.get_origin(declared), typing.get_args(declared)
    if origin is collections.abc.Callable:
        return callable(value)
    if origin in SEVERAL:
        whole = isinstance(value, origin) and not isinstance(value, str | bytes | Mapping)
        return whole and all(_fits(each, parts[0], _is) for each in value if isinstance(value, list | tuple))
    if origin is collections.abc.Mapping:
        return isinstance(value, Mapping) and all(_fit_each(item, parts, _is) for item in value.items())
    asked = origin or declared
    if not isinstance(asked, type) or asked in (Any, inspect.Parameter.empty):
        return True
    return isinstance(value, asked) and not isinstance(value, type)


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


def _fit_each(values: tuple[Any, ...], declared: tuple[Any, ...], is_one: Callable[[Any, Any], bool]) -> bool:
    if declared[1:] == (...,):
        return all(_fits(value, declared[0], is_one) for value in values)
    return len(values) == len(declared) and all(
        _fits(value, part, is_one) for value, part in zip(values, declared, strict=True)
    )


def _name(declared: Any) -> str:
    """Return a type in words."""
    origin, parts = typing.get_origin(declared), typing.get_args(declared)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(map(_name, parts))
    if origin is tuple:
        kinds = ", ".join("..." if part is ... else _name(part) for part in parts)
        return f"a tuple of ({kinds})"
    if origin in SEVERAL:
        return f"a list, each of it {_name(parts[0])}"
    if origin is collections.abc.Mapping:
        return f"a dict from {_name(parts[0])} to {_name(parts[1])}"
    asked = origin or declared
    return NAMES.get(asked, getattr(asked, "__name__", str(asked)))
