"""Train, load and evaluate a run."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from lengthwise.core.devices import pick_device
from lengthwise.core.errors import (
    LengthwiseError,
    RunFolderError,
    SettingError,
    TrainingOverlapWarning,
)
from lengthwise.core.files import StrPath
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.core.provenance import now
from lengthwise.core.randomness import stream
from lengthwise.core.type_checks import check_arguments, check_values
from lengthwise.evaluation.evaluator import HELD_OUT, Results, evaluator_of, seen_lengths
from lengthwise.evaluation.exact_match import EvaluationSettings, LengthResult, evaluate_by_length
from lengthwise.evaluation.loss_by_context import ContextLoss
from lengthwise.experiments.experiment import TABLES, Experiment, build_decoder, to_dict
from lengthwise.experiments.run_folder import (
    MODEL,
    RESULTS,
    RUN_FOLDER,
    append_rows,
    experiment_digest,
    claim_run_folder,
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
    select_variants,
    prepare_training,
)
from lengthwise.model.decoder import Decoder
from lengthwise.tasks import HasRecords, Task, num_shared_records, record_facts, task_facts
from lengthwise.training.trainer import Trainer

# Examples that decide whether the training range is fitted.
FIT_EXAMPLES = 256
# Examples of the exact match that is shown while training.
PROGRESS_EXAMPLES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A trained decoder with its experiment and what training showed it.

    ``facts``: ``steps``, ``fitted`` (exact match at the longest training length, None of a task graded by loss),
    ``id_range`` (smallest and largest ID met in training), ``trained_distance`` (widest range of IDs within one
    example), ``train_s``.
    """

    folder: Path
    experiment: Experiment
    decoder: Decoder
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """The types of ``Run.facts``."""

    steps: int
    fitted: float | None
    id_range: tuple[float, float]
    trained_distance: float
    train_s: float


