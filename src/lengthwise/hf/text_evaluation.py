"""Exact match by length of a language model, evaluated in plain text."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from lengthwise.core.errors import ModelError, SettingError
from lengthwise.core.randomness import stream
from lengthwise.evaluation.exact_match import EvaluationSettings, Tally, count_examples, iter_blocks
from lengthwise.hf.text_model import Question, TextModel
from lengthwise.tasks import Task, record_facts
from lengthwise.tasks.text_format import SHOTS, format_examples, sample_shots

# Keys of `LengthResult` that do not apply to text, which has no IDs of a scheme.
OMITTED = ("exact_tokens", "id_accuracy", "answer_loss", "largest_distance", "wall_s")


def evaluate_texts(
    model: TextModel,
    task: Task,
    settings: EvaluationSettings,
    *,
    shots: int = SHOTS,
    report: Callable[[int, int, int], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one result row per length, as soon as it is measured, on the examples that runs are evaluated on.

    Each prompt follows ``shots`` examples of the same length, one per line, from another random stream and with other
    prompts. They show the format of the task, so that failures are due to length. ``token_accuracy`` and first errors
    count the model's tokens. Raises ``LengthwiseError`` for an unsupported task, length or tokenizer, before measuring.
    """
    if shots < 0:
        raise SettingError(f"invalid number of shots {shots}; use 0 or more")
    for length in settings.lengths:
        next(_questions(model, task, length, 1, settings.seed, shots))
    for place, length in enumerate(settings.lengths):
        started, tally = time.perf_counter(), Tally()
        total = count_examples(task, length, settings.num_examples_at(place))
        for questions in _questions(model, task, length, total, settings.seed, shots):
            for graded in model.grade(questions, decode=settings.decode):
                tally.add(graded)
                if report is not None:
                    report(length, tally.num_examples, total)
        result = asdict(tally.result(length, settings.decode, 0))
        row = {name: value for name, value in result.items() if name not in OMITTED}
        row |= record_facts(task, length)
        yield {"shots": shots, **row, "wall_s": round(time.perf_counter() - started, 3)}
        if settings.stop_at_zero and result["exact_match"] == 0:
            break


def _questions(
    model: TextModel, task: Task, length: int, total: int, seed: int, shots: int
) -> Iterator[list[Question]]:
    """Yield the evaluation examples after their shots, block by block."""
    num_questions = 0
    for examples in iter_blocks(task, length, total, seed):
        questions = []
        for place, text in enumerate(format_examples(task, examples)[: total - num_questions]):
            rng = stream(seed, "shots", length, num_questions + place)
            examples_before = sample_shots(task, length, shots, rng, excluded={text.prompt})
            context = "".join(shot.prompt + shot.response for shot in examples_before) + text.prompt
            question = model.question(context, text.response)
            if model.num_positions is not None and question.seq > model.num_positions:
                raise ModelError(
                    f"length {length} with {shots} shots is a text of {question.seq:,} tokens, but {model.name} has "
                    f"{model.num_positions:,} positions; use shorter lengths or fewer --shots"
                )
            questions.append(question)
        num_questions += len(questions)
        yield questions
