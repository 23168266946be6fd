"""Tables of benchmarks/influence_text.md: ``python benchmarks/influence_text.py FOLDER...`` prints those of each study.

A folder is what ``lengthwise influence --out`` wrote; without one, those kept in ``results/influence_text`` are shown.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from lengthwise.influence.report.summary_tables import shown, summary_tables

KEPT = Path(__file__).parent / "results" / "influence_text"


def lines(folder: Path) -> Iterator[str]:
    """Yield the tables of one study in Markdown, those of kinds of targets, and its answer."""
    summary = json.loads((folder / "summary.json").read_text())
    yield f"## {folder.name}"
    yield ""
    yield f"{summary['parameters']:,} parameters; {summary['measured']:,} targets measured at every k."
    for table in summary_tables(summary):
        yield from ("", f"{table.title}:", "", *markdown(table.header, table.body))
    header = ["kind of target", "targets", "gain", "gain with another text", "own minus other, nats"]
    body = [
        [
            kind["kind"],
            f"{kind['targets']:,}",
            *(shown(kind[name]) for name in ("gains", "gains_other", "own_minus_other")),
        ]
        for kind in summary["kinds"]
    ]
    yield from ("", "By kind of target:", "", *markdown(header, body), "", summary["answer"]["sentence"], "")


def markdown(header: list[str], body: list[list[str]]) -> list[str]:
    """Return a table as lines of Markdown."""
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *body)]


def main() -> None:
    """Print the tables of each folder."""
    for folder in map(Path, sys.argv[1:] or sorted(map(str, KEPT.iterdir()))):
        print("\n".join(lines(folder)))


if __name__ == "__main__":
    main()
