"""Pointers: the prompt tokens that each step needs next, one per level, and the coupling that follows from them.

Prompt tokens that an earlier step needed are in reach already and need no pointer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.coupling.answer_steps import (
    ADVICE,
    NO_TOKEN,
    SPLITS,
    AnswerSteps,
    PeriodicAnswers,
    build_answer_steps,
    count_phases,
    divide_into_phases,
)
from lengthwise.tasks.coupling.locators import (
    LocatedTokens,
    MatchingTokenLocator,
    PromptTokenLocator,
    TokenLocator,
    locate_tokens,
    parse_locator,
)
from lengthwise.tasks.coupling.rule_search import RuleSearchAttempt
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.jsonl_task import JSONLTask
from lengthwise.tasks.task import Task

# Index of a step that needs no prompt token of a level.
NO_POINTER = -2
RISING, FALLING = "rising", "falling"
# Locators of one step at most this far apart, always at the same distance, share a pointer.
MAX_LINE_DISTANCE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerRule:
    """Rule for the pointers of all levels, with texts of locators.

    ``division`` is the division of the answers into phases. ``levels`` has, for each level and phase, the locators of
    the pointer; the first one inside the prompt counts. On levels that ``falls`` marks, pointers can move in front of
    the first prompt token.
    """

    division: str
    levels: tuple[tuple[tuple[str, ...], ...], ...]
    falls: tuple[bool, ...]

    @property
    def saved_texts(self) -> tuple[str, ...]:
        """Form of the rule in saved files: the division, then one text per level."""
        levels = ("; ".join(" or ".join(phase) for phase in level) for level in self.levels)
        directions = (FALLING if falls else RISING for falls in self.falls)
        return (self.division, *map(": ".join, zip(directions, levels, strict=True)))

    @property
    def locators(self) -> tuple[tuple[str, ...], ...]:
        """Texts of the locators of each phase, over all levels."""
        return tuple(tuple(chain.from_iterable(phase)) for phase in zip(*self.levels, strict=True))

    @property
    def looked_up_tokens(self) -> set[int]:
        """Numbers of the tokens that the rule names; the tokens of another vocabulary have other numbers."""
        texts = chain.from_iterable(chain.from_iterable(self.levels))
        return set().union(*(parse_locator(text).looked_up_tokens for text in texts))

    def find_prompt_indexes(self, steps: AnswerSteps) -> Int[np.ndarray, "level step"]:
        """Return the prompt index that each step needs; ``NO_TOKEN`` is the place before the first prompt token."""
        phases = divide_into_phases(steps, self.division)
        pointers = []
        for level in self.levels:
            pointer, is_early = np.full(len(steps), NO_POINTER), np.ones(len(steps), dtype=bool)
            for phase, texts in enumerate(level):
                mask, locators = phases.phase == phase, [parse_locator(text) for text in texts]
                phase_steps, places = steps.select(mask), phases.select(mask)
                if not texts and phase == 0 and self.division in SPLITS:
                    # A pointer of the second part waits at its first token.
                    locators = [parse_locator(text) for text in level[1]]
                    places = replace(places, place=np.zeros_like(places.place))
                located = [find_pointer_index(locator, phase_steps, places) for locator in locators]
                pointer[mask] = _first_inside(located, phase_steps)
                is_early[mask] = not any(
                    isinstance(read, MatchingTokenLocator) and read.reads_answers for read in locators
                )
            pointers.append(_hold(pointer, is_early, steps))
        return np.stack(pointers)


def parse_pointer_rule(texts: Sequence[str]) -> PointerRule:
    """Return the rule of its texts; raise ``SettingError`` for an invalid text."""
    division, *level_texts = texts or ("",)
    num_phases = count_phases(division)
    levels, falls = [], []
    for text in level_texts:
        direction, _, phases = text.partition(": ")
        levels.append(tuple(tuple(filter(None, phase.split(" or "))) for phase in phases.split("; ")))
        falls.append(direction == FALLING)
        if direction not in (RISING, FALLING) or len(levels[-1]) != num_phases:
            raise SettingError(f"invalid level '{text}' of a found coupling; {ADVICE}")
    for locator in (locator for level in levels for phase in level for locator in phase):
        parse_locator(locator)
    if not levels:
        raise SettingError(f"the coupling {tuple(texts)} has no level; {ADVICE}")
    return PointerRule(division=division, levels=tuple(levels), falls=tuple(falls))


def find_pointer_index(locator: TokenLocator, steps: AnswerSteps, phases: PeriodicAnswers) -> Int[np.ndarray, " step"]:
    """Return the index of a locator; beyond the ends of the prompt, the places next to its first and last token."""
    index = locator.locate_tokens(steps, phases)
    if isinstance(locator, MatchingTokenLocator):
        # Without a match, there is no direction.
        return np.where((index >= 0) & (index < steps.prompt_length - 1), index, NO_POINTER)
    return np.clip(index, NO_TOKEN, steps.prompt_length - 2)


def _first_inside(pointers: Sequence[Int[np.ndarray, " step"]], steps: AnswerSteps) -> Int[np.ndarray, " step"]:
    result = np.full(len(steps), NO_POINTER)
    for pointer in pointers:
        is_better = (result == NO_POINTER) | ~is_inside_prompt(result, steps) & is_inside_prompt(pointer, steps)
        result = np.where(is_better, pointer, result)
    return result


def is_inside_prompt(pointer: Int[np.ndarray, " step"], steps: AnswerSteps) -> Bool[np.ndarray, " step"]:
    """Return True for pointers at a prompt token before the last two."""
    return (pointer >= 0) & (pointer < steps.prompt_length - 2)


def _hold(
    pointer: Int[np.ndarray, " step"], is_early: Bool[np.ndarray, " step"], steps: AnswerSteps
) -> Int[np.ndarray, " step"]:
    """Let steps without a pointer point at what the next step with a pointer needs, or after the prompt.

    Only pointers that are known early count, which do not depend on the answers.
    """
    step = np.arange(len(pointer))
    is_known = (pointer != NO_POINTER) & is_early
    next_step = np.minimum.accumulate(np.where(is_known, step, len(pointer))[::-1])[::-1]
    has_next = next_step < len(pointer)
    next_step = np.where(has_next, next_step, step)
    has_next &= steps.sequence[next_step] == steps.sequence
    held = np.where(has_next, pointer[next_step], steps.prompt_length - 2)
    return np.where(pointer == NO_POINTER, held, pointer)


def compute_coupling(rule: PointerRule, examples: Examples) -> Int[np.ndarray, "level batch seq"]:
    """Return the coupling of examples: the prompt counts, and each token from the start token on has a pointer.

    The token before an answer has the number of the prompt token that the answer needs. On falling levels, the token
    before the start token has a number below those of the other prompt tokens. If the answers are unknown, the numbers
    end with that of the start token, which depends only on the prompt.
    """
    steps, (batch_size, seq) = build_answer_steps(examples), examples.tokens.shape
    coupling = np.zeros((len(rule.levels), batch_size, seq), dtype=np.int64)
    token_index, mark = np.arange(seq), steps.prompt_lengths[:, None] - 2
    sequence = np.arange(batch_size)
    for level, (index, falls) in enumerate(zip(rule.find_prompt_indexes(steps), rule.falls, strict=True)):
        numbers = np.where(token_index < mark, token_index + 2, 0)
        numbers[sequence, mark[:, 0]] = 1 if falls else mark[:, 0] + 2
        is_below = (index == NO_TOKEN) | (falls & (index == mark[steps.sequence, 0]))
        numbers[steps.sequence, steps.prompt_length - 1 + steps.number] = np.where(is_below, 1, index + 2)
        # No token uses the ID of the end token.
        is_after_end = token_index >= examples.response_end[:, None]
        coupling[level] = np.where(is_after_end, numbers.max(axis=1, keepdims=True) + 1, numbers)
    return coupling


def find_pointer_rule(steps: AnswerSteps, attempt: RuleSearchAttempt) -> PointerRule:
    """Return the rule with the fewest levels that points at all new prompt tokens of each step."""
    num_phases = len(attempt.rules)
    levels: list[list[list[TokenLocator]]] = []
    pointers: list[Int[np.ndarray, " step"]] = []
    for phase, rule in enumerate(attempt.rules):
        phase_steps, phases = steps.select(rule.mask), attempt.phases.select(rule.mask)
        for line in _lines([located for located in rule.locators if located.locator.is_prompt]):
            locator = _newest(line, phase_steps, phases)
            index = np.full(len(steps), NO_POINTER)
            index[rule.mask] = find_pointer_index(locator, phase_steps, phases)
            level = _free_level(index, pointers, steps)
            if level == len(levels):
                levels.append([[] for _ in range(num_phases)])
                pointers.append(index)
            levels[level][phase].append(locator)
            pointers[level] = np.where(is_inside_prompt(index, steps), index, pointers[level])
    texts = tuple(tuple(tuple(locator.saved_text for locator in phase) for phase in level) for level in levels)
    rising = PointerRule(division=attempt.phases.division, levels=texts, falls=(False,) * len(texts))
    falls = tuple((rising.find_prompt_indexes(steps) == NO_TOKEN).any(axis=1).tolist())
    return PointerRule(division=rising.division, levels=texts, falls=falls)


def _lines(locators: Sequence[LocatedTokens]) -> list[list[LocatedTokens]]:
    """Return groups of locators that keep their distance in the prompt."""
    lines: list[list[LocatedTokens]] = []
    for located in locators:
        for line in lines:
            if _keep_distance(located, line[0]):
                line.append(located)
                break
        else:
            lines.append([located])
    return lines


def _keep_distance(first: LocatedTokens, second: LocatedTokens) -> bool:
    one, other = first.locator, second.locator
    if isinstance(one, PromptTokenLocator) and isinstance(other, PromptTokenLocator) and one.until is not None:
        # Both stop at the same token, one of them later.
        return replace(one, offset=other.offset) == other and abs(one.offset - other.offset) <= MAX_LINE_DISTANCE
    both = (first.index >= 0) & (second.index >= 0)
    distance = (first.index - second.index)[both]
    return bool(len(distance) and (distance == distance[0]).all() and abs(distance[0]) <= MAX_LINE_DISTANCE)


def _newest(line: Sequence[LocatedTokens], steps: AnswerSteps, phases: PeriodicAnswers) -> TokenLocator:
    """Return the locator of a line that reaches new tokens first."""
    indexes = [located.locator.locate_tokens(steps, phases) for located in line]
    moves = (indexes[0][1:] - indexes[0][:-1])[steps.sequence[1:] == steps.sequence[:-1]]
    direction = -1 if moves.sum() < 0 else 1
    return line[int(np.argmax([direction * index.sum() for index in indexes]))].locator


def _free_level(
    pointer: Int[np.ndarray, " step"], levels: Sequence[Int[np.ndarray, " step"]], steps: AnswerSteps
) -> int:
    """Return the first level that the pointer can share, or a new level.

    Two pointers share a level if they never point at a prompt token in the same step, and one of them does so at most
    once per response. Pointers that take turns stay apart, because a pointer that jumps is hard to predict.
    """
    free = [
        not (is_inside_prompt(pointer, steps) & is_inside_prompt(level, steps)).any()
        and min(_max_uses(pointer, steps), _max_uses(level, steps)) <= 1
        for level in levels
    ]
    return free.index(True) if any(free) else len(levels)


def _max_uses(pointer: Int[np.ndarray, " step"], steps: AnswerSteps) -> int:
    """Return the largest number of steps of a sequence that point at a prompt token."""
    return int(np.bincount(steps.sequence[is_inside_prompt(pointer, steps)], minlength=1).max())


@dataclass(frozen=True, kw_only=True)
class TaskWithFoundCoupling(Task):
    """``task`` with the coupling that ``rule`` gives to its examples, and a support.

    ``locators`` has the texts of the locators of the tokens that an answer of each phase depends on, such as
    ``PointerRule.locators``.
    """

    task: JSONLTask
    rule: PointerRule
    locators: tuple[tuple[str, ...], ...]

    name: ClassVar[str] = "this file"

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Tokens of the file, as in ``task``."""
        return self.task.vocabulary

    @property
    def separators(self) -> tuple[str, ...]:
        """Separators of the file, as in ``task``."""
        return self.task.separators

    @property
    def available_lengths(self) -> tuple[int, ...]:
        """Lengths of the file, in ascending order."""
        return tuple(self.task.available_lengths)

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Sample records of a length, with coupling and support."""
        return self._with_rule(self.task.sample(length=length, size=size, rng=rng))

    def example_from_prompt(self, prompt: str) -> Examples:
        """Return the example of a prompt."""
        return self._with_rule(self.task.example_from_prompt(prompt))

    def num_records(self, length: int) -> int:
        """Return the number of distinct records of a length, as in ``task``."""
        return self.task.num_records(length)

    def records_at(self, length: int, indices: Int[np.ndarray, " batch"]) -> Examples:
        """Return the records of ``task`` at these indices, with coupling and support."""
        return self._with_rule(self.task.records_at(length, indices))

    def _with_rule(self, examples: Examples) -> Examples:
        depends_on = find_needed_tokens(self.locators, self.rule.division, examples)
        return replace(examples, coupling=compute_coupling(self.rule, examples), depends_on=depends_on)


def find_needed_tokens(
    locators: Sequence[Sequence[str]], division: str, examples: Examples
) -> Int[np.ndarray, "batch seq k"]:
    """Return the token indexes that each answer depends on, padded with -1.

    ``locators`` has the texts of the locators of each phase of ``division``. A look-up whose key is an answer also
    reads its key and the match. The rule itself finds a key in the prompt: it gives the ID of the start token, from
    which the model copies the token.
    """
    steps = build_answer_steps(examples)
    phases = divide_into_phases(steps, division)
    depends_on = np.full((*examples.tokens.shape, 3 * max(1, *map(len, locators))), NO_TOKEN)
    for phase, texts in enumerate(locators):
        mask = phases.phase == phase
        here = steps.select(mask)
        indexes = []
        for locator in map(parse_locator, texts):
            index = locate_tokens(locator, steps, phases).select(mask).index
            indexes.append(index)
            if isinstance(locator, MatchingTokenLocator) and locator.reads_answers:
                key_and_match = (locator.key_index(here), locator.find_match(here))
                indexes += [np.where(index >= 0, read, NO_TOKEN) for read in key_and_match]
        for number, index in enumerate(indexes):
            depends_on[here.sequence, here.prompt_length + here.number, number] = index
    return depends_on
