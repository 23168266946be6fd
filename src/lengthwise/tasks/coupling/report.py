"""Text and table that describe a found coupling."""

from collections.abc import Sequence

from lengthwise.tasks.coupling.addresses import parse_address
from lengthwise.tasks.coupling.describe_address import describe_address
from lengthwise.tasks.coupling.found_coupling import MODEL, FoundCoupling
from lengthwise.tasks.coupling.pointers import couple
from lengthwise.tasks.examples import Examples


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
    checking, source = (
        ("the model's examples", " of the file") if found.method == MODEL else ("the shorter examples", "")
    )
    lines.append(f"checked: {checking} predict {found.checked_accuracy:.1%} of the answers{source} at {lengths}")
    if found.accuracy < 1:
        lines.append(
            f"not explained: {1 - found.accuracy:.2%} of the answers; the rows have errors, or some answers depend on "
            "more tokens"
        )
    lines.append(f"pointers: {found.num_levels}; the prompt tokens count 1, 2, 3, ... on every level")
    return lines


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
