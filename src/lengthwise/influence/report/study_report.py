"""Report of a complete study with a summary, figures and a page."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lengthwise.core.errors import RunFolderError
from lengthwise.core.files import StrPath, check_regular, write_atomically
from lengthwise.core.json_parsing import parse_json
from lengthwise.core.type_checks import check_arguments
from lengthwise.influence.report.page import render_page
from lengthwise.influence.report.study_figures import draw_distances, draw_recovery
from lengthwise.influence.report.summary import summarize
from lengthwise.influence.study import ROWS_FILE, SUMMARY_FILE, InfluenceStudy

PAGE_FILE = "influence.html"
# Numbers of texts on the page, of tokens per text, and of tokens after the last target, limited for browsers.
MAX_EXCERPTS, MAX_EXCERPT_TOKENS, NUM_TOKENS_AFTER_TARGET = 12, 3000, 16


@check_arguments
def report_study(study: InfluenceStudy, folder: StrPath) -> dict[str, Any]:
    """Write ``summary.json``, the figures and the page of a complete study. Return the summary."""
    folder, settings = Path(folder), study.settings
    description, results = study.to_dict(), summarize(_read_rows(folder), settings.ks, seed=settings.seed)
    summary = {
        "version": description["version"],
        **results,
        "parameters": study.model.num_parameters,
        "texts": description["texts"],
        "settings": description["settings"],
    }
    write_atomically(folder / SUMMARY_FILE, json.dumps(summary, indent=2).encode() + b"\n")
    draw_recovery(summary, folder)
    draw_distances(summary, folder, near=settings.near, far=settings.far)
    excerpts, answer = _choose_excerpts(study, folder), summary["answer"]["sentence"]
    page = render_page(_read_rows(folder), excerpts, ks=settings.ks, near=settings.near, answer=answer)
    write_atomically(folder / PAGE_FILE, page.encode())
    return summary


def _read_rows(folder: Path) -> Iterator[dict[str, Any]]:
    try:
        check_regular(folder / ROWS_FILE)
        rows_file = (folder / ROWS_FILE).open("rb")
    except OSError as error:
        problem = f"{folder / ROWS_FILE} cannot be read ({error.strerror})"
        raise RunFolderError(f"{problem}; call measure_influence with this folder first") from None
    with rows_file as file:
        for line_number, line in enumerate(file, start=1):
            try:
                yield parse_json(line)
            except ValueError:
                problem = f"line {line_number} of {folder / ROWS_FILE} is not valid JSON"
                raise RunFolderError(f"{problem}; choose another --out") from None


def _choose_excerpts(study: InfluenceStudy, folder: Path) -> Mapping[str, tuple[int, Sequence[str]]]:
    """Map the names of the texts with the most selections to an excerpt: index of the first token, decoded tokens."""
    settings, target_indices = study.settings, dict[str, list[int]]()
    for row in _read_rows(folder):
        if row["selections"]:
            target_indices.setdefault(row["document"], []).append(row["place"])
    texts = {text.name: text.tokens for text in study.texts}
    excerpts = {}
    for name in sorted(target_indices, key=lambda name: -len(target_indices[name]))[:MAX_EXCERPTS]:
        first = max(0, target_indices[name][0] - settings.context)
        max_tokens = max(MAX_EXCERPT_TOKENS, 2 * settings.context)
        last = min(target_indices[name][-1] + NUM_TOKENS_AFTER_TARGET, first + max_tokens)
        excerpts[name] = (first, list(map(study.codec.token_text, texts[name][first : last + 1].tolist())))
    return excerpts
