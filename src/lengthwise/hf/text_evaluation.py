"""Exact match by length of a language model, evaluated in plain text."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from lengthwise.core.errors import ModelError, SettingError
from lengthwise.core.randomness import stream
from lengthwise.evaluation.exact_match import EvaluationSettings, count_examples, iter_blocks
from lengthwise.evaluation.tally import Tally
from lengthwise.hf.text_model import Question, TextModel
from lengthwise.tasks import Task, record_fields
from lengthwise.tasks.text_format import DEFAULT_NUM_SHOTS, format_examples, sample_shots

# Keys of `LengthResult` that rows leave out or replace, because plain text has no scheme.
OMITTED_RESULT_KEYS = ("exact_tokens", "id_accuracy", "answer_loss", "largest_distance", "wall_s", "omitted_weight")


def evaluate_texts(
    model: TextModel,
    task: Task,
    settings: EvaluationSettings,
    *,
    shots: int = DEFAULT_NUM_SHOTS,
    report: Callable[[int, int, int], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Evaluate a model on the test examples of a task in plain text, and yield one result row per length.

    ``shots`` solved examples of the same length precede each prompt, one per line. Their prompts differ from the test
    prompt. The shots show the format of the task, so errors are due to length. ``token_accuracy`` and the indexes of
    first errors refer to tokens of the model, not to symbols of the task. Unsupported tasks, lengths and tokenizers
    raise ``LengthwiseError`` before evaluation.
    """
    if shots < 0:
        raise SettingError(f"invalid number of shots {shots}; use 0 or more")
    for length in settings.lengths:
        next(_iter_questions(model, task, length, 1, settings.seed, shots))
    for length_index, length in enumerate(settings.lengths):
        start_time, tally = time.perf_counter(), Tally()
        num_examples = count_examples(task, length, settings.num_examples_at(length_index))
        for questions in _iter_questions(model, task, length, num_examples, settings.seed, shots):
            for grades in model.grade(questions, decode=settings.decode):
                tally.add(grades)
                if report is not None:
                    report(length, tally.num_examples, num_examples)
        length_result = asdict(tally.result(length, settings.decode, 0))
        row = {name: value for name, value in length_result.items() if name not in OMITTED_RESULT_KEYS}
        row |= record_fields(task, length)
        yield {"shots": shots, **row, "wall_s": round(time.perf_counter() - start_time, 3)}
        if settings.stop_at_zero and length_result["exact_match"] == 0:
            break


def _iter_questions(
    model: TextModel, task: Task, length: int, num_examples: int, seed: int, shots: int
) -> Iterator[list[Question]]:
    """Yield blocks of questions. The context of a question consists of its shots and its prompt."""
    num_questions = 0
    for examples in iter_blocks(task, length, num_examples, seed):
        questions = []
        for place, text in enumerate(format_examples(task, examples)[: num_examples - num_questions]):
            rng = stream(seed, "shots", length, num_questions + place)
            shot_examples = sample_shots(task, length, shots, rng, excluded_prompts={text.prompt})
            context = "".join(shot.prompt + shot.response for shot in shot_examples) + text.prompt
            question = model.tokenize_question(context, text.response)
            if model.num_positions is not None and question.seq > model.num_positions:
                raise ModelError(
                    f"length {length} with {shots} shots gives a text of {question.seq:,} tokens, but {model.name} has "
                    f"{model.num_positions:,} positions; use shorter lengths or fewer --shots"
                )
            questions.append(question)
        num_questions += len(questions)
        yield questions
