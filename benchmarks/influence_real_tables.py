"""Summarize the studies of ``influence_real.py``, and print the tables of benchmarks/influence_real.md.

``python benchmarks/influence_real_tables.py FOLDER...`` adds the summary of each study, complete or not, to
``results/influence_real.jsonl``, and prints the tables of all stored summaries.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from influence_text import markdown

from lengthwise.experiments.run_folder import read_rows, write_rows
from lengthwise.influence.report.summary import format_estimate, summarize

RESULTS = Path(__file__).parent / "results" / "influence_real.jsonl"
Summary = dict[str, Any]


def rows_of(folder: Path) -> list[Any]:
    """Return the rows of a study, or of the finished blocks of its parts."""
    joined = folder / "influence.jsonl"
    return [
        row
        for file in ([joined] if joined.exists() else sorted(folder.glob("part-*/*.jsonl")))
        for row in read_rows(file)
    ]


def summarize_folder(folder: Path) -> Summary:
    """Return the summary of a study, without the histograms."""
    descriptions = [*folder.glob("influence.json"), *folder.glob("part-*/influence.json")]
    settings = json.loads(descriptions[0].read_text(encoding="utf-8"))["study"]["settings"]
    summary = summarize(rows_of(folder), settings["ks"], unit=settings["unit"], seed=0)
    for group in summary["groups"]:
        group.pop("distances", None)
    return {"study": folder.name, "settings": settings, **summary}


def effect_table(summaries: dict[str, Summary]) -> Iterator[str]:
    """Yield the table of the effect of all far tokens, with its controls."""
    header = ["study", "targets", "texts", "near only, nats", "far tokens, nats"]
    header += [f"{name} gain" for name in ("own", "other text's", "elsewhere's")]
    header += ["own minus other", "own minus elsewhere", "clear gain, own", "clear gain, other"]
    body = []
    for name, summary in summaries.items():
        sources = {source["from"]: source for source in summary["far"]}
        cells = [name, f"{summary['targets']:,}", str(summary["documents"]), f"{summary['loss_short']:.2f}"]
        cells += [f"{summary['loss_short'] - sources['own']['gain']['value']:.2f}"]
        cells += [format_estimate(sources[source]["gain"]) for source in ("own", "other", "elsewhere")]
        cells += [format_estimate(sources[source]["own_minus"]) for source in ("other", "elsewhere")]
        body.append([*cells, *(format_estimate(sources[source]["gains"]) for source in ("own", "other"))])
    yield from markdown(header, body)


def share_table(summaries: dict[str, Summary], modes: Sequence[str]) -> Iterator[str]:
    """Yield the table of the shares of the prediction that k units recover."""
    ks = next(iter(summaries.values()))["ks"]
    header = ["study", "mode", "units", "searched", *(f"k = {k}" for k in ks), "tokens at the largest k"]
    body = []
    for name, summary in summaries.items():
        for group in summary["groups"]:
            if group["mode"] in modes:
                found = group["all_targets"]
                units = f"{group['from']} text's best" if group["measure"] == "proposed" else group["measure"]
                shares = map(format_estimate, found["prediction"]["shares"])
                body.append([name, group["mode"], units, str(found["measured"]), *shares, f"{found['tokens'][-1]:.0f}"])
    yield from markdown(header, body)


def kind_table(summaries: dict[str, Summary]) -> Iterator[str]:
    """Yield the table of the gain by kind of target."""
    header = [
        "study",
        "kind of target",
        "targets",
        "clear gain",
        "clear gain from another text",
        "own minus other, nats",
    ]
    body = [
        [
            name,
            kind["kind"],
            f"{kind['targets']:,}",
            *(format_estimate(kind[key]) for key in ("gains", "gains_other", "own_minus_other")),
        ]
        for name, summary in summaries.items()
        for kind in summary["kinds"]
        if kind["targets"] >= 30
    ]
    yield from markdown(header, body)


def main() -> None:
    """Add the summaries of the folders, and print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    summaries = {row["study"]: row for row in read_rows(RESULTS)}
    summaries |= {folder.name: summarize_folder(folder) for folder in parser.parse_args().folders}
    write_rows(RESULTS, [summaries[name] for name in sorted(summaries)])
    for title, lines in (
        ("Effect of all far tokens", effect_table(summaries)),
        ("Shares in strict mode", share_table(summaries, ["strict"])),
        ("Shares in the other modes", share_table(summaries, ["masked", "decode"])),
        ("By kind of target", kind_table(summaries)),
    ):
        print("\n".join(["", f"## {title}", "", *lines]))


if __name__ == "__main__":
    main()
