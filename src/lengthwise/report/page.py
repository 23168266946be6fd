"""Page of a report: one HTML file with all charts, tables and scripts, which loads no other file."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lengthwise.core.errors import RunFolderError, SettingError
from lengthwise.core.files import StrPath, check_output_file, write_atomically
from lengthwise.core.progress_line import escape
from lengthwise.core.type_checks import check_arguments
from lengthwise.evaluation.result_rows import Rows, is_skipped, label_of
from lengthwise.experiments.progress_reports import AUTO, line_report
from lengthwise.influence.report.page import TEMPLATE_FOLDER as STUDY_TEMPLATES
from lengthwise.influence.study import SUMMARY_FILE
from lengthwise.report.accuracy_charts import accuracy_chart, panels
from lengthwise.report.chart import SYMBOLS, Chart, Table, interval_text, is_dashed, number_text, symbol_name
from lengthwise.report.folders import RunGroup, StudyRecord, read_folders
from lengthwise.report.heat_map import heat_map
from lengthwise.report.loss_curves import loss_charts
from lengthwise.report.result_checks import select_finite
from lengthwise.report.run_diagnosis import DiagnosisSection, diagnose_group
from lengthwise.report.run_state_tables import describe_states
from lengthwise.report.setting_tables import setting_tables
from lengthwise.report.study_section import study_charts, study_page, study_tables

TEMPLATE_FOLDER = Path(__file__).parent
# Maximum size of the texts of all studies, which limits the size of the page.
MAX_TEXT_BYTES = 1_500_000
# Text at the start of each page, which a later report may replace.
MARK = '<meta name="generator" content="lengthwise report">'
# Maximum number of tasks and variants of a group with charts.
MAX_PANELS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Section of the page for one group of runs or one study. ``texts`` is the page of a study with its texts."""

    title: str
    sentences: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    folded_tables: Sequence[Table] = ()
    diagnoses: Sequence[DiagnosisSection] = field(default=())
    texts: str | None = None


