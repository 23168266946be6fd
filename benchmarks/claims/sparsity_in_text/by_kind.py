"""Measure the relation of the claim over targets of one kind only, and print its table.

``python benchmarks/claims/sparsity_in_text/by_kind.py KIND RUN...`` measures each RUN, a folder of ``lengthwise
reproduce sparsity_in_text`` such as ``runs/sparsity_in_text/rotary/seed-9000``, and adds the results to
``by_kind.jsonl``. Without arguments, it prints the table of all stored results.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from lengthwise.core.provenance import collect_provenance
from lengthwise.experiments.reproduction import import_claim
from lengthwise.experiments.run import load_run
from lengthwise.experiments.run_folder import read_rows, to_folder_name, write_rows
from lengthwise.influence.report.summary import format_estimate

Rows = list[dict[str, Any]]
claim = import_claim("sparsity_in_text")
RESULTS = Path(__file__).with_name("by_kind.jsonl")
LABELS = list(claim.CLAIM.experiments())


def measure(folder: Path, kind: str) -> dict[str, Any]:
    """Return the result of one run: its correlation and the mean change of the loss at the longest context."""
    run = load_run(folder, device="cpu")
    (label,) = (label for label in LABELS if to_folder_name(label) == folder.parent.name)
    measurement = claim.measure_run(run, kind)
    return {
        "kind": kind,
        "row": label,
        "seed": run.experiment.seed,
        **{name: measurement[name] for name in ("measured", "used", "documents")},
        **{name: measurement[name][-1] for name in ("mean_change", "change")},
        "partial": measurement["partial"],
        "commit": collect_provenance()["commit"],
    }


def store(new_rows: Rows) -> None:
    """Add rows to the stored results, and replace earlier rows of the same kind and run."""
    key_names = ("kind", "row", "seed")
    rows = {tuple(row[name] for name in key_names): row for row in [*read_rows(RESULTS), *new_rows]}
    write_rows(RESULTS, sorted(rows.values(), key=lambda row: (row["kind"], LABELS.index(row["row"]), row["seed"])))


def print_table(rows: Rows) -> None:
    """Print one line per kind and run, with the answer of all seeds of a row in its last line."""
    names = ("kind", "row", "seed", "targets", "texts", "change at 1,024, nats", "correlation", "given the effect")
    print(f"| {' | '.join(names)} | answer |")
    print("|---" * (len(names) + 1) + "|")
    for row in rows:
        group = [other for other in rows if (other["kind"], other["row"]) == (row["kind"], row["row"])]
        answer = claim.judge([other["change"] for other in group]) if row is group[-1] else ""
        cells = [row["kind"], row["row"], str(row["seed"]), f"{row['used']:,} of {row['measured']:,}"]
        cells += [str(row["documents"]), *(format_estimate(row[name]) for name in ("mean_change", "change", "partial"))]
        print(f"| {' | '.join(cells)} | {answer} |")


def main() -> None:
    """Measure the runs, store their results, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", help="Kind of the targets, such as closing_bracket.")
    parser.add_argument("runs", nargs="*", type=Path, help="Folders of runs of the claim.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for folder in options.runs:
        store([measure(folder, options.kind)])
    print_table(read_rows(RESULTS))


if __name__ == "__main__":
    main()
