"""Text and table that describe a found coupling."""

from collections.abc import Sequence

from lengthwise.core.defaults import MODEL
from lengthwise.core.randomness import stream
from lengthwise.tasks.coupling.addresses import parse_address
from lengthwise.tasks.coupling.describe_address import describe_address
from lengthwise.tasks.coupling.found_coupling import FoundCoupling
from lengthwise.tasks.coupling.found_task import FoundTask, measure_conditions
from lengthwise.tasks.coupling.pointers import couple
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.jsonl_task import JSONLTask

# Largest growth of a number from the middle to the longest length, and lengths that show growth.
MAX_GROWTH, MIN_LENGTHS_OF_GROWTH = 2, 3


def describe_coupling(found: FoundCoupling, vocabulary: Sequence[str]) -> list[str]:
    """Return the rule and its evidence as lines of text."""
    source = ", answered by a model" if found.method == MODEL else ""
    lines = [f"{found.num_sequences:,} examples{source}, {found.num_answers:,} answers (with the end tokens)"]
    for name, texts in found.phases:
        tokens = [describe_address(parse_address(text), vocabulary) for text in texts]
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
            f"not explained: {1 - found.accuracy:.2%} of the answers; the rows have errors, or some answers depend on "
            "more tokens"
        )
    lines.append(f"pointers: {found.num_levels}; the prompt tokens count 1, 2, 3, ... on every level")
    return lines


def describe_conditions(
    task: JSONLTask, found: FoundCoupling, lengths: Sequence[int] | None = None, seed: int = 0
) -> list[str]:
    """Return whether sparsity and locality hold at the shortest, the middle and the longest of the lengths."""
    lengths = sorted(task.available_lengths if lengths is None else lengths)
    chosen = sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]})
    addresses = tuple(texts for _, texts in found.phases)
    found_task = FoundTask(task=task, rule=found.rule, addresses=addresses)
    measured = [measure_conditions(found_task, length, stream(seed, "conditions", length)) for length in chosen]
    (num_tokens, distances), where = zip(*measured, strict=True), f"at the lengths {', '.join(map(str, chosen))}"
    lines = [
        f"sparsity: an answer needs {_values(num_tokens)} tokens, with the token before it, {where}",
        f"locality: the largest ID distance of a needed token is {_values(distances)} {where}",
    ]
    if len(chosen) < MIN_LENGTHS_OF_GROWTH:
        lines.append("with fewer than three lengths, nobody can say whether these numbers grow; add lengths")
    elif _grows(distances) or _grows(num_tokens):
        lines.append("these numbers grow with the length, so do not expect correct answers at longer lengths")
    return lines


def _grows(values: Sequence[int]) -> bool:
    """Return True if a number rises twice, or rises much at the end; very short examples lack some distances."""
    short, middle, long = values
    return long > middle > short or long > middle + MAX_GROWTH


def _values(values: Sequence[int]) -> str:
    """Return one number, or all if they differ."""
    return str(values[0]) if len(set(values)) == 1 else ", ".join(map(str, values))


def example_table(found: FoundCoupling, examples: Examples, vocabulary: Sequence[str]) -> list[list[str]]:
    """Return the first example as rows: index, token, and the ID on each level, counted from 1."""
    coupling = couple(found.rule, examples)[:, 0]
    end = int(examples.response_end[0])
    return [
        [
            str(index),
            vocabulary[int(examples.tokens[0, index])],
            *("" if index == end else str(number - 1) for number in coupling[:, index].tolist()),
        ]
        for index in range(end + 1)
    ]
