"""Print the tables of benchmarks/influence_text.md with ``python benchmarks/influence_text.py FOLDER...``.

Each FOLDER is the ``--out`` folder of a study. The default is all folders in ``results/influence_text``.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from lengthwise.influence.report.answer_sentence import compose_answer
from lengthwise.influence.report.summary_tables import format_estimate, summary_tables

STUDIES = Path(__file__).parent / "results" / "influence_text"


def lines(folder: Path) -> Iterator[str]:
    """Yield the tables of one study in Markdown, then a table by kind of target and the answer."""
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
            *(format_estimate(kind[name]) for name in ("gains", "gains_other", "own_minus_other")),
        ]
        for kind in summary["kinds"]
    ]
    yield from ("", "By kind of target:", "", *markdown(header, body), "", compose_answer(summary)["sentence"], "")


def markdown(header: list[str], body: list[list[str]]) -> list[str]:
    """Return a table as lines of Markdown."""
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *body)]


def main() -> None:
    """Print the tables of each folder."""
    for folder in map(Path, sys.argv[1:] or sorted(map(str, STUDIES.iterdir()))):
        print("\n".join(lines(folder)))


if __name__ == "__main__":
    main()
