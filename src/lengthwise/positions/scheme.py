"""The contract of a position scheme: which ID each token gets."""

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int, Real

from lengthwise.core.errors import PositionRangeError, SettingError, UnsupportedTaskError
from lengthwise.tasks.examples import Examples

# Schemes that read nothing but the number of tokens.
FOR_EVERY_TASK = "sequential, random_start, skipwise, randomized or random_floats"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The IDs of a batch, and which answer tokens and IDs the loss may ask for."""

    position_ids: Real[np.ndarray, "level batch seq"]
    token_scored: Bool[np.ndarray, "batch seq"]
    id_scored: Bool[np.ndarray, "batch seq"]


@runtime_checkable
class PositionScheme(Protocol):
    """Assigns an ID to every token, on one level or several.

    ``needs`` names the optional part of ``Examples`` that the scheme reads (``"coupling"``, ``"places"``), or is None.
    ``real_valued``: the IDs are real numbers. ``predicts_ids``: the decoder learns to predict the response's IDs.
    ``draws_at_evaluation``: evaluation IDs are random too, below ``num_position_ids`` as in training. A class that
    inherits from this one has to say its name and what is not as below.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    needs: ClassVar[str | None] = None
    real_valued: ClassVar[bool] = False
    predicts_ids: ClassVar[bool] = False
    draws_at_evaluation: ClassVar[bool] = False

    @property
    def num_position_ids(self) -> int | None:
        """Training IDs stay below this number; ``None`` when the sequence's own length is the only bound."""
        return None

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """IDs for a batch; ``UnsupportedTaskError`` or ``PositionRangeError`` when the examples cannot be served."""
        ...


def scored_everywhere(examples: Examples, position_ids: Real[np.ndarray, "level batch seq"]) -> Assignment:
    """Every answer token is scored, and every response ID but the end token's."""
    followed = np.zeros_like(examples.is_answer)
    followed[:, :-1] = examples.is_answer[:, 1:]
    return Assignment(
        position_ids=position_ids, token_scored=examples.is_answer, id_scored=examples.is_answer & followed
    )


def token_indexes(examples: Examples) -> Int[np.ndarray, "level batch seq"]:
    """The token index as ID: 0, 1, 2, ..."""
    size, seq = examples.tokens.shape
    return np.broadcast_to(np.arange(seq), (1, size, seq))


def coupling_of(examples: Examples) -> Int[np.ndarray, "level batch seq"]:
    """The task's coupling, or the error that says there is none."""
    if examples.coupling is None:
        counted = "" if examples.places is None else ", or abacus, which counts digits"
        raise UnsupportedTaskError(f"this task declares no coupling; use the scheme {FOR_EVERY_TASK}{counted}")
    return examples.coupling


def places_of(examples: Examples) -> Int[np.ndarray, "batch seq"]:
    """Each token's place within its number or string, or the error that says the task declares none."""
    if examples.places is None:
        coupled = "" if examples.coupling is None else ", or multilevel or predicted, which read its coupling"
        raise UnsupportedTaskError(f"this task declares no places; use the scheme {FOR_EVERY_TASK}{coupled}")
    return examples.places


def room_above(groups: Int[np.ndarray, "*level batch seq"], num_position_ids: int) -> int:
    """How far all IDs can still be moved up; ``PositionRangeError`` when they do not fit at all."""
    largest = int(groups.max())
    room = num_position_ids - 1 - largest
    if room < 0:
        raise PositionRangeError(
            f"the sequence reaches ID {largest} but the scheme stops at {num_position_ids - 1}; "
            f"set num_position_ids to at least {largest + 1}"
        )
    return room


def check_num_position_ids(num_position_ids: int) -> None:
    """Refuse a range that holds no ID."""
    if num_position_ids < 1:
        raise SettingError(f"num_position_ids {num_position_ids} leaves no ID; use at least 1")
