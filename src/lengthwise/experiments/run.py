"""Training and loading of a run, which can start from the weights of another run."""

import hashlib
import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from lengthwise.core.checkpoint import check_tensors, load_tensors
from lengthwise.core.devices import limit_cpu_threads, num_training_threads, pick_device
from lengthwise.core.errors import RunFolderError, SettingError
from lengthwise.core.files import StrPath, read_file
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.core.randomness import random_stream
from lengthwise.core.type_checks import check_arguments, check_field_values
from lengthwise.evaluation.exact_match import EvaluationSettings, evaluate_together
from lengthwise.evaluation.grading import LengthResult
from lengthwise.evaluation.result_rows import describe_fit_errors
from lengthwise.experiments.experiment import TABLES, Experiment, build_decoder, num_levels, to_dict
from lengthwise.experiments.progress_reports import AUTO, MetricsReporter
from lengthwise.experiments.run_folder import (
    EXPERIMENT,
    MODEL,
    RUN_FOLDER,
    START,
    StartCheckpoint,
    acquire_run_folder,
    experiment_digest,
    read_description,
    read_experiment,
    read_extensions,
    read_model,
    read_start_model_file,
    record_failure,
    write_model,
)
from lengthwise.experiments.setting_checks import check_encoding, check_scheme, prepare_training
from lengthwise.model.decoder import Decoder
from lengthwise.tasks import GradedByLoss, HasRecords
from lengthwise.training.launch import read_launch_info
from lengthwise.training.process_group import join_processes
from lengthwise.training.trainer import Trainer

