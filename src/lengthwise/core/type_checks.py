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
from dataclasses import MISSING, fields
from typing import Any, ParamSpec, TypeGuard, TypeVar

from lengthwise.core.errors import SettingError

# Floats cannot represent all larger integers.
INTEGER_LIMIT = 2**53
TYPE_NAMES = {
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
ITERABLE_TYPES = (collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable)

P = ParamSpec("P")
R = TypeVar("R")


def check_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that arguments of the wrong type raise ``SettingError`` before it runs."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            check_setting_value(name, value, signature.parameters[name].annotation, is_instance)
        return function(*args, **kwargs)

    return wrapper


def check_types(settings: Any, is_instance: Callable[[Any, Any], bool] = lambda value, annotation: True) -> None:
    """Raise ``SettingError`` for the first field that has the wrong type, is too large or is not finite.

    The check covers numbers, strings, booleans, None, and tuples of these; other types check their own values. An
    integer is valid for a float field, but True and False are not. Call this function first in ``__post_init__``.
    """
    for field in fields(settings):
        check_setting_value(field.name, getattr(settings, field.name), field.type, is_instance)


def check_at_least(settings: Any, minimum: int, *names: str) -> None:
    """Raise ``SettingError`` for the first of these fields with a number below ``minimum``."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < minimum:
            raise SettingError(f"{name} {value} is too small; use at least {minimum}")


def check_field_values(dataclass_type: type, values: Mapping[str, Any]) -> None:
    """Raise ``SettingError`` unless each field of a dataclass has a value that ``check_types`` accepts.

    A field with a default can be missing, for example in rows of an earlier version.
    """
    for field in fields(dataclass_type):
        if field.name not in values:
            if field.default is not MISSING:
                continue
            raise SettingError(f"{field.name} is missing")
        check_setting_value(field.name, values[field.name], field.type)


def check_setting_value(
    name: str, value: Any, annotation: Any, is_instance: Callable[[Any, Any], bool] = lambda value, annotation: True
) -> None:
    """Raise ``SettingError`` unless a value matches its type annotation, is not too large and is finite.

    ``is_instance`` checks types other than numbers, strings, booleans, None and tuples.
    """
    if not _has_type(value, annotation, is_instance):
        raise SettingError(f"{name} {reprlib.repr(value)} has the wrong type; use {_type_name(annotation)}")
    if isinstance(value, str | os.PathLike) and "\0" in os.fspath(value):
        raise SettingError(f"{name} {reprlib.repr(value)} contains a zero character; leave it out")
    numbers = [item for item in _flatten_tuple(value) if isinstance(item, int | float)]
    if any(isinstance(number, int) and abs(number) >= INTEGER_LIMIT for number in numbers):
        raise SettingError(f"{name} {value!r} is too large; use a number between -2^53 and 2^53")
    # NaN would pass some range checks, because all comparisons with NaN are False.
    if not all(map(math.isfinite, numbers)):
        raise SettingError(f"{name} {value!r} is not finite; use a finite number")


def is_nonnegative_integer(value: Any) -> TypeGuard[int]:
    """Return True for a whole number of at least 0 that a float represents exactly."""
    return type(value) is int and 0 <= value <= INTEGER_LIMIT


def is_number(value: Any) -> TypeGuard[float]:
    """Return True for a number, which may be infinite or NaN."""
    return type(value) is float or (type(value) is int and abs(value) <= INTEGER_LIMIT)


def is_finite(value: Any) -> TypeGuard[float]:
    """Return True for a number that is neither infinite nor NaN."""
    return is_number(value) and math.isfinite(value)


def _flatten_tuple(value: Any) -> list[Any]:
    return [item for element in value for item in _flatten_tuple(element)] if isinstance(value, tuple) else [value]


def _has_type(value: Any, annotation: Any, is_instance: Callable[[Any, Any], bool]) -> bool:
    origin, type_args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return any(_has_type(value, type_arg, is_instance) for type_arg in type_args)
    if origin is tuple:
        return isinstance(value, tuple) and _have_types(value, type_args, is_instance)
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation in (bool, str, types.NoneType):
        return isinstance(value, annotation)
    return is_instance(value, annotation)


def is_instance(value: Any, annotation: Any) -> bool:
    """Check types that ``_has_type`` does not cover, such as functions and sequences, without consuming iterators."""
    origin, type_args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is collections.abc.Callable:
        return callable(value)
    if origin in ITERABLE_TYPES:
        is_iterable = isinstance(value, origin) and not isinstance(value, str | bytes | Mapping)
        # All numbers of a range have one type, and it can be long.
        sequence = value[:1] if isinstance(value, range) else value
        items = sequence if isinstance(sequence, collections.abc.Sequence | collections.abc.Set) else ()
        return is_iterable and all(_has_type(item, type_args[0], is_instance) for item in items)
    if origin is collections.abc.Mapping:
        return isinstance(value, Mapping) and all(_have_types(item, type_args, is_instance) for item in value.items())
    runtime_type = origin or annotation
    if not isinstance(runtime_type, type) or runtime_type in (Any, inspect.Parameter.empty):
        return True
    return isinstance(value, runtime_type) and not isinstance(value, type)


def _have_types(values: tuple[Any, ...], annotations: tuple[Any, ...], is_instance: Callable[[Any, Any], bool]) -> bool:
    if annotations[1:] == (...,):
        annotations = annotations[:1] * len(values)
    pairs = zip(values, annotations, strict=True)
    return len(values) == len(annotations) and all(_has_type(*pair, is_instance) for pair in pairs)


def _type_name(annotation: Any) -> str:
    origin, type_args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(map(_type_name, type_args))
    if origin is tuple:
        return f"a tuple of ({', '.join('...' if part is ... else _type_name(part) for part in type_args)})"
    if origin in ITERABLE_TYPES:
        return f"a list of items that are each {_type_name(type_args[0])}"
    if origin is collections.abc.Mapping:
        return f"a dict from {_type_name(type_args[0])} to {_type_name(type_args[1])}"
    runtime_type = origin or annotation
    return TYPE_NAMES.get(runtime_type, getattr(runtime_type, "__name__", str(runtime_type)))
