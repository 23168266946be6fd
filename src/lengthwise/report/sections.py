"""Sections of a report: charts, tables and sentences of a group of runs, or of an influence study."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lengthwise.core.errors import LengthwiseError, RunFolderError
from lengthwise.core.type_checks import is_finite
from lengthwise.evaluation.diagnosis.diagnosis import Diagnosis, LengthSummary
from lengthwise.evaluation.diagnosis.report import describe_diagnosis, diagnosis_tables
from lengthwise.evaluation.result_rows import FIT_THRESHOLD, Rows, is_skipped, label_without_variant
from lengthwise.experiments.run import load_run
from lengthwise.experiments.run_evaluation import diagnose_run
from lengthwise.experiments.run_folder import MODEL
from lengthwise.experiments.run_states import RunState
from lengthwise.influence.report.study_report import render_study
from lengthwise.influence.report.summary import SOURCE_LABELS, summary_tables
from lengthwise.influence.study import SUMMARY_FILE
from lengthwise.report.chart import (
    MAX_LINES,
    Chart,
    ChartPoint,
    ReportTable,
    axis_layout,
    interval_text,
    line_chart,
    number_text,
)
from lengthwise.report.folders import RunGroup, RunRecord, StudyRecord, select_finite_rows
from lengthwise.report.result_charts import accuracy_chart, group_into_panels, heat_map, loss_charts
from lengthwise.tasks import HasFixedLengths

# Maximum number of tasks and variants of a group with charts.
MAX_PANELS = 12
# Maximum number of labels with their own column in a table of settings, and of distinct values in a cell.
MAX_COLUMNS = MAX_VALUES = 8
SEED = "seed"
# Maximum number of runs of a group to diagnose, of examples, and of seconds per run, because a report must not take
# minutes.
MAX_RUNS, NUM_EXAMPLES, TIME_LIMIT_S = 3, 64, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisSection:
    """Diagnosis of one run: its title, sentences, tables, and the chart of attention on the needed tokens or None."""

    title: str
    sentences: Sequence[str]
    tables: Sequence[ReportTable] = ()
    chart: Chart | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSection:
    """Section of the page for one group of runs or one study. ``texts`` is the page of a study with its texts."""

    title: str
    sentences: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[ReportTable] = ()
    folded_tables: Sequence[ReportTable] = ()
    diagnoses: Sequence[DiagnosisSection] = field(default=())
    texts: str | None = None


def build_group_section(group: RunGroup, report: Callable[[str], None] | None, *, diagnose: bool) -> ReportSection:
    """Return the section of a group of runs; ``diagnose`` adds the diagnosis of a few failing runs."""
    finite_rows, omissions = select_finite_rows(group.rows)
    all_panels = list(group_into_panels(finite_rows))
    charts: list[Chart] = []
    drawn_labels: dict[str, None] = {}
    for title, rows in all_panels[:MAX_PANELS]:
        charts.append(accuracy_chart(title, rows))
        drawn_labels |= dict.fromkeys(charts[-1].lines)
        if len({row["row"] for row in rows}) > 1:
            charts.append(heat_map(title, rows))
    curves, omitted_losses = loss_charts(group.runs, list(drawn_labels))
    states, state_tables = _describe_states(group.states)
    num_labels = len({run.label for run in group.runs} or {label_without_variant(row) for row in group.rows})
    num_omitted = len(all_panels) - MAX_PANELS
    settings = _setting_tables(group.runs) if group.runs else []
    measurements = []
    if group.measurements:
        names = [name for name, value in group.measurements[0].items() if not isinstance(value, list | dict)]
        body = [[f"{row.get(name, '-')}" for name in names] for row in group.measurements]
        measurements.append(ReportTable("Measurements of the claim", names, body))
    return ReportSection(
        title=f"{group.kind} {group.name}" if group.kind != "runs" else group.name,
        sentences=[
            f"Configurations: {num_labels:,}. Runs: {len(group.runs):,}. Result rows: {len(group.rows):,}.",
            *states,
            *omissions,
            *omitted_losses,
            *([f"Only in the table: {num_omitted:,} more tasks or variants."] if num_omitted > 0 else []),
        ],
        charts=[*charts, *curves],
        tables=[*state_tables, *settings[:-1]],
        folded_tables=[*settings[-1:], *_row_tables(group.rows), *measurements],
        diagnoses=list(_diagnose_group(replace(group, rows=finite_rows), report)) if diagnose else [],
    )


def _row_tables(rows: Rows) -> list[ReportTable]:
    """Return a table of the rows with exact match, and one of the rows with losses, without empty tables."""
    bodies: dict[str, list[list[str]]] = {"exact match": [], "loss": []}
    for row in rows:
        name, value = ("loss", row["loss"]) if "loss" in row else ("exact match", row["exact_match"])
        value_text = "0 (skipped)" if is_skipped(row) else number_text(value)
        cells = [f"{row['length']:,}", f"{row['num_examples']:,}", value_text, interval_text(row["low"], row["high"])]
        fit = number_text(row["fitted"])
        bodies[name].append([str(row["row"]), str(row["task"]), str(row["seed"]), *cells, f"{row['steps']:,}", fit])
    first, last = ["configuration", "task", "seed", "length", "n"], ["95% interval", "steps", "fit in training"]
    return [
        ReportTable(f"All result rows with {name}", [*first, name, *last], body)
        for name, body in bodies.items()
        if body
    ]


def _describe_states(states: Sequence[RunState]) -> tuple[list[str], list[ReportTable]]:
    """Return a sentence and a table of unfinished runs and runs without results, or nothing for no states."""
    if not states:
        return [], []
    title, body = "Unfinished runs and runs without results", []
    for state in states:
        name = "finished, not evaluated" if state.state == "finished" else state.state
        steps = _value_text(state.step) + ("" if state.num_steps is None else f" of {_value_text(state.num_steps)}")
        body.append([state.name, name, steps, _value_text(state.loss)])
    counts = "; ".join(f"{count:,} {name}" for name, count in Counter(name for _, name, *_ in body).items())
    return [f"{title}: {counts}."], [ReportTable(title, ["run", "state", "step", "loss"], body)]


def _value_text(value: Any) -> str:
    """Return the text of a value of a file that is not checked."""
    if type(value) is int:
        return f"{value:,}"
    return "-" if value is None else f"{value:.4g}" if type(value) is float else str(value)


def _setting_tables(runs: Sequence[RunRecord]) -> list[ReportTable]:
    """Return a table of the settings that differ between labels, and a table of those that all labels share.

    Without differences, the first table is omitted. The seed is not a difference, because it differs in every run.
    """
    first_runs: dict[str, dict[str, str]] = {}
    for run in runs:
        if run.label not in first_runs:
            first_runs[run.label] = dict(_flatten(run.description))
    names = list(dict.fromkeys(name for settings in first_runs.values() for name in settings if name != SEED))
    values = {name: [settings.get(name, "-") for settings in first_runs.values()] for name in names}
    differing = {name: row for name, row in values.items() if len(set(row)) > 1}
    shared_rows = [[name, row[0]] for name, row in values.items() if name not in differing]
    shared = ReportTable("Settings that all runs share", ["setting", "value"], shared_rows)
    return [_differences(differing, list(first_runs)), shared] if differing else [shared]


def _differences(differing: Mapping[str, Sequence[str]], labels: Sequence[str]) -> ReportTable:
    """Return a table with a column per label, in which rare values are marked, or with counts for many labels."""
    body, marked = [], set()
    for index, (name, row) in enumerate(differing.items()):
        counts = Counter(row)
        if len(labels) > MAX_COLUMNS:
            frequent = [f"{value} ({count:,})" for value, count in counts.most_common(MAX_VALUES)]
            omitted = [f"{len(counts) - MAX_VALUES:,} more values"] if len(counts) > MAX_VALUES else []
            body.append([name, ", ".join(frequent + omitted)])
            continue
        most_common = counts.most_common(1)[0][0]
        marked |= {(index, column + 1) for column, value in enumerate(row) if value != most_common}
        body.append([name, *row])
    header = ["setting", "values (number of configurations)"] if len(labels) > MAX_COLUMNS else ["setting", *labels]
    return ReportTable("Settings that differ", header, body, frozenset(marked))


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the text of each value of a nested mapping, such as ``training.steps``."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)


def build_influence_section(study: StudyRecord, max_bytes: int) -> ReportSection:
    """Return the section of an influence study, with texts of at most about ``max_bytes``."""
    path = study.folder / SUMMARY_FILE
    try:
        texts = _study_page(study, max_bytes)
        notes = [f"{study.summary['targets']:,} targets in {study.summary['documents']:,} texts."]
        if texts is not None and texts[1]:
            notes.append(f"The texts below omit {texts[1]:,} more targets, which keeps the page small.")
        return ReportSection(
            title=f"influence study {study.name}",
            sentences=[str(study.summary["answer"]["sentence"]), *notes],
            charts=study_charts(study),
            # A damaged summary can have a label of another type.
            tables=[
                ReportTable(title, header, [[*map(str, row)] for row in body])
                for title, header, body in summary_tables(study.summary)
            ],
            texts=None if texts is None else texts[0],
        )
    except KeyError as error:
        raise RunFolderError(
            f"{path} or its page has no value {error}; delete this file, and repeat the study"
        ) from error
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise RunFolderError(
            f"{path} or its page has an invalid value ({error}); delete this file, and repeat the study"
        ) from error


def study_charts(study: StudyRecord) -> list[Chart]:
    """Return the share of the prediction that k far tokens recover, and the distances of the selected tokens.

    A chart without any number is omitted.
    """
    charts = (_recovery_chart(study.summary), _distance_chart(study.summary))
    return [chart for chart in charts if chart is not None]


def _study_page(study: StudyRecord, max_bytes: int) -> tuple[str, int] | None:
    """Return a page of at most about ``max_bytes`` with the texts, and the number of omitted targets, or None.

    Targets are omitted evenly over each text until the page is small enough, then whole texts.
    """
    if study.texts is None:
        return None
    texts = dict(study.texts)
    num_targets = _count_targets(texts)
    while texts["documents"] and len(json.dumps(texts)) > max_bytes:
        if any(len(document["targets"]) > 1 for document in texts["documents"]):
            halved = [{**document, "targets": document["targets"][::2]} for document in texts["documents"]]
        else:
            halved = list(texts["documents"][: len(texts["documents"]) // 2])
        texts["documents"] = halved
    return render_study(texts), num_targets - _count_targets(texts)


def _count_targets(texts: Mapping[str, Any]) -> int:
    return sum(len(document["targets"]) for document in texts["documents"])


def _selection_name(group: Mapping[str, Any]) -> str:
    return f"{group['mode']}, {group['knows']}, {SOURCE_LABELS[group['from']]}, {group['measure']}"


def _recovery_chart(summary: Mapping[str, Any]) -> Chart | None:
    lines: list[tuple[str, list[ChartPoint]]] = []
    body: list[list[str]] = []
    num_omitted = 0
    for group in summary["groups"]:
        name, points = _selection_name(group), []
        for k, share in zip(summary["ks"], group["all_targets"]["prediction"]["shares"], strict=True):
            if not is_finite(value := share["value"]):
                num_omitted += value is not None
                continue
            bounds = [value if share[bound] is None else share[bound] for bound in ("low", "high")]
            points.append(ChartPoint(k, value, (f"k = {k}: {value:.3f}", _interval(share)), bounds))
            body.append([name, str(k), f"{value:.3f}", _interval(share)])
        if points and len(lines) < MAX_LINES:
            lines.append((name, points))
    if not lines:
        return None
    title = "share of the prediction that k far tokens recover"
    notes = ["1 - KL(k) / KL(short) over all targets. Bars: 95% interval over resampled documents."]
    if num_omitted:
        notes.append(f"The chart leaves out {num_omitted:,} shares that are not finite.")
    return line_chart(
        title,
        lines,
        subject=f"the {title}",
        x=axis_layout("k (log scale)", log=True, tickvals=list(summary["ks"])),
        y=axis_layout("recovered share"),
        table=ReportTable(title, ["selection", "k", "recovered share", "95% interval"], body),
        notes=notes,
    )


def _interval(share: Mapping[str, Any]) -> str:
    if share["low"] is None or share["high"] is None:
        return "no interval"
    return f"95% interval {share['low']:.3f} to {share['high']:.3f}"


def _distance_chart(summary: Mapping[str, Any]) -> Chart | None:
    lines: list[tuple[str, list[ChartPoint]]] = []
    body: list[list[str]] = []
    for group in summary["groups"]:
        if group["from"] != "own" or not group["distances"]["gain"] or len(lines) == MAX_LINES:
            continue
        name, points = _selection_name(group), []
        for distances in group["distances"]["bins"]:
            first, share = distances["from"], distances["gain_share"]
            distance = f"{first:,} to {distances['to']:,}"
            points.append(ChartPoint(first, share, [f"distance {distance}: {share:.3f} of the gain"]))
            body.append([name, distance, f"{share:.3f}"])
        lines.append((name, points))
    if not lines:
        return None
    title = "distances of selected far tokens"
    return line_chart(
        title,
        lines,
        subject="the share of the gain against the distance of selected tokens",
        x=axis_layout("distance (log scale)", log=True),
        y=axis_layout("share of the gain"),
        table=ReportTable(title, ["selection", "distance", "share of the gain"], body),
        notes=["Targets with a clear gain; a point is at the smallest distance of its bin."],
    )


class _TimeLimitError(Exception):
    """Exception that ends a diagnosis that takes too long."""


def _diagnose_group(group: RunGroup, report: Callable[[str], None] | None) -> Iterator[DiagnosisSection]:
    """Yield the diagnosis of the first failing run of each label, for the first ``MAX_RUNS`` labels that have one.

    A run is diagnosed at the shortest length beyond training with an exact match below ``FIT_THRESHOLD``; with fewer
    errors, the causes could not be told. ``report`` receives a line per run.
    """
    failures: dict[str, tuple[RunRecord, Mapping[str, Any]]] = {}
    for run in group.runs:
        failing = [
            row
            for row in group.rows
            if (label_without_variant(row), row["seed"]) == (run.label, run.description.get("seed"))
            and row["length"] > row["train_lengths"][1]
            and row.get("exact_match", 1.0) < FIT_THRESHOLD
        ]
        if failing and run.label not in failures and (run.folder / MODEL).is_file():
            failures[run.label] = run, min(failing, key=lambda row: int(row["length"]))
    diagnosed = list(failures.values())[:MAX_RUNS]
    for number, (run, row) in enumerate(diagnosed, start=1):
        title = f"{run.label}, seed {run.description.get('seed')}, at length {row['length']:,}"
        if report is not None:
            report(f"[{number}/{len(diagnosed)}] diagnosing {title}")
        diagnosis = _diagnose(run.folder, int(row["length"]), int(row["num_examples"]))
        if isinstance(diagnosis, str):
            yield DiagnosisSection(title=title, sentences=[diagnosis])
            continue
        # The first table has the numbers of the chart.
        first, *others = (ReportTable(*table) for table in diagnosis_tables(diagnosis))
        *details, result = describe_diagnosis(diagnosis)
        chart = _needed_mass_chart(diagnosis, first)
        yield DiagnosisSection(title=title, sentences=[result, *details], tables=others, chart=chart)


def _diagnose(folder: Path, length: int, num_examples: int) -> Diagnosis | str:
    """Return the diagnosis of a run at a length, or why it cannot be made."""
    command, option = f'lengthwise diagnose "{folder}"', f"--length {length}"
    deadline = time.monotonic() + TIME_LIMIT_S

    def check_time(stage: str) -> None:
        if time.monotonic() > deadline:
            raise _TimeLimitError

    try:
        loaded_run = load_run(folder, device="cpu")
        task = loaded_run.experiment.task
        if isinstance(task, HasFixedLengths) and length not in task.available_lengths:
            advice = f"to diagnose it, pass the file with this length: {command} --task FILE.jsonl {option}"
            return f"The training file has no records of this length; {advice}"
        # At long lengths, the examples of the evaluation are few, because each takes seconds.
        return diagnose_run(loaded_run, length, num_examples=min(NUM_EXAMPLES, num_examples), report=check_time)
    except _TimeLimitError:
        advice = f"without a limit: {command} {option}"
        return f"No result: the diagnosis took more than {TIME_LIMIT_S:g} s; {advice}"
    except LengthwiseError as error:
        return f"No diagnosis: {error}."


def _needed_mass_chart(diagnosis: Diagnosis, table: ReportTable) -> Chart:
    """Return exact match, and the attention of heads on the needed tokens, against length."""

    def point(result: LengthSummary, value: float, interval: Sequence[float] | None = None) -> ChartPoint:
        return ChartPoint(result.length, value, [f"length {result.length:,}: {value:.3f}"], interval)

    results = diagnosis.by_length
    lines = [("exact match", [point(result, result.exact_match, (result.low, result.high)) for result in results])]
    for index, (layer, head) in enumerate(diagnosis.heads[: MAX_LINES - 1]):
        points = [point(result, result.needed_mass[index]) for result in results]
        lines.append((f"attention, layer {layer} head {head}", points))
    return line_chart(
        table.title,
        lines,
        subject=f"{table.title} against length",
        x=axis_layout("length (log scale)", log=True, tickvals=sorted({result.length for result in results})),
        y=axis_layout("fraction", range=[-0.04, 1.06]),
        table=table,
        notes=["Attention on the needed tokens: mean weight of a head on the tokens that an answer depends on."],
    )
