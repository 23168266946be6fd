"""Queries over result rows, and the forms of their values in sentences, for ``sentences.py`` of the claims."""

import math
import statistics
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lengthwise.evaluation.result_rows import FIT_THRESHOLD, label_without_variant, longest_exact_length
from lengthwise.experiments.experiment import build_decoder
from lengthwise.experiments.recipes import RECIPES
from lengthwise.experiments.reproduction import folders_by_claim
from lengthwise.experiments.run_folder import read_rows

RESULTS, CLAIM_FOLDERS = Path(__file__).parent / "results", folders_by_claim()
Row = dict[str, Any]
# Smallest exact match at which a length counts toward the reach of a run.
THRESHOLD = 0.9
WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
# Common encodings that fit parity, addition and variable assignment.
FITTED_ON_PARITY = ("rotary", "sinusoidal", "learned")
# Fields that distinguish the runs of a file, with the label and the seed.
RUN_FIELDS = ("task", "model", "positions", "scaling", "recipe", "decode", "seed")


class Runs:
    """Result rows of trained runs. A value of a run is that of its worst variant."""

    def __init__(self, rows: Sequence[Row]) -> None:
        assert rows, "no rows with these labels"
        self.rows = rows

    def of(self, *labels: str, **fields: Any) -> "Runs":
        """Select rows by label (that of the row, with or without its variant) and by values of fields."""
        return Runs(
            [
                row
                for row in self.rows
                if (not labels or row["row"] in labels or label_without_variant(row) in labels)
                and all(row[name] == value for name, value in fields.items())
            ]
        )

    def by_run(self) -> list[list[Row]]:
        """Return the rows of every run."""
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in self.rows:
            label = label_without_variant(row) if "row" in row else None
            groups.setdefault((label, *(row.get(name) for name in RUN_FIELDS)), []).append(row)
        return list(groups.values())

    def at(self, length: int) -> list[float]:
        """Return the value of every run at a length; a run that stopped at a shorter length has 0."""
        return [min(_at(rows, length)) for rows in self.by_run()]

    def exact(self, length: int) -> int:
        """Return the number of runs without an error at a length."""
        return self.at(length).count(1)

    def worst(self, length: int) -> float:
        """Return the smallest value over runs at a length."""
        return min(self.at(length))

    def best(self, length: int) -> float:
        """Return the largest value over runs and variants at a length."""
        return max(value for rows in self.by_run() for value in _at(rows, length))

    def median(self, length: int) -> float:
        """Return the median over runs at a length."""
        return statistics.median(self.at(length))

    def num_examples(self, length: int) -> int:
        """Return the number of examples of each run at a length."""
        # Rows of stopped runs may have none.
        (number,) = {row["num_examples"] for row in self.rows if row["length"] == length} - {0, None}
        return int(number)

    def each(self, field: str) -> list[Any]:
        """Return a field of the first row of every run."""
        return [rows[0][field] for rows in self.by_run()]

    @property
    def trained(self) -> int:
        """The longest training length."""
        return max(row["train_lengths"][1] for row in self.rows)

    @property
    def lengths(self) -> list[int]:
        """The tested lengths."""
        return sorted({row["length"] for row in self.rows})

    @property
    def labels(self) -> list[str]:
        """The labels of the rows."""
        return list(dict.fromkeys(row["row"] for row in self.rows))

    @property
    def num_seeds(self) -> int:
        """The number of seeds."""
        return len({row["seed"] for row in self.rows})

    @property
    def num_fit(self) -> int:
        """The number of runs that fit their training lengths."""
        return sum(value >= FIT_THRESHOLD for value in self.each("fitted"))

    def longest_exact(self) -> list[int]:
        """Return the longest length of every run up to which every tested length has 0.9 or more."""
        return [longest_exact_length(rows, THRESHOLD) for rows in self.by_run()]

    def multiples(self) -> list[float]:
        """Return the reach of every run in training lengths."""
        return [longest_exact_length(rows, THRESHOLD) / rows[0]["train_lengths"][1] for rows in self.by_run()]


def _at(rows: Sequence[Row], length: int) -> list[float]:
    """Return the value of every variant of a run at a length."""
    values = []
    for variant in dict.fromkeys(row.get("variant") for row in rows):
        by_length = {row["length"]: row["exact_match"] for row in rows if row.get("variant") == variant}
        shorter = [by_length[each] for each in sorted(by_length) if each < length]
        stopped = bool(shorter) and shorter[-1] == 0
        assert stopped or length in by_length, f"length {length} was not measured"
        values.append(by_length.get(length, 0.0))
    return values


@cache
def rows_in(name: str, file: str = "rows") -> list[Row]:
    """Return the rows of a file in the folder of a claim, or of the file with this name in ``results``."""
    return read_rows(CLAIM_FOLDERS[name] / f"{file}.jsonl" if name in CLAIM_FOLDERS else RESULTS / f"{name}.jsonl")


@cache
def runs(name: str, file: str = "rows") -> Runs:
    """Return the runs of a file; see ``rows_in``."""
    return Runs(rows_in(name, file))


def word(number: int) -> str:
    """Return a small number as a word."""
    return WORDS[number] if number < len(WORDS) else f"{number:,}"


def down(value: float, digits: int = 2) -> str:
    """Round down, for "at least"."""
    return f"{math.floor(value * 10**digits + 1e-9) / 10**digits:.{digits}f}"


def up(value: float, digits: int = 2) -> str:
    """Round up, for "at most"."""
    return f"{math.ceil(value * 10**digits - 1e-9) / 10**digits:.{digits}f}"


def percent(share: float) -> str:
    """Return a share in percent, with the digits of the tables."""
    return f"{float(f'{share:.3f}'):.1%}"


def two_digits(value: float) -> str:
    """Return a value as in the tables of the pages."""
    return f"{value:.2f}"


def listed(values: Iterable[Any], join: str = "and") -> str:
    """Return values as a list in a sentence."""
    *rest, last = [value if isinstance(value, str) else f"{value:,g}" for value in values]
    return f"{', '.join(rest)} {join} {last}" if rest else last


def span(values: Iterable[float], style: str = ".2f") -> str:
    """Return the smallest and the largest value, or one value if they are equal."""
    ends = sorted(values)
    low, high = f"{ends[0]:{style}}", f"{ends[-1]:{style}}"
    return low if low == high else f"{low} to {high}"


def training_seconds(selected: Runs) -> str:
    """Return the smallest and the largest training time of the runs."""
    return f"{span(selected.each('train_s'), ',.0f')} s"


def num_weights(recipe: str) -> int:
    """Return the number of weights of the decoder of a recipe."""
    return sum(weight.numel() for weight in build_decoder(RECIPES[recipe]()).parameters())
