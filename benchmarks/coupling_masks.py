"""Compare found prompt tokens with two outside statements of which prompt tokens an answer needs.

* AttentionSpan (Spiegel et al. 2025, arXiv 2503.01909) has a reference attention mask for each answer. The samplers
  below write its formats, and the masks follow ``generate_attention_labels`` of
  https://github.com/michalspiegel/AttentionSpan at commit 0bc5b4c.
* Position coupling (Cho et al. 2024, arXiv 2405.20671) gives each answer the position of a prompt token: ``src/data``
  of https://github.com/HanseulJo/position-coupling at commit 01dd272 (copy, parity with scratchpad).

``recall``: share of the stated tokens that are found. ``precision``: share of the found prompt tokens that are stated.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.coupling import found_dependencies

from lengthwise.core.provenance import collect_provenance
from lengthwise.core.randomness import random_stream
from lengthwise.experiments.run_folder import write_rows
from lengthwise.tasks import JSONLTask
from lengthwise.tasks.coupling.answer_steps import build_answer_steps, join_steps
from lengthwise.tasks.coupling.rule_search import search_rules

RESULTS = Path(__file__).parent / "results" / "coupling_masks.jsonl"
# Prompt, response, and the prompt indexes that the mask has for each response token.
Sample = tuple[list[str], list[str], list[set[int]]]
LENGTHS = range(1, 8)


def digits(number: int, width: int) -> list[str]:
    """Return the digits, least significant first, padded with zeros."""
    return list(str(number)[::-1].ljust(width, "0"))


def string_reversal(rng: np.random.Generator, length: int) -> Sample:
    """Return a string and its reverse; each answer has one token of the string."""
    text = rng.choice(list("abcdefgh"), length).tolist()
    return [*text, "="], text[::-1], [{length - 1 - i} for i in range(length)]


def long_addition(rng: np.random.Generator, length: int) -> Sample:
    """Return a sum of two numbers; the mask has both digits at the same place, and no token for the carry."""
    first, second = rng.integers(10 ** (length - 1), 10**length, size=2).tolist()
    width = length + 1
    masks = [{i, width + 1 + i} for i in range(width)]
    return [*digits(first, width), "+", *digits(second, width), "="], digits(first + second, width), masks


def value_assignment(rng: np.random.Generator, length: int) -> Sample:
    """Return a table and one key; the mask has the key, its place in the table, and its value."""
    keys = rng.permutation(list("ABCDEFGHIJ"))[: length + 1].tolist()
    values = rng.choice(list("0123456789"), len(keys)).tolist()
    chosen = int(rng.integers(len(keys)))
    prompt = [symbol for pair in zip(keys, values, strict=True) for symbol in pair]
    return [*prompt, " ", keys[chosen], "="], [values[chosen]], [{2 * chosen, 2 * chosen + 1, len(prompt) + 1}]


def long_multiplication(rng: np.random.Generator, length: int) -> Sample:
    """Return two numbers and their partial products; the mask has digit j of the first and digit i of the second.

    Digit j of partial product i needs digit j - i of the first number, so the mask is not right for i > 0.
    """
    width = 2 * length
    first, second = sorted(rng.integers(10 ** (length - 1), 10**length, size=2).tolist(), reverse=True)
    rows = [first * int(digit) * 10**i for i, digit in enumerate(digits(second, width))]
    response, masks = [], []
    for i, row in enumerate(rows):
        response += [*digits(row, width), "+"]
        masks += [{j, width + 1 + i} for j in range(width)] + [set()]
    return [*digits(first, width), "*", *digits(second, width), "="], response[:-1], masks[:-1]


def flip_flop(rng: np.random.Generator, length: int) -> Sample:
    """Return commands and the bit of the register; the mask has the last write and all later flips."""
    prompt: list[str] = []
    bit, mask = 0, set[int]()
    for command, value in zip(rng.choice(list("wif"), length + 2), rng.choice(list("01"), length + 2), strict=True):
        index = len(prompt)
        prompt += [str(command), str(value)]
        if command == "w":
            bit, mask = int(value), {index, index + 1}
        elif command == "f":
            bit, mask = 1 - bit, mask | {index}
    return [*prompt, "r"], [str(bit)], [mask]


def copy(rng: np.random.Generator, length: int) -> Sample:
    """Return digits and a copy; each answer has the position of the same digit."""
    text = rng.choice(list("0123456789"), length).tolist()
    return [*text, "="], text, [{i} for i in range(length)]


def parity(rng: np.random.Generator, length: int) -> Sample:
    """Return bits and their running parity; the token before each answer has the position of its bit."""
    bits = rng.integers(0, 2, size=length)
    return [*map(str, bits.tolist()), "="], [*map(str, (np.cumsum(bits) % 2).tolist())], [{i} for i in range(length)]


def reversed_parity(rng: np.random.Generator, length: int) -> Sample:
    """Return bits and the running parity from the last bit on; the positions fall."""
    prompt, response, _ = parity(rng, length)
    return [*prompt[:-1][::-1], "="], response, [{length - 1 - i} for i in range(length)]


TASKS: dict[str, tuple[Callable[[np.random.Generator, int], Sample], Sequence[int], int]] = {
    "string reversal": (string_reversal, LENGTHS, 300),
    "long addition, two numbers": (long_addition, LENGTHS, 1000),
    "value assignment, one symbol": (value_assignment, LENGTHS, 300),
    "long multiplication": (long_multiplication, range(1, 5), 500),
    "flip-flop, one register": (flip_flop, LENGTHS, 300),
    "copy": (copy, LENGTHS, 300),
    "parity with scratchpad": (parity, LENGTHS, 300),
    "parity with reversed scratchpad": (reversed_parity, LENGTHS, 300),
}


def measure(name: str, path: Path) -> dict[str, Any]:
    """Find the tokens that each answer needs, and compare them with the mask."""
    sample, lengths, count = TASKS[name]
    rng, masks = random_stream(0, "masks", name), {}
    with path.open("w", encoding="utf-8") as file:
        for length in lengths:
            for _ in range(count):
                prompt, response, mask = sample(rng, length)
                masks[(*prompt, "<mark>", "<start>", *response, "end")] = mask
                file.write(json.dumps({"prompt": prompt, "response": response, "length": length}) + "\n")
    task = JSONLTask(file=str(path)).read()
    parts = [task.records_at(length, np.arange(task.num_records(length))) for length in task.available_lengths]
    steps = join_steps([build_answer_steps(each, length) for each, length in zip(parts, lengths, strict=True)])
    started = time.perf_counter()
    attempt = search_rules(steps)[-1]
    row = {"task": name, "examples": len(steps.tokens), "seconds": round(time.perf_counter() - started, 1)}
    if not attempt.rules or attempt.is_ambiguous:
        return row | {"found": False}
    num_right = num_found = num_mask = num_equal = num_steps = 0
    for step, tokens in enumerate(found_dependencies(steps, attempt)):
        sequence = steps.tokens[steps.sequence[step]]
        mask = masks[tuple(task.vocabulary[token] for token in sequence[sequence >= 0])]
        if steps.number[step] >= len(mask):
            continue
        prompt_length = int(steps.prompt_lengths[steps.sequence[step]]) - 2
        found, expected = {each for each in tokens if each < prompt_length}, mask[steps.number[step]]
        num_right, num_found = num_right + len(found & expected), num_found + len(found)
        num_mask, num_steps = num_mask + len(expected), num_steps + 1
        num_equal += found == expected
    addresses = {rule.name: [each.locator.saved_text for each in rule.locators] for rule in attempt.rules}
    shares = {"precision": num_right / num_found, "recall": num_right / num_mask, "equal": num_equal / num_steps}
    return row | {"found": True, **shares, "addresses": addresses}


def main() -> None:
    """Measure all tasks, write the rows, and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"one of {', '.join(TASKS)}")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.tasks or TASKS:
            rows.append({**measure(name, Path(folder) / "rows.jsonl"), "provenance": collect_provenance()})
            print({key: value for key, value in rows[-1].items() if key != "provenance"}, flush=True)
    if not arguments.tasks:
        write_rows(RESULTS, rows)


if __name__ == "__main__":
    main()
