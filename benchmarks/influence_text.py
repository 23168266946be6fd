"""Print the tables of benchmarks/influence_text.md with ``python benchmarks/influence_text.py FOLDER...``.

Each FOLDER is the ``--out`` folder of a study. The default is all folders in ``results/influence_text``. ``--figure``
draws ``recovery.png`` of each study to ``docs/NAME.png`` instead, where NAME is the name of its folder.
"""

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from lengthwise.influence.report.figures import plot_recovered_share
from lengthwise.influence.report.summary import compose_answer, format_estimate, summary_tables

STUDIES = Path(__file__).parent / "results" / "influence_text"
FIGURES = Path("docs")


def lines(folder: Path) -> Iterator[str]:
    """Yield the tables of one study in Markdown, then a table by kind of target and the answer."""
    summary = json.loads((folder / "summary.json").read_text())
    yield f"## {folder.name}"
    yield ""
    yield f"{summary['parameters']:,} parameters; {summary['measured']:,} targets measured at every k."
    for title, header, body in summary_tables(summary):
        yield from ("", f"{title}:", "", *markdown(header, body))
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


def draw(folder: Path) -> None:
    """Draw the figure of one study from its summary."""
    path = FIGURES / f"{folder.name}.png"
    with TemporaryDirectory() as drawings:
        shutil.copyfile(plot_recovered_share(json.loads((folder / "summary.json").read_text()), Path(drawings)), path)
    print(f"wrote {path}")


def main() -> None:
    """Print the tables of each folder, or draw its figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, default=sorted(STUDIES.iterdir()))
    parser.add_argument("--figure", action="store_true", help="Draw the figures without printing the tables.")
    options = parser.parse_args()
    for folder in options.folders:
        if options.figure:
            draw(folder)
        else:
            print("\n".join(lines(folder)))


if __name__ == "__main__":
    main()
