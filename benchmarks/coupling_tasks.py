"""Twelve tasks that the package does not have: functions that return the prompt and the response of one row."""

from collections.abc import Callable

import numpy as np

Row = tuple[list[str], list[str]]


def letters(rng: np.random.Generator, count: int, alphabet: str = "abcdef") -> list[str]:
    """Return random symbols of an alphabet."""
    return rng.choice(list(alphabet), size=count).tolist()


def interleave(rng: np.random.Generator, n: int) -> Row:
    """Return two strings, and their symbols in turn."""
    first, second = letters(rng, n), letters(rng, n, "uvwxyz")
    return [*first, "|", *second], [symbol for pair in zip(first, second, strict=True) for symbol in pair]


def pair_sums(rng: np.random.Generator, n: int) -> Row:
    """Return digits, and the sum of each pair, modulo 10."""
    digits = letters(rng, 2 * n, "0123456789")
    return digits, [str((int(digits[2 * i]) + int(digits[2 * i + 1])) % 10) for i in range(n)]


def running_maximum(rng: np.random.Generator, n: int) -> Row:
    """Return digits, and the largest digit so far."""
    digits = letters(rng, n, "0123456789")
    return digits, [str(max(map(int, digits[: i + 1]))) for i in range(n)]


def bracket_depth(rng: np.random.Generator, n: int) -> Row:
    """Return brackets, and the depth after each one."""
    brackets, depths, depth = [], [], 0
    for _ in range(n):
        opens = depth == 0 or (depth < 5 and rng.random() < 0.5)
        depth += 1 if opens else -1
        brackets.append("(" if opens else ")")
        depths.append(str(depth))
    return brackets, depths


def caesar_shift(rng: np.random.Generator, n: int) -> Row:
    """Return a key and letters, and the letters shifted by the key."""
    alphabet, key, text = "abcdefgh", int(rng.integers(8)), letters(rng, n, "abcdefgh")
    return [str(key), *text], [alphabet[(alphabet.index(letter) + key) % 8] for letter in text]


def remove_repeats(rng: np.random.Generator, n: int) -> Row:
    """Return letters, and the same letters without repeats of the previous one."""
    text = letters(rng, n, "abc")
    return text, [letter for i, letter in enumerate(text) if i == 0 or text[i - 1] != letter]


def every_second(rng: np.random.Generator, n: int) -> Row:
    """Return letters, and every second one."""
    text = letters(rng, 2 * n)
    return text, text[::2]


def palindrome(rng: np.random.Generator, n: int) -> Row:
    """Return letters, and the same letters in reverse order."""
    text = letters(rng, n)
    return text, text[::-1]


def running_xor(rng: np.random.Generator, n: int) -> Row:
    """Return two bit strings, and the running parity of both."""
    first, second = letters(rng, n, "01"), letters(rng, n, "01")
    bits = np.array(first).astype(int) ^ np.array(second).astype(int)
    return [*first, "^", *second], [str(bit) for bit in np.bitwise_xor.accumulate(bits)]


def base_four(rng: np.random.Generator, n: int) -> Row:
    """Return bits, and one base-4 digit per pair."""
    bits = letters(rng, 2 * n, "01")
    return bits, [str(2 * int(bits[2 * i]) + int(bits[2 * i + 1])) for i in range(n)]


def look_up(rng: np.random.Generator, n: int) -> Row:
    """Return a table and a key, and the value of the key."""
    keys = [f"k{number}" for number in rng.permutation(40)[:n]]
    values, query = letters(rng, n, "0123456789"), int(rng.integers(n))
    table = [token for key, value in zip(keys, values, strict=True) for token in (key, "=", value)]
    return [*table, "?", keys[query]], [values[query]]


def postfix(rng: np.random.Generator, n: int) -> Row:
    """Return a postfix sum, and the top of the stack after each operator."""
    stack: list[int] = []
    tokens, results = [], []
    while len(results) < n:
        if len(stack) < 2 or rng.random() < 0.5:
            stack.append(int(rng.integers(10)))
            tokens.append(str(stack[-1]))
        else:
            stack.append((stack.pop() + stack.pop()) % 10)
            tokens.append("+")
            results.append(str(stack[-1]))
    return tokens, results


FILE_TASKS: dict[str, Callable[[np.random.Generator, int], Row]] = {
    "interleave two strings": interleave,
    "sums of digit pairs": pair_sums,
    "running maximum": running_maximum,
    "bracket depth": bracket_depth,
    "Caesar shift by a key": caesar_shift,
    "remove repeated letters": remove_repeats,
    "every second symbol": every_second,
    "complete a palindrome": palindrome,
    "running XOR of two strings": running_xor,
    "base 2 to base 4": base_four,
    "look up in a table": look_up,
    "evaluate postfix sums": postfix,
}
