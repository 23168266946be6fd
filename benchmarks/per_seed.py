"""Print result rows as a Markdown table: a line per row and seed, a column per length."""

import argparse
import json
from pathlib import Path
from typing import Any


def cell(row: dict[str, Any]) -> str:
    """Exact match, its interval, and what failed."""
    shown = f"{row['exact_match']:.3f} [{row['low']:.2f}, {row['high']:.2f}]"
    first = row["first_error"]
    kinds = [f"{first[kind]} {kind}" for kind in ("token", "id", "end") if first[kind]] if first else []
    return f"{shown} ({', '.join(kinds)})" if kinds else shown


def main() -> None:
    """One table for one results.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    rows = [json.loads(line) for line in parser.parse_args().results.read_text().splitlines()]
    lengths = {row["length"]: row["num_examples"] for row in rows}
    print("| row | seed | IDs met | steps | seconds | fits |", *(f"{n:,} (n={k}) |" for n, k in lengths.items()))
    print("|---" * (6 + len(lengths)) + "|")
    for name, seed in dict.fromkeys((row["row"], row["seed"]) for row in rows):
        own = {row["length"]: row for row in rows if (row["row"], row["seed"]) == (name, seed)}
        facts = next(iter(own.values()))
        met = f"{facts['id_range'][0]:,}-{facts['id_range'][1]:,}"
        head = [name, seed, met, f"{facts['steps']:,}", f"{facts['train_s']:.0f}", f"{facts['fitted']:.3f}"]
        print("|", " | ".join(map(str, [*head, *(cell(own[length]) for length in lengths)])), "|")


if __name__ == "__main__":
    main()
