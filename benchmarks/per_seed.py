"""Print a results.jsonl file as a Markdown table, with one line per label and seed and one column per length."""

import argparse
import json
from pathlib import Path
from typing import Any


def cell(row: dict[str, Any]) -> str:
    """Return the text of a cell: exact match, its interval, and the number of first errors per kind."""
    text = f"{row['exact_match']:.3f} [{row['low']:.2f}, {row['high']:.2f}]"
    first = row["first_error"]
    kinds = [f"{first[kind]} {kind}" for kind in ("token", "id", "end") if first[kind]] if first else []
    return f"{text} ({', '.join(kinds)})" if kinds else text


def main() -> None:
    """Print the table of the file in the first argument."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    rows = [json.loads(line) for line in parser.parse_args().results.read_text().splitlines()]
    lengths = {row["length"]: row["num_examples"] for row in rows}
    columns = (f"{n:,} (n={k}) |" for n, k in lengths.items())
    print("| row | seed | IDs in training | steps | seconds | fitted |", *columns)
    print("|---" * (6 + len(lengths)) + "|")
    for name, seed in dict.fromkeys((row["row"], row["seed"]) for row in rows):
        by_length = {row["length"]: row for row in rows if (row["row"], row["seed"]) == (name, seed)}
        facts = next(iter(by_length.values()))
        id_range = f"{facts['id_range'][0]:,}-{facts['id_range'][1]:,}"
        columns = [name, seed, id_range, f"{facts['steps']:,}", f"{facts['train_s']:.0f}", f"{facts['fitted']:.3f}"]
        print("|", " | ".join(map(str, [*columns, *(cell(by_length[length]) for length in lengths)])), "|")


if __name__ == "__main__":
    main()
