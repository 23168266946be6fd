"""Use of a trained run: result rows by length, certificates, diagnoses, and free generation after a prompt."""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch

from lengthwise.core.defaults import DIAGNOSIS_EXAMPLES
from lengthwise.core.errors import LengthwiseError, PromptError, SettingError, TrainingOverlapWarning
from lengthwise.core.provenance import utc_timestamp
from lengthwise.core.randomness import random_stream
from lengthwise.core.type_checks import check_arguments
from lengthwise.evaluation.diagnosis.diagnosis import Diagnosis, check_diagnosis, diagnose
from lengthwise.evaluation.exact_match import EvaluationSettings, evaluate_by_length
from lengthwise.evaluation.forecast.certificate import RunCertificate, certify_decoder
from lengthwise.evaluation.forecast.probed_model import ProbedModel
from lengthwise.evaluation.grading import LengthResult
from lengthwise.evaluation.loss_by_context import ContextLoss, iter_context_losses
from lengthwise.evaluation.result_rows import HELD_OUT_ADVICE, lengths_seen_in_training
from lengthwise.experiments.experiment import Experiment, to_dict
from lengthwise.experiments.run import Run
from lengthwise.experiments.run_folder import RESULTS, RUN_FOLDER, append_rows, read_description, read_experiment
from lengthwise.experiments.setting_checks import check_evaluation, select_variants
from lengthwise.model.generate import generate
from lengthwise.positions import DiscoveredCoupling, describe_given_information
from lengthwise.tasks import (
    GradedByLoss,
    HasRecords,
    JSONLTask,
    Task,
    num_shared_records,
    record_count_field,
    task_result_fields,
)
from lengthwise.tasks.coupling.pointers import TaskWithFoundCoupling
from lengthwise.training.batch import to_batch


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
    if lengths_in_training := lengths_seen_in_training(rows):
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
    scheme, options = run.experiment.scheme, {"trained_distance": run.facts["trained_distance"], "report": report}
    for variant, task in select_variants(run.experiment.task, settings).items():
        measure: Any = iter_context_losses if isinstance(task, GradedByLoss) else evaluate_by_length
        for result in measure(run.decoder, task, scheme, settings, **options):
            yield _build_row(run, result, variant)


