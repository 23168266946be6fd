"""Page of a report: one HTML file with all charts, tables and scripts, which loads no other file."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lengthwise.core.errors import SettingError
from lengthwise.core.files import StrPath, write_atomically
from lengthwise.core.type_checks import check_arguments
from lengthwise.evaluation.result_rows import Rows
from lengthwise.influence.report.page import TEMPLATE_FOLDER as STUDY_TEMPLATES
from lengthwise.report.accuracy_charts import accuracy_chart, group_lines, heat_map, panels, select_labels
from lengthwise.report.chart import Chart, Table
from lengthwise.report.folders import RunGroup, StudyRecord, read_folders
from lengthwise.report.loss_curves import loss_chart
from lengthwise.report.run_diagnosis import DiagnosisSection, diagnose_group
from lengthwise.report.setting_tables import setting_tables
from lengthwise.report.study_section import study_charts, study_page, study_tables

TEMPLATE_FOLDER = Path(__file__).parent
# Maximum size of the texts of all studies, and maximum number of lines of a table, which limit the size of the page.
MAX_TEXT_BYTES, MAX_TABLE_LINES = 1_500_000, 6000
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
def write_report(folders: Sequence[StrPath], out: StrPath, *, diagnose: bool = True) -> dict[str, int]:
    """Write a page about the folders to the file ``out``; return the numbers of runs, rows, studies and bytes.

    A folder is a run, comparison, sweep, claim or influence study. With ``diagnose``, a few runs of each group are
    diagnosed at a length beyond training. Raises ``SettingError`` if the library plotly is not installed, and
    ``RunFolderError`` for other folders and damaged files.
    """
    if not folders:
        raise SettingError("a report of no folders; pass at least one output folder of train, compare or influence")
    script = _plotly_script()
    groups, studies = read_folders([Path(folder) for folder in folders])
    sections = [_group_section(group, diagnose=diagnose) for group in groups]
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


def _group_section(group: RunGroup, *, diagnose: bool) -> Section:
    charts: list[Chart] = []
    all_panels = list(panels(group.rows))
    for title, rows in all_panels[:MAX_PANELS]:
        charts.append(accuracy_chart(title, rows))
        if len({row["row"] for row in rows}) > 1:
            charts.append(heat_map(title, rows))
    labels = dict.fromkeys(run.label for run in group.runs)
    drawn_labels = select_labels(group_lines(all_panels[0][1])) if all_panels else list(labels)
    curves = loss_chart(group.runs, drawn_labels)
    omitted = len(all_panels) - MAX_PANELS
    tables = setting_tables(group.runs) if group.runs else []
    return Section(
        title=f"{group.kind} {group.name}" if group.kind != "runs" else group.name,
        sentences=[
            f"Configurations: {len(labels):,}. Runs: {len(group.runs):,}. Result rows: {len(group.rows):,}.",
            *([f"Only in the table: {omitted} more tasks or variants."] if omitted > 0 else []),
        ],
        charts=[*charts, *([] if curves is None else [curves])],
        tables=tables[:-1],
        folded_tables=[*tables[-1:], *([_row_table(group.rows)] if group.rows else []), *_readings(group.readings)],
        diagnoses=list(diagnose_group(group)) if diagnose else [],
    )


def _row_table(rows: Rows) -> Table:
    body = []
    for row in rows[:MAX_TABLE_LINES]:
        value = row["loss"] if "loss" in row else row["exact_match"]
        interval = "-" if row["low"] is None or row["high"] is None else f"{row['low']:.3f} to {row['high']:.3f}"
        cells = [f"{row['length']:,}", f"{row['num_examples']:,}", f"{value:.3f}", interval]
        fit = "-" if row["fitted"] is None else f"{row['fitted']:.3f}"
        body.append([str(row["row"]), str(row["task"]), str(row["seed"]), *cells, f"{row['steps']:,}", fit])
    value_name = "loss" if "loss" in rows[0] else "exact match"
    omitted = len(rows) - MAX_TABLE_LINES
    title = f"All result rows (without {omitted:,} of {len(rows):,} rows)" if omitted > 0 else "All result rows"
    header = ["configuration", "task", "seed", "length", "n", value_name, "95% interval", "steps", "fit in training"]
    return Table(title=title, header=header, body=body)


def _readings(readings: Rows) -> list[Table]:
    """Return a table of the readings of a claim, without nested values."""
    names = [name for name in readings[0] if not isinstance(readings[0][name], list | dict)] if readings else []
    body = [[f"{row.get(name, '-')}" for name in names] for row in readings[:MAX_TABLE_LINES]]
    return [Table(title="Readings of the claim", header=names, body=body)] if readings else []


def _study_section(study: StudyRecord, max_bytes: int) -> Section:
    texts = study_page(study, max_bytes)
    notes = [f"{study.summary['targets']:,} targets in {study.summary['documents']:,} texts."]
    if texts is not None and texts[1]:
        notes.append(f"The texts below omit {texts[1]:,} more targets, which keeps the page small.")
    return Section(
        title=f"influence study {study.name}",
        sentences=[study.summary["answer"]["sentence"], *notes],
        charts=study_charts(study),
        tables=study_tables(study),
        texts=None if texts is None else texts[0],
    )


def _render(sections: Sequence[Section], plotly: str) -> str:
    environment = Environment(loader=FileSystemLoader(TEMPLATE_FOLDER), autoescape=True, undefined=StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    css, script = ((TEMPLATE_FOLDER / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    # The frame with the texts of a study also obeys the policy of this page.
    study_script = (STUDY_TEMPLATES / "page.js").read_text(encoding="utf-8")
    all_charts: list[Chart] = []
    for section in sections:
        all_charts += [*section.charts, *(each.chart for each in section.diagnoses if each.chart is not None)]
    try:
        return environment.get_template("report.html").render(
            css=css,
            plotly=plotly,
            script=script,
            digests=[_digest(each) for each in (plotly, script, study_script)],
            sections=sections,
            charts=[chart.to_json() for chart in all_charts],
            texts=[section.texts for section in sections if section.texts is not None],
            chart_numbers=count(),
            text_numbers=count(),
        )
    except ValueError:
        raise SettingError("a row contains a number that is not finite; evaluate the run in float32") from None


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
