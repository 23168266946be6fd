"""Measure which rules ``lengthwise couple`` accepts: of tasks with a right rule, and of traps.

A trap has a simple rule that explains most short answers, and errors that grow with the length or have a hidden cause.
For an accepted rule, the script measures the share of wrong answers at length ``LONG``. Of tasks with noise, the longer
answers have no noise.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from coupling_tasks import Row, letters, running_maximum

from lengthwise.core.errors import CouplingError
from lengthwise.core.provenance import collect_provenance
from lengthwise.core.randomness import random_stream
from lengthwise.experiments.run_folder import read_rows, write_rows
from lengthwise.tasks import JSONLTask
from lengthwise.tasks.coupling.answer_steps import AnswerSteps, divide_into_phases
from lengthwise.tasks.coupling.found_coupling import FoundCoupling, find_coupling_in_examples, sample_task_answers
from lengthwise.tasks.coupling.locators import locate_tokens, parse_locator

RESULTS = Path(__file__).parent / "results" / "coupling_table.jsonl"
LONG, NUM_LONG_ROWS = 160, 200


def sliding_maximum(rng: np.random.Generator, n: int) -> Row:
    """Return digits, and the largest of the last three."""
    digits = letters(rng, n, "012345")
    return digits, [max(digits[max(0, i - 2) : i + 1]) for i in range(n)]


def copy_or_reverse(rng: np.random.Generator, n: int) -> Row:
    """Return a mode and letters, and the letters or their reverse."""
    mode, text = str(rng.choice(["copy", "reverse"])), letters(rng, n)
    return [mode, *text], text if mode == "copy" else text[::-1]


def times_three(rng: np.random.Generator, n: int) -> Row:
    """Return a number and three times the number, both with the last digit first."""
    digits, product, carry = letters(rng, n, "0123456789"), [], 0
    for digit in (*digits, "0"):
        carry, last = divmod(3 * int(digit) + carry, 10)
        product.append(str(last))
    return digits, product


def majority(rng: np.random.Generator, n: int) -> Row:
    """Return three bit strings, and the majority at each place."""
    first, second, third = (letters(rng, n, "01") for _ in range(3))
    answer = ["1" if triple.count("1") > 1 else "0" for triple in zip(first, second, third, strict=True)]
    return [*first, "|", *second, "/", *third], answer


def subtract(rng: np.random.Generator, n: int) -> Row:
    """Return two numbers and their difference, with the last digit first."""
    small, large = sorted(int("".join(letters(rng, n, "0123456789"))) for _ in range(2))
    digits = [list(f"{number:0{n}d}"[::-1]) for number in (large, small, large - small)]
    return [*digits[0], "-", *digits[1]], digits[2]


def compare(rng: np.random.Generator, n: int) -> Row:
    """Return two numbers with the first digit first, and the result of comparing them up to each digit."""
    first, second, results, result = letters(rng, n, "0123"), letters(rng, n, "0123"), [], "="
    for one, other in zip(first, second, strict=True):
        result = result if result != "=" else "<" if one < other else ">" if one > other else "="
        results.append(result)
    return [*first, ":", *second], results


def automaton(rng: np.random.Generator, n: int) -> Row:
    """Return letters, and the state of an automaton after each letter."""
    moves = {"a": "1203", "b": "0312", "c": "3321"}
    text, state, states = letters(rng, n, "abc"), "0", []
    for letter in text:
        state = moves[letter][int(state)]
        states.append(state)
    return text, states


def deltas(rng: np.random.Generator, n: int) -> Row:
    """Return digits, and the difference of each digit to the one before it, modulo 10."""
    digits = letters(rng, n, "0123456789")
    before = ["0", *digits[:-1]]
    return digits, [str((int(digit) - int(last)) % 10) for digit, last in zip(digits, before, strict=True)]


def expand(rng: np.random.Generator, n: int) -> Row:
    """Return letters, and two symbols for each."""
    table = {"a": "pq", "b": "qr", "c": "rp", "d": "ps"}
    text = letters(rng, n, "abcd")
    return text, [symbol for letter in text for symbol in table[letter]]


def linked_list(rng: np.random.Generator, n: int) -> Row:
    """Return links between names in random order and a first name, and the names that follow it."""
    names = [f"n{number}" for number in rng.permutation(400 if n == LONG else 30)[: n + 1]]
    links = [("link", names[i], names[i + 1]) for i in rng.permutation(n)]
    return [*(token for link in links for token in link), "start", names[0]], names[1:]


def noisy_copy(share: float) -> Callable[[np.random.Generator, int], Row]:
    """Return a task that copies letters, a share of which is replaced by other letters."""

    def sample(rng: np.random.Generator, n: int) -> Row:
        text = letters(rng, n)
        # The longer rows measure the rule, and not the noise.
        is_wrong = (rng.random(n) < share) & (n < LONG)
        return text, [letters(rng, 1)[0] if wrong else letter for letter, wrong in zip(text, is_wrong, strict=True)]

    return sample


def with_rare_token(rng: np.random.Generator, tokens: list[str], rare: str, share: float = 0.0025) -> list[str]:
    """Return tokens, a share of which is replaced by a rare one."""
    return [rare if rng.random() < share else token for token in tokens]


def rare_shift(rng: np.random.Generator, n: int) -> Row:
    """Return letters and their copy; a rare z anywhere shifts all other letters of the copy."""
    text, alphabet = with_rare_token(rng, letters(rng, n, "abcd"), "z"), "abcd"
    shift = int("z" in text)
    return text, [letter if letter == "z" else alphabet[(alphabet.index(letter) + shift) % 4] for letter in text]


def rare_inversion(rng: np.random.Generator, n: int) -> Row:
    """Return bits and their copy; a rare 2 anywhere inverts all bits of the copy."""
    text = with_rare_token(rng, letters(rng, n, "01"), "2")
    flips = {"0": "1", "1": "0", "2": "2"}
    return text, [flips[bit] for bit in text] if "2" in text else text


def look_up(rng: np.random.Generator, n: int) -> Row:
    """Return a table without repeated keys and a key, and the value of the key."""
    keys = [f"k{number}" for number in rng.permutation(400 if n == LONG else 30)[:n]]
    values, query = letters(rng, n, "0123456789"), int(rng.integers(n))
    table = [token for pair in zip(keys, values, strict=True) for token in pair]
    return [*table, "?", keys[query]], [values[query]]


def last_key_wins(rng: np.random.Generator, n: int) -> Row:
    """Return a table whose keys can repeat and a key, and the value of the last entry with this key."""
    keys, values = [f"k{number}" for number in rng.integers(300, size=n)], letters(rng, n, "0123456789")
    query = str(rng.choice(keys))
    table = [token for pair in zip(keys, values, strict=True) for token in pair]
    return [*table, "?", query], [dict(zip(keys, values, strict=True))[query]]


def times_three_in_base_five(rng: np.random.Generator, n: int) -> Row:
    """Return a number in base 5 and three times the number, both with the first digit first."""
    digits = letters(rng, n, "01234")
    product = sum(3 * int(digit) * 5 ** (n - 1 - i) for i, digit in enumerate(digits))
    return digits, [str(product // 5**i % 5) for i in range(n, -1, -1)]


def equal_ends(rng: np.random.Generator, n: int) -> Row:
    """Return letters and their copy; if the first two equal the last two in reverse, the copy is reversed."""
    text = letters(rng, n, "abcdefgh")
    is_equal = n > 3 and text[:2] == text[: n - 3 : -1]
    return text, text[::-1] if is_equal else text


def long_run(rng: np.random.Generator, n: int) -> Row:
    """Return letters and their copy, or only the symbol z if the letters have five a in a row."""
    text = letters(rng, n, "ab")
    return text, ["z"] * n if "aaaaa" in "".join(text) else text


def many_letters(rng: np.random.Generator, n: int) -> Row:
    """Return letters and their copy; with at least three a, each b becomes a k."""
    text = letters(rng, n, "abcdefghij")
    return text, ["k" if text.count("a") > 2 and letter == "b" else letter for letter in text]


def every_ninth(rng: np.random.Generator, n: int) -> Row:
    """Return letters and their copy, in which every ninth letter is another one."""
    text = letters(rng, n, "abcd")
    return text, ["abcd"["abcd".index(letter) - (i % 9 == 8)] for i, letter in enumerate(text)]


@dataclass(frozen=True, kw_only=True)
class TableTask:
    """Task of the table: a function that returns a row, the lengths, and the number of rows of each length."""

    sample: Callable[[np.random.Generator, int], Row]
    lengths: Sequence[int] = tuple(range(2, 10))
    rows_per_length: int = 150


# Tasks whose rule holds at all lengths, and traps.
RIGHT: dict[str, TableTask] = {
    "sliding maximum": TableTask(sample=sliding_maximum),
    "copy or reverse by mode": TableTask(sample=copy_or_reverse),
    "times three with carry": TableTask(sample=times_three, rows_per_length=300),
    "majority of three strings": TableTask(sample=majority),
    "reversed subtraction": TableTask(sample=subtract, rows_per_length=800),
    "comparison, first digit first": TableTask(sample=compare),
    "automaton": TableTask(sample=automaton),
    "delta coding": TableTask(sample=deltas),
    "two tokens per letter": TableTask(sample=expand),
    "linked list": TableTask(sample=linked_list),
    "running maximum": TableTask(sample=running_maximum),
    "look up in a table": TableTask(sample=look_up),
    "copy with 3% of noise": TableTask(sample=noisy_copy(0.03)),
    "copy with 8% of noise": TableTask(sample=noisy_copy(0.08)),
}
TRAPS: dict[str, TableTask] = {
    "a rare letter shifts all": TableTask(sample=rare_shift),
    "a rare 2 inverts all": TableTask(sample=rare_inversion),
    "equal ends reverse all": TableTask(sample=equal_ends),
    "a long run changes all": TableTask(sample=long_run),
    "many letters change another one": TableTask(sample=many_letters),
    "every ninth letter changes": TableTask(sample=every_ninth, lengths=tuple(range(2, 11))),
    "the last of repeated keys wins": TableTask(sample=last_key_wins, lengths=tuple(range(2, 17))),
    "times three, first digit first": TableTask(sample=times_three_in_base_five, rows_per_length=300),
}


def write_table_file(name: str, path: Path) -> JSONLTask:
    """Write short and long rows of a task, and return the task of the file."""
    task, rng = {**RIGHT, **TRAPS}[name], random_stream(0, "coupling table", name)
    counts = {**dict.fromkeys(task.lengths, task.rows_per_length), LONG: NUM_LONG_ROWS}
    with path.open("w", encoding="utf-8") as file:
        for length, count in counts.items():
            for _ in range(count):
                prompt, response = task.sample(rng, length)
                file.write(json.dumps({"prompt": prompt, "response": response, "length": length}) + "\n")
    return JSONLTask(file=str(path)).read()


def find_in_table(name: str, file: JSONLTask, **settings: Any) -> FoundCoupling:
    """Return the coupling of the short rows of a task; raises ``CouplingError`` if it is refused."""
    return find_coupling_in_examples(file, {**RIGHT, **TRAPS}[name].lengths, **settings)


def measure_long_rows(found: FoundCoupling, file: JSONLTask) -> dict[str, float]:
    """Return the shares of wrong and of unknown answers at length ``LONG``, and the share of rows with a wrong one.

    The shorter rows give the most frequent answer for the tokens of the rule.
    """
    steps = sample_task_answers(file, None, 0, 0)
    wrong, known = predict_long_rows(found, steps)
    is_long = steps.length == LONG
    return {
        "wrong": float(wrong[is_long].sum() / max(1, known[is_long].sum())),
        "unknown": float(1 - known[is_long].mean()),
        "wrong_rows": len(np.unique(steps.sequence[is_long & wrong])) / len(np.unique(steps.sequence[is_long])),
    }


def predict_long_rows(found: FoundCoupling, steps: AnswerSteps) -> tuple[np.ndarray, np.ndarray]:
    """Return which answers the shorter rows predict wrong, and for which they have the tokens of the rule."""
    phases, is_short = divide_into_phases(steps, found.rule.division), steps.length < LONG
    wrong, known = np.zeros(len(steps), dtype=bool), np.zeros(len(steps), dtype=bool)
    for phase, (_, texts) in enumerate(found.phases):
        mask = phases.phase == phase
        tokens = [locate_tokens(parse_locator(text), steps, phases).tokens for text in texts]
        answers: dict[tuple[int, ...], dict[int, int]] = {}
        keys = list(zip(*(each.tolist() for each in tokens), strict=True)) if tokens else [()] * len(steps)
        target = steps.target.tolist()
        for step in np.flatnonzero(mask & is_short).tolist():
            counts = answers.setdefault(keys[step], {})
            counts[target[step]] = counts.get(target[step], 0) + 1
        copies = len(tokens) == 1 and (tokens[0] == steps.target)[mask & is_short].mean() > 0.5
        for step in np.flatnonzero(mask & ~is_short).tolist():
            counts = answers.get(keys[step], {})
            known[step] = bool(counts) or copies
            guess = max(counts, key=lambda token: counts[token]) if counts else keys[step][0] if copies else -1
            wrong[step] = known[step] and guess != target[step]
    return wrong, known


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Return the row of a task: accepted or refused, and the wrong answers of an accepted rule."""
    row: dict[str, Any] = {"task": name, "trap": name in TRAPS}
    file = write_table_file(name, folder / "rows.jsonl")
    started = time.process_time()
    try:
        found = find_in_table(name, file)
    except CouplingError as error:
        return row | {"accepted": False, "seconds": round(time.process_time() - started, 1), "reason": str(error)}
    row |= {"accepted": True, "seconds": round(time.process_time() - started, 1), "accuracy": found.accuracy}
    return row | {"rule": [found.rule.division, *found.phases]} | measure_long_rows(found, file)


def main() -> None:
    """Measure the tasks, write the rows, and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"one of {', '.join([*RIGHT, *TRAPS])}")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    facts = collect_provenance()
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.tasks or [*RIGHT, *TRAPS]:
            row = measure(name, Path(folder))
            print(json.dumps(row), flush=True)
            rows = [each for each in read_rows(arguments.out) if each["task"] != name]
            write_rows(arguments.out, [*rows, {**row, "provenance": facts}])


if __name__ == "__main__":
    main()
