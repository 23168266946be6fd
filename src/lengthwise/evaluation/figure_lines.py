"""Lines of a figure panel: one line per label, with its values over seeds, and the selection of a few lines."""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass

from lengthwise.evaluation.figure_layout import MAX_LINES
from lengthwise.evaluation.result_rows import Rows, group_rows, pool_seeds, select_unfit, uses_loss

# Smallest difference of exact match, or of the loss, at which two lines look different.
VISIBLE_DIFFERENCE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Line of a label: its rows by length, without lengths that have no rows, and whether any seed fits."""

    label: str
    runs: Mapping[int, Rows]
    fits: bool

    @property
    def name(self) -> str:
        """Label, with a note if no seed fits its training lengths."""
        return self.label if self.fits else f"{self.label} (did not fit)"

    @property
    def values(self) -> list[float]:
        """Exact match or perplexity over all seeds at each length."""
        return [pool_seeds(runs)[0] for runs in self.runs.values()]

    @property
    def train_lengths(self) -> tuple[int, int] | None:
        """Shortest and longest training length, or None if it is unknown."""
        lengths = next(iter(self.runs.values()))[0]["train_lengths"]
        return None if lengths is None else (int(lengths[0]), int(lengths[1]))


def select_lines(rows: Rows) -> tuple[list[Line], int]:
    """Return at most ``MAX_LINES`` lines in the order of their labels (`select_labels`), and the number of others."""
    lines = [_line(label, by_length) for label, by_length in group_rows(rows).items()]
    unfit = {line.label for line in lines if not line.fits}
    labels = select_labels({line.label: line.runs for line in lines}, unfit, MAX_LINES)
    return [line for line in lines if line.label in labels], len(lines) - len(labels)


def select_labels(runs: Mapping[str, Mapping[int, Rows]], unfit: Container[str], max_labels: int) -> list[str]:
    """Return the labels whose lines differ most, so that a figure shows what fails as well as what works.

    ``runs`` has the rows of each label by length. The first label is usually the subject and is always included. Each
    next label has the largest difference from all included lines at any length. Lines that look like an included one
    come last, and before them those of the ``unfit`` labels.
    """
    curves = {label: _curve(by_length) for label, by_length in runs.items()}
    selected, others = [next(iter(curves))], list(curves)[1:]
    while others and len(selected) < max_labels:
        distances = {label: min(_distance(curves[label], curves[other]) for other in selected) for label in others}
        selected.append(
            max(others, key=lambda label: (distances[label] > VISIBLE_DIFFERENCE, label not in unfit, distances[label]))
        )
        others.remove(selected[-1])
    return [label for label in curves if label in selected]


def _curve(by_length: Mapping[int, Rows]) -> dict[int, float]:
    """Return the exact match, or the loss, over all seeds at each length."""
    values = {length: pool_seeds(rows)[0] for length, rows in by_length.items()}
    is_loss = any(map(uses_loss, by_length.values()))
    return {length: math.log(value) if is_loss else value for length, value in values.items()}


def _distance(curve: Mapping[int, float], other: Mapping[int, float]) -> float:
    """Return the largest difference at a common length; curves without one differ by 1, as 0 and 1 do."""
    # Rounded, because equal differences are decided by the order of the labels.
    return max((round(abs(curve[length] - other[length]), 9) for length in curve.keys() & other.keys()), default=1.0)


def _line(label: str, by_length: Mapping[int, Rows]) -> Line:
    runs = {length: rows for length, rows in by_length.items() if rows}
    all_rows = [row for rows in runs.values() for row in rows]
    return Line(label=label, runs=runs, fits=not select_unfit(all_rows))
