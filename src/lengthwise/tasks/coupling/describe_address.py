"""Addresses in words, for reports and error messages."""

from collections.abc import Sequence

from lengthwise.tasks.coupling.addresses import (
    FIRST,
    LAST,
    LINE,
    Address,
    AnswerAddress,
    LineAddress,
    MatchAddress,
    PromptAddress,
)
from lengthwise.tasks.coupling.answer_steps import ANYWHERE
from lengthwise.tasks.jsonl_table import MARK


def describe_address(address: Address, vocabulary: Sequence[str]) -> str:
    """Return the address in words; places count from 0."""
    if isinstance(address, AnswerAddress):
        return "the previous answer" if address.lag == 1 else f"the answer {address.lag} steps before"
    if isinstance(address, LineAddress):
        return f"the answer {_describe_column(address.offset)} in the previous line"
    if isinstance(address, MatchAddress):
        key = _describe_key(address.key, vocabulary)
        context = "" if address.side == ANYWHERE else f" {address.side} '{vocabulary[address.context]}'"
        return f"the prompt token {address.offset:+d} from the first one equal to {key}{context}"
    return f"prompt token {_describe_anchor(address.anchor, vocabulary)}{_describe_move(address)}"


def _describe_key(key: str, vocabulary: Sequence[str]) -> str:
    kind, text = key.split()
    if kind == "first":
        return "the first prompt token" if text == "0" else f"the prompt token {text} after the first"
    # In a task file, the mark is the last prompt token before the start token.
    number = int(text) - (kind == "answer" or MARK in vocabulary)
    if number < 0:
        return f"'{MARK}'"
    if kind == "answer":
        return "the previous answer" if number == 0 else f"the answer {text} steps before"
    return "the last prompt token" if number == 0 else f"the prompt token {number} before the last"


def _describe_anchor(anchor: str, vocabulary: Sequence[str]) -> str:
    if anchor == FIRST:
        return "first"
    if anchor == LAST:
        # In a task file, the last prompt token before the start token is the mark.
        return f"'{MARK}'" if MARK in vocabulary else "last"
    token, occurrence = anchor[1:].split(".")
    name = f"'{vocabulary[int(token)]}'"
    if occurrence == LINE:
        return f"{name} (with the number of the line)"
    return name if occurrence == "0" else f"{name} (number {int(occurrence) + 1})"


def _describe_column(offset: int) -> str:
    if offset == 0:
        return "at the same place"
    return f"{abs(offset)} tokens {'after' if offset > 0 else 'before'} the same place"


def _describe_move(address: PromptAddress) -> str:
    factor = "" if abs(address.slope) == 1 else f"{abs(address.slope)} x "
    move = "" if address.slope == 0 else f" {'+' if address.slope > 0 else '-'} {factor}place"
    line_move = f" {'+' if address.line_slope > 0 else '-'} line" if address.line_slope else ""
    return f"{move}{line_move}{f' {address.offset:+d}' if address.offset else ''}"
