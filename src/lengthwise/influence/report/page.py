"""Self-contained HTML page with the texts of a study and the far tokens selected for each target."""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lengthwise.core.errors import SettingError
from lengthwise.influence.report.row_columns import GROUP_KEYS

Excerpts = Mapping[str, tuple[int, Sequence[str]]]
TEMPLATE_FOLDER = Path(__file__).parent
# The page starts with the first group (mode, objective, source) of this list that the rows contain.
PREFERRED_GROUPS = (["strict", "prediction", "own"], ["strict", "target", "own"])


def render_page(
    rows: Iterable[Mapping[str, Any]],
    excerpts: Excerpts,
    *,
    ks: Sequence[int],
    near: int,
    answer: str = "",
    max_targets: int = 2000,
) -> str:
    """Render the rows of ``influence.jsonl`` inside the excerpts as an ASCII page that loads no other files.

    ``excerpts`` maps a document name to the index of its first token and the texts of its tokens. The page starts with
    ``answer`` and the number of omitted targets. Raises ``SettingError`` if a row contains a number that is not finite.
    """
    targets = _PageTargets(excerpts, max_targets)
    for row in rows:
        targets.add_row(row)
    groups = [list(group) for group in targets.groups]
    preferred_indices = [groups.index(group) for prefix in PREFERRED_GROUPS for group in groups if group[:3] == prefix]
    study = {
        "model": targets.model,
        "ks": list(ks),
        "near": near,
        "groups": groups,
        "first": (preferred_indices or [0])[0],
        "kinds": list(targets.kinds),
        "notes": [*([answer] if answer else []), *targets.notes()],
        "documents": [
            {"name": name, "start": excerpt_start, "tokens": list(tokens), "targets": targets.sorted_targets(name)}
            for name, (excerpt_start, tokens) in excerpts.items()
        ],
    }
    return render_study(study)


def render_study(study: Mapping[str, Any]) -> str:
    """Render the values that page.js reads. Raises ``SettingError`` if they contain a number that is not finite."""
    css, script = ((TEMPLATE_FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    environment = Environment(loader=FileSystemLoader(TEMPLATE_FOLDER), autoescape=True, undefined=StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    try:
        return environment.get_template("page.html").render(
            css=css, css_digest=_digest(css), script=script, script_digest=_digest(script), study=study
        )
    except ValueError:
        raise SettingError("a row contains a number that is not finite; repeat the study in float32") from None


class _PageTargets:
    """Targets of the page, in the format that page.js reads."""

    def __init__(self, excerpts: Excerpts, max_targets: int) -> None:
        self.excerpts, self.max_targets = excerpts, max_targets
        self.model, self.num_targets, self.num_outside, self.num_beyond_limit = "no model", 0, 0, 0
        self.groups: dict[tuple[str, ...], int] = {}
        self.kinds: dict[str, int] = {}
        self.targets: dict[str, list[dict[str, Any]]] = {name: [] for name in excerpts}

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Add a row to the page, or count its target as omitted."""
        self.model = row["model"]
        excerpt_start, tokens = self.excerpts.get(row["document"], (0, ()))
        if not excerpt_start <= row["place"] < excerpt_start + len(tokens):
            self.num_outside += 1
        elif self.num_targets == self.max_targets:
            self.num_beyond_limit += 1
        else:
            self.num_targets += 1
            self.targets[row["document"]].append(
                {name: row[name] for name in ("place", "loss_short", "loss_long", "divergence_short", "clear")}
                | {"loss_other": row["controls"]["other"]["loss"]}
                | {"kinds": [self.kinds.setdefault(kind_name, len(self.kinds)) for kind_name in row["kinds"]]}
                | {"selections": dict(map(self._selection, row["selections"]))}
            )

    def _selection(self, selection: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        group = self.groups.setdefault(tuple(selection[name] for name in GROUP_KEYS), len(self.groups))
        tokens = [[token["distance"], token["gain"], token["text"]] for token in selection["chosen"]]
        return group, {name: selection[name] for name in ("losses", "divergences")} | {"chosen": tokens}

    def sorted_targets(self, name: str) -> list[dict[str, Any]]:
        """Return the targets of a document, sorted by token index."""
        return sorted(self.targets[name], key=lambda target: int(target["place"]))

    def notes(self) -> list[str]:
        """Return one line with the number of omitted targets, or no line if the page contains all targets."""
        omitted = {"outside the excerpts": self.num_outside, "beyond the limit of the page": self.num_beyond_limit}
        omissions = [f"{number:,} targets {reason}" for reason, number in omitted.items() if number]
        return [f"The page omits {' and '.join(omissions)}."] if omissions else []


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
