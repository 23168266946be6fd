"""Training, loading and evaluation of a run."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from lengthwise.core.devices import pick_device, training_threads, use_threads
from lengthwise.core.errors import LengthwiseError, RunFolderError, SettingError, TrainingOverlapWarning
from lengthwise.core.files import StrPath
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.core.provenance import utc_timestamp
from lengthwise.core.randomness import stream
from lengthwise.core.type_checks import check_arguments, check_values
from lengthwise.evaluation.evaluator import HELD_OUT_ADVICE, ResultIterator, overlapping_lengths, select_evaluator
from lengthwise.evaluation.exact_match import EvaluationSettings, evaluate_by_length
from lengthwise.evaluation.loss_by_context import ContextLoss
from lengthwise.evaluation.tally import LengthResult
from lengthwise.experiments.experiment import TABLES, Experiment, build_decoder, to_dict
from lengthwise.experiments.progress_reports import AUTO, TrainingReports
from lengthwise.experiments.run_folder import (
    EXPERIMENT,
    MODEL,
    RESULTS,
    RUN_FOLDER,
    append_rows,
    claim_run_folder,
    experiment_digest,
    read_description,
    read_experiment,
    read_model,
    write_model,
)
from lengthwise.experiments.validation import (
    PreparedTraining,
    check_encoding,
    check_evaluation,
    check_scheme,
    prepare_training,
    select_variants,
)
from lengthwise.model.decoder import Decoder
from lengthwise.positions import describe_knowledge
from lengthwise.tasks import HasRecords, Task, num_shared_records, record_fields, task_fields
from lengthwise.training.trainer import Trainer

# Number of examples that decide whether a run fits its training lengths.
NUM_FIT_EXAMPLES = 256
# Number of examples for the exact match in progress reports.
NUM_PROGRESS_EXAMPLES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Trained decoder with its folder, its experiment, and facts about its training; see ``TrainingFacts``."""

    folder: Path
    experiment: Experiment
    decoder: Decoder
    facts: dict[str, Any]

    def __repr__(self) -> str:
        components = (self.experiment.task, self.experiment.scheme, self.experiment.encoding)
        names = "/".join(component.name for component in components)
        return f"Run({str(self.folder)!r}, {names}, {self.facts['steps']:,} steps)"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """Names and types of the entries in ``Run.facts``.

    ``steps`` is the number of training steps. ``fitted`` is exact match at the longest training length (None for a task
    graded by loss). ``id_range`` contains the smallest and largest ID in training. ``trained_distance`` is the largest
    difference between two IDs of one training example. ``train_s`` is the training time in seconds.
    """

    steps: int
    fitted: float | None
    id_range: tuple[float, float]
    trained_distance: float
    train_s: float


@check_arguments
def train(  # noqa: PLR0913
    experiment: Experiment,
    out: StrPath,
    *,
    resume: bool = False,
    device: str = "auto",
    threads: int | None = None,
    report: Callable[[dict[str, Any]], None] | str | None = AUTO,
    trackers: Sequence[str] = (),
    stop: Callable[[], bool] = lambda: False,
) -> Run | None:
    """Train a run into the folder ``out``; return None if ``stop`` returned True. ``resume`` continues a stopped run.

    ``threads`` is the number of CPU threads; by default, it depends on the size of the model (``training_threads``).
    ``report`` receives each row of ``metrics.jsonl``; by default, progress is visible in terminals and notebooks, and
    None turns this off. ``trackers`` are names in ``TRACKERS``, such as ``"tensorboard"``.

    Raises ``RunFolderError`` if the folder contains a run (with ``resume``: a run of another experiment), or if another
    process trains into it. Raises ``DivergedError`` if the loss is not finite; the log of the earlier steps remains.
    Errors in the experiment are raised before any file is written.
    """
    out, torch_device = Path(out), pick_device(device)
    reports = TrainingReports(report=report, trackers=trackers)
    prepared_training = prepare_training(experiment)
    num_threads = training_threads(experiment.decoder.d_model, threads)
    with use_threads(num_threads), exclusive_lock(out):
        claim_run_folder(out, experiment, resume=resume)
        return _train_in_folder(experiment, prepared_training, out, torch_device, reports, stop)