def _build_row(run: Run, result: LengthResult | ContextLoss, variant: str | None) -> dict[str, Any]:
    experiment, task = run.experiment, run.experiment.task
    head = {"head": experiment.decoder.head} if experiment.scheme.predicts_ids else {}
    overlap = {"seen_in_training": _overlaps_training(run, result.length)} if isinstance(task, HasRecords) else {}
    return {
        **task_result_fields(task),
        "scheme": experiment.scheme.name,
        "encoding": experiment.encoding.name,
        "given": describe_given_information(task, experiment.scheme, experiment.encoding),
        "seed": experiment.seed,
        "variant": variant,
        **asdict(result),
        "train_lengths": list(experiment.train_lengths),
        "num_layers": experiment.decoder.num_layers,
        **{name: run.facts[name] for name in ("id_range", "trained_distance", "steps", "fitted", "misfit", "train_s")},
        **head,
        **record_count_field(task, result.length),
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


@check_arguments
def certify_run(run: Run, lengths: Sequence[int], *, seed: int = 0) -> RunCertificate:
    """Check the assumptions of the theory on a run, and predict its accuracy at ``lengths``.

    Raises ``SettingError`` for a task whose examples have no depends_on, or attention that does not allow subsampling.
    """
    return certify_decoder(build_probed_model(run, seed=seed), lengths)


@check_arguments
def diagnose_run(
    run: Run,
    length: int,
    *,
    num_examples: int = DIAGNOSIS_EXAMPLES,
    seed: int = 0,
    report: Callable[[str], None] = lambda stage: None,
) -> Diagnosis:
    """Find the causes of the failures of a run at ``length``, on the examples that ``evaluate`` uses with this seed.

    ``report`` receives the name of each stage, once per batch; its exceptions end the diagnosis.
    Raises ``SettingError`` for a length within the training lengths, and for a task graded by loss.
    """
    experiment = run.experiment
    check_diagnosis(experiment.task, experiment.train_lengths[1], length)
    check_evaluation(experiment, EvaluationSettings(lengths=(length,), num_examples=(num_examples,)))
    return diagnose(build_probed_model(run, seed=seed), length, num_examples=num_examples, report=report)


def task_with_dependencies(experiment: Experiment) -> Task:
    """Return the task of an experiment; the examples of a task file get their support from a found coupling, if any.

    A found coupling names the prompt tokens that each answer needs and that no earlier answer needed. The tokens before
    them, and the last answers, are neighbors that every subsample keeps.
    """
    task, scheme = experiment.task, experiment.scheme
    if isinstance(task, JSONLTask) and isinstance(scheme, DiscoveredCoupling):
        return TaskWithFoundCoupling(task=task, rule=scheme.parsed_rule, locators=scheme.parsed_rule.locators)
    return task


def build_probed_model(run: Run, *, seed: int) -> ProbedModel:
    """Return a `ProbedModel` of a run on the CPU, which is faster than a GPU for many small forward passes."""
    experiment = run.experiment
    smallest_id, largest_id = run.facts["id_range"]
    is_on_cpu = run.decoder.embedding.device.type == "cpu"
    return ProbedModel(
        decoder=run.decoder if is_on_cpu else copy.deepcopy(run.decoder).cpu(),
        task=task_with_dependencies(experiment),
        scheme=experiment.scheme,
        encoding=experiment.encoding,
        train_lengths=experiment.train_lengths,
        id_range=(smallest_id, largest_id),
        trained_distance=run.facts["trained_distance"],
        fitted=run.facts["fitted"],
        seed=seed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Tokens that a run generates after a prompt, their position IDs, and the expected tokens.

    ``position_ids`` has one ID per token, or one list of IDs per level if there are several levels. Without a known
    answer, ``expected`` is empty and ``correct`` is None. ``correct`` is also None if ``max_new_tokens`` cut off a
    correct answer.
    """

    tokens: list[str]
    position_ids: list[Any]
    expected: list[str]
    correct: bool | None


@check_arguments
def generate_from_prompt(run: Run, prompt: str, max_new_tokens: int | None = None) -> Completion:
    """Generate the response to a prompt, up to the length of the expected answer or ``max_new_tokens``.

    The smaller limit applies. If the answer is unknown, as in running text, the task defines the first limit. A run
    that predicts IDs receives only the IDs of the prompt, and ``correct`` includes the predicted IDs.
    """
    if max_new_tokens is not None and max_new_tokens < 1:
        raise SettingError(f"invalid max_new_tokens {max_new_tokens}; use at least 1 token")
    task, decoder = run.experiment.task, run.decoder
    examples = task.example_from_prompt(prompt)
    has_answer, required_field = bool(examples.is_answer.any()), run.experiment.scheme.needs
    if not has_answer and required_field is not None and getattr(examples, required_field) is None:
        raise PromptError(
            f"scheme {run.experiment.scheme.name} needs the {required_field} of prompt '{prompt}', which is unknown; "
            "use a prompt with a known answer (for a JSONL file, a whole record), or train with another scheme, "
            "such as discovered"
        )
    assignment = run.experiment.scheme.assign(examples, random_stream(0, "generate"), training=False)
    batch = to_batch(examples.tokens.shape[1], examples, assignment).to(next(decoder.parameters()).device)
    prompt_length = int(batch.prompt_length[0])
    expected = batch.tokens[:, prompt_length:]
    token_limit = expected.shape[1] if max_new_tokens is None else min(expected.shape[1], max_new_tokens)
    prompt_tokens, end_token = batch.tokens[:, :prompt_length], task.vocabulary.index("end")
    prompt_ids = batch.position_ids[:, :, : prompt_length if decoder.predicts_ids else None]
    output = generate(decoder, prompt_tokens, prompt_ids, end=end_token, max_new_tokens=token_limit)
    num_generated = output.tokens.shape[1]
    correct: bool | None = torch.equal(output.tokens, expected[:, :num_generated])
    # The ID of the end token is never used.
    num_ids = min(num_generated, expected.shape[1] - 1)
    ids = batch.position_ids[:, :, prompt_length : prompt_length + num_ids]
    correct = correct and torch.equal(output.position_ids[:, :, :num_ids], ids)
    if num_generated < expected.shape[1]:
        # A correct beginning gives no result, unless the run generated the end token.
        correct = None if correct and num_generated == token_limit else False
    ids_by_level: list[Any] = output.position_ids[:, 0].tolist()
    return Completion(
        tokens=[task.vocabulary[token] for token in output.tokens[0].tolist()],
        position_ids=ids_by_level[0] if len(ids_by_level) == 1 else ids_by_level,
        expected=[task.vocabulary[token] for token in expected[0].tolist()] if has_answer else [],
        correct=correct if has_answer else None,
    )
