"""The report of a finished study of influence: its summary, figures and page."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lengthwise.core.errors import RunFolderError
from lengthwise.core.files import StrPath, write_atomically
from lengthwise.core.json_parsing import parse_json
from lengthwise.core.type_checks import check_arguments
from lengthwise.influence.report.page import render_page
from lengthwise.influence.report.study_figures import draw_distances, draw_recovery
from lengthwise.influence.report.summary import summarize
from lengthwise.influence.row_blocks import ROWS
from lengthwise.influence.study import SUMMARY, InfluenceStudy

PAGE = "influence.html"
# Texts on the page, and tokens of each: what a browser shows without delay.
EXCERPTS, EXCERPT_TOKENS = 12, 3000
# Tokens shown behind the last target.
BEHIND = 16


@check_arguments
def report_study(study: InfluenceStudy, folder: StrPath) -> dict[str, Any]:
    """Write summary.json, the figures and the page of a study whose rows are complete; return the summary."""
    folder, settings = Path(folder), study.settings
    facts, found = study.to_dict(), summarize(_rows(folder), settings.ks, seed=settings.seed)
    summary = {
        "version": facts["version"],
        **found,
        "parameters": study.model.num_parameters,
        "texts": facts["texts"],
        "settings": facts["settings"],
    }
    write_atomically(folder / SUMMARY, json.dumps(summary, indent=2).encode() + b"\n")
    draw_recovery(summary, folder)
    draw_distances(summary, folder, near=settings.near, far=settings.far)
    answer = summary["answer"]["sentence"]
    page = render_page(_rows(folder), excerpts(study, folder), ks=settings.ks, near=settings.near, answer=answer)
    write_atomically(folder / PAGE, page.encode())
    return summary


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    with (folder / ROWS).open() as file:
        for number, line in enumerate(file, start=1):
            try:
                yield parse_json(line)
            except ValueError:
                raise RunFolderError(
                    f"line {number} of {folder / ROWS} is no JSON; measure into another --out"
                ) from None


def excerpts(study: InfluenceStudy, folder: Path) -> Mapping[str, tuple[int, Sequence[str]]]:
    """Parts of the texts with the most measured targets in reach, by name: first token, and the texts of all."""
    settings, places = study.settings, dict[str, list[int]]()
    for row in _rows(folder):
        if row["selections"]:
            places.setdefault(row["document"], []).append(row["place"])
    texts = {text.name: text.tokens for text in study.texts}
    found = {}
    for name in sorted(places, key=lambda name: -len(places[name]))[:EXCERPTS]:
        first = max(0, places[name][0] - settings.context)
        last = min(places[name][-1] + BEHIND, first + max(EXCERPT_TOKENS, 2 * settings.context))
        found[name] = (first, [study.codec.token_text(int(token)) for token in texts[name][first : last + 1]])
    return found