@check_arguments
def train(
    experiment: Experiment,
    out: StrPath,
    *,
    resume: bool = False,
    device: str = "auto",
    report: Callable[[dict[str, Any]], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Run | None:
    """Train into ``out``; None when ``stop`` asked to leave early, to be gone on with by ``resume``.

    ``RunFolderError`` when the folder holds a run already or, on ``resume``, another one, and when another process is
    training into it. ``DivergedError`` when the loss is no number any more; what was logged before stays. Every other
    ``LengthwiseError`` comes before anything is written.
    """
    out, target = Path(out), pick_device(device)
    prepared = prepare_training(experiment)
    with exclusive_lock(out):
        claim_run_folder(out, experiment, resume=resume)
        return _train(experiment, prepared, out, target, report, stop)


def _train(
    experiment: Experiment,
    prepared: PreparedTraining,
    out: Path,
    device: torch.device,
    report: Callable[[dict[str, Any]], None] | None,
    stop: Callable[[], bool],
) -> Run | None:
    """In a folder that is claimed."""
    if (out / MODEL).exists():
        # A damaged model is made again from the newest checkpoint.
        with suppress(RunFolderError):
            return load_run(out, overrides={kind: getattr(experiment, kind) for kind in TABLES}, device=str(device))
    decoder = prepared.decoder.to(device)
    trainer = Trainer(decoder, prepared.sampler, experiment.training, out, experiment_digest(out))
    trainer.restore()
    threshold, by_loss = experiment.training.fit_threshold, evaluator_of(experiment.task).by_loss
    if not trainer.run(
        report=report,
        stop=stop,
        fitted=lambda: fit(experiment, decoder).exact_match >= threshold,
        exact_match=None if by_loss else lambda: fit(experiment, decoder, PROGRESS_EXAMPLES).exact_match,
    ):
        return None
    progress = trainer.progress
    facts = {
        "steps": progress.step,
        "fitted": None if by_loss else fit(experiment, decoder).exact_match,
        "id_range": [progress.smallest_id, progress.largest_id],
        "trained_distance": progress.largest_distance,
        "train_s": round(progress.train_s, 3),
    }
    write_model(out, decoder.state_dict(), facts)
    return Run(folder=out, experiment=experiment, decoder=decoder.eval(), facts=facts)


def fit(experiment: Experiment, decoder: Decoder, num_examples: int | None = None) -> LengthResult:
    """Measure exact match at the longest training length, on examples that no other purpose draws."""
    settings = EvaluationSettings(
        lengths=experiment.train_lengths[1:],
        num_examples=(FIT_EXAMPLES if num_examples is None else num_examples,),
        seed=int(stream(experiment.seed, "fit").integers(2**31)),
    )
    return evaluate_by_length(decoder, experiment.task, experiment.scheme, settings)[0]


@check_arguments
def load_run(folder: StrPath, *, overrides: Mapping[str, Any] | None = None, device: str = "auto") -> Run:
    """Read a finished run.

    ``overrides`` holds a ``task``, ``scheme`` or ``encoding`` in place of the saved one. A class of one's own has to be
    overrides again; another encoding with the same weights shows what it changes at evaluation alone.
    """
    folder, target = Path(folder), pick_device(device)
    experiment = read_experiment(folder, overrides=overrides)
    tensors, facts = read_model(folder)
    _check_facts(facts, folder / MODEL)
    tried = check_scheme(experiment) if overrides else []
    decoder = build_decoder(experiment)
    if overrides:
        check_encoding(decoder, tried)
    try:
        decoder.load_state_dict(tensors)
    except RuntimeError:
        if overrides:
            raise RunFolderError(
                f"the weights in {folder} are not those of the {' and '.join(overrides)} overrides to it; "
                "only what has the same weights can take a place"
            ) from None
        raise RunFolderError(f"{folder / MODEL} does not fit its experiment.json; train the run again") from None
    return Run(folder=folder, experiment=experiment, decoder=decoder.to(target).eval(), facts=facts)


def _check_facts(facts: Mapping[str, Any], path: Path) -> None:
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
    try:
        check_values(TrainingFacts, values)
    except SettingError as error:
        raise RunFolderError(f"{path} has facts of no training ({error}); train the run again") from None


@check_arguments
def evaluate(
    run: Run, settings: EvaluationSettings, *, report: Callable[[int, int, int], None] | None = None
) -> list[dict[str, Any]]:
    """Evaluate by length, on each variant that the settings name, and add the rows to the run's ``results.jsonl``.

    Rows hold exact matches, or losses by context length where the task is graded by these. Each is added as soon as its
    length is measured: what ends an evaluation early loses none of them.
    """
    rows = []
    for row in iter_result_rows(run, settings, report=report):
        append_rows(run.folder / RESULTS, [row])
        rows.append(row)
    if seen := seen_lengths(rows):
        warnings.warn(
            f"rows of length {seen} were trained on, some or all; {HELD_OUT}", TrainingOverlapWarning, stacklevel=2
        )
    return rows


def iter_result_rows(
    run: Run, settings: EvaluationSettings, *, report: Callable[[int, int, int], None] | None = None
) -> Iterator[dict[str, Any]]:
    """The rows that ``evaluate`` adds, one by one; what cannot be measured is refused before the first."""
    check_evaluation(run.experiment, settings)
    for variant, task in select_variants(run.experiment.task, settings).items():
        for result in _measured(run, task, settings, report):
            yield _row(run, result, variant)


def _measured(
    run: Run, task: Task, settings: EvaluationSettings, report: Callable[[int, int, int], None] | None
) -> Results:
    scheme, trained = run.experiment.scheme, run.facts["trained_distance"]
    return evaluator_of(task).measure(run.decoder, task, scheme, settings, trained_distance=trained, report=report)


def _row(run: Run, result: LengthResult | ContextLoss, variant: str | None) -> dict[str, Any]:
    experiment = run.experiment
    head = {"head": experiment.decoder.head} if experiment.scheme.predicts_ids else {}
    seen = {"seen_in_training": _seen(run, result.length)} if isinstance(experiment.task, HasRecords) else {}
    return {
        **task_facts(experiment.task),
        "scheme": experiment.scheme.name,
        "encoding": experiment.encoding.name,
        "seed": experiment.seed,
        "variant": variant,
        **asdict(result),
        "train_lengths": list(experiment.train_lengths),
        **{name: run.facts[name] for name in ("id_range", "trained_distance", "steps", "fitted", "train_s")},
        **head,
        **record_facts(experiment.task, result.length),
        **seen,
        "time": now(),
    }


def _seen(run: Run, length: int) -> bool:
    """Whether the run was trained on rows of this length that it is asked; of a file that is gone, on all of them."""
    (first, last), asked = run.experiment.train_lengths, run.experiment.task
    if not first <= length <= last:
        return False
    if read_description(run.folder, RUN_FOLDER)["task"].get("digest") == to_dict(asked).get("digest"):
        return True
    with suppress(LengthwiseError):
        trained = read_experiment(run.folder).task
        return (
            isinstance(asked, HasRecords)
            and isinstance(trained, HasRecords)
            and num_shared_records(asked, trained, length) > 0
        )
    return False
