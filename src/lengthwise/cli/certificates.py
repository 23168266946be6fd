"""Certificates that the ``certify`` command computes for tasks, planted laws and counterexamples."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from lengthwise.cli import options
from lengthwise.core.errors import SettingError
from lengthwise.core.files import read_file
from lengthwise.core.json_parsing import parse_json
from lengthwise.evaluation.forecast.certificate_report import Certificate
from lengthwise.experiments.experiment import build_entry, load_task
from lengthwise.tasks import HasLengths, Planted, Task
from lengthwise.theory.counterexample_certificate import certify_counterexample
from lengthwise.theory.counterexamples import COUNTEREXAMPLES
from lengthwise.theory.planted_law_certificate import LawCertificate, certify_law
from lengthwise.theory.task_certificate import TaskCertificate, certify_task

# Default test lengths of a task, and default test lengths of a run as multiples of its longest training length.
DEFAULT_LENGTHS = (64, 256)
DEFAULT_MULTIPLES = (2, 4, 16)
DEFAULT_TRAIN_LENGTH = 20


def default_run_lengths(task: Task, max_train_length: int) -> tuple[int, ...]:
    """Return the default test lengths of a run; for a task file, the nearest lengths of its records."""
    lengths = [multiple * max_train_length for multiple in DEFAULT_MULTIPLES]
    if not isinstance(task, HasLengths):
        return tuple(lengths)
    if max(task.available_lengths) <= max_train_length:
        raise SettingError(
            f"the task file has no record beyond the longest training length {max_train_length}; pass a file with "
            "longer records to --task"
        )
    longer = [length for length in task.available_lengths if length > max_train_length]
    distances = {length: [abs(each - length) for each in longer] for length in lengths}
    return tuple(sorted({longer[each.index(min(each))] for each in distances.values()}))


def _load_task_or_law(path: Path) -> Task:
    if path.suffix != ".json":
        return load_task(str(path))
    try:
        law_settings = parse_json(read_file(path))
    except (OSError, ValueError) as error:
        raise SettingError(
            f"'{path}' cannot be read as JSON ({error}); use a JSON file with the settings of a planted law"
        ) from None
    return build_entry("task", {"name": "planted", **law_settings})


def prepare_certificate(
    target: str, train_lengths: str | None, lengths: tuple[int, ...] | None, steps: int, seed: int
) -> tuple[str, Callable[[], Certificate]]:
    """Return the name of the task, and a function that computes the certificate of a counterexample, task or law."""
    if target in COUNTEREXAMPLES:
        options.reject_flags("applies to a task or a law", **{"train-lengths": train_lengths})
        return Planted.name, partial(certify_counterexample, COUNTEREXAMPLES[target], lengths)
    task_or_law = _load_task_or_law(Path(target))
    train_range = None if train_lengths is None else options.parse_range(train_lengths)
    test_lengths = lengths or DEFAULT_LENGTHS
    return task_or_law.name, partial(_certify_task_or_law, task_or_law, train_range, test_lengths, steps, seed)


def _certify_task_or_law(
    task: Task, train_range: tuple[int, int] | None, lengths: tuple[int, ...], steps: int, seed: int
) -> LawCertificate | TaskCertificate:
    if isinstance(task, Planted):
        return certify_law(task, trained=train_range or _law_lengths(task), lengths=lengths, steps=steps, seed=seed)
    max_trained = DEFAULT_TRAIN_LENGTH if train_range is None else train_range[1]
    return certify_task(task, trained=max_trained, lengths=lengths, seed=seed)


def _law_lengths(law: Planted) -> tuple[int, int]:
    """Return the default training lengths of a law, from its minimum length to 16 tokens or, if larger, four spans.

    The span is the maximum number of tokens from the first to the last planted token; bounds need four spans.
    """
    span = law.placement.span
    return law.min_length, max(16, 0 if span is None else 4 * span)
