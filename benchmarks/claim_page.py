"""Store the result rows of a claim and print the tables of its page.

``python benchmarks/claim_page.py CLAIM`` prints the results of every seed and the tables of the claim as Markdown, and
draws ``docs/CLAIM.png``. ``--add FOLDER`` first adds the results that ``lengthwise reproduce CLAIM`` wrote to a folder,
with the commit, and replaces earlier results of the same run. ``--add-gpu FILE`` adds results from a ``gpu.jsonl`` that
``make gpu`` wrote. Both flags can be repeated.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lengthwise.evaluation.tables_and_figures import format_num_examples, label_of
from lengthwise.experiments.reproductions import CLAIMS
from lengthwise.experiments.reproductions.reproduction import READINGS_FILE, Claim, tables_of
from lengthwise.experiments.run_folder import COMPARISON, RESULTS, read_rows, write_rows

Rows = list[dict[str, Any]]
RESULTS_FOLDER, FIGURES_FOLDER = Path("benchmarks/results"), Path("docs")


def add_folder(claim: Claim, folder: Path) -> None:
    """Add the rows and readings of a folder to the stored results."""
    commit = json.loads((folder / COMPARISON).read_text())["provenance"]["commit"]
    for name, source in ((f"{claim.name}.jsonl", RESULTS), (f"{claim.name}_readings.jsonl", READINGS_FILE)):
        _store(claim, name, [{**row, "commit": commit} for row in read_rows(folder / source)])


def add_gpu_results(claim: Claim, path: Path) -> None:
    """Add the results of a GPU run to the stored results."""
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
    _store(claim, f"{claim.name}.jsonl", rows)
    _store(claim, f"{claim.name}_readings.jsonl", readings)


def _store(claim: Claim, name: str, new_rows: Rows) -> None:
    new_runs = {(row["row"], row["seed"]) for row in new_rows}
    rows = [row for row in read_rows(RESULTS_FOLDER / name) if (row["row"], row["seed"]) not in new_runs] + new_rows
    if rows:
        write_rows(RESULTS_FOLDER / name, _sort_rows(claim, rows))


def _sort_rows(claim: Claim, rows: Rows) -> Rows:
    """Sort rows by label and variant, in the order of the claim, then by seed."""
    experiments = claim.experiments()
    labels = list(experiments)

    def sort_key(row: Mapping[str, Any]) -> tuple[int, int, int]:
        label = label_of(row)
        variants = (None, *experiments[label].evaluation.variants)
        return labels.index(label), variants.index(row.get("variant")), row["seed"]

    return sorted(rows, key=sort_key)


def print_every_seed(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one table per task, with one line per label and the exact match of every seed in each cell.

    Labels with different numbers of examples get separate tables.
    """
    for task in dict.fromkeys(row["task"] for row in rows):
        for group in _by_num_examples([row for row in rows if row["task"] == task]):
            _print_seed_table(f"{task.replace('_', ' ')}: every seed", group)


def _by_num_examples(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Group labels so that every length has one number of examples per group."""
    groups: list[tuple[dict[int, int], list[Mapping[str, Any]]]] = []
    for label in dict.fromkeys(row["row"] for row in rows):
        runs = [row for row in rows if row["row"] == label]
        numbers = {row["length"]: row["num_examples"] for row in runs}
        for group_numbers, group in groups:
            if all(group_numbers.get(length, number) == number for length, number in numbers.items()):
                group_numbers.update(numbers)
                group.extend(runs)
                break
        else:
            groups.append((numbers, runs))
    return [group for _, group in groups]


def _print_seed_table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    lengths = sorted({row["length"] for row in rows})
    body = []
    for label in dict.fromkeys(row["row"] for row in rows):
        runs = [row for row in rows if row["row"] == label]
        by_seed = {row["seed"]: row for row in runs}
        cells = []
        for length in lengths:
            values = {row["seed"]: row["exact_match"] for row in runs if row["length"] == length}
            cells.append(" ".join(f"{values[seed]:.3f}" if seed in values else "·" for seed in by_seed))
        seeds = f"{min(by_seed)}-{max(by_seed)}" if len(by_seed) > 1 else str(next(iter(by_seed)))
        steps = " ".join(str(row["steps"]) for row in by_seed.values())
        seconds = " ".join(f"{row['train_s']:.0f}" for row in by_seed.values())
        fits = " ".join(f"{row['fitted']:.3f}" for row in by_seed.values())
        body.append([label, seeds, steps, seconds, fits, *cells])
    columns = [f"{length:,} (n={format_num_examples(rows, length)})" for length in lengths]
    print_table(title, ["row", "seeds", "steps", "seconds", "fitted", *columns], body)


def print_table(title: str, header: Iterable[str], body: Iterable[Sequence[str]]) -> None:
    """Print a table as Markdown."""
    names = [name.replace("\n", " ") for name in header]
    print(f"\n**{title[0].upper()}{title[1:]}**\n\n| {' | '.join(names)} |\n{'|---' * len(names)}|")
    for row in body:
        print("|", " | ".join(cell.replace("\n", " ") for cell in row), "|")


def main() -> None:
    """Add results, print the tables, and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("claim", choices=CLAIMS)
    parser.add_argument("--add", type=Path, action="append", default=[], help="output folder of lengthwise reproduce")
    parser.add_argument("--add-gpu", type=Path, action="append", default=[], help="gpu.jsonl file of make gpu")
    options = parser.parse_args()
    claim = CLAIMS[options.claim]
    for folder in options.add:
        add_folder(claim, folder)
    for path in options.add_gpu:
        add_gpu_results(claim, path)
    rows = read_rows(RESULTS_FOLDER / f"{claim.name}.jsonl")
    readings = read_rows(RESULTS_FOLDER / f"{claim.name}_readings.jsonl")
    print_every_seed(rows)
    for title, header, body in tables_of(claim, rows, readings):
        print_table(title, header, body)
    with tempfile.TemporaryDirectory() as folder:
        figure = claim.draw(rows, readings, Path(folder), claim.name.replace("_", " "))
        shutil.copy(figure, FIGURES_FOLDER / f"{claim.name}.png")


if __name__ == "__main__":
    main()
