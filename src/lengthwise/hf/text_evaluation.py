"""Exact match by length of a language model, evaluated in plain text."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from lengthwise.evaluation.exact_match import EvaluationSettings, count_examples
from lengthwise.evaluation.tally import Tally
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
    ``token_accuracy`` and the indexes of first errors refer to tokens of the model, not to symbols of the task.
    ``report(length, num_done, num_total)`` gets the length of the settings. Unsupported tasks, lengths and tokenizers
    raise ``LengthwiseError`` before evaluation.
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
    for given_length, length, requested in zip(settings.lengths, lengths, counts, strict=True):
        start_time, tally, text_tokens = time.perf_counter(), Tally(), 0
        num_examples = count_examples(task, length, requested)
        for questions in writer.questions(length, num_examples):
            text_tokens = max(text_tokens, *(question.seq for question in questions))
            for grades in model.grade(questions, decode=settings.decode):
                tally.add(grades)
                if report is not None:
                    report(given_length, tally.num_examples, num_examples)
        length_result = asdict(tally.result(length, settings.decode, 0))
        row = {name: value for name, value in length_result.items() if name not in OMITTED_RESULT_KEYS}
        requested_tokens = given_length if prompts.in_tokens else None
        row |= {"requested_tokens": requested_tokens, "text_tokens": text_tokens, **record_fields(task, length)}
        wall_s = round(time.perf_counter() - start_time, 3)
        yield {"shots": prompts.shots, "shot_length": prompts.shot_length, **row, "wall_s": wall_s}
        if settings.stop_at_zero and length_result["exact_match"] == 0:
            break
