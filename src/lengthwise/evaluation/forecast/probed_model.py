"""A trained decoder that is asked about its longer lengths, and how far thinning tells what it does."""

from dataclasses import dataclass

import numpy as np

from lengthwise.core.randomness import stream
from lengthwise.encodings import EncodingSettings
from lengthwise.evaluation.forecast.sparse_queries import (
    DRAWS,
    Asked,
    Questions,
    ask,
    draw_end_questions,
    draw_questions,
)
from lengthwise.evaluation.forecast.subsampling import Pieces, Thinned, crowd, split, thin
from lengthwise.model.decoder import Decoder
from lengthwise.positions import PositionScheme
from lengthwise.tasks import Task

# Questions per length, and questions about end tokens.
QUESTIONS, END_QUESTIONS = 256, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A trained decoder and its training.

    ``id_range``: the smallest and the largest ID of training. ``trained_distance``: the widest range of IDs that one
    training example used, and ``fitted``: exact match at the longest trained length; None where not known.
    """

    decoder: Decoder
    task: Task
    scheme: PositionScheme
    encoding: EncodingSettings
    trained: tuple[int, int]
    id_range: tuple[int | float, int | float]
    trained_distance: int | float | None = None
    fitted: float | None = None
    seed: int = 0

    @property
    def longest(self) -> int:
        """The longest length of training."""
        return self.trained[1]

    @property
    def unthinnable(self) -> str | None:
        """Why no token can be left out, where that is so."""
        weights = self.decoder.settings.weights
        if weights != "softmax":
            return f"weights '{weights}' are no softmax, so that no token can stand for several; train with 'softmax'"
        if self.encoding.reads_order:
            return (
                f"the encoding {self.encoding.name} looks at neighbouring tokens or counts them, so that none can be "
                "left out; use one that reads IDs alone"
            )
        return None

    def questions(self, length: int, number: int = QUESTIONS) -> Questions:
        """Some answers of that length; the same for the same seed."""
        return draw_questions(self.task, self.scheme, length, number, self.seed)

    def end_questions(self, length: int) -> Questions | None:
        """Return some end tokens of examples of that length; None where examples have none."""
        return draw_end_questions(self.task, self.scheme, length, END_QUESTIONS, self.seed)

    def pieces(self, questions: Questions, length: int, room: int, most: int) -> Pieces:
        """Split the sequence of each question into pieces that cover it."""
        rng = stream(self.seed, "forecast pieces", length, room)
        return split(questions.needed, questions.answer - 1, room, rng, most)

    def thinned(self, questions: Questions, length: int, room: int) -> Thinned:
        """Each question with its draws."""
        rng = stream(self.seed, "forecast draws", length, room)
        needed = [each for each in questions.needed for _ in range(DRAWS)]
        return thin(needed, np.repeat(questions.answer - 1, DRAWS), room, rng)

    def ask(self, questions: Questions, thinned: Thinned) -> Asked:
        """What comes of them."""
        return ask(self.decoder, questions, thinned)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """How thinning does where it can be checked: the longest trained length, read whole and as part of its tokens.

    What an answer needs stays with its neighbours, so that a quarter of a short sequence may be more than that.
    """

    whole: float
    half: float
    quarter: float

    @property
    def difference(self) -> float:
        """The larger of the two."""
        return max(abs(self.whole - self.half), abs(self.whole - self.quarter))


def measure_fidelity(subject: Subject, home: Questions, room: int) -> Fidelity:
    """At the longest trained length."""
    whole = subject.ask(home, crowd(home.needed, home.answer - 1, 1.0))
    half, quarter = (subject.ask(home, subject.thinned(home, subject.longest, room // part)) for part in (2, 4))
    return Fidelity(whole=float(whole.right.mean()), half=float(half.right.mean()), quarter=float(quarter.right.mean()))