# Number of examples that decide whether a run fits its training lengths.
NUM_FIT_EXAMPLES = 256
# Number of examples for the exact match in progress reports.
NUM_PROGRESS_EXAMPLES = 32
NO_REPORTS = MetricsReporter(report=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Trained decoder with its folder, its experiment, and facts about its training; see ``TrainingSummary``."""

    folder: Path
    experiment: Experiment
    decoder: Decoder
    facts: dict[str, Any]

    def __repr__(self) -> str:
        components = (self.experiment.task, self.experiment.scheme, self.experiment.encoding)
        names = "/".join(component.name for component in components)
        fit_text = "" if self.facts["misfit"] is None else ", does not fit its training lengths"
        return f"Run({str(self.folder)!r}, {names}, {self.facts['steps']:,} steps{fit_text})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSummary:
    """Names and types of the entries in ``Run.facts``.

    ``steps`` is the number of training steps. ``fitted`` is exact match at the lengths of ``fit_lengths`` (None for a
    task graded by loss). ``misfit`` describes the errors there if the run does not fit (else None). ``id_range``
    contains the smallest and largest ID in training. ``trained_distance`` is the largest difference between two IDs of
    one training example. ``train_s`` is the training time in seconds.
    """

    steps: int
    fitted: float | None
    misfit: str | None
    id_range: tuple[float, float]
    trained_distance: float
    train_s: float


@check_arguments
def train(
    experiment: Experiment,
    out: StrPath,
    *,
    resume: bool = False,
    start: StrPath | Run | None = None,
    device: str = "auto",
    threads: int | None = None,
    report: Callable[[dict[str, Any]], None] | str | None = AUTO,
    trackers: Sequence[str] = (),
    stop: Callable[[], bool] = lambda: False,
) -> Run | None:
    """Train a run into the folder ``out``; return None if ``stop`` returned True. ``resume`` continues a stopped run.

    With ``resume`` and an experiment that only has more training steps, the run continues from its newest checkpoint
    with the learning rates of the new number of steps. The former run moves to ``out/earlier``.

    ``start`` is a finished run, or its folder, whose weights the new run begins with. Its optimizer, its steps and its
    learning rate begin anew. The decoder settings, the encoding and the vocabulary of both runs must be equal.

    ``threads`` is the number of CPU threads; by default, it depends on the model (``num_training_threads``).
    ``report`` receives each row of ``metrics.jsonl``; by default, progress is visible in terminals and notebooks, and
    None turns this off. ``trackers`` are names in ``TRACKERS``, such as ``"tensorboard"``.

    Raises ``RunFolderError`` if the folder contains a run (with ``resume``: a run of another experiment), or if another
    process trains into it. Raises ``SettingError`` for a setting that differs from ``start``. Raises ``DivergedError``
    if the loss is not finite; the log of the earlier steps remains. Errors in the experiment are raised before any file
    is written.

    If ``torchrun`` has started several processes, all of them call this function with the same arguments and train the
    run together. Only the first process writes files and calls ``report``. ``stop`` in any process stops all.
    """
    out, torch_device = Path(out), pick_device(device)
    processes = join_processes(read_launch_info(), torch_device.type)
    # Only the first process reports.
    reports = MetricsReporter(report=report, trackers=trackers) if processes.rank == 0 else NO_REPORTS
    decoder, sampler = processes.call_in_all(lambda: prepare_training(experiment))
    uses_loss, settings = isinstance(experiment.task, GradedByLoss), experiment.training

    def acquire() -> tuple[Run | None, str, list[str]]:
        """Return the finished run in the folder, on the CPU, or None, and the digests of its experiment and earlier."""
        start_model: StartCheckpoint | None = None
        finished_run: Run | None = None
        if start is not None:
            folder, source = (start.folder, start.experiment) if isinstance(start, Run) else (Path(start), None)
            start_model = _read_start_model(folder, experiment, decoder, source)
        stack.enter_context(exclusive_lock(out))
        acquire_run_folder(out, experiment, resume=resume, start=start_model, extend=True)
        stack.enter_context(record_failure(out))
        if (out / MODEL).exists():
            # A damaged model file is rebuilt from the newest checkpoint.
            with suppress(RunFolderError):
                overrides = {name: getattr(experiment, name) for name in TABLES}
                finished_run = load_run(out, overrides=overrides, device="cpu")
        if finished_run is None and read_start_model_file(out):
            tensors, _ = load_tensors(out / START)
            check_tensors(out / START, tensors, decoder.state_dict())
            decoder.load_state_dict(tensors)
        return finished_run, experiment_digest(out), [extension.belongs_to for extension in read_extensions(out)]

    def exact_match(num_examples: int | None = None) -> float:
        return measure_training_fit(experiment, decoder, num_examples).exact_match

    def finish() -> dict[str, Any]:
        progress, fit = trainer.progress, None if uses_loss else measure_training_fit(experiment, decoder)
        training_facts = {
            "steps": progress.step,
            "fitted": None if fit is None else fit.exact_match,
            "misfit": None if fit is None else describe_fit_errors(fit),
            "id_range": [progress.smallest_id, progress.largest_id],
            "trained_distance": progress.largest_distance,
            "train_s": round(progress.train_s, 3),
        }
        write_model(out, decoder.state_dict(), training_facts)
        return training_facts

    with limit_cpu_threads(num_training_threads(experiment.decoder.d_model, threads)), ExitStack() as stack:
        # The other processes get the weights of the first.
        saved_run, digest, earlier_digests = processes.call_in_first(acquire)
        if saved_run is not None:
            return replace(saved_run, decoder=saved_run.decoder.to(torch_device))
        trainer = Trainer(decoder.to(torch_device), sampler, settings, out, digest, processes)
        trainer.restore(earlier_digests)
        with reports.open(out, experiment, first_step=trainer.progress.step + 1) as report_row:
            is_finished = trainer.run(
                report=report_row,
                stop=stop,
                is_fit=lambda: exact_match() >= settings.fit_threshold,
                exact_match=None if uses_loss or processes.rank > 0 else lambda: exact_match(NUM_PROGRESS_EXAMPLES),
            )
            if not is_finished:
                return None
            # The model is saved before the trackers are closed, because that can wait for a network.
            training_facts = processes.call_in_first(finish)
        return Run(folder=out, experiment=experiment, decoder=decoder.eval(), facts=training_facts)


def measure_training_fit(experiment: Experiment, decoder: Decoder, num_examples: int | None = None) -> LengthResult:
    """Return exact match at the longest training length, on examples from a separate random stream.

    A file can have few records of this length, so shorter lengths are added (see ``fit_lengths``).
    """
    settings = EvaluationSettings(
        lengths=fit_lengths(experiment),
        num_examples=(NUM_FIT_EXAMPLES if num_examples is None else num_examples,),
        seed=int(random_stream(experiment.seed, "fit").integers(2**31)),
    )
    return evaluate_together(decoder, experiment.task, experiment.scheme, settings)


def fit_lengths(experiment: Experiment) -> tuple[int, ...]:
    """Return the longest training length; of a file, as many of the longest ones as have enough records together."""
    task, (first, last) = experiment.task, experiment.train_lengths
    if not isinstance(task, HasRecords):
        return (last,)
    lengths, num_records = list[int](), 0
    for length in sorted((length for length in task.available_lengths if first <= length <= last), reverse=True):
        lengths.append(length)
        num_records += task.num_records(length)
        if num_records >= NUM_FIT_EXAMPLES:
            break
    return tuple(reversed(lengths))


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
    if missing := ", ".join(field.name for field in fields(TrainingSummary) if field.name not in training_facts):
        raise RunFolderError(
            f"the run in {path.parent} was saved by another version of lengthwise, without {missing}; train it again "
            "with this version in a new folder, or load it with the version that trained it"
        )
    field_values = {name: tuple(value) if isinstance(value, list) else value for name, value in training_facts.items()}
    try:
        check_field_values(TrainingSummary, field_values)
    except SettingError as error:
        raise RunFolderError(f"{path} has invalid training facts ({error}); train the run again") from None


def _read_start_model(
    folder: Path, experiment: Experiment, decoder: Decoder, source: Experiment | None
) -> StartCheckpoint:
    """Return the model of a finished run from which ``decoder``, the decoder of ``experiment``, can start.

    ``source`` is the experiment of the run if it is loaded, otherwise it is read from ``folder``. Raises
    ``SettingError`` for the first setting of the decoder that differs.
    """
    if source is None:
        source = read_experiment(folder, overrides=_custom_classes(folder, experiment))
    tensors, training_facts = read_model(folder)
    new_tensors = decoder.state_dict()
    shapes, new_shapes = ({name: tensor.shape for name, tensor in w.items()} for w in (tensors, new_tensors))
    settings, new_settings = _decoder_settings(source), _decoder_settings(experiment)
    if settings.items() == new_settings.items() and shapes != new_shapes:
        # Some position heads have one output per ID.
        settings["num_position_ids"] = source.scheme.num_position_ids
        new_settings["num_position_ids"] = experiment.scheme.num_position_ids
    for name in {**settings, **new_settings}:
        old, new = settings.get(name), new_settings.get(name)
        if old != new:
            raise SettingError(
                f"{folder} has {name} {reprlib.repr(old)}, but the new run has {reprlib.repr(new)}; use the value of "
                f"{folder}, or train without --from"
            )
    check_tensors(folder / MODEL, tensors, new_tensors)
    content = read_file(folder / MODEL)
    origin = {
        # JSON cannot contain a name that is not UTF-8.
        "run": os.fsencode(folder.absolute()).decode(errors="backslashreplace"),
        "sha256": hashlib.sha256(content).hexdigest(),
        "steps": training_facts.get("steps"),
    }
    return StartCheckpoint(content=content, origin=origin)


def _decoder_settings(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that must not change between a run and its start, by name."""
    parts = {"decoder": experiment.decoder, "encoding": experiment.encoding}
    return {
        **{f"{part}.{name}": value for part, settings in parts.items() for name, value in to_dict(settings).items()},
        "vocabulary": tuple(experiment.task.vocabulary),
        "separators": tuple(experiment.task.separators),
        "predicts_ids": experiment.scheme.predicts_ids,
        "num_levels": num_levels(experiment),
    }


def _custom_classes(folder: Path, experiment: Experiment) -> dict[str, Any]:
    """Return the custom classes of an experiment that a saved run also uses, because loading imports no code."""
    if not (folder / EXPERIMENT).is_file():
        return {}
    saved = read_description(folder, RUN_FOLDER)
    names = {kind: saved[kind].get("name") for kind in TABLES if isinstance(saved.get(kind), dict)}
    parts = {kind: getattr(experiment, kind) for kind in names}
    return {
        kind: type(part) for kind, part in parts.items() if names[kind] == part.name and part.name not in TABLES[kind]
    }
