"""The ``certify`` command, which predicts results of a task or a trained run beyond the training lengths."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from lengthwise.cli import options
from lengthwise.cli.terminal import print_json, print_line, print_table, show_status
from lengthwise.core.errors import SettingError
from lengthwise.core.files import read_file
from lengthwise.core.json_parsing import parse_json

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
            show_default="task or law: 64,256; run: 2, 4 and 16 times the training length (task file: the nearest "
            "lengths); counterexample: its own",
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
        int, options.integer_option("Number of optimization steps for fitting an attention head to a planted law.")
    ] = 1000,
    seed: Annotated[int, options.integer_option("Random seed for fitting and sampling.")] = 0,
    out: Annotated[Path | None, Option("--out", help="Output folder for certificate.json and a figure.")] = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Check the assumptions of the theory for a task or a trained run, and predict accuracy at longer lengths.

    For a counterexample, compute the exact risks of its two heads.
    """
    from lengthwise.cli.experiment_options import load_run_with_overrides
    from lengthwise.evaluation.forecast.certificate_report import (
        certificate_tables,
        certificate_to_json,
        certificate_verdict,
        write_report,
    )
    from lengthwise.experiments.run_evaluation import certify_run

    parsed_lengths = None if lengths is None else options.parse_integers(lengths, "--lengths")
    target_path = Path(target)
    if target_path.is_dir():
        if train_lengths is not None:
            raise SettingError("--train-lengths applies to a task or a law, not to a run; leave out --train-lengths")
        run = load_run_with_overrides(target, task, scheme, encoding)
        name = run.experiment.task.name
        test_lengths = parsed_lengths or _default_run_lengths(run.experiment.task, run.experiment.train_lengths[1])
        with show_status(f"certifying {target}"):
            certificate: Any = certify_run(run, test_lengths, seed=seed)
    else:
        options.reject_flags("needs a run folder", task=task, scheme=scheme, encoding=encoding)
        with show_status(f"certifying {target}"):
            name, certificate = _certify_without_run(target, train_lengths, parsed_lengths, steps, seed)
    if as_json:
        print_json({"task": name, **certificate_to_json(certificate)})
    else:
        for title, header, body in certificate_tables(certificate):
            print_table(title, header, body, wrap=True)
        print_line(f"verdict: {certificate_verdict(certificate)}")
    if out is not None:
        figure = write_report(certificate, out)
        if not as_json:
            print_line(f"figure: {figure}")


def _default_run_lengths(task: Any, max_train_length: int) -> tuple[int, ...]:
    """Return the default test lengths of a run; for a task file, the nearest lengths of its records."""
    from lengthwise.tasks import HasFixedLengths

    lengths = [multiple * max_train_length for multiple in DEFAULT_MULTIPLES]
    if not isinstance(task, HasFixedLengths):
        return tuple(lengths)
    longer = [length for length in task.available_lengths if length > max_train_length]
    if not longer:
        raise SettingError(
            f"the task file has no record beyond the longest training length {max_train_length}; pass a file with "
            "longer records to --task"
        )
    nearest = {min(longer, key=lambda candidate: abs(candidate - length)) for length in lengths}
    return tuple(sorted(nearest))


def _certify_without_run(
    target: str, train_lengths: str | None, lengths: tuple[int, ...] | None, steps: int, seed: int
) -> tuple[str, Any]:
    """Return the name of the task, and the certificate of a counterexample, task or law."""
    from lengthwise.tasks import PlantedCorrelations
    from lengthwise.theory.counterexamples import COUNTEREXAMPLES, certify_counterexample
    from lengthwise.theory.planted_task_certificate import certify_planted_task
    from lengthwise.theory.task_certificate import certify_task

    if target in COUNTEREXAMPLES:
        options.reject_flags("applies to a task or a law", **{"train-lengths": train_lengths})
        return PlantedCorrelations.name, certify_counterexample(COUNTEREXAMPLES[target], lengths)
    task = _load_task_or_law(Path(target))
    train_range = None if train_lengths is None else options.parse_range(train_lengths)
    test_lengths = lengths or DEFAULT_LENGTHS
    if isinstance(task, PlantedCorrelations):
        if train_range is None:
            # Bounds need four spans: the number of tokens from the first to the last planted token.
            train_range = task.min_length, max(16, 4 * (task.placement.max_span or 0))
        return task.name, certify_planted_task(task, trained=train_range, lengths=test_lengths, steps=steps, seed=seed)
    max_trained = DEFAULT_TRAIN_LENGTH if train_range is None else train_range[1]
    return task.name, certify_task(task, trained=max_trained, lengths=test_lengths, seed=seed)


def _load_task_or_law(path: Path) -> Any:
    from lengthwise.experiments.experiment import build_from_json, load_task

    if path.suffix != ".json":
        return load_task(str(path))
    try:
        law_settings = parse_json(read_file(path))
    except (OSError, ValueError) as error:
        raise SettingError(
            f"'{path}' cannot be read as JSON ({error}); use a JSON file with the settings of a planted law"
        ) from None
    return build_from_json("task", {"name": "planted", **law_settings})
