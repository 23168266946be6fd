"""The ``certify`` command, which predicts results of a task or a trained run beyond the training lengths."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from lengthwise.cli import options
from lengthwise.cli.terminal import print_json, print_line, print_table, show_status
from lengthwise.core.errors import SettingError


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
        int, options.integer("Number of optimization steps for fitting an attention head to a planted law.")
    ] = 1000,
    seed: Annotated[int, options.integer("Random seed for fitting and sampling.")] = 0,
    out: Annotated[Path | None, Option("--out", help="Output folder for certificate.json and a figure.")] = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Check the assumptions of the theory for a task or a trained run, and predict accuracy at longer lengths.

    For a counterexample, compute the exact risks of its two heads.
    """
    from lengthwise.cli import certificates, experiment_options
    from lengthwise.evaluation.forecast.certificate_report import Certificate, tables, to_json, verdict, write_report
    from lengthwise.experiments.run import load_run
    from lengthwise.experiments.run_evaluation import certify_run

    part_names = {"task": task, "scheme": scheme, "encoding": encoding}
    parsed_lengths = None if lengths is None else options.parse_integers(lengths, "--lengths")
    target_path = Path(target)
    if target_path.is_dir():
        if train_lengths is not None:
            raise SettingError("--train-lengths applies to a task or a law, not to a run; leave out --train-lengths")
        run = load_run(target_path, overrides=experiment_options.parse_overrides(**part_names), device="cpu")
        max_train_length = run.experiment.train_lengths[1]
        test_lengths = parsed_lengths or certificates.default_run_lengths(run.experiment.task, max_train_length)
        name = run.experiment.task.name
        compute_certificate: Callable[[], Certificate] = partial(certify_run, run, test_lengths, seed=seed)
    else:
        options.reject_flags("needs a run folder", **part_names)
        name, compute_certificate = certificates.prepare_certificate(target, train_lengths, parsed_lengths, steps, seed)
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
