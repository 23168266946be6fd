"""Evaluation of a run: its result rows by length."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from lengthwise.core.errors import LengthwiseError, TrainingOverlapWarning
from lengthwise.core.provenance import utc_timestamp
from lengthwise.core.type_checks import check_arguments
from lengthwise.evaluation.evaluator import HELD_OUT_ADVICE, ResultIterator, overlapping_lengths, select_evaluator
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.loss_by_context import ContextLoss
from lengthwise.evaluation.tally import LengthResult
from lengthwise.experiments.experiment import to_dict
from lengthwise.experiments.run import Run
from lengthwise.experiments.run_folder import RESULTS, RUN_FOLDER, append_rows, read_description, read_experiment
from lengthwise.experiments.validation import check_evaluation, select_variants
from lengthwise.positions import describe_knowledge
from lengthwise.tasks import HasRecords, Task, num_shared_records, record_fields, task_fields


@check_arguments
def evaluate(
    run: Run,
    settings: EvaluationSettings,
    *,
    report: Callable[[int, int, int], None] | None = None,
    report_row: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Evaluate a run by length, on each task variant in ``settings``, and append the rows to its ``results.jsonl``.

    A row has exact match at one length, or loss by context length if the task is graded by loss. A row with ``skipped``
    has no measured values (`LengthResult`). The function saves each row immediately, so an interrupted evaluation loses
    no complete row. ``report_row`` gets each saved row.
    """
    rows = []
    for row in iter_result_rows(run, settings, report=report):
        append_rows(run.folder / RESULTS, [row])
        rows.append(row)
        if report_row is not None:
            report_row(row)
    if lengths_in_training := overlapping_lengths(rows):
        warnings.warn(
            f"some or all records of length {lengths_in_training} were in the training data; {HELD_OUT_ADVICE}",
            TrainingOverlapWarning,
            stacklevel=2,
        )
    return rows


def iter_result_rows(
    run: Run, settings: EvaluationSettings, *, report: Callable[[int, int, int], None] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the result rows of ``evaluate`` one by one; invalid settings raise an error before the first row."""
    check_evaluation(run.experiment, settings)
    for variant, task in select_variants(run.experiment.task, settings).items():
        for result in _iter_length_results(run, task, settings, report):
            yield _build_row(run, result, variant)


def _iter_length_results(
    run: Run, task: Task, settings: EvaluationSettings, report: Callable[[int, int, int], None] | None
) -> ResultIterator:
    trained_distance = run.facts["trained_distance"]
    measure = select_evaluator(task).measure
    return measure(run.decoder, task, run.experiment.scheme, settings, trained_distance=trained_distance, report=report)


def _build_row(run: Run, result: LengthResult | ContextLoss, variant: str | None) -> dict[str, Any]:
    experiment, task = run.experiment, run.experiment.task
    head = {"head": experiment.decoder.head} if experiment.scheme.predicts_ids else {}
    overlap = {"seen_in_training": _overlaps_training(run, result.length)} if isinstance(task, HasRecords) else {}
    return {
        **task_fields(task),
        "scheme": experiment.scheme.name,
        "encoding": experiment.encoding.name,
        "told": describe_knowledge(task, experiment.scheme, experiment.encoding),
        "seed": experiment.seed,
        "variant": variant,
        **asdict(result),
        "train_lengths": list(experiment.train_lengths),
        "num_layers": experiment.decoder.num_layers,
        **{name: run.facts[name] for name in ("id_range", "trained_distance", "steps", "fitted", "misfit", "train_s")},
        **head,
        **record_fields(task, result.length),
        **overlap,
        "time": utc_timestamp(),
    }


def _overlaps_training(run: Run, length: int) -> bool:
    """Return True if the task shares records of this length with training; without its file, compare digests."""
    (min_train_length, max_train_length), task = run.experiment.train_lengths, run.experiment.task
    if not min_train_length <= length <= max_train_length:
        return False
    if read_description(run.folder, RUN_FOLDER)["task"].get("digest") == to_dict(task).get("digest"):
        return True
    with suppress(LengthwiseError):
        training_task = read_experiment(run.folder).task
        if isinstance(task, HasRecords) and isinstance(training_task, HasRecords):
            return num_shared_records(task, training_task, length) > 0
    return False
