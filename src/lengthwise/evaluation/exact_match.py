"""Exact match by length, with confidence intervals and the first error of each failed example."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from lengthwise.core.errors import PositionRangeError, SettingError, UntrainedDistanceWarning
from lengthwise.core.randomness import random_stream
from lengthwise.core.type_checks import check_types
from lengthwise.evaluation.grading import DECODE_MODES, GradeTally, LengthResult, grade, measure_each_length
from lengthwise.model.decoder import Decoder
from lengthwise.positions import PositionScheme
from lengthwise.tasks import HasRecords, Task
from lengthwise.tasks.examples import Examples
from lengthwise.training.batch import Batch, to_batch

# Number of examples per sampled block. It is fixed, so the first N examples of a seed do not depend on memory.
EXAMPLES_PER_BLOCK = 16
# Maximum number of tokens per block and per forward pass. A block contains at least one example of any length.
BLOCK_TOKENS, FORWARD_TOKENS = 1 << 20, 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """Test lengths, and the number of examples: one value for all lengths, or one value per length.

    ``decode`` is ``forced`` (teacher forcing) or ``free``. ``variants`` names the distributions of the task to evaluate
    separately; empty means the default distribution. ``stop_at_zero`` skips all lengths after one with exact match 0;
    their results are marked as ``skipped``.
    """

    lengths: tuple[int, ...] = (20, 200, 2000)
    num_examples: tuple[int, ...] = (512,)
    seed: int = 0
    decode: str = "forced"
    variants: tuple[str, ...] = ()
    stop_at_zero: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        if not self.lengths:
            raise SettingError("lengths is empty; give at least one test length, such as 200")
        for name, values in (("length", self.lengths), ("number of examples", self.num_examples)):
            if min(values, default=1) < 1:
                raise SettingError(f"invalid {name} {min(values)}; use at least 1")
        if len(self.num_examples) not in (1, len(self.lengths)):
            advice = "give one value for all lengths, or one value per length"
            counts = f"{len(self.num_examples)} values for {len(self.lengths)} lengths"
            raise SettingError(f"num_examples has {counts}; {advice}")
        if self.decode not in DECODE_MODES:
            raise SettingError(f"unknown decode mode '{self.decode}'; use {' or '.join(DECODE_MODES)}")

    def num_examples_at(self, index: int) -> int:
        """Return the number of examples at ``lengths[index]``."""
        return self.num_examples[index if len(self.num_examples) > 1 else 0]

    def with_max_length(self, max_length: int) -> "EvaluationSettings":
        """Return the settings without the lengths above ``max_length``."""
        kept = [index for index, length in enumerate(self.lengths) if length <= max_length]
        lengths = tuple(self.lengths[index] for index in kept)
        return replace(self, lengths=lengths, num_examples=tuple(self.num_examples_at(index) for index in kept))


def evaluate_by_length(
    decoder: Decoder,
    task: Task,
    scheme: PositionScheme,
    settings: EvaluationSettings,
    *,
    trained_distance: int | float | None = None,
    report: Callable[[int, int, int], None] | None = None,
) -> Iterator[LengthResult]:
    """Evaluate a decoder at each length, and yield the result of each length when it is complete.

    ``report(length, num_done, num_total)`` counts examples after each batch. Evaluation is teacher-forced by default,
    with one forward pass per batch. If each prompt has one correct answer, greedy decoding is exact if and only if all
    teacher-forced predictions are correct. Emits ``UntrainedDistanceWarning`` if ID distances exceed
    ``trained_distance``.
    """

    def measure(index: int) -> LengthResult:
        length, tally = settings.lengths[index], GradeTally()
        for num_examples in _grade_examples(decoder, task, scheme, settings, index, tally):
            if report is not None:
                report(length, tally.num_examples, num_examples)
        return tally.result(length, settings.decode)

    with eval_mode(decoder):
        for result in measure_each_length(
            settings.lengths, settings.decode, measure, stop_at_zero=settings.stop_at_zero
        ):
            if result.largest_distance is not None:
                warn_untrained_distance(decoder, scheme, result.length, result.largest_distance, trained_distance)
            yield result


def evaluate_together(
    decoder: Decoder, task: Task, scheme: PositionScheme, settings: EvaluationSettings
) -> LengthResult:
    """Return one result for the examples of all lengths, as the result of the longest length."""
    tally = GradeTally()
    with eval_mode(decoder):
        for index in range(len(settings.lengths)):
            for _ in _grade_examples(decoder, task, scheme, settings, index, tally):
                pass
    return tally.result(max(settings.lengths), settings.decode)


def _grade_examples(
    decoder: Decoder, task: Task, scheme: PositionScheme, settings: EvaluationSettings, index: int, tally: GradeTally
) -> Iterator[int]:
    """Add the grades of one length to ``tally``, and yield the number of its examples after each batch."""
    length, end_token = settings.lengths[index], task.vocabulary.index("end")
    num_examples = count_examples(task, length, settings.num_examples_at(index))
    for _, batch in iter_examples(task, scheme, length, num_examples, settings.seed):
        check_id_range(decoder.check_ids.num_position_ids, batch, length)
        tally.add(grade(decoder, batch, end=end_token, decode=settings.decode), largest_id_distance(batch))
        yield num_examples


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode, and restore its mode on exit."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def warn_untrained_distance(
    decoder: Decoder, scheme: PositionScheme, length: int, distance: int | float, train_max: int | float | None
) -> None:
    """Emit ``UntrainedDistanceWarning`` if ``distance`` exceeds the largest distance in training (None if unknown)."""
    if train_max is not None and distance > train_max and depends_on_id_distances(decoder, scheme):
        warnings.warn(
            f"length {length} uses ID distances up to {distance}, beyond the trained maximum of {train_max}; "
            f"train {_training_advice(scheme, distance)}",
            UntrainedDistanceWarning,
            stacklevel=3,
        )


def _training_advice(scheme: PositionScheme, distance: int | float) -> str:
    """Return how to train with larger ID distances: longer sequences or gaps or, with gaps, more IDs or more steps."""
    num_position_ids = scheme.num_position_ids
    if num_position_ids is None or not getattr(scheme, "max_gaps", 0):
        return "on longer sequences, or with gaps between IDs (max_gaps of skipwise, coupled or predicted)"
    return f"with num_position_ids of at least {distance + 1}" if num_position_ids <= distance else "for more steps"


def depends_on_id_distances(decoder: Decoder, scheme: PositionScheme) -> bool:
    """Return True if untrained ID distances can change results: the decoder reads IDs, and they are not random."""
    return decoder.uses_position_ids and not scheme.random_at_evaluation


def largest_id_distance(batch: Batch) -> int | float:
    """Return the largest difference between two IDs of one example on the same level."""
    return (batch.position_ids.amax(-1) - batch.position_ids.amin(-1)).max().item()


def iter_examples(
    task: Task, scheme: PositionScheme, length: int, total: int, seed: int
) -> Iterator[tuple[Examples, Batch]]:
    """Yield the evaluation examples with their IDs, at most ``FORWARD_TOKENS`` tokens at a time."""
    num_remaining = total
    for block_index, examples in enumerate(iter_example_blocks(task, length, total, seed)):
        assignment = scheme.assign(
            examples, random_stream(seed, "evaluation positions", length, block_index), training=False
        )
        batch = to_batch(length, examples, assignment)
        num_selected = min(len(examples), num_remaining)
        num_remaining -= num_selected
        examples_per_pass = max(1, FORWARD_TOKENS // batch.tokens.shape[1])
        for start in range(0, num_selected, examples_per_pass):
            example_indices = np.arange(start, min(start + examples_per_pass, num_selected))
            yield examples.select(example_indices), batch.select_examples(example_indices)


def iter_example_blocks(task: Task, length: int, total: int, seed: int) -> Iterator[Examples]:
    """Yield the evaluation examples in blocks of equal size; the last block may exceed ``total`` examples.

    For a task with a file, yield ``total`` of its records in random order, each at most once.
    """
    if isinstance(task, HasRecords):
        record_indices = random_stream(seed, "evaluation rows", length).permutation(task.num_records(length))[:total]
        for block_start in range(0, len(record_indices), EXAMPLES_PER_BLOCK):
            yield task.records_at(length, record_indices[block_start : block_start + EXAMPLES_PER_BLOCK])
        return
    block_size = max(1, min(EXAMPLES_PER_BLOCK, BLOCK_TOKENS // length))
    for block_index in range(-(-total // block_size)):
        yield task.sample(
            length=length, size=block_size, rng=random_stream(seed, "evaluation examples", length, block_index)
        )


def count_examples(task: Task, length: int, requested: int) -> int:
    """Return the number of examples evaluated at a length: ``requested``, or fewer if a file has fewer records."""
    return min(requested, task.num_records(length)) if isinstance(task, HasRecords) else requested


def check_id_range(limit: int | None, batch: Batch, length: int) -> None:
    """Raise ``PositionRangeError`` if an ID of the batch is ``limit`` or larger (None: no limit)."""
    largest_id = int(batch.position_ids.max())
    if limit is not None and largest_id >= limit:
        raise PositionRangeError(
            f"length {length} requires ID {largest_id}, but the encoding supports IDs up to {limit - 1}; "
            f"set its num_position_ids to at least {largest_id + 1} or use shorter lengths"
        )
