"""The ``certify`` command, which predicts results of a task or a trained run beyond the training lengths."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from lengthwise.cli import options
from lengthwise.cli.terminal import print_json, print_line, print_table, show_status
from lengthwise.core.errors import SettingError
from lengthwise.core.json_parsing import parse_json
from lengthwise.evaluation.forecast.certificate_report import Certificate, tables, to_json, verdict, write_report
from lengthwise.experiments.experiment import build_entry, load_task
from lengthwise.experiments.run import load_run
from lengthwise.experiments.run_analysis import certify_run
from lengthwise.tasks import Planted, Task
from lengthwise.theory.counterexample_certificate import certify_counterexample
from lengthwise.theory.counterexamples import COUNTEREXAMPLES
from lengthwise.theory.planted_law_certificate import LawCertificate, certify_law
from lengthwise.theory.task_certificate import TaskCertificate, certify_task

# Default test lengths of a task, and default test lengths of a run as multiples of its longest training length.
DEFAULT_LENGTHS = (64, 256)
DEFAULT_MULTIPLES = (2, 4, 16)
DEFAULT_TRAIN_LENGTH = 20


def certify(
    target: Annotated[
        str,
        Argument(
            metavar="TASK|FILE.json|RUN|COUNTEREXAMPLE",
            help="Task, JSON file with a planted law, run folder, or counterexample (lengthwise list counterexamples).",
        ),
    ],
    lengths: Annotated[
        str | None,
        Option(
            help="Test lengths.",
            show_default="task or law: 64,256; run: 2, 4 and 16 times the training length; counterexample: its own",
        ),
    ] = None,
    train_lengths: Annotated[
        str | None,
        Option(
            help="Range of training lengths of a task or law.",
            show_default="task: up to 20; law: up to 4 times its span, at least 16",
        ),
    ] = None,
    task: options.TaskName = None,
    scheme: options.SchemeName = None,
    encoding: options.EncodingName = None,
    steps: Annotated[
        int, options.integer("Number of optimization steps for fitting an attention head to a planted law.")
    ] = 1000,
    seed: Annotated[int, options.integer("Random seed for fitting and sampling.")] = 0,
    out: Annotated[Path | None, Option("--out", help="Output folder for certificate.json and a figure.")] = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Check the assumptions of the theory for a task or a trained run, and predict accuracy at longer lengths.

    For a counterexample, compute the exact risks of its two heads.
    """
    part_names = {"task": task, "scheme": scheme, "encoding": encoding}
    parsed_lengths = None if lengths is None else options.parse_integers(lengths, "--lengths")
    target_path = Path(target)
    if target_path.is_dir():
        if train_lengths is not None:
            raise SettingError("--train-lengths applies to a task or a law, not to a run; leave out --train-lengths")
        run = load_run(target_path, overrides=options.parse_overrides(**part_names), device="cpu")
        max_train_length = run.experiment.train_lengths[1]
        test_lengths = parsed_lengths or tuple(multiple * max_train_length for multiple in DEFAULT_MULTIPLES)
        name = run.experiment.task.name
        compute_certificate: Callable[[], Certificate] = partial(certify_run, run, test_lengths, seed=seed)
    else:
        options.reject_flags("needs a run folder", **part_names)
        name, compute_certificate = _prepare(target, train_lengths, parsed_lengths, steps, seed)
    with show_status(f"certifying {target}"):
        certificate = compute_certificate()
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


def _load_task_or_law(path: Path) -> Task:
    if path.suffix != ".json":
        return load_task(str(path))
    try:
        law_settings = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SettingError(
            f"'{path}' cannot be read as JSON ({error}); use a JSON file with the settings of a planted law"
        ) from None
    return build_entry("task", {"name": "planted", **law_settings})


def _prepare(
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
