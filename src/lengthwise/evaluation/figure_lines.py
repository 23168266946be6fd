"""Lines of a figure panel: one line per label, with its values over seeds, and the selection of a few lines."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from lengthwise.evaluation.figure_layout import MAX_LINES
from lengthwise.evaluation.result_rows import Rows, group_rows, pool_seeds, select_unfit, uses_loss


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
    def information(self) -> float:
        """Area under the exact match over the logarithm of the length; minus the mean loss for losses."""
        values, lengths = self.values, list(self.runs)
        if uses_loss(self.runs[lengths[0]]):
            return -sum(map(math.log, values)) / len(values)
        points = list(zip(map(math.log, lengths), values, strict=True))
        return sum(((right[0] - left[0]) * (left[1] + right[1]) / 2 for left, right in pairwise(points)), 0.0)


def select_lines(rows: Rows) -> tuple[list[Line], int]:
    """Return at most ``MAX_LINES`` lines in the order of their labels, and the number of omitted labels.

    The first label is usually the subject and is always included. The other lines are those with the most information:
    first the lines that fit, then those with the largest area under the exact match.
    """
    lines = [_line(label, by_length) for label, by_length in group_rows(rows).items()]
    ranked = sorted(lines[1:], key=lambda line: (line.fits, line.information), reverse=True)
    labels = {line.label for line in (lines[0], *ranked[: MAX_LINES - 1])}
    return [line for line in lines if line.label in labels], len(lines) - len(labels)


def _line(label: str, by_length: Mapping[int, Rows]) -> Line:
    runs = {length: rows for length, rows in by_length.items() if rows}
    all_rows = [row for rows in runs.values() for row in rows]
    return Line(label=label, runs=runs, fits=not select_unfit(all_rows))
