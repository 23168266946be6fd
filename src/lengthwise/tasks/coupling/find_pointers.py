"""Pointers of a found rule: group the addresses that keep their distance, and give each group a level."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from lengthwise.tasks.coupling.addresses import Address, LocatedAddress
from lengthwise.tasks.coupling.answer_steps import NO_TOKEN, AnswerSteps
from lengthwise.tasks.coupling.finder import Attempt
from lengthwise.tasks.coupling.phases import Phases
from lengthwise.tasks.coupling.pointers import NO_POINTER, PointerRule, is_inside, pointer_index

# Addresses of one step at most this far apart, always at the same distance, share a pointer.
MAX_LINE_DISTANCE = 3


def find_pointers(steps: AnswerSteps, attempt: Attempt) -> PointerRule:
    """Return the rule with the fewest levels that points at all new prompt tokens of each step."""
    num_phases = len(attempt.rules)
    levels: list[list[list[Address]]] = []
    located: list[Int[np.ndarray, " step"]] = []
    for phase, rule in enumerate(attempt.rules):
        phase_steps, phases = steps.where(rule.mask), attempt.phases.where(rule.mask)
        for line in _lines([each for each in rule.addresses if each.is_prompt]):
            address = _newest(line, phase_steps, phases)
            index = np.full(len(steps), NO_POINTER)
            index[rule.mask] = pointer_index(address, phase_steps, phases)
            level = _free_level(index, located, steps)
            if level == len(levels):
                levels.append([[] for _ in range(num_phases)])
                located.append(index)
            levels[level][phase].append(address)
            located[level] = np.where(is_inside(index, steps), index, located[level])
    texts = tuple(tuple(tuple(address.text for address in phase) for phase in level) for level in levels)
    rising = PointerRule(division=attempt.phases.division, levels=texts, falls=(False,) * len(texts))
    falls = tuple((rising.index(steps) == NO_TOKEN).any(axis=1).tolist())
    return PointerRule(division=rising.division, levels=texts, falls=falls)


def _lines(addresses: Sequence[LocatedAddress]) -> list[list[LocatedAddress]]:
    """Return groups of addresses that keep their distance in the prompt."""
    lines: list[list[LocatedAddress]] = []
    for located in addresses:
        for line in lines:
            both = (located.index >= 0) & (line[0].index >= 0)
            distance = (located.index - line[0].index)[both]
            if len(distance) and (distance == distance[0]).all() and abs(distance[0]) <= MAX_LINE_DISTANCE:
                line.append(located)
                break
        else:
            lines.append([located])
    return lines


def _newest(line: Sequence[LocatedAddress], steps: AnswerSteps, phases: Phases) -> Address:
    """Return the address of a line that reaches new tokens first."""
    indexes = [each.address.locate(steps, phases) for each in line]
    moves = (indexes[0][1:] - indexes[0][:-1])[steps.sequence[1:] == steps.sequence[:-1]]
    direction = -1 if moves.sum() < 0 else 1
    return line[int(np.argmax([direction * index.sum() for index in indexes]))].address


def _free_level(
    pointer: Int[np.ndarray, " step"], levels: Sequence[Int[np.ndarray, " step"]], steps: AnswerSteps
) -> int:
    """Return the first level that the pointer can share, or a new level.

    Two pointers share a level if they never point at a prompt token in the same step, and one of them does so at most
    once per response. Pointers that take turns stay apart, because a pointer that jumps is hard to predict.
    """
    free = [
        not (is_inside(pointer, steps) & is_inside(level, steps)).any()
        and min(_max_uses(pointer, steps), _max_uses(level, steps)) <= 1
        for level in levels
    ]
    return free.index(True) if any(free) else len(levels)


def _max_uses(pointer: Int[np.ndarray, " step"], steps: AnswerSteps) -> int:
    """Return the largest number of steps of a sequence that point at a prompt token."""
    return int(np.bincount(steps.sequence[is_inside(pointer, steps)], minlength=1).max())
