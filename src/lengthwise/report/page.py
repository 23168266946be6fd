"""Page of a report: one HTML file with all charts, tables and scripts, which loads no other file."""

from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from markupsafe import Markup

from lengthwise.core.errors import SettingError
from lengthwise.core.files import StrPath, check_output_file, write_atomically
from lengthwise.core.html_page import render_page
from lengthwise.core.type_checks import check_arguments
from lengthwise.experiments.progress_reports import AUTO, make_line_reporter
from lengthwise.influence.report.study_report import PAGE_TEMPLATE as STUDY_TEMPLATE
from lengthwise.report.chart import SYMBOLS, Chart, is_dashed, symbol_name
from lengthwise.report.folders import read_folders
from lengthwise.report.sections import ReportSection, build_group_section, build_influence_section

# Maximum size of the texts of all studies, which limits the size of the page.
MAX_TEXT_BYTES = 1_500_000
# Text at the start of each page, which a later report may replace.
MARK = '<meta name="generator" content="lengthwise report">'


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
    report_line = make_line_reporter(report)
    script = _plotly_script()
    groups, studies = read_folders([Path(folder) for folder in folders])
    sections = [build_group_section(group, report_line, diagnose=diagnose) for group in groups]
    sections += [build_influence_section(study, MAX_TEXT_BYTES // len(studies)) for study in studies]
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


def _render(sections: Sequence[ReportSection], plotly: str) -> str:
    # The frame with the texts of a study also obeys the policy of this page.
    study_script = STUDY_TEMPLATE.with_suffix(".js").read_text(encoding="utf-8")
    charts: list[Chart] = []
    for section in sections:
        charts += [
            *section.charts,
            *(diagnosis.chart for diagnosis in section.diagnoses if diagnosis.chart is not None),
        ]
    return render_page(
        Path(__file__).parent / "report.html",
        scripts=(plotly, study_script),
        mark=Markup(MARK),
        plotly=plotly,
        sections=sections,
        charts=[chart.to_json() for chart in charts],
        texts=[section.texts for section in sections if section.texts is not None],
        symbols=SYMBOLS,
        symbol_name=symbol_name,
        is_dashed=is_dashed,
        chart_numbers=count(),
        text_numbers=count(),
    )
