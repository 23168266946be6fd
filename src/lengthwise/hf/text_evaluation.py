"""Exact match by length of a language model that is asked in plain text."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from lengthwise.core.errors import ModelError, SettingError
from lengthwise.core.randomness import stream
from lengthwise.evaluation.exact_match import EvaluationSettings, Tally, num_tested, tested_blocks
from lengthwise.hf.text_model import Question, TextModel
from lengthwise.tasks import Task, record_facts
from lengthwise.tasks.text_format import SHOTS, format_examples, sample_shots

# What a result of ours has and a model's has not: a text has no IDs of a scheme.
WITHOUT = ("exact_tokens", "id_accuracy", "answer_loss", "largest_distance", "wall_s")


def evaluate_texts(
    model: TextModel,
    task: Task,
    settings: EvaluationSettings,
    *,
    shots: int = SHOTS,
    report: Callable[[int, int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Measure a model at each length; the examples are those that a run of ours is tested on.

    Before each tested prompt stand ``shots`` examples of the same length, each a line, drawn by another stream and
    with other prompts: they show the task as it is asked, so that a failure is one of length and not of guessing what
    a longer text is to look like. ``token_accuracy`` and first errors count the model's own tokens.
    ``LengthwiseError`` before anything is measured for a task, a length or a tokenizer that will not do.
    """
    return list(text_rows(model, task, settings, shots=shots, report=report))


def text_rows(
    model: TextModel,
    task: Task,
    settings: EvaluationSettings,
    *,
    shots: int = SHOTS,
    report: Callable[[int, int, int], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Measure as ``evaluate_texts``, and give each length's row as soon as it is measured."""
    if shots < 0:
        raise SettingError(f"{shots} shots are none; use 0 or more")
    for length in settings.lengths:
        next(_questions(model, task, length, 1, settings.seed, shots))
    for place, length in enumerate(settings.lengths):
        started, tally = time.perf_counter(), Tally()
        total = num_tested(task, length, settings.examples_at(place))
        for questions in _questions(model, task, length, total, settings.seed, shots):
            for graded in model.graded(questions, decode=settings.decode):
                tally.add(graded)
                if report is not None:
                    report(length, tally.trials, total)
        result = asdict(tally.result(length, settings.decode, 0))
        measured = {name: value for name, value in result.items() if name not in WITHOUT}
        measured |= record_facts(task, length)
        yield {"shots": shots, **measured, "wall_s": round(time.perf_counter() - started, 3)}
        if settings.until_none and result["exact_match"] == 0:
            break


def _questions(
    model: TextModel, task: Task, length: int, total: int, seed: int, shots: int
) -> Iterator[list[Question]]:
    """Tested examples behind their shots, a block at a time."""
    asked = 0
    for examples in tested_blocks(task, length, total, seed):
        questions = []
        for place, text in enumerate(format_examples(task, examples)[: total - asked]):
            rng = stream(seed, "shots", length, asked + place)
            shown = sample_shots(task, length, shots, rng, tested={text.prompt})
            context = "".join(shot.prompt + shot.response for shot in shown) + text.prompt
            question = model.question(context, text.response)
            if model.num_positions is not None and question.seq > model.num_positions:
                raise ModelError(
                    f"length {length} with {shots} shots is a text of {question.seq:,} tokens, more than the "
                    f"{model.num_positions:,} positions of {model.name}; use shorter lengths or fewer --shots"
                )
            questions.append(question)
        asked += len(questions)
        yield questions
