"""Text, table and task file that describe a found coupling."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lengthwise.core.defaults import MODEL
from lengthwise.core.randomness import random_stream
from lengthwise.tasks.coupling.found_coupling import FoundCoupling
from lengthwise.tasks.coupling.locators import parse_locator
from lengthwise.tasks.coupling.pointers import TaskWithFoundCoupling, compute_coupling
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.jsonl_table import MARK, START
from lengthwise.tasks.jsonl_task import JSONLTask, write_json_lines

# Largest growth of a number from the middle to the longest length, and lengths that show growth.
MAX_GROWTH, MIN_LENGTHS_OF_GROWTH = 2, 3
# Examples per length that check the conditions, and number of repeats by chance whose absence is no chance.
NUM_EXAMPLES, MIN_EXPECTED_REPEATS = 64, 20


def describe_coupling(found: FoundCoupling, vocabulary: Sequence[str]) -> list[str]:
    """Return the rule and its evidence as lines of text."""
    source = ", answered by a model" if found.method == MODEL else ""
    lines = [f"{found.num_sequences:,} examples{source}, {found.num_answers:,} answers (without the end tokens)"]
    for name, texts in found.phases:
        tokens = [parse_locator(text).describe(vocabulary) for text in texts]
        lines.append(f"{name} depends on {len(texts)} token{'s' * (len(texts) != 1)}: {'; '.join(tokens)}")
    lines.append(
        f"confirmed: {found.confirmed:.1%} of the answers have another answer with the same tokens; "
        f"{found.accuracy:.2%} of these agree"
    )
    first, last = found.checked_lengths[0], found.checked_lengths[-1]
    lengths = f"length {first}" if first == last else f"lengths {first} to {last}"
    others = "the answers of the model" if found.method == MODEL else "the shorter examples"
    lines.append(
        f"checked: {others} have the tokens of {found.checked_known:.0%} of the answers at {lengths}, and predict "
        f"{found.checked_accuracy:.1%} of these right"
    )
    if found.accuracy < 1:
        lines.append(
            f"not explained: {1 - found.accuracy:.2%} of the answers (without the end tokens), which are errors in the "
            "rows or depend on more tokens"
        )
    lines.append(f"pointers: {found.num_levels}; the prompt tokens count 1, 2, 3, ... on every level")
    return lines


def describe_rule_conditions(
    task: JSONLTask, found: FoundCoupling, lengths: Sequence[int] | None = None, seed: int = 0
) -> list[str]:
    """Return whether sparsity and locality hold at the shortest, the middle and the longest of the lengths."""
    lengths = sorted(task.available_lengths if lengths is None else lengths)
    chosen = sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]})
    found_task = TaskWithFoundCoupling(task=task, rule=found.rule, locators=tuple(texts for _, texts in found.phases))
    measured = [_measure_conditions(found_task, length, seed) for length in chosen]
    (num_tokens, distances), where = zip(*measured, strict=True), f"at the lengths {', '.join(map(str, chosen))}"
    lines = [
        f"sparsity: an answer needs {_values(num_tokens)} tokens, with the token before it, {where}",
        f"locality: the largest ID distance of a needed token is {_values(distances)} {where}",
    ]
    if len(chosen) < MIN_LENGTHS_OF_GROWTH:
        lines.append("with fewer than three lengths, nobody can say whether these numbers grow; add lengths")
    elif _grows(*distances) or _grows(*num_tokens):
        lines.append("these numbers grow with the length, so do not expect correct answers at longer lengths")
    if _expected_repeats(found_task, lengths, seed) >= MIN_EXPECTED_REPEATS:
        lines.append(
            "no prompt contains a token twice, so the examples do not show the answers to repeated tokens, which "
            "longer prompts may contain; do not expect correct answers at longer lengths with repeated tokens"
        )
    return lines


def _measure_conditions(found_task: TaskWithFoundCoupling, length: int, seed: int) -> tuple[int, int]:
    """Return the largest number of needed tokens per answer, and the largest ID distance of a needed token.

    The token before an answer is always needed. The distance of a token is measured from the token before the answer,
    on the level on which it is nearest.
    """
    examples = found_task.sample(length=length, size=NUM_EXAMPLES, rng=random_stream(seed, "conditions", length))
    assert examples.depends_on is not None
    assert examples.coupling is not None
    batch, answers = np.nonzero(examples.is_answer)
    needed = np.sort(np.column_stack([examples.depends_on[batch, answers], answers - 1]), axis=1)
    # A negative index stands for no token, and a repeated one counts once.
    is_token = np.diff(needed, axis=1, prepend=-1) > 0
    ids = examples.coupling[:, batch[:, None], needed]
    distances = np.abs(ids - examples.coupling[:, batch, answers - 1][:, :, None]).min(axis=0)
    num_tokens, distance = is_token.sum(axis=1).max(), distances[is_token].max()
    return int(num_tokens), int(distance)


def _expected_repeats(found_task: TaskWithFoundCoupling, lengths: Sequence[int], seed: int) -> float:
    """Return the number of equal pairs in prompts if their tokens were independent; 0 if a prompt has such a pair.

    Tokens of every prompt, such as separators, do not count.
    """
    prompts: list[list[int]] = []
    for length in lengths:
        examples = found_task.sample(length=length, size=NUM_EXAMPLES, rng=random_stream(seed, "repeats", length))
        prompts += [tokens[:end].tolist() for tokens, end in zip(examples.tokens, examples.prompt_length, strict=True)]
    in_all = set(prompts[0]).intersection(*prompts)
    symbols = [[token for token in prompt if token not in in_all] for prompt in prompts]
    if any(len(set(prompt)) < len(prompt) for prompt in symbols):
        return 0.0
    counts = Counter(token for prompt in symbols for token in prompt)
    same = sum((count / counts.total()) ** 2 for count in counts.values())
    return sum(len(prompt) * (len(prompt) - 1) / 2 for prompt in symbols) * same


def _grows(short: int, middle: int, long: int) -> bool:
    """Return True if a number rises twice, or rises much at the end; very short examples lack some distances."""
    return long > middle > short or long > middle + MAX_GROWTH


def _values(values: Sequence[int]) -> str:
    """Return one number, or all if they differ."""
    return str(values[0]) if len(set(values)) == 1 else ", ".join(map(str, values))


def example_table(found: FoundCoupling, examples: Examples, vocabulary: Sequence[str]) -> list[list[str]]:
    """Return the first example as rows: index, token, and the ID on each level, counted from 1."""
    coupling = compute_coupling(found.rule, examples)[:, 0]
    end = int(examples.response_end[0])
    return [
        [
            str(index),
            vocabulary[int(examples.tokens[0, index])],
            *("" if index == end else str(number - 1) for number in coupling[:, index].tolist()),
        ]
        for index in range(end + 1)
    ]


def write_coupled_records(task: JSONLTask, found: FoundCoupling, lengths: Sequence[int], path: Path) -> dict[str, int]:
    """Write the distinct records of these lengths with their coupling, one list per level.

    Return the number of these ``records``, and of those left out: ``repeated`` ones, and those of ``other_lengths``.

    A list has the numbers of the prompt tokens, ``<mark>``, the response tokens and ``end``. The number of a response
    token is that of the prompt token it depends on.
    """
    vocabulary, records = np.array(task.vocabulary, dtype=object), []
    for length in lengths:
        examples = task.records_at(length, np.arange(task.num_records(length)))
        # Each token from the start token on has the number of the next token.
        coupling = compute_coupling(found.rule, examples) - 1
        for index, (prompt, response) in enumerate(examples.prompts_and_responses()):
            numbers = coupling[:, index, : len(prompt) + len(response)].tolist()
            words = vocabulary[prompt[: -len((MARK, START))]].tolist()
            record = {"prompt": words, "response": vocabulary[response].tolist(), "coupling": numbers, "length": length}
            records.append(record)
    write_json_lines(path, records)
    num_at_lengths = sum(map(task.num_rows, lengths))
    return {
        "records": len(records),
        "repeated": num_at_lengths - len(records),
        "other_lengths": sum(map(task.num_rows, task.available_lengths)) - num_at_lengths,
    }
