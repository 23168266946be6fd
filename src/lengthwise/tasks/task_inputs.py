"""Checks of sizes, parsing of prompts, and sampling without replacement for all tasks."""

import numpy as np
from jaxtyping import Int

from lengthwise.core.devices import check_memory
from lengthwise.core.errors import PromptError, SettingError

# Minimum memory per token of an example in bytes: tokens, coupling and intermediate arrays.
BYTES_PER_TOKEN = 32


def check_sizes(task: str, length: int, size: int, min_length: int = 1) -> None:
    """Raise ``SettingError`` for a length or batch size that is too small or requires too much memory."""
    if length < min_length:
        raise SettingError(f"length {length} is too short for {task}; use at least {min_length}")
    if size < 1:
        raise SettingError(f"size {size} is too small; use at least 1 example")
    advice = "use a shorter length" if size == 1 else "use a shorter length or fewer examples at once"
    check_memory(size * length * BYTES_PER_TOKEN, f"{task}: sampling {size:,} examples of length {length:,}", advice)


def sample_integers(count: int, limit: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size count"]:
    """Return ``size`` samples of ``count`` different integers from 0 to ``limit - 1``, in random order."""
    sort_keys = rng.random((size, limit))
    if count == limit:
        return sort_keys.argsort(axis=1)
    integers = sort_keys.argpartition(count - 1, axis=1)[:, :count]
    return np.take_along_axis(integers, np.take_along_axis(sort_keys, integers, axis=1).argsort(axis=1), axis=1)


def parse_symbols(
    symbols: list[str], alphabet: tuple[str, ...], task: str, expected_format: str
) -> Int[np.ndarray, " seq"]:
    """Return the index of each symbol in ``alphabet``; raise ``PromptError`` for the first unknown symbol."""
    for symbol in symbols:
        if symbol not in alphabet:
            raise PromptError(f"invalid symbol '{symbol}' in a prompt of {task}; write {expected_format}")
    if not symbols:
        raise PromptError(f"the prompt is empty; {task} needs {expected_format}")
    return np.array([alphabet.index(symbol) for symbol in symbols])


def parse_summands(prompt: str, task: str, expected_format: str) -> Int[np.ndarray, "summand digits"]:
    """Return the digits of each number in a sum, least significant first, padded with zeros."""
    summands = prompt.replace(" ", "").removesuffix("=").split("+")
    if len(summands) < 2:
        raise PromptError(f"invalid sum '{prompt}'; write a sum such as {expected_format}")
    if "" in summands:
        number = summands.index("") + 1
        raise PromptError(f"number {number} of the sum '{prompt}' is missing; write a sum such as {expected_format}")
    alphabet, expected = tuple(str(digit) for digit in range(10)), f"a sum such as {expected_format}"
    digit_rows = [parse_symbols(list(summand), alphabet, task, expected)[::-1] for summand in summands]
    num_digits = max(map(len, digit_rows))
    return np.array([np.pad(digits, (0, num_digits - len(digits))) for digits in digit_rows])
