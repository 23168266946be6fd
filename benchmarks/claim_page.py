"""Keep the rows of a claim, and print them as the tables of its page.

``python benchmarks/claim_page.py CLAIM`` prints every seed's numbers, then what the claim reads off them, as Markdown,
and draws ``docs/CLAIM.png``. ``--add FOLDER`` first takes in what ``lengthwise reproduce CLAIM`` wrote there, each row
with the commit that made it; a run that is there already is replaced. A claim is run row by row, so it takes several.
``--add-gpu FILE`` takes in the claim's parts of a ``gpu.jsonl`` that ``make gpu`` wrote.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lengthwise.core.checkpoint import write_atomically
from lengthwise.evaluation.tables_and_figures import label_of, num_examples_at
from lengthwise.experiments.reproductions import CLAIMS
from lengthwise.experiments.reproductions.reproduction import READINGS, Claim, tables_of
from lengthwise.experiments.run_folder import COMPARISON, RESULTS, read_rows

Rows = list[dict[str, Any]]
KEPT, FIGURES = Path("benchmarks/results"), Path("docs")


def add(claim: Claim, folder: Path) -> None:
    """Take in the rows and readings of a folder."""
    commit = json.loads((folder / COMPARISON).read_text())["provenance"]["commit"]
    for kept, made in ((f"{claim.name}.jsonl", RESULTS), (f"{claim.name}_readings.jsonl", READINGS)):
        _keep(claim, kept, [{**row, "commit": commit} for row in read_rows(folder / made)])


def add_gpu(claim: Claim, path: Path) -> None:
    """Take in what a GPU measured, part by part."""
    parts = [part for part in read_rows(path) if part.get("claim") == claim.name]
    rows, readings = [], []
    for part in parts:
        facts = {"commit": part["commit"], "cuda": part["hardware"]["cuda"]}
        for result in part["results"]:
            variant = result["variant"]
            label = part["row"] if variant is None else f"{part['row']}, {variant}"
            rows.append({"row": label, **result, **facts})
        if "reading" in part:
            readings.append({"row": part["row"], "seed": part["seed"], **part["reading"], **facts})
    _keep(claim, f"{claim.name}.jsonl", rows)
    _keep(claim, f"{claim.name}_readings.jsonl", readings)


def _keep(claim: Claim, kept: str, new: Rows) -> None:
    again = {(row["row"], row["seed"]) for row in new}
    whole = [row for row in read_rows(KEPT / kept) if (row["row"], row["seed"]) not in again] + new
    if whole:
        write_atomically(KEPT / kept, b"".join(json.dumps(row).encode() + b"\n" for row in _in_order(claim, whole)))


def _in_order(claim: Claim, rows: Rows) -> Rows:
    """As the claim has its rows and each of these its variants, then by seed."""
    experiments = claim.experiments()
    labels = list(experiments)

    def place(row: Mapping[str, Any]) -> tuple[int, int, int]:
        label = label_of(row)
        variants = (None, *experiments[label].evaluation.variants)
        return labels.index(label), variants.index(row.get("variant")), row["seed"]

    return sorted(rows, key=place)


def every_seed(rows: Sequence[Mapping[str, Any]]) -> None:
    """A line per row, and in each cell the exact match of every seed, in the order of the seeds.

    A table per task; where rows were asked other numbers of examples, these have one of their own.
    """
    for task in dict.fromkeys(row["task"] for row in rows):
        for own in _asked_alike([row for row in rows if row["task"] == task]):
            _every_seed(f"{task.replace('_', ' ')}: every seed", own)


def _asked_alike(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Parted so that within each part a length has one number of examples; a row stays whole."""
    parts: list[tuple[dict[int, int], list[Mapping[str, Any]]]] = []
    for label in dict.fromkeys(row["row"] for row in rows):
        runs = [row for row in rows if row["row"] == label]
        asked = {row["length"]: row["num_examples"] for row in runs}
        for known, part in parts:
            if all(known.get(length, number) == number for length, number in asked.items()):
                known.update(asked)
                part.extend(runs)
                break
        else:
            parts.append((asked, runs))
    return [part for _, part in parts]


def _every_seed(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    lengths = sorted({row["length"] for row in rows})
    body = []
    for label in dict.fromkeys(row["row"] for row in rows):
        runs = [row for row in rows if row["row"] == label]
        by_seed = {row["seed"]: row for row in runs}
        cells = []
        for length in lengths:
            at = {row["seed"]: row["exact_match"] for row in runs if row["length"] == length}
            cells.append(" ".join(f"{at[seed]:.3f}" if seed in at else "·" for seed in by_seed))
        seeds = f"{min(by_seed)}-{max(by_seed)}" if len(by_seed) > 1 else str(next(iter(by_seed)))
        steps = " ".join(str(row["steps"]) for row in by_seed.values())
        seconds = " ".join(f"{row['train_s']:.0f}" for row in by_seed.values())
        fitted = " ".join(f"{row['fitted']:.3f}" for row in by_seed.values())
        body.append([label, seeds, steps, seconds, fitted, *cells])
    shown = [f"{length:,} (n={num_examples_at(rows, length)})" for length in lengths]
    print_table(title, ["row", "seeds", "steps", "seconds", "fitted", *shown], body)


def print_table(title: str, header: Iterable[str], body: Iterable[Sequence[str]]) -> None:
    """As Markdown."""
    names = [name.replace("\n", " ") for name in header]
    print(f"\n**{title[0].upper()}{title[1:]}**\n\n| {' | '.join(names)} |\n{'|---' * len(names)}|")
    for row in body:
        print("|", " | ".join(cell.replace("\n", " ") for cell in row), "|")


def main() -> None:
    """Take in, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("claim", choices=CLAIMS)
    parser.add_argument("--add", type=Path, action="append", default=[])
    parser.add_argument("--add-gpu", type=Path, action="append", default=[])
    asked = parser.parse_args()
    claim = CLAIMS[asked.claim]
    for folder in asked.add:
        add(claim, folder)
    for path in asked.add_gpu:
        add_gpu(claim, path)
    rows, readings = read_rows(KEPT / f"{claim.name}.jsonl"), read_rows(KEPT / f"{claim.name}_readings.jsonl")
    every_seed(rows)
    for title, header, body in tables_of(claim, rows, readings):
        print_table(title, header, body)
    with tempfile.TemporaryDirectory() as folder:
        figure = claim.draw(rows, readings, Path(folder), claim.name.replace("_", " "))
        shutil.copy(figure, FIGURES / f"{claim.name}.png")


if __name__ == "__main__":
    main()
