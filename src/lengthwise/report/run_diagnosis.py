"""Diagnosis of a few runs of a report: the causes in words, and attention on the support by length."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lengthwise.core.errors import LengthwiseError
from lengthwise.evaluation.diagnosis.diagnosis import Diagnosis
from lengthwise.evaluation.diagnosis.report import sentences, tables
from lengthwise.evaluation.result_rows import FIT_THRESHOLD, Rows, label_of
from lengthwise.experiments.run import load_run
from lengthwise.experiments.run_analysis import diagnose_run
from lengthwise.experiments.run_folder import MODEL
from lengthwise.report.chart import MAX_LINES, Chart, Table, axis, error_bars, hover, line_trace
from lengthwise.report.folders import RunGroup, RunRecord
from lengthwise.tasks import HasLengths

# Maximum number of runs of a group to diagnose, and of examples, because a report must not take minutes.
MAX_RUNS, NUM_EXAMPLES = 3, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisSection:
    """Diagnosis of one run: its title, sentences, tables, and the chart of attention on the support or None."""

    title: str
    sentences: Sequence[str]
    tables: Sequence[Table] = ()
    chart: Chart | None = None


def diagnose_group(group: RunGroup) -> Iterator[DiagnosisSection]:
    """Yield the diagnosis of the first run of each of the first labels that have a length beyond training."""
    num_sections = 0
    for label in dict.fromkeys(run.label for run in group.runs):
        run = next(each for each in group.runs if each.label == label)
        seed = run.description.get("seed")
        rows = [row for row in group.rows if label_of(row) == label and row["seed"] == seed]
        length = _failing_length(rows)
        if length is None or not (run.folder / MODEL).is_file():
            continue
        yield _diagnose(run, length)
        num_sections += 1
        if num_sections == MAX_RUNS:
            return


def _failing_length(rows: Rows) -> int | None:
    """Return the shortest length beyond training with wrong answers, or else the longest; None without any."""
    beyond = [row for row in rows if "exact_match" in row and row["length"] > row["train_lengths"][1]]
    failing = [int(row["length"]) for row in beyond if row["exact_match"] < FIT_THRESHOLD]
    if failing:
        return min(failing)
    return max((int(row["length"]) for row in beyond), default=None)


def _diagnose(run: RunRecord, length: int) -> DiagnosisSection:
    title = f"{run.label}, seed {run.description.get('seed')}, at length {length:,}"
    try:
        loaded_run = load_run(run.folder, device="cpu")
        task = loaded_run.experiment.task
        if isinstance(task, HasLengths) and length not in task.available_lengths:
            command = f'lengthwise diagnose "{run.folder}" --task FILE.jsonl --length {length}'
            advice = f"to diagnose it, pass the file with this length: {command}"
            return DiagnosisSection(
                title=title, sentences=[f"The training file has no records of this length; {advice}"]
            )
        diagnosis = diagnose_run(loaded_run, length, num_examples=NUM_EXAMPLES)
    except LengthwiseError as error:
        return DiagnosisSection(title=title, sentences=[f"no diagnosis: {error}"])
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
