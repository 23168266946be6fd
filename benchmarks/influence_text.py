"""Tables of benchmarks/influence_text.md: ``python benchmarks/influence_text.py FOLDER...`` prints one per result.

A folder is what ``lengthwise influence --out`` wrote, or, of several models, one that holds a folder for each.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Found = Mapping[str, Any]


def estimate(found: Found, digits: int = 2) -> str:
    """A value with its 95% interval; a dash where there is none."""
    if found["value"] is None:
        return "-"
    if found["low"] is None:
        return f"{found['value']:.{digits}f}"
    return f"{found['value']:.{digits}f} ({found['low']:.{digits}f} to {found['high']:.{digits}f})"


def enough(smallest: Found, most: int) -> str:
    """The smallest k that recovers a share, out of those up to ``most``."""
    return f"> {most}" if smallest["beyond"] else "-" if smallest["k"] is None else f"{smallest['k']}"


def lines(folder: Path) -> Iterator[str]:
    """How many targets there are, R(k) by selection, its medians, and R(k) of the headline by kind of target."""
    found = json.loads((folder / "summary.json").read_text())
    yield f"{folder.name}: {found['parameters']:,} parameters; {found['documents']} texts;"
    gap = found["settings"]["rule"]["gap"]
    yield f"{found['targets']:,} targets, {found['clear']:,} of them clear (a gap of {gap} nats or more);"
    yield f"share that needs no far context: {estimate(found['needs_no_far'])};"
    losses = found["losses"]
    yield f"mean loss over all targets: {losses['short']:.2f} with near tokens, {losses['long']:.2f} with far ones too"
    ks = [f"k = {k}" for k in found["ks"]]
    yield from ("", row(["mode", "knows", "far tokens", *ks, "k for 50 / 80 / 90%", "medians"]))
    yield row(["---"] * (5 + len(ks)))
    for group in found["groups"]:
        shares = [estimate(each) for each in group["ratio_of_sums"]]
        medians = " ".join(estimate({**each, "low": None}) for each in group["median"])
        wanted = " / ".join(enough(each, found["ks"][-1]) for each in group["smallest_k"])
        yield row([group["mode"], group["knows"], group["from"], *shares, wanted, medians])
    yield from ("", row(["kind of target", "targets", "clear", *ks]))
    yield row(["---"] * (3 + len(ks)))
    for kind in found["kinds"]:
        shares = [estimate(each) for each in kind["headline"]["ratio_of_sums"]]
        yield row([kind["kind"], f"{kind['targets']:,}", estimate(kind["clear_share"]), *shares])
    yield ""


def row(cells: list[str]) -> str:
    """One of Markdown."""
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print."""
    for folder in map(Path, sys.argv[1:]):
        for summary in sorted(folder.rglob("summary.json")):
            print("\n".join(lines(summary.parent)))


if __name__ == "__main__":
    main()
