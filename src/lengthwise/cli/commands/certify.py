"""The ``certify`` command: predict results of a task or a trained run beyond its training lengths."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lengthwise.cli import options
from lengthwise.cli.terminal import print_json, print_line, print_table, show_status
from lengthwise.core.errors import SettingError
from lengthwise.core.json_parsing import parse_json
from lengthwise.evaluation.forecast.certificate_report import Certificate, tables, to_json, verdict, write_report
from lengthwise.experiments.experiment import build_entry, load_task
from lengthwise.experiments.run import load_run
from lengthwise.experiments.run_analysis import certify_run
from lengthwise.tasks import Planted, Task
from lengthwise.theory.planted_law_certificate import LawCertificate, certify_law
from lengthwise.theory.task_certificate import TaskCertificate, certify_task

# Default lengths: for a task, and for a run as multiples of its longest training length.
LENGTHS = (64, 256)
MULTIPLES = (2, 4, 16)
# Default of the longest training length of a task.
TRAIN_LENGTH = 20


def certify(
    target: Annotated[
        str, typer.Argument(metavar="TASK|FILE.json|RUN", help="Task, JSON file of a planted law, or run folder.")
    ],
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Test lengths.", show_default="task or law: 64,256; run: 2, 4 and 16 times its training length"
        ),
    ] = None,
    train_lengths: Annotated[
        str | None,
        typer.Option(
            help="Training lengths of a task or law, such as 1:20.", show_default="task: up to 20; law: up to 4 spans"
        ),
    ] = None,
    task: options.TaskName = None,
    scheme: options.SchemeName = None,
    encoding: options.EncodingName = None,
    steps: Annotated[int, options.integer("Optimization steps of the head fitted to a law.")] = 1000,
    seed: Annotated[int, options.integer("Random seed of the fit and of the samples.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for certificate.json and a figure.")] = None,
    as_json: options.Json = False,
) -> None:
    """Check the assumptions of the theory on a task or a trained run, and predict accuracy at longer lengths."""
    parts = {"task": task, "scheme": scheme, "encoding": encoding}
    given_lengths = None if lengths is None else options.parse_integers(lengths, "--lengths")
    path = Path(target)
    if path.is_dir():
        if train_lengths is not None:
            raise SettingError("--train-lengths needs a task; a run has its own training lengths, so leave it out")
        run = load_run(path, overrides=options.parse_overrides(**parts), device="cpu")
        longest = run.experiment.train_lengths[1]
        test_lengths = given_lengths or tuple(multiple * longest for multiple in MULTIPLES)
        name = run.experiment.task.name
        work: Callable[[], Certificate] = partial(certify_run, run, test_lengths, seed=seed)
    else:
        options.reject_flags("needs a run folder", **parts)
        task_or_law, test_lengths = _task(path), given_lengths or LENGTHS
        name = task_or_law.name
        trained = None if train_lengths is None else options.parse_range(train_lengths)
        work = partial(_certify, task_or_law, trained, test_lengths, steps, seed)
    with show_status(f"certifying {target}"):
        certificate = work()
    if as_json:
        print_json({"task": name, **to_json(certificate)})
    else:
        for title, header, body in tables(certificate):
            print_table(title, header, body, wrap=True)
        print_line(f"verdict: {verdict(certificate)}")
    if out is not None:
        figure = write_report(certificate, out)
        if not as_json:
            print_line(f"figure: {figure}")


def _task(path: Path) -> Task:
    """Return a task by name, or the planted law of a JSON file."""
    if path.suffix != ".json":
        return load_task(str(path))
    try:
        tree = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SettingError(f"'{path}' cannot be read as JSON ({error}); use a file with a planted law") from None
    return build_entry("task", {"name": "planted", **tree})


def _certify(
    task: Task, trained: tuple[int, int] | None, lengths: tuple[int, ...], steps: int, seed: int
) -> LawCertificate | TaskCertificate:
    if isinstance(task, Planted):
        return certify_law(
            task, trained=_law_lengths(task) if trained is None else trained, lengths=lengths, steps=steps, seed=seed
        )
    return certify_task(task, trained=TRAIN_LENGTH if trained is None else trained[1], lengths=lengths, seed=seed)


def _law_lengths(law: Planted) -> tuple[int, int]:
    """Return training lengths up to four spans, which the bounds need, and at least 16 tokens."""
    span = law.placement.span
    return law.min_length, max(16, 0 if span is None else 4 * span)
