"""Store the result rows of a claim and print the tables of its page.

``python benchmarks/claim_page.py CLAIM`` prints the tables of the claim as Markdown. In the folder of the claim, it
draws ``figure.png`` and writes the results of every seed into ``per_seed.md``. A table has one line per label, with the
median and the worst seed. ``--add FOLDER`` first adds the results that ``lengthwise reproduce CLAIM`` wrote to a
folder to ``rows.jsonl`` and ``measurements.jsonl``, with the commit, and replaces earlier results of the same run.
``--add-gpu FILE`` adds results from a ``gpu.jsonl`` that ``make gpu`` wrote. Both flags can be repeated.

With the path of a file of result rows instead of a claim, such as ``runs/NAME/results.jsonl``, it prints only the
tables of exact match and writes ``benchmarks/results/NAME_per_seed.md``.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from page_tables import page_table

from lengthwise.evaluation.result_rows import is_skipped, label_without_variant, pool_seeds, uses_loss
from lengthwise.evaluation.tables_and_figures import format_num_examples
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import COMPARISONS, RECIPES
from lengthwise.experiments.reproduction import MEASUREMENTS_FILE, Claim, folders_by_claim, load_claim
from lengthwise.experiments.run_folder import COMPARISON, RESULTS, read_rows, write_rows
from lengthwise.positions import describe_given_information

Rows = list[dict[str, Any]]
STOP_NOTE = " ·: the evaluation of a seed stopped at a shorter length without an exact match; it counts as 0."
UNFIT_NOTE = " A row that did not fit says nothing about longer lengths."
RESULTS_FOLDER = Path("benchmarks/results")


def add_folder(claim: Claim, folder: Path) -> None:
    """Add the rows and measurements of a folder to the stored results."""
    commit = json.loads((folder / COMPARISON).read_text())["provenance"]["commit"]
    for name, source in (("rows.jsonl", RESULTS), ("measurements.jsonl", MEASUREMENTS_FILE)):
        _store(claim, name, [{**row, "commit": commit} for row in read_rows(folder / source)])


def add_gpu_results(claim: Claim, path: Path) -> None:
    """Add the results of a GPU run to the stored results."""
    parts = [part for part in read_rows(path) if part.get("claim") == claim.name]
    rows, measurements = [], []
    for part in parts:
        facts = {"commit": part["commit"], "cuda": part["hardware"]["cuda"]}
        for result in part["results"]:
            variant = result["variant"]
            label = part["row"] if variant is None else f"{part['row']}, {variant}"
            rows.append({"row": label, **result, **facts})
        if "measurement" in part:
            measurements.append({"row": part["row"], "seed": part["seed"], **part["measurement"], **facts})
    _store(claim, "rows.jsonl", rows)
    _store(claim, "measurements.jsonl", measurements)


def _store(claim: Claim, name: str, new_rows: Rows) -> None:
    new_runs = {(row["row"], row["seed"]) for row in new_rows}
    path = folders_by_claim()[claim.name] / name
    rows = [row for row in read_rows(path) if (row["row"], row["seed"]) not in new_runs] + new_rows
    if rows:
        write_rows(path, _sort_rows(claim, rows))


def _sort_rows(claim: Claim, rows: Rows) -> Rows:
    """Sort rows by label and variant, in the order of the claim, then by seed."""
    experiments = claim.experiments()
    labels = list(experiments)

    def sort_key(row: Mapping[str, Any]) -> tuple[int, int, int]:
        label = label_without_variant(row)
        variants = (None, *experiments[label].evaluation.variants)
        return labels.index(label), variants.index(row.get("variant")), row["seed"]

    return sorted(rows, key=sort_key)


def add_given(rows: Rows, experiments: Mapping[str, Experiment]) -> Rows:
    """Return the rows with the field ``given``, which older rows lack; it follows from the experiments."""
    given = {
        label: describe_given_information(each.task, each.scheme, each.encoding) for label, each in experiments.items()
    }
    labels = [label_without_variant(row) for row in rows]
    return [{"given": given[label], **row} if label in given else row for label, row in zip(labels, rows, strict=True)]


def known_experiments(name: str, rows: Rows) -> dict[str, Experiment]:
    """Return the experiments of a claim or comparison by label, and the recipes that labels of the rows name."""
    recipes = {label: RECIPES[label]() for label in map(label_without_variant, rows) if label in RECIPES}
    if name in folders_by_claim():
        return load_claim(name).experiments() | recipes
    return (COMPARISONS[name]() if name in COMPARISONS else {}) | recipes


def print_page_tables(rows: Rows, per_seed_link: str) -> None:
    """Print one table per task, with the median and the worst seed in each cell, and a link to every seed."""
    for task in dict.fromkeys(row["task"] for row in rows):
        task_rows = [row for row in rows if row["task"] == task]
        header, body, num_omitted = page_table(task_rows)
        quantity = "perplexity" if uses_loss(rows) else "exact match"
        title = f"{quantity}, median / worst seed [its 95% interval] (number of seeds)"
        print_table(f"{task.replace('_', ' ')}: {title}", header, body)
        rest = f"{num_omitted} more rows and the values" if num_omitted else "Values"
        link = f"[{per_seed_link}]({per_seed_link})"
        stops = "" if not any("·" in cell for line in body for cell in line) else STOP_NOTE
        unfit = UNFIT_NOTE if any("did not fit" in line[4] for line in body) else ""
        print(f"\n{rest} of every seed: {link}.{stops}{unfit}")


def per_seed_lines(rows: Rows) -> Iterator[str]:
    """Yield one Markdown table per task, with one line per label and seed."""
    for task in dict.fromkeys(row["task"] for row in rows):
        task_rows = [row for row in rows if row["task"] == task]
        lengths = sorted({row["length"] for row in task_rows})
        columns = [f"{length:,} (n={format_num_examples(task_rows, length)})" for length in lengths]
        body = []
        for label, seed in dict.fromkeys((row["row"], row["seed"]) for row in task_rows):
            runs = {row["length"]: row for row in task_rows if (row["row"], row["seed"]) == (label, seed)}
            facts = next(iter(runs.values()))
            low_id, high_id = facts["id_range"]
            fitted = "-" if facts["fitted"] is None else f"{facts['fitted']:.3f}"
            cells = [facts.get("given", "-"), str(seed), f"{low_id:,}-{high_id:,}", f"{facts['steps']:,}"]
            cells += [f"{facts['train_s']:.0f}", fitted]
            body.append([label, *cells, *(seed_cell(runs[length]) if length in runs else "·" for length in lengths)])
        header = ["row", "given", "seed", "IDs in training", "steps", "seconds", "fitted", *columns]
        yield from table_lines(task.replace("_", " "), header, body)


def seed_cell(row: Mapping[str, Any]) -> str:
    """Return exact match or perplexity with its interval, and the number of first errors of each kind."""
    if is_skipped(row):
        return "·"
    value, low, high = pool_seeds([row])
    text = f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.2f}, {high:.2f}]"
    first = row.get("first_error")
    kinds = [f"{first[kind]} {kind}" for kind in ("token", "id", "end") if first[kind]] if first else []
    return f"{text} ({', '.join(kinds)})" if kinds else text


def table_lines(title: str, header: Iterable[str], body: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table as Markdown."""
    names = [name.replace("\n", " ") for name in header]
    yield from ("", f"**{title[0].upper()}{title[1:]}**", "", f"| {' | '.join(names)} |", f"{'|---' * len(names)}|")
    for row in body:
        yield f"| {' | '.join(cell.replace(chr(10), ' ') for cell in row)} |"


