"""Text and table that describe a found coupling."""

from collections.abc import Sequence

from lengthwise.tasks.coupling.addresses import (
    FIRST,
    LAST,
    Address,
    AnswerAddress,
    MatchAddress,
    PromptAddress,
    parse_address,
)
from lengthwise.tasks.coupling.found_coupling import FoundCoupling
from lengthwise.tasks.coupling.pointers import couple
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.jsonl_table import MARK


def describe_coupling(found: FoundCoupling, vocabulary: Sequence[str]) -> list[str]:
    """Return the rule and its evidence as lines of text."""
    lines = [f"{found.num_sequences:,} examples, {found.num_answers:,} answers (with the end tokens)"]
    for name, texts in found.phases:
        tokens = [describe_address(parse_address(text), vocabulary) for text in texts]
        lines.append(f"{name} depends on {len(texts)} token{'s' * (len(texts) != 1)}: {'; '.join(tokens)}")
    lines.append(
        f"confirmed: {found.confirmed:.1%} of the answers have another answer with the same tokens; "
        f"{found.accuracy:.1%} of these agree"
    )
    first, last = found.checked_lengths[0], found.checked_lengths[-1]
    lengths = f"length {first}" if first == last else f"lengths {first} to {last}"
    lines.append(f"checked: the shorter examples predict {found.checked_accuracy:.1%} of the answers at {lengths}")
    if found.accuracy < 1:
        lines.append(
            f"not explained: {1 - found.accuracy:.1%} of the answers; the rows have errors, or some answers depend on "
            "more tokens"
        )
    lines.append(f"pointers: {found.num_levels}; the prompt tokens count 1, 2, 3, ... on every level")
    return lines


def describe_address(address: Address, vocabulary: Sequence[str]) -> str:
    """Return the address in words; places count from 0."""
    if isinstance(address, AnswerAddress):
        return "the previous answer" if address.lag == 1 else f"the answer {address.lag} steps before"
    if isinstance(address, MatchAddress):
        kind, number = address.key.split()
        key = "the previous answer" if kind == "answer" else "the last prompt token"
        if int(number) > (1 if kind == "answer" else 0):
            key = f"the answer {number} steps before" if kind == "answer" else f"prompt token {number} from the end"
        context = "" if address.side == "anywhere" else f" {address.side} '{vocabulary[address.context]}'"
        return f"the prompt token {address.offset:+d} from the first one equal to {key}{context}"
    assert isinstance(address, PromptAddress)
    return f"prompt token {_describe_anchor(address.anchor, vocabulary)}{_describe_move(address)}"


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


def _describe_anchor(anchor: str, vocabulary: Sequence[str]) -> str:
    if anchor == FIRST:
        return "first"
    if anchor == LAST:
        # In a task file, the last prompt token before the start token is the mark.
        return f"'{MARK}'" if MARK in vocabulary else "last"
    token, occurrence = (int(part) for part in anchor[1:].split("."))
    name = f"'{vocabulary[token]}'"
    return name if occurrence == 0 else f"{name} (number {occurrence + 1})"


def _describe_move(address: PromptAddress) -> str:
    factor = "" if abs(address.slope) == 1 else f"{abs(address.slope)} x "
    move = "" if address.slope == 0 else f" {'+' if address.slope > 0 else '-'} {factor}place"
    return f"{move}{f' {address.offset:+d}' if address.offset else ''}"
