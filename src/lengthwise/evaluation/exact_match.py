"""Exact match by length, far past the training length, with intervals and the first error of each failure."""

import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from lengthwise.core.errors import PositionRangeError, SettingError, UntrainedDistanceWarning
from lengthwise.core.intervals import wilson_interval
from lengthwise.core.randomness import stream
from lengthwise.core.type_checks import check_types
from lengthwise.encodings import EncodingSettings
from lengthwise.evaluation.grading import DECODES, Graded, first_errors, grade
from lengthwise.model.decoder import Decoder
from lengthwise.positions import PositionScheme
from lengthwise.tasks import HasRecords, Task
from lengthwise.tasks.examples import Examples
from lengthwise.training.batch import Batch, to_batch

# Examples are drawn in blocks of this size, whatever fits in memory: the first N of a seed are always the same.
BLOCK = 16
# A block of long examples has fewer, down to one: no more than these tokens are drawn at once.
BLOCK_TOKENS = 1 << 20
# Tokens in one forward.
FORWARD_TOKENS = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """Which lengths, and how many examples at each: one number for all, or one per length.

    ``variants`` names distributions of the task to measure one by one; empty, it is the task's own. With
    ``until_none`` a length without any exact match is the last one measured.
    """

    lengths: tuple[int, ...] = (20, 200, 2000)
    num_examples: tuple[int, ...] = (512,)
    seed: int = 0
    decode: str = "forced"
    variants: tuple[str, ...] = ()
    until_none: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        if not self.lengths:
            raise SettingError("no length to evaluate at; give at least one, such as 20,200")
        for length in self.lengths:
            if length < 1:
                raise SettingError(f"length {length} is no length; lengths start at 1")
        for number in self.num_examples:
            if number < 1:
                raise SettingError(f"{number} examples measure nothing; use at least 1")
        if len(self.num_examples) not in (1, len(self.lengths)):
            raise SettingError(
                f"{len(self.num_examples)} numbers of examples for {len(self.lengths)} lengths; "
                "give one for all or one for each"
            )
        if self.decode not in DECODES:
            raise SettingError(f"decode '{self.decode}' is unknown; choose one of {', '.join(DECODES)}")

    def examples_at(self, place: int) -> int:
        """The number of examples of the length at this place of ``lengths``."""
        return self.num_examples[place if len(self.num_examples) > 1 else 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstErrors:
    """Where failed examples first go wrong (median index in the response, from 0), and how often in which way."""

    median_index: float
    token: int
    id: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthResult:
    """One length. ``exact_match`` asks for every token, the end token included, and for PPC for every ID too.

    ``low`` and ``high`` are its 95% Wilson interval; ``exact_tokens`` asks for the tokens alone.
    ``answer_loss`` is the mean loss of the answers' tokens (nats per token, teacher-forced; None of free decoding).
    ``largest_distance`` is the widest range of IDs that one example used.
    """

    length: int
    num_examples: int
    decode: str
    exact_match: float
    low: float
    high: float
    exact_tokens: float
    token_accuracy: float
    id_accuracy: float
    answer_loss: float | None
    first_error: FirstErrors | None
    largest_distance: int | float
    wall_s: float


def evaluate_by_length(
    decoder: Decoder,
    task: Task,
    scheme: PositionScheme,
    settings: EvaluationSettings,
    *,
    trained_distance: int | float | None = None,
    report: Callable[[int, int, int], None] | None = None,
) -> tuple[LengthResult, ...]:
    """Measure a decoder at each length; ``report(length, done, total)`` is called as it goes.

    Teacher-forced by default, one forward per batch: with one right answer per prompt, greedy decoding is exact if and
    only if every teacher-forced choice is. ``UntrainedDistanceWarning`` when IDs lie further apart than
    ``trained_distance``.
    """
    return tuple(results_by_length(decoder, task, scheme, settings, trained_distance=trained_distance, report=report))


def results_by_length(
    decoder: Decoder,
    task: Task,
    scheme: PositionScheme,
    settings: EvaluationSettings,
    *,
    trained_distance: int | float | None = None,
    report: Callable[[int, int, int], None] | None = None,
) -> Iterator[LengthResult]:
    """Measure as ``evaluate_by_length``, and give each length's result as soon as it is measured."""
    with evaluating(decoder):
        end = task.vocabulary.index("end")
        for place, length in enumerate(settings.lengths):
            started = time.perf_counter()
            distance: int | float = 0
            tally, total = Tally(), num_tested(task, length, settings.examples_at(place))
            for _, batch in drawn(task, scheme, length, total, settings.seed):
                check_range(decoder.check_ids.num_position_ids, batch, length)
                distance = max(distance, (batch.position_ids.amax(-1) - batch.position_ids.amin(-1)).max().item())
                tally.add(grade(decoder, batch, end=end, decode=settings.decode))
                if report is not None:
                    report(length, tally.trials, total)
            result = tally.result(length, settings.decode, distance)
            warn_of_untrained(decoder, scheme, length, distance, trained_distance)
            yield replace(result, wall_s=round(time.perf_counter() - started, 3))
            if settings.until_none and result.exact_match == 0:
                break


@contextmanager
def evaluating(decoder: Decoder) -> Iterator[None]:
    """The decoder as it is evaluated, and afterwards as it was."""
    was_training = decoder.training
    decoder.eval()
    try:
        yield
    finally:
        decoder.train(was_training)


def warn_of_untrained(
    decoder: Decoder, scheme: PositionScheme, length: int, distance: int | float, trained: int | float | None
) -> None:
    """``UntrainedDistanceWarning`` where IDs lie further apart than training showed; None: it is not known."""
    if trained is not None and distance > trained and compares_distances(decoder, scheme):
        warnings.warn(
            f"length {length} uses ID distances up to {distance}, training showed none beyond {trained}; "
            f"train {_with_distances(scheme, distance)}",
            UntrainedDistanceWarning,
            stacklevel=3,
        )


def _with_distances(scheme: PositionScheme, distance: int | float) -> str:
    """How training shows such a distance: only gaps make distances that sequences do not have."""
    known = scheme.num_position_ids
    if known is None or not getattr(scheme, "max_gaps", 0):
        return "on longer sequences, or with gaps between IDs (max_gaps of skipwise, coupled or predicted)"
    return f"with num_position_ids of at least {distance + 1}" if known <= distance else "for more steps"


def compares_distances(decoder: Decoder, scheme: PositionScheme) -> bool:
    """Return whether evaluation may use ID distances that training lacks: IDs are read, and no scheme draws them."""
    return decoder.reads_ids and not scheme.random_at_evaluation


def drawn(task: Task, scheme: PositionScheme, length: int, total: int, seed: int) -> Iterator[tuple[Examples, Batch]]:
    """The examples that evaluation is made of, with their IDs, as many at a time as are read in one forward."""
    left = total
    for block, examples in enumerate(tested_blocks(task, length, total, seed)):
        assignment = scheme.assign(examples, stream(seed, "evaluation positions", length, block), training=False)
        whole = to_batch(length, examples, assignment)
        wanted = min(len(examples), left)
        left -= wanted
        step = max(1, FORWARD_TOKENS // whole.tokens.shape[1])
        for start in range(0, wanted, step):
            rows = np.arange(start, min(start + step, wanted))
            yield examples.select(rows), whole.select(rows)


def tested_blocks(task: Task, length: int, total: int, seed: int) -> Iterator[Examples]:
    """The examples that evaluation is made of, in whole blocks; the last block may have more than are wanted.

    Rows of a file come in random order, each at most once.
    """
    if isinstance(task, HasRecords):
        order = stream(seed, "evaluation rows", length).permutation(task.num_records(length))[:total]
        for first in range(0, len(order), BLOCK):
            yield task.records_at(length, order[first : first + BLOCK])
        return
    size = max(1, min(BLOCK, BLOCK_TOKENS // length))
    for block in range(-(-total // size)):
        rng = stream(seed, "evaluation examples", length, block)
        yield task.sample(length=length, size=size, rng=rng)


def num_tested(task: Task, length: int, wanted: int) -> int:
    """Return how many examples of a length are asked: those that are wanted, or all rows that there are."""
    return min(wanted, task.num_records(length)) if isinstance(task, HasRecords) else wanted


def check_lengths(task: Task, scheme: PositionScheme, encoding: EncodingSettings, settings: EvaluationSettings) -> None:
    """Refuse lengths that the task or the scheme cannot have, or whose IDs the encoding does not hold."""
    for length in settings.lengths:
        rng = stream(settings.seed, "evaluation examples", length, 0)
        examples = task.sample(length=length, size=1, rng=rng)
        batch = to_batch(length, examples, scheme.assign(examples, rng, training=False))
        check_range(encoding.num_position_ids, batch, length)


def check_range(limit: int | None, batch: Batch, length: int) -> None:
    """Refuse IDs from ``limit`` on."""
    largest = int(batch.position_ids.max())
    if limit is not None and largest >= limit:
        raise PositionRangeError(
            f"length {length} reaches ID {largest} but the encoding holds IDs up to {limit - 1}; "
            f"set its num_position_ids to at least {largest + 1} or test shorter lengths"
        )


class Tally:
    """Adds up graded batches of one length."""

    def __init__(self) -> None:
        self.trials = self.exact = self.exact_tokens = 0
        self.tokens = self.tokens_right = self.ids = self.ids_right = 0
        self.loss: float | None = 0.0
        self.first_indexes: list[int] = []
        self.kinds: Counter[str] = Counter()

    def add(self, graded: Graded) -> None:
        """Count a batch in."""
        token_wrong = graded.scored & ~graded.token_right
        id_wrong = graded.id_scored & ~graded.id_right
        wrong = token_wrong | id_wrong
        self.trials += len(wrong)
        self.exact += int((~wrong.any(dim=1)).sum())
        self.exact_tokens += int((~token_wrong.any(dim=1)).sum())
        self.tokens += int(graded.scored.sum())
        self.tokens_right += int((graded.scored & graded.token_right).sum())
        if graded.token_loss is None or self.loss is None:
            self.loss = None
        else:
            self.loss += float(graded.token_loss[graded.scored].double().sum())
        self.ids += int(graded.id_scored.sum())
        self.ids_right += int((graded.id_scored & graded.id_right).sum())
        for row, column, kind in first_errors(graded):
            self.first_indexes.append(column - int(graded.prompt_offset[row]))
            self.kinds[kind] += 1

    def result(self, length: int, decode: str, distance: int | float) -> LengthResult:
        """The shares so far, with their interval; the time is for the caller to say."""
        low, high = wilson_interval(self.exact, self.trials)
        first = None
        if self.first_indexes:
            median = float(statistics.median(self.first_indexes))
            first = FirstErrors(median_index=median, **{kind: self.kinds[kind] for kind in ("token", "id", "end")})
        return LengthResult(
            length=length,
            num_examples=self.trials,
            decode=decode,
            exact_match=self.exact / self.trials,
            low=low,
            high=high,
            exact_tokens=self.exact_tokens / self.trials,
            token_accuracy=self.tokens_right / max(1, self.tokens),
            id_accuracy=self.ids_right / max(1, self.ids),
            answer_loss=None if self.loss is None else self.loss / max(1, self.tokens),
            first_error=first,
            largest_distance=distance,
            wall_s=0.0,
        )