def print_table(title: str, header: Iterable[str], body: Iterable[Sequence[str]]) -> None:
    """Print a table as Markdown."""
    print("\n".join(table_lines(title, header, body)))


def main() -> None:
    """Add results, print the tables, write the file of every seed, and draw the figure of a claim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", help="name of a claim, or path of a file with result rows")
    parser.add_argument("--add", type=Path, action="append", default=[], help="output folder of lengthwise reproduce")
    parser.add_argument("--add-gpu", type=Path, action="append", default=[], help="gpu.jsonl file of make gpu")
    options = parser.parse_args()
    folder = folders_by_claim().get(options.source)
    claim = None if folder is None else load_claim(options.source)
    if claim is None or folder is None:
        path = Path(options.source)
        if not path.is_file() or options.add or options.add_gpu:
            names = ", ".join(folders_by_claim())
            parser.error(f"{options.source} is not the claim of the added results or a file; claims: {names}")
        name = path.parent.name if path.name == RESULTS else path.stem
        per_seed_file = RESULTS_FOLDER / f"{name}_per_seed.md"
        per_seed_link = f"results/{per_seed_file.name}"
    else:
        path, name = folder / "rows.jsonl", claim.name
        per_seed_file, per_seed_link = folder / "per_seed.md", "per_seed.md"
        for output in options.add:
            add_folder(claim, output)
        for file in options.add_gpu:
            add_gpu_results(claim, file)
    rows = read_rows(path)
    rows = list(add_given(rows, known_experiments(name, rows)))
    command = f"Generated by `python benchmarks/claim_page.py {options.source}`; do not edit."
    note = "Values: exact match (or perplexity) [95% interval] (first errors by kind); ·: not measured."
    per_seed_file.write_text("\n".join([command, "", note, *per_seed_lines(rows)]) + "\n")
    print_page_tables(rows, per_seed_link)
    if claim is None or folder is None:
        return
    measurements = read_rows(folder / "measurements.jsonl")
    for title, header, body in claim.tables(rows, measurements):
        print_table(title, header, body)
    with tempfile.TemporaryDirectory() as temporary:
        figure = claim.draw(rows, measurements, Path(temporary), claim.name.replace("_", " "))
        shutil.copy(figure, folder / "figure.png")


if __name__ == "__main__":
    main()