def _train_in_folder(
    experiment: Experiment,
    prepared_training: PreparedTraining,
    out: Path,
    device: torch.device,
    reports: TrainingReports,
    should_stop: Callable[[], bool],
) -> Run | None:
    """Train in a folder prepared by ``claim_run_folder``; if its run is finished, load the run instead."""
    if (out / MODEL).exists():
        # A damaged model file is rebuilt from the newest checkpoint.
        with suppress(RunFolderError):
            return load_run(out, overrides={name: getattr(experiment, name) for name in TABLES}, device=str(device))
    decoder = prepared_training.decoder.to(device)
    trainer = Trainer(decoder, prepared_training.sampler, experiment.training, out, experiment_digest(out))
    trainer.restore()
    threshold, uses_loss = experiment.training.fit_threshold, select_evaluator(experiment.task).uses_loss
    with reports.open(out, experiment, first_step=trainer.progress.step + 1) as report:
        if not trainer.run(
            report=report,
            stop=should_stop,
            is_fit=lambda: measure_fit(experiment, decoder).exact_match >= threshold,
            exact_match=None
            if uses_loss
            else lambda: measure_fit(experiment, decoder, NUM_PROGRESS_EXAMPLES).exact_match,
        ):
            return None
        progress = trainer.progress
        training_facts = {
            "steps": progress.step,
            "fitted": None if uses_loss else measure_fit(experiment, decoder).exact_match,
            "id_range": [progress.smallest_id, progress.largest_id],
            "trained_distance": progress.largest_distance,
            "train_s": round(progress.train_s, 3),
        }
        # Saved before the trackers are closed, because that can wait for a network.
        write_model(out, decoder.state_dict(), training_facts)
    return Run(folder=out, experiment=experiment, decoder=decoder.eval(), facts=training_facts)


def measure_fit(experiment: Experiment, decoder: Decoder, num_examples: int | None = None) -> LengthResult:
    """Return exact match at the longest training length, on examples from a separate random stream."""
    settings = EvaluationSettings(
        lengths=experiment.train_lengths[1:],
        num_examples=(NUM_FIT_EXAMPLES if num_examples is None else num_examples,),
        seed=int(stream(experiment.seed, "fit").integers(2**31)),
    )
    return evaluate_by_length(decoder, experiment.task, experiment.scheme, settings)[0]


@check_arguments
def load_run(folder: StrPath, *, overrides: Mapping[str, Any] | None = None, device: str = "auto") -> Run:
    """Load a finished run.

    ``overrides`` replaces the saved ``task``, ``scheme`` or ``encoding``. Instances of custom classes must be passed
    again, because loading imports no code. A new encoding must have weights with the same names and shapes as the saved
    encoding; the loaded decoder uses it without new training.
    """
    folder, torch_device = Path(folder), pick_device(device)
    experiment = read_experiment(folder, overrides=overrides)
    tensors, training_facts = read_model(folder)
    _check_facts(training_facts, folder / MODEL)
    batches = check_scheme(experiment) if overrides else []
    decoder = build_decoder(experiment)
    if overrides:
        check_encoding(decoder, batches)
    try:
        decoder.load_state_dict(tensors)
    except RuntimeError:
        if overrides:
            raise RunFolderError(
                f"the weights in {folder} do not fit the new {' and '.join(overrides)}; "
                "the weights of each replacement need the names and shapes of the saved weights"
            ) from None
        raise RunFolderError(
            f"the weights in {folder / MODEL} do not fit the decoder in {EXPERIMENT}; train the run again"
        ) from None
    return Run(folder=folder, experiment=experiment, decoder=decoder.to(torch_device).eval(), facts=training_facts)


def _check_facts(training_facts: Mapping[str, Any], path: Path) -> None:
    field_values = {name: tuple(value) if isinstance(value, list) else value for name, value in training_facts.items()}
    try:
        check_values(TrainingFacts, field_values)
    except SettingError as error:
        raise RunFolderError(f"{path} has invalid training facts ({error}); train the run again") from None


@check_arguments
def evaluate(
    run: Run, settings: EvaluationSettings, *, report: Callable[[int, int, int], None] | None = None
) -> list[dict[str, Any]]:
    """Evaluate a run by length, on each task variant in ``settings``, and append the rows to its ``results.jsonl``.

    A row has exact match at one length, or loss by context length if the task is graded by loss. The function saves
    each row immediately, so an interrupted evaluation loses no complete row.
    """
    rows = []
    for row in iter_result_rows(run, settings, report=report):
        append_rows(run.folder / RESULTS, [row])
        rows.append(row)
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
        **{name: run.facts[name] for name in ("id_range", "trained_distance", "steps", "fitted", "train_s")},
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
