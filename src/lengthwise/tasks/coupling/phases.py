"""Phases: groups of answers that one rule explains, such as every second answer."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from lengthwise.tasks.coupling.answer_steps import AnswerSteps

ONE, FIRST_APART = "one", "first"
# Divisions from simple to complex.
DIVISIONS = (ONE, FIRST_APART, "period 2", "period 3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Phase of each answer, from 0, and its place: the number of earlier answers of the same phase."""

    division: str
    names: tuple[str, ...]
    phase: Int[np.ndarray, " step"]
    place: Int[np.ndarray, " step"]


def divide(steps: AnswerSteps, division: str) -> Phases:
    """Return the phases of a division: ``one``, ``first`` (the first answer apart) or ``period N``."""
    number = steps.number
    if division == ONE:
        return Phases(division=ONE, names=("every answer",), phase=np.zeros_like(number), place=number)
    if division == FIRST_APART:
        names = ("the first answer", "every later answer")
        return Phases(division=FIRST_APART, names=names, phase=np.minimum(number, 1), place=number)
    period = int(division.split()[1])
    turns = tuple(f"answer {phase + 1} of every {period}" for phase in range(period))
    return Phases(division=division, names=turns, phase=number % period, place=number // period)
