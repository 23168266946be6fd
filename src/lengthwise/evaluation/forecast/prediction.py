"""The accuracy of a trained decoder at one longer length, predicted from pieces of its sequences."""

from dataclasses import dataclass

import numpy as np

from lengthwise.core.errors import LengthwiseError
from lengthwise.core.intervals import wilson_interval
from lengthwise.evaluation.forecast.probed_model import QUESTIONS, Fidelity, Subject
from lengthwise.evaluation.forecast.sparse_queries import Questions
from lengthwise.evaluation.forecast.subsampling import crowd
from lengthwise.tasks import Planted, Task
from lengthwise.theory.risk.bayes import BayesPredictor

# Added to both ends of an interval: this, and so many times the error of thinning at the longest trained length.
# Tuned on other runs than those of benchmarks/forecast.md.
SLACK, PER_DIFFERENCE = 0.03, 3.0
# A sequence is read in at most so many pieces, which have to cover this share of it.
MOST_PIECES, COVERED = 64, 0.9
# An interval wider than this predicts nothing.
WIDEST = 0.5
# Two samples of a share differ by at most so many standard deviations of one in 95% of cases.
APART = 2.77


class CannotTellError(LengthwiseError):
    """No accuracy is predicted at a length; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The predicted accuracy per answer token at a length; ``low`` to ``high`` is meant to hold nine times of ten.

    Answers are tokens, each after the right ones before it, and their IDs where the decoder predicts them; the end
    token is left out. ``mean``: the share of answers that are right by the mean log-probability over the ``pieces`` of
    a sequence; ``every``: that are also right in each piece alone, so that no piece has a token that misleads;
    ``half``: as ``mean``, from random pieces of half the size. ``covered``: the share of the sequence in its pieces.

    ``positions`` is the accuracy that the IDs of that length alone would leave, ``crowd`` the one that its number of
    tokens alone would leave (None where answers need all of a trained length). ``leakage``: the attention to tokens
    that the answer does not need, of the layer and head where it is least.

    ``exact_low`` to ``exact_high`` is the range of the exact match that follows for examples of ``answers`` such
    tokens: all of them have to be right, and the end token, of which the share ``ends`` is.
    """

    length: int
    accuracy: float
    low: float
    high: float
    mean: float
    every: float
    half: float
    pieces: int
    covered: float
    positions: float
    crowd: float | None
    leakage: float
    answers: int
    ends: float
    exact_low: float
    exact_high: float


def predict(subject: Subject, home: Questions, room: int, fidelity: Fidelity, length: int) -> Forecast:
    """Predict the accuracy at one length; ``CannotTellError`` where the pieces leave it open."""
    questions = subject.questions(length)
    pieces = subject.pieces(questions, length, room, MOST_PIECES)
    if pieces.covered < COVERED:
        raise CannotTellError(
            f"cannot tell: {MOST_PIECES} pieces as long as a trained sequence cover {pieces.covered:.2f} of one; "
            "evaluate the run at this length"
        )
    weighted = subject.ask(questions, pieces.thinned)
    alone = subject.ask(questions, pieces.thinned.alone())
    half = float(subject.ask(questions, subject.thinned(questions, length, room // 2)).right.mean())
    mean, every = float(weighted.right.mean()), float((weighted.right & alone.single.all(axis=1)).mean())
    margin = SLACK + PER_DIFFERENCE * fidelity.difference + abs(mean - half)
    low, high = _interval(mean, every, margin, pieces.covered)
    high = min(high, knowable_accuracy(subject.task, questions))
    if high - low > WIDEST:
        raise CannotTellError(
            f"cannot tell: {mean:.2f} of the answers are right by the mean of {pieces.number} pieces, {every:.2f} in "
            f"every piece; this leaves {low:.2f} to {high:.2f}, so evaluate the run at this length"
        )
    crowded = crowd(home.needed, home.answer - 1, questions.batch.tokens.shape[1] / room)
    in_crowd = subject.ask(home, crowded).right[(crowded.stands_for > 1).any(axis=1)]
    answers, ends = questions.most_answers(subject.task.vocabulary.index("end")), _ends(subject, length, room)
    return Forecast(
        length=length,
        accuracy=min((mean + every) / 2, high),
        low=low,
        high=high,
        mean=mean,
        every=every,
        half=half,
        pieces=pieces.number,
        covered=pieces.covered,
        positions=float(alone.right.mean()),
        crowd=float(in_crowd.mean()) if len(in_crowd) else None,
        leakage=float(weighted.leakage.min()),
        answers=answers,
        ends=ends,
        exact_low=max(0.0, 1 - answers * (1 - low) - (1 - ends)),
        # An example that is exact has all of its tokens right, so no more are exact than tokens are right.
        exact_high=high,
    )


def _interval(mean: float, every: float, margin: float, covered: float) -> tuple[float, float]:
    """From the answers that no piece spoils to those that are right by the mean of the pieces, and a margin.

    A token that misleads may also be in the part of the sequence that no piece covers: errors are scaled up for it.
    """
    lowest, _ = wilson_interval(round(every * QUESTIONS), QUESTIONS)
    _, highest = wilson_interval(round(mean * QUESTIONS), QUESTIONS)
    return max(0.0, 1 - (1 - lowest + margin) / covered), min(1.0, highest + margin)


def _ends(subject: Subject, length: int, room: int) -> float:
    """The share of end tokens that are right in every piece; 1 for a task without any."""
    questions = subject.end_questions(length)
    if questions is None:
        return 1.0
    pieces = subject.pieces(questions, length, room, MOST_PIECES)
    return float(np.mean(subject.ask(questions, pieces.thinned.alone()).single.all(axis=1)))


def knowable_accuracy(task: Task, questions: Questions) -> float:
    """Return the highest accuracy that as many other questions may show of the best predictor; 1 for an unknown law.

    The best predictor of a planted law answers with the most probable label given the whole prompt. A class derived
    from ``Planted`` may draw otherwise, and sets without a span are too many to sum over: 1 for both.
    """
    if type(task) is not Planted or task.placement.span is None:
        return 1.0
    tokens = questions.batch.tokens[:, : questions.batch.length].numpy()
    best = BayesPredictor(task).predict(tokens).max(axis=1)
    _, high = wilson_interval(float(best.sum()), len(best), APART)
    return high