@check_arguments
def write_report(
    folders: Sequence[StrPath],
    out: StrPath,
    *,
    diagnose: bool = True,
    report: Callable[[str], None] | str | None = AUTO,
) -> dict[str, int]:
    """Write a page about the folders to the file ``out``; return the numbers of runs, rows, studies and bytes.

    A folder is a run, comparison, sweep, claim, influence study, or evaluation of a model. With ``diagnose``, a few
    runs of each group are diagnosed at the shortest length beyond training that they fail at. ``report`` receives a
    line per diagnosis; by default, the lines are visible in terminals and notebooks. Raises ``SettingError`` if ``out``
    does not end in .html or if the library plotly is not installed, and ``RunFolderError`` for other folders, for
    damaged files, and if ``out`` is a link or a file other than an earlier report.
    """
    if Path(out).suffix.lower() != ".html":
        raise SettingError(f"the page {out} does not end in .html; use a name such as report.html")
    check_output_file(Path(out), MARK.encode())
    if not folders:
        raise SettingError("a report of no folders; pass at least one output folder of train, compare or influence")
    report_line = line_report(report)
    script = _plotly_script()
    groups, studies = read_folders([Path(folder) for folder in folders])
    sections = [_group_section(group, report_line, diagnose=diagnose) for group in groups]
    sections += [_study_section(study, MAX_TEXT_BYTES // len(studies)) for study in studies]
    content = _render(sections, script).encode()
    write_atomically(Path(out), content)
    return {
        "runs": sum(len(group.runs) for group in groups),
        "rows": sum(len(group.rows) for group in groups),
        "studies": len(studies),
        "bytes": len(content),
    }


def _plotly_script() -> str:
    """Return the JavaScript of Plotly from its Python package."""
    try:
        plotly: Any = import_module("plotly.offline")
    except ImportError:
        raise SettingError("a report needs the plotly library; run pip install 'lengthwise[report]'") from None
    # A closing tag in a string would end the script.
    script: str = plotly.get_plotlyjs().replace("</script", "<\\/script").replace("<!--", "<\\!--")
    return script


def _group_section(group: RunGroup, report: Callable[[str], None] | None, *, diagnose: bool) -> Section:
    finite_rows, omissions = select_finite(group.rows)
    all_panels = list(panels(finite_rows))
    charts: list[Chart] = []
    drawn_labels: dict[str, None] = {}
    for title, rows in all_panels[:MAX_PANELS]:
        charts.append(accuracy_chart(title, rows))
        drawn_labels |= dict.fromkeys(charts[-1].lines)
        if len({row["row"] for row in rows}) > 1:
            charts.append(heat_map(title, rows))
    curves, omitted_losses = loss_charts(group.runs, list(drawn_labels))
    states, state_tables = describe_states(group.states)
    num_labels = len({run.label for run in group.runs} or {label_of(row) for row in group.rows})
    num_omitted = len(all_panels) - MAX_PANELS
    tables = setting_tables(group.runs) if group.runs else []
    return Section(
        title=f"{group.kind} {group.name}" if group.kind != "runs" else group.name,
        sentences=[
            f"Configurations: {num_labels:,}. Runs: {len(group.runs):,}. Result rows: {len(group.rows):,}.",
            *states,
            *omissions,
            *omitted_losses,
            *([f"Only in the table: {num_omitted:,} more tasks or variants."] if num_omitted > 0 else []),
        ],
        charts=[*charts, *curves],
        tables=[*state_tables, *tables[:-1]],
        folded_tables=[*tables[-1:], *_row_tables(group.rows), *_readings(group.readings)],
        diagnoses=list(diagnose_group(replace(group, rows=finite_rows), report)) if diagnose else [],
    )


def _row_tables(rows: Rows) -> list[Table]:
    """Return a table of the rows with exact match, and one of the rows with losses, without empty tables."""
    losses = [row for row in rows if "loss" in row]
    exact_matches = [row for row in rows if "loss" not in row]
    tables = [_row_table("exact match", exact_matches), _row_table("loss", losses)]
    return [table for table in tables if table.body]


def _row_table(value_name: str, rows: Rows) -> Table:
    body = []
    for row in rows:
        value = "0 (skipped)" if is_skipped(row) else number_text(row[value_name.replace(" ", "_")])
        cells = [f"{row['length']:,}", f"{row['num_examples']:,}", value, interval_text(row["low"], row["high"])]
        fit = number_text(row["fitted"])
        body.append([str(row["row"]), str(row["task"]), str(row["seed"]), *cells, f"{row['steps']:,}", fit])
    header = ["configuration", "task", "seed", "length", "n", value_name, "95% interval", "steps", "fit in training"]
    return Table(title=f"All result rows with {value_name}", header=header, body=body)


def _readings(readings: Rows) -> list[Table]:
    """Return a table of the readings of a claim, without nested values."""
    names = [name for name in readings[0] if not isinstance(readings[0][name], list | dict)] if readings else []
    body = [[f"{row.get(name, '-')}" for name in names] for row in readings]
    return [Table(title="Readings of the claim", header=names, body=body)] if readings else []


def _study_section(study: StudyRecord, max_bytes: int) -> Section:
    path = study.folder / SUMMARY_FILE
    try:
        texts = study_page(study, max_bytes)
        notes = [f"{study.summary['targets']:,} targets in {study.summary['documents']:,} texts."]
        if texts is not None and texts[1]:
            notes.append(f"The texts below omit {texts[1]:,} more targets, which keeps the page small.")
        return Section(
            title=f"influence study {study.name}",
            sentences=[str(study.summary["answer"]["sentence"]), *notes],
            charts=study_charts(study),
            tables=study_tables(study),
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


def _render(sections: Sequence[Section], plotly: str) -> str:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE_FOLDER), autoescape=True, undefined=StrictUndefined, finalize=_printable
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    css, script = ((TEMPLATE_FOLDER / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    # The frame with the texts of a study also obeys the policy of this page.
    study_script = (STUDY_TEMPLATES / "page.js").read_text(encoding="utf-8")
    all_charts: list[Chart] = []
    for section in sections:
        all_charts += [*section.charts, *(each.chart for each in section.diagnoses if each.chart is not None)]
    return environment.get_template("report.html").render(
        css=css,
        mark=Markup(MARK),
        plotly=plotly,
        script=script,
        digests=[_digest(each) for each in (plotly, script, study_script)],
        sections=sections,
        charts=[chart.to_json() for chart in all_charts],
        texts=[section.texts for section in sections if section.texts is not None],
        symbols=SYMBOLS,
        symbol_name=symbol_name,
        is_dashed=is_dashed,
        chart_numbers=count(),
        text_numbers=count(),
    )


def _printable(value: Any) -> Any:
    """Return a value of the template without control characters and bytes that are not UTF-8, as in the terminal."""
    return escape(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
