"""Answers asked again with something changed: as few tokens as in training, the IDs of training, or both."""

from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from lengthwise.core.randomness import stream
from lengthwise.evaluation.diagnosis.failures import Answers
from lengthwise.evaluation.exact_match import iter_examples
from lengthwise.evaluation.forecast.probed_model import Subject
from lengthwise.evaluation.forecast.sparse_queries import DRAWS, Questions, ask, needed_tokens, random_answers
from lengthwise.evaluation.forecast.subsampling import Thinned, crowd, thin
from lengthwise.tasks.examples import Examples

# Neighbours that stay or go together: as many as leave what is short enough.
STRETCHES = (4, 2, 1)
# Examples of the longest trained length on which reading is tried.
TRIED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Which answers are right in most of their thinnings, in each of which as much stays as training had.

    ``unchanged``: at the IDs of the length, what stays weighing as much as all; ``fewer_tokens``: at these IDs, each
    weighing as one; ``trained_ids``: weighing as much as all, at IDs of training in the same order; ``both``: at these,
    each weighing as one. ``short``: those of which no more stays than training had.
    """

    unchanged: Bool[np.ndarray, " asked"]
    fewer_tokens: Bool[np.ndarray, " asked"]
    trained_ids: Bool[np.ndarray, " asked"]
    both: Bool[np.ndarray, " asked"]
    short: Bool[np.ndarray, " asked"]


def joined(parts: list[Readings]) -> Readings:
    """One behind the other."""
    names = [part.name for part in fields(Readings)]
    return Readings(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads a long sequence as a short one: ``room`` units of it, with IDs out of ``ladders``.

    A unit is all tokens that the task couples: with some of them left out, the others stand to each other as in a
    shorter sequence. Of a task without coupling, or with several levels, it is a token. A ladder is the rising IDs of
    one trained sequence on one level.
    """

    subject: Subject
    room: int
    ladders: list[list[np.ndarray]]

    def read(self, questions: Questions, units: Int[np.ndarray, "questions seq"], rng: np.random.Generator) -> Readings:
        """All four."""
        thinned = self._thinned(questions, units, self.room, rng)
        short = self._with_trained_ids(questions, thinned)
        return Readings(
            unchanged=self._right(questions, thinned),
            fewer_tokens=self._right(questions, thinned.alone()),
            trained_ids=self._right(short, thinned),
            both=self._right(short, thinned.alone()),
            short=np.asarray((_sizes(thinned, units) <= self.room).all(axis=1)),
        )

    def kept_at_home(self) -> float:
        """Of the right answers at the longest trained length, the share that half of the units leave right."""
        subject, kept = self.subject, []
        rng = stream(subject.seed, "diagnosis home", subject.longest)
        end = subject.task.vocabulary.index("end")
        for examples, batch in iter_examples(subject.task, subject.scheme, subject.longest, TRIED, subject.seed):
            answer = random_answers(batch, end, rng)
            questions = Questions(batch=batch, answer=answer, needed=needed_tokens(subject.task, examples, answer))
            whole = subject.ask(questions, crowd(questions.needed, answer - 1, 1.0)).right
            thinned = self._thinned(questions, units_of(examples), self.room // 2, rng).alone()
            kept += self._right(self._with_trained_ids(questions, thinned), thinned)[whole].tolist()
        return float(np.mean(kept)) if kept else 0.0

    def _thinned(
        self, questions: Questions, units: Int[np.ndarray, "questions seq"], room: int, rng: np.random.Generator
    ) -> Thinned:
        needed = [each for each in questions.needed for _ in range(DRAWS)]
        before, each = np.repeat(questions.answer - 1, DRAWS), np.repeat(units, DRAWS, axis=0)
        thinned = [thin(needed, before, room, rng, each, stretch) for stretch in STRETCHES]
        return next((some for some in thinned if (_sizes(some, units) <= room).all()), thinned[-1])

    def _right(self, questions: Questions, thinned: Thinned) -> Bool[np.ndarray, " asked"]:
        single = ask(self.subject.decoder, questions, thinned).single.reshape(-1, DRAWS)
        return np.asarray(single.mean(axis=1) > 0.5)

    def _with_trained_ids(self, questions: Questions, thinned: Thinned) -> Questions:
        """Each draw a question of its own: what stays decides which IDs it gets."""
        draw = np.repeat(np.arange(len(questions.answer)), DRAWS)
        ids = questions.batch.position_ids.numpy()[:, draw]
        for row, last in enumerate(thinned.last):
            kept, needed = (
                thinned.kept[row, : last + 1],
                np.append(questions.needed[draw[row]], thinned.kept[row, last]),
            )
            nearest = kept[np.abs(kept[:, None] - needed).min(axis=1).argsort(kind="stable")]
            ladders = self.ladders[draw[row] % len(self.ladders)]
            for level, ladder in zip(ids[:, row], ladders, strict=True):
                level[:] = climbed(level, level[nearest], ladder)
        return Questions(
            batch=replace(questions.batch.select(draw), position_ids=torch.from_numpy(ids)),
            answer=questions.answer[draw],
            needed=[questions.needed[row] for row in draw],
        )


def _sizes(thinned: Thinned, units: Int[np.ndarray, "questions seq"]) -> Int[np.ndarray, "questions draws"]:
    """How many units stay."""
    rows = zip(np.repeat(units, DRAWS, axis=0), thinned.kept, strict=True)
    return np.array([len(np.unique(unit[kept])) for unit, kept in rows]).reshape(-1, DRAWS)


def climbed(
    ids: Int[np.ndarray, " seq"] | Float[np.ndarray, " seq"], kept: np.ndarray, ladder: np.ndarray
) -> Int[np.ndarray, " seq"] | Float[np.ndarray, " seq"]:
    """The IDs of the ladder in place of those that are ``kept``, in order; any other gets that of the one below it.

    Where more are kept than the ladder has, it is for the first of them.
    """
    distinct, first = np.unique(kept, return_index=True)
    held = np.sort(distinct[first.argsort()[: len(ladder)]])
    return np.asarray(ladder[(np.searchsorted(held, ids, side="right") - 1).clip(0)])


def units_of(examples: Examples) -> Int[np.ndarray, "batch seq"]:
    """What stays or goes as one."""
    coupling = examples.coupling
    if coupling is not None and len(coupling) == 1:
        return coupling[0]
    return np.broadcast_to(np.arange(examples.tokens.shape[1]), examples.tokens.shape)


def reader_of(subject: Subject) -> Reader:
    """The room and the IDs of the longest trained length."""
    examples, batch = next(iter_examples(subject.task, subject.scheme, subject.longest, TRIED, subject.seed))
    ids = batch.position_ids.numpy()
    return Reader(
        subject=subject,
        room=min(len(np.unique(row)) for row in units_of(examples)),
        ladders=[[np.unique(level) for level in ids[:, row]] for row in range(len(examples))],
    )


def ask_again(reader: Reader, asked: list[Answers], most: int) -> Readings:
    """Ask again about at most so many answers."""
    subject, parts, left = reader.subject, [], most
    for number, part in enumerate(asked):
        some = part.rows(np.arange(min(left, len(part.answer))))
        if not (size := len(some.answer)):
            break
        rng = stream(subject.seed, "diagnosis draws", part.batch.length, number)
        needed = needed_tokens(subject.task, some.examples, some.answer)
        questions = Questions(batch=some.batch, answer=some.answer, needed=needed)
        parts.append(reader.read(questions, units_of(some.examples), rng))
        left -= size
    return joined(parts)
