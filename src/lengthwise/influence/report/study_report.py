"""Report of a complete study: a summary, figures, and a page with the texts and the far tokens of each target."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lengthwise.core import html_page
from lengthwise.core.errors import RunFolderError, SettingError
from lengthwise.core.files import StrPath, check_regular_file, write_atomically
from lengthwise.core.json_parsing import parse_json
from lengthwise.core.type_checks import check_arguments
from lengthwise.influence.report.figures import plot_recovered_share, plot_token_distances
from lengthwise.influence.report.row_columns import GROUP_KEYS
from lengthwise.influence.report.summary import summarize
from lengthwise.influence.study import ROWS_FILE, SUMMARY_FILE, InfluenceStudy
from lengthwise.influence.units import TOKEN, name_units

PAGE_FILE = "influence.html"
PAGE_TEMPLATE = Path(__file__).parent / "page.html"
# The page starts with the first group (mode, objective, source) of this list that the rows contain.
PREFERRED_GROUPS = (("strict", "prediction", "own"), ("strict", "target", "own"))
Excerpts = Mapping[str, tuple[int, Sequence[str]]]
# Numbers of texts on the page, of tokens per text, and of tokens after the last target, limited for browsers.
MAX_EXCERPTS, MAX_EXCERPT_TOKENS, NUM_TOKENS_AFTER_TARGET = 12, 3000, 16


@check_arguments
def report_study(study: InfluenceStudy, folder: StrPath) -> dict[str, Any]:
    """Write ``summary.json``, the figures and the page of a complete study. Return the summary."""
    folder, settings = Path(folder), study.settings
    description, context = study.to_dict(), f"near {settings.near:,}, far {settings.far:,} tokens"
    results = summarize(_read_rows(folder), settings.ks, unit=settings.unit, context=context, seed=settings.seed)
    summary = {
        "version": description["version"],
        **results,
        "parameters": study.model.num_parameters,
        "texts": description["texts"],
        "settings": description["settings"],
    }
    write_atomically(folder / SUMMARY_FILE, json.dumps(summary, indent=2).encode() + b"\n")
    plot_recovered_share(summary, folder)
    plot_token_distances(summary, folder, near=settings.near, far=settings.far)
    excerpts, answer = _choose_excerpts(study, folder), summary["answer"]["sentence"]
    page = render_page(
        _read_rows(folder), excerpts, ks=settings.ks, near=settings.near, unit=settings.unit, answer=answer
    )
    write_atomically(folder / PAGE_FILE, page.encode())
    return summary


def _read_rows(folder: Path) -> Iterator[dict[str, Any]]:
    try:
        check_regular_file(folder / ROWS_FILE)
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


def _choose_excerpts(study: InfluenceStudy, folder: Path) -> Excerpts:
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


def render_page(
    rows: Iterable[Mapping[str, Any]],
    excerpts: Excerpts,
    *,
    ks: Sequence[int],
    near: int,
    unit: str = TOKEN,
    answer: str = "",
    max_targets: int = 2000,
) -> str:
    """Render the rows of ``influence.jsonl`` inside the excerpts as an ASCII page that loads no other files.

    ``excerpts`` maps a document name to the index of its first token and the texts of its tokens. The page starts with
    ``answer`` and the number of omitted targets. Raises ``SettingError`` if a row contains a number that is not finite.
    """
    # Index of each group and kind on the page.
    groups: dict[tuple[str, ...], int] = {}
    kinds: dict[str, int] = {}
    targets: dict[str, list[dict[str, Any]]] = {name: [] for name in excerpts}
    omitted = {"outside the excerpts": 0, "beyond the limit of the page": 0}
    model, num_targets = "no model", 0
    for row in rows:
        model, (start, tokens) = row["model"], excerpts.get(row["document"], (0, ()))
        if not start <= row["place"] < start + len(tokens):
            omitted["outside the excerpts"] += 1
        elif num_targets == max_targets:
            omitted["beyond the limit of the page"] += 1
        else:
            num_targets += 1
            target = {name: row[name] for name in ("place", "loss_short", "loss_long", "divergence_short", "clear")}
            target["loss_other"] = row["controls"]["other"]["loss"]
            target["kinds"] = [kinds.setdefault(kind, len(kinds)) for kind in row["kinds"]]
            target["selections"] = {}
            for selection in row["selections"]:
                group = groups.setdefault(tuple(selection[name] for name in GROUP_KEYS), len(groups))
                target["selections"][group] = {
                    **{name: selection[name] for name in ("losses", "divergences")},
                    "chosen": [
                        [entry["distance"], entry["gain"], entry["text"], entry["tokens"]]
                        for entry in selection["chosen"]
                    ],
                }
            targets[row["document"]].append(target)
    omissions = [f"{number:,} targets {reason}" for reason, number in omitted.items() if number]
    preferred = [index for prefix in PREFERRED_GROUPS for group, index in groups.items() if group[:3] == prefix]
    study = {
        "model": model,
        "ks": list(ks),
        "near": near,
        "units": name_units(unit, 2),
        "groups": list(map(list, groups)),
        "first": (preferred or [0])[0],
        "kinds": list(kinds),
        "notes": [
            *([answer] if answer else []),
            *([f"The page omits {' and '.join(omissions)}."] if omissions else []),
        ],
        "documents": [
            {
                "name": name,
                "start": start,
                "tokens": list(tokens),
                "targets": sorted(targets[name], key=lambda target: int(target["place"])),
            }
            for name, (start, tokens) in excerpts.items()
        ],
    }
    return render_study(study)


def render_study(study: Mapping[str, Any]) -> str:
    """Render the values that page.js reads. Raises ``SettingError`` if they contain a number that is not finite."""
    try:
        return html_page.render_page(PAGE_TEMPLATE, study=study)
    except ValueError:
        raise SettingError("a row contains a number that is not finite; repeat the study in float32") from None
