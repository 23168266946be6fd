"""Type checks of settings and arguments, which raise ``SettingError`` for a wrong type."""

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

# Floats cannot represent all larger integers.
INTEGER_LIMIT = 2**53
NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a string",
    tuple: "a tuple",
    types.NoneType: "None",
    os.PathLike: "a path",
    collections.abc.Callable: "a function",
    Any: "anything",
}
# A string is not accepted for these types, although it is a sequence of strings.
ITERABLES = (collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable)

P = ParamSpec("P")
R = TypeVar("R")


def check_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that arguments of the wrong type raise ``SettingError`` before it runs."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            check_value(name, value, signature.parameters[name].annotation, _is_instance)
        return function(*args, **kwargs)

    return wrapper


def check_types(settings: Any) -> None:
    """Raise ``SettingError`` for the first field that has the wrong type, is too large or is not finite.

    The check covers numbers, strings, booleans, tuples of these, and None where it is allowed. Other types must check
    their own values. Where a float is expected, an integer is valid, but True and False are not.
    Call this function first in ``__post_init__``, before values are compared.
    """
    for field in fields(settings):
        check_value(field.name, getattr(settings, field.name), field.type)


def check_values(declared: type, values: Mapping[str, Any]) -> None:
    """Raise ``SettingError`` unless each field of a dataclass has a value that ``check_types`` accepts."""
    for field in fields(declared):
        if field.name not in values:
            raise SettingError(f"{field.name} is missing")
        check_value(field.name, values[field.name], field.type)


def check_value(
    name: str, value: Any, declared: Any, is_instance: Callable[[Any, Any], bool] = lambda value, declared: True
) -> None:
    """Raise ``SettingError`` unless a value has its declared type, is not too large and is finite.

    ``is_instance`` checks types other than numbers, strings, booleans, None and tuples.
    """
    if not _fits(value, declared, is_instance):
        raise SettingError(f"{name} {reprlib.repr(value)} has the wrong type; use {_name(declared)}")
    numbers = [leaf for leaf in _leaves(value) if isinstance(leaf, int | float)]
    if any(isinstance(number, int) and abs(number) >= INTEGER_LIMIT for number in numbers):
        raise SettingError(f"{name} {value!r} is too large; use a number below 2^53")
    # NaN would pass some range checks, because all comparisons with NaN are False.
    if not all(map(math.isfinite, numbers)):
        raise SettingError(f"{name} {value!r} is not finite; use a finite number")


def _leaves(value: Any) -> list[Any]:
    return [leaf for part in value for leaf in _leaves(part)] if isinstance(value, tuple) else [value]


def _fits(value: Any, declared: Any, is_instance: Callable[[Any, Any], bool]) -> bool:
    origin, parts = typing.get_origin(declared), typing.get_args(declared)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, part, is_instance) for part in parts)
    if origin is tuple:
        return isinstance(value, tuple) and _fit_each(value, parts, is_instance)
    if declared is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if declared is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if declared in (bool, str, types.NoneType):
        return isinstance(value, declared)
    return is_instance(value, declared)


def _is_instance(value: Any, declared: Any) -> bool:
    """Return True if an argument has one of the types that ``_fits`` does not check; iterators are not consumed."""
    origin, parts = typing.get_origin(declared), typing.get_args(declared)
    if origin is collections.abc.Callable:
        return callable(value)
    if origin in ITERABLES:
        fits = isinstance(value, origin) and not isinstance(value, str | bytes | Mapping)
        return fits and all(_fits(each, parts[0], _is_instance) for each in value if isinstance(value, list | tuple))
    if origin is collections.abc.Mapping:
        return isinstance(value, Mapping) and all(_fit_each(item, parts, _is_instance) for item in value.items())
    plain = origin or declared
    if not isinstance(plain, type) or plain in (Any, inspect.Parameter.empty):
        return True
    return isinstance(value, plain) and not isinstance(value, type)


def _fit_each(values: tuple[Any, ...], declared: tuple[Any, ...], is_instance: Callable[[Any, Any], bool]) -> bool:
    if declared[1:] == (...,):
        return all(_fits(value, declared[0], is_instance) for value in values)
    return len(values) == len(declared) and all(
        _fits(value, part, is_instance) for value, part in zip(values, declared, strict=True)
    )


def _name(declared: Any) -> str:
    origin, parts = typing.get_origin(declared), typing.get_args(declared)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(map(_name, parts))
    if origin is tuple:
        return f"a tuple of ({', '.join('...' if part is ... else _name(part) for part in parts)})"
    if origin in ITERABLES:
        return f"a list of items that are each {_name(parts[0])}"
    if origin is collections.abc.Mapping:
        return f"a dict from {_name(parts[0])} to {_name(parts[1])}"
    plain = origin or declared
    return NAMES.get(plain, getattr(plain, "__name__", str(plain)))
