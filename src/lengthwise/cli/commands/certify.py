"""The verb certify: what the theory says of a task, and of a trained run, at lengths beyond training."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lengthwise.cli.flags import WHOLE, EncodingName, Json, SchemeName, TaskName
from lengthwise.cli.parsing import numbers, parse_overrides, refuse, span
from lengthwise.cli.terminal import print_json, print_table, tell, working
from lengthwise.core.errors import SettingError
from lengthwise.core.json_parsing import parse_json
from lengthwise.evaluation.forecast.certificate_report import Certificate, tables, to_json, verdict, write
from lengthwise.experiments.experiment import build_entry, load_task
from lengthwise.experiments.run import load_run
from lengthwise.experiments.run_analysis import certify_run
from lengthwise.tasks import Planted, Task
from lengthwise.theory.law_certificate import LawCertificate, certify_law
from lengthwise.theory.task_certificate import TaskCertificate, certify_task

# Lengths that are asked about by default: of a task, and of a run as multiples of the longest that it was trained on.
LENGTHS = (64, 256)
TIMES = (2, 4, 16)


def certify(
    what: Annotated[
        str,
        typer.Argument(
            metavar="TASK|FILE.json|RUN",
            help="A task, module:Name of your own, a planted law in a file, or the folder of a run.",
        ),
    ],
    lengths: Annotated[
        str | None,
        typer.Option(help="64,256 by default; of a run 2, 4 and 16 times the longest trained."),
    ] = None,
    train_lengths: Annotated[
        str | None,
        typer.Option(help="Shortest and longest trained, such as 1:20; room for what is planted by default."),
    ] = None,
    task: TaskName = None,
    scheme: SchemeName = None,
    encoding: EncodingName = None,
    steps: Annotated[int, typer.Option(**WHOLE, help="Of fitting a head to a planted law.")] = 1000,
    seed: Annotated[int, typer.Option(**WHOLE, help="Of the fit and of what is drawn.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="A folder for certificate.json and a figure.")] = None,
    as_json: Json = False,
) -> None:
    """Check the theory's assumptions on a task or a trained run, and say what follows at longer lengths."""
    own = {"task": task, "scheme": scheme, "encoding": encoding}
    asked = None if lengths is None else numbers(lengths, "lengths")
    path = Path(what)
    if path.is_dir():
        if train_lengths is not None:
            raise SettingError("--train-lengths is for tasks; a run was trained on its own")
        run = load_run(path, overrides=parse_overrides(**own), device="cpu")
        longest = run.experiment.train_lengths[1]
        tested = asked or tuple(times * longest for times in TIMES)
        name = run.experiment.task.name
        work: Callable[[], Certificate] = partial(certify_run, run, tested, seed=seed)
    else:
        refuse("for the folder of a run", **own)
        law, tested = _task(path), asked or LENGTHS
        name = law.name
        work = partial(_certified, law, None if train_lengths is None else span(train_lengths), tested, steps, seed)
    with working(f"certifying {what}"):
        certificate = work()
    if as_json:
        print_json({"task": name, **to_json(certificate)})
    else:
        for title, header, body in tables(certificate):
            print_table(title, header, body, wrap=True)
        tell(f"verdict: {verdict(certificate)}")
    if out is not None:
        figure = write(certificate, out)
        if not as_json:
            tell(f"figure: {figure}")


def _task(path: Path) -> Task:
    """A task of the table, of one's own, or a planted law in a file."""
    what = str(path)
    if path.suffix != ".json":
        return load_task(what)
    try:
        tree = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SettingError(f"'{what}' cannot be read as JSON ({error}); write a planted law") from None
    return build_entry("task", {"name": "planted", **tree})


def _certified(
    task: Task, trained: tuple[int, int] | None, lengths: tuple[int, ...], steps: int, seed: int
) -> LawCertificate | TaskCertificate:
    if isinstance(task, Planted):
        return certify_law(
            task, trained=_room(task) if trained is None else trained, lengths=lengths, steps=steps, seed=seed
        )
    return certify_task(task, trained=20 if trained is None else trained[1], lengths=lengths, seed=seed)


def _room(law: Planted) -> tuple[int, int]:
    """Four spans, as the bounds ask for, and no less than sixteen tokens."""
    reach = law.placement.span
    return law.min_length, max(16, 0 if reach is None else 4 * reach)
