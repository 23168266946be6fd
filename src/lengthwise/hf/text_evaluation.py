"""Exact match by length of a language model, evaluated in plain text."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from lengthwise.evaluation.exact_match import EvaluationSettings, count_examples
from lengthwise.evaluation.tally import LengthResult, Tally, skipped_result
from lengthwise.hf.questions import QuestionWriter
from lengthwise.hf.text_model import TextModel
from lengthwise.tasks import Task, record_fields
from lengthwise.tasks.text_format import PromptFormat

# Keys of `LengthResult` that rows leave out or replace, because plain text has no scheme.
OMITTED_RESULT_KEYS = ("exact_tokens", "id_accuracy", "answer_loss", "largest_distance", "wall_s", "omitted_weight")


def evaluate_texts(
    model: TextModel,
    task: Task,
    settings: EvaluationSettings,
    *,
    prompts: PromptFormat | None = None,
    report: Callable[[int, int, int], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Evaluate a model on the test examples of a task in plain text, and yield one result row per length.

    ``length`` of a row counts the items of the task. ``text_tokens`` is the largest number of tokens of a text with its
    answer, and ``requested_tokens`` its upper limit, which is None unless the settings give lengths in tokens.
    ``token_accuracy`` and the indexes of first errors refer to tokens of the model, not to symbols of the task. A
    ``skipped`` row has no ``text_tokens`` (None). ``report(length, num_done, num_total)`` gets the length of the
    settings. Unsupported tasks, lengths and tokenizers raise ``LengthwiseError`` before evaluation.
    """
    prompts = PromptFormat() if prompts is None else prompts
    writer = QuestionWriter(model, task, prompts, settings.seed)
    counts = [settings.num_examples_at(index) for index in range(len(settings.lengths))]
    if prompts.in_tokens:
        limits = settings.lengths
        lengths = [writer.find_length(limit, count) for limit, count in zip(limits, counts, strict=True)]
    else:
        lengths = list(settings.lengths)
    for length in lengths:
        next(writer.questions(length, 1))
    shots = {"shots": prompts.shots, "shot_length": prompts.shot_length}
    is_stopped = False
    for given_length, length, requested in zip(settings.lengths, lengths, counts, strict=True):
        facts = {"requested_tokens": given_length if prompts.in_tokens else None, **record_fields(task, length)}
        if is_stopped:
            skipped = _select_fields(skipped_result(length, settings.decode))
            yield {**shots, **skipped, "text_tokens": None, **facts, "wall_s": 0.0}
            continue
        start_time, tally, text_tokens = time.perf_counter(), Tally(), 0
        num_examples = count_examples(task, length, requested)
        for questions in writer.questions(length, num_examples):
            text_tokens = max(text_tokens, *(question.seq for question in questions))
            for grades in model.grade(questions, decode=settings.decode):
                tally.add(grades)
                if report is not None:
                    report(given_length, tally.num_examples, num_examples)
        row = {**_select_fields(tally.result(length, settings.decode, 0)), "text_tokens": text_tokens, **facts}
        wall_s = round(time.perf_counter() - start_time, 3)
        yield {**shots, **row, "wall_s": wall_s}
        is_stopped = settings.stop_at_zero and row["exact_match"] == 0


def _select_fields(result: LengthResult) -> dict[str, Any]:
    return {name: value for name, value in asdict(result).items() if name not in OMITTED_RESULT_KEYS}
