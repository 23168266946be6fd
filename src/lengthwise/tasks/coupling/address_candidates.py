"""Candidates of addresses: what the search for a coupling tries."""

from collections.abc import Iterator

import numpy as np

from lengthwise.tasks.coupling.addresses import (
    FIRST,
    LAST,
    LINE,
    SLOPES,
    Address,
    AnswerAddress,
    LineAddress,
    MatchAddress,
    PromptAddress,
)
from lengthwise.tasks.coupling.answer_steps import AFTER, ANYWHERE, BEFORE, AnswerSteps
from lengthwise.tasks.coupling.phases import Phases

# Distances to the anchor, from simple to complex.
OFFSETS = (0, 1, -1, 2, -2, 3, -3)
# Slopes of addresses that move from line to line.
LINE_SLOPES = (1, -1)
# Largest distance to the answer in the same column of the previous line.
MAX_COLUMN_DISTANCE = 3
MATCH_OFFSETS = (1, -1, 2, -2, 3)
# Number of preceding answers, in addition to the number of phases.
NUM_LAGS = 2
# A token that every prompt contains equally often, at most this often, is an anchor.
MAX_ANCHOR_COUNT = 4
# Largest number of tokens that are anchors.
MAX_ANCHOR_TOKENS = 6
# Upper limit of tokens that can stand next to a match.
MAX_CONTEXT_TOKENS = 4
# Number of prompt tokens at either end that can be a key, among these many tokens.
NUM_LAST_KEYS, NUM_FIRST_KEYS, MAX_KEY_DISTANCE = 2, 1, 8


def iter_fixed_addresses(steps: AnswerSteps, phases: Phases) -> Iterator[Address]:
    """Yield addresses that depend only on the number of an answer, and on its line."""
    for anchor in _anchors(steps):
        for slope in SLOPES:
            for offset in OFFSETS:
                yield PromptAddress(anchor=anchor, slope=slope, offset=offset)
    for lag in range(1, NUM_LAGS + len(phases.names) + 1):
        yield AnswerAddress(lag=lag)
    if phases.has_lines:
        yield from _iter_line_addresses(steps)


def _iter_line_addresses(steps: AnswerSteps) -> Iterator[Address]:
    """Yield addresses that move from line to line."""
    for anchor in _anchors(steps):
        for line_slope in LINE_SLOPES:
            for offset in OFFSETS:
                yield PromptAddress(anchor=anchor, slope=0, offset=offset, line_slope=line_slope)
    for token in _common_tokens(steps):
        for slope in (1, -1, 0):
            for offset in OFFSETS:
                yield PromptAddress(anchor=f"#{token}.{LINE}", slope=slope, offset=offset)
    for offset in range(-MAX_COLUMN_DISTANCE, MAX_COLUMN_DISTANCE + 1):
        yield LineAddress(offset=offset)


def iter_match_addresses(steps: AnswerSteps) -> Iterator[Address]:
    """Yield addresses near the first match of an earlier token."""
    contexts = [(ANYWHERE, 0)]
    for token in _common_tokens(steps)[:MAX_CONTEXT_TOKENS]:
        contexts += [(BEFORE, token), (AFTER, token)]
    for side, context in contexts:
        for key in ("answer 1", "answer 2", *_prompt_keys(steps)):
            for offset in MATCH_OFFSETS:
                yield MatchAddress(key=key, side=side, context=context, offset=offset)


def _prompt_keys(steps: AnswerSteps) -> list[str]:
    """Return the keys at both ends of the prompt whose tokens differ between prompts."""
    keys: list[str] = []
    for kind, limit in (("prompt", NUM_LAST_KEYS), ("first", NUM_FIRST_KEYS)):
        candidates = [
            f"{kind} {number}" for number in range(min(MAX_KEY_DISTANCE, int(steps.prompt_lengths.min()) - 1))
        ]
        keys += [key for key in candidates if _varies(key, steps)][:limit]
    return keys


def _varies(key: str, steps: AnswerSteps) -> bool:
    address = MatchAddress(key=key, side=ANYWHERE, context=0, offset=0)
    return len(np.unique(steps.token_at(address.key_index(steps)))) > 1


def _anchors(steps: AnswerSteps) -> list[str]:
    """Return the anchors: both ends of the prompt, and tokens that all prompts contain equally often.

    Of many such tokens, those at the fewest different places count: separators, and not the symbols of a permutation.
    """
    counts = {token: (steps.is_prompt & (steps.tokens == token)).sum(axis=1) for token in _common_tokens(steps)}
    tokens = [token for token, count in counts.items() if count.min() == count.max() <= MAX_ANCHOR_COUNT]
    kept = sorted(sorted(tokens, key=lambda token: _num_places(steps, token))[:MAX_ANCHOR_TOKENS])
    named = [f"#{token}.{number}" for token in kept for number in range(int(counts[token].max()))]
    return [FIRST, LAST, *named]


def _num_places(steps: AnswerSteps, token: int) -> int:
    rows, columns = np.nonzero(steps.is_prompt & (steps.tokens == token))
    return len(np.unique(steps.prompt_lengths[rows] * steps.tokens.shape[1] + columns))


def _common_tokens(steps: AnswerSteps) -> list[int]:
    """Return the tokens that every prompt contains."""
    shortest = int(steps.prompt_lengths.argmin())
    candidates = np.unique(steps.tokens[shortest, steps.is_prompt[shortest]]).tolist()
    return [token for token in candidates if (steps.is_prompt & (steps.tokens == token)).any(axis=1).all()]
