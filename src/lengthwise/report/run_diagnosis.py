"""Diagnosis of a few runs of a report: the causes in words, and attention on the support by length."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lengthwise.core.errors import LengthwiseError
from lengthwise.evaluation.diagnosis.diagnosis import Diagnosis
from lengthwise.evaluation.diagnosis.report import sentences, tables
from lengthwise.evaluation.result_rows import FIT_THRESHOLD, Rows, label_of
from lengthwise.experiments.run import load_run
from lengthwise.experiments.run_evaluation import diagnose_run
from lengthwise.experiments.run_folder import MODEL
from lengthwise.report.chart import MAX_LINES, Chart, Table, axis, error_bars, hover, line_trace
from lengthwise.report.folders import RunGroup, RunRecord
from lengthwise.tasks import HasLengths

# Maximum number of runs of a group to diagnose, of examples, and of seconds per run, because a report must not take
# minutes.
MAX_RUNS, NUM_EXAMPLES, TIME_LIMIT_S = 3, 64, 30.0


class _TimeLimitError(Exception):
    """Exception that ends a diagnosis that takes too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisSection:
    """Diagnosis of one run: its title, sentences, tables, and the chart of attention on the support or None."""

    title: str
    sentences: Sequence[str]
    tables: Sequence[Table] = ()
    chart: Chart | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """Run that fails at a length beyond training, with the number of examples of its evaluation."""

    run: RunRecord
    length: int
    num_examples: int

    def __str__(self) -> str:
        return f"{self.run.label}, seed {self.run.description.get('seed')}, at length {self.length:,}"


def diagnose_group(group: RunGroup, report: Callable[[str], None] | None = None) -> Iterator[DiagnosisSection]:
    """Yield the diagnosis of the first failing run of each label, for the first ``MAX_RUNS`` labels that have one.

    A run is diagnosed at the shortest length beyond training with an exact match below ``FIT_THRESHOLD``; with fewer
    errors, the causes could not be told. ``report`` receives a line per run.
    """
    failures: list[_Failure] = []
    for label in dict.fromkeys(run.label for run in group.runs):
        of_label = (_find_failure(run, group.rows) for run in group.runs if run.label == label)
        failures += [failure for failure in of_label if failure is not None][:1]
    failures = failures[:MAX_RUNS]
    for number, failure in enumerate(failures, start=1):
        if report is not None:
            report(f"[{number}/{len(failures)}] diagnosing {failure}")
        yield _diagnose(failure)


def _find_failure(run: RunRecord, rows: Rows) -> _Failure | None:
    """Return the failure of a run at its shortest failing length beyond training; None without one or without a model.

    ``rows`` may also contain other runs.
    """
    own_rows = [row for row in rows if label_of(row) == run.label and row["seed"] == run.description.get("seed")]
    failing = [
        row
        for row in own_rows
        if row["length"] > row["train_lengths"][1] and row.get("exact_match", 1.0) < FIT_THRESHOLD
    ]
    if not failing or not (run.folder / MODEL).is_file():
        return None
    shortest = min(failing, key=lambda row: row["length"])
    return _Failure(run=run, length=int(shortest["length"]), num_examples=int(shortest["num_examples"]))


def _diagnose(failure: _Failure) -> DiagnosisSection:
    title, length, folder = str(failure), failure.length, failure.run.folder
    command, option = f'lengthwise diagnose "{folder}"', f"--length {length}"
    deadline = time.monotonic() + TIME_LIMIT_S

    def check_time(stage: str) -> None:
        if time.monotonic() > deadline:
            raise _TimeLimitError

    try:
        loaded_run = load_run(folder, device="cpu")
        task = loaded_run.experiment.task
        if isinstance(task, HasLengths) and length not in task.available_lengths:
            advice = f"to diagnose it, pass the file with this length: {command} --task FILE.jsonl {option}"
            return DiagnosisSection(
                title=title, sentences=[f"The training file has no records of this length; {advice}"]
            )
        # At long lengths, the examples of the evaluation are few, because each takes seconds.
        num_examples = min(NUM_EXAMPLES, failure.num_examples)
        diagnosis = diagnose_run(loaded_run, length, num_examples=num_examples, report=check_time)
    except _TimeLimitError:
        advice = f"without a limit: {command} {option}"
        return DiagnosisSection(
            title=title, sentences=[f"No result: the diagnosis took more than {TIME_LIMIT_S:g} s; {advice}"]
        )
    except LengthwiseError as error:
        return DiagnosisSection(title=title, sentences=[f"No diagnosis: {error}."])
    # The first table has the numbers of the chart.
    all_tables = [Table(title=name, header=header, body=body) for name, header, body in tables(diagnosis)]
    *details, result = sentences(diagnosis)
    return DiagnosisSection(
        title=title, sentences=[result, *details], tables=all_tables[1:], chart=_support_chart(diagnosis, all_tables[0])
    )


def _support_chart(diagnosis: Diagnosis, table: Table) -> Chart:
    """Return exact match, and the attention of heads on the support, against length."""
    lengths = [result.length for result in diagnosis.by_length]
    lines = {"exact match": [result.exact_match for result in diagnosis.by_length]}
    for index, (layer, head) in enumerate(diagnosis.heads[: MAX_LINES - 1]):
        lines[f"attention, layer {layer} head {head}"] = [each.support_mass[index] for each in diagnosis.by_length]
    traces = []
    for index, (name, values) in enumerate(lines.items()):
        texts = [hover(name, f"length {length:,}: {value:.3f}") for length, value in zip(lengths, values, strict=True)]
        traces.append(line_trace(index, lengths, values, texts))
    ranges = [(result.low, result.high) for result in diagnosis.by_length]
    traces[0]["error_y"] = error_bars(lines["exact match"], ranges)
    return Chart(
        title=table.title,
        description=f"Line chart of {table.title} against length, {len(lines)} lines.",
        traces=traces,
        layout={
            "xaxis": axis("length (log scale)", log=True, tickvals=sorted(set(lengths))),
            "yaxis": axis("fraction", range=[-0.04, 1.06]),
        },
        table=table,
        lines=list(lines),
        switches=("log x",),
        notes=["Attention on the support: mean weight of a head on the tokens that an answer depends on."],
    )
