"""Tables of result rows on a page: the median and the worst seed, with the number of seeds in each cell."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from lengthwise.evaluation.result_rows import (
    FIT_THRESHOLD,
    Rows,
    count_skipped,
    find_given_knowledge,
    group_rows,
    is_skipped,
    label_without_variant,
    pool_seeds,
    select_unfit_labels,
    uses_loss,
)
from lengthwise.evaluation.tables_and_figures import format_num_examples, format_step_range

# Maximum number of lines of a table on a page.
MAX_PAGE_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedSummary:
    """Median over seeds, and the worst seed with its 95% interval, which is None if it is unknown."""

    median: float
    worst: float
    low: float | None
    high: float | None


def summarize_seeds(rows: Rows) -> SeedSummary:
    """Return the median and the worst seed of the rows of one label at one length, or of perplexities for losses.

    The interval of exact match is the Wilson interval over the examples of the worst seed. The worst seed has no
    interval if the evaluation of a seed stopped at a shorter length, because it counts as 0 without examples.
    """
    results = [pool_seeds([row]) for row in rows]
    select_worst = max if uses_loss(rows) else min
    worst, low, high = select_worst(results, key=lambda result: result[0])
    if count_skipped(rows):
        low = high = None
    return SeedSummary(median=median(value for value, _, _ in results), worst=worst, low=low, high=high)


def page_table(rows: Rows, max_lines: int = MAX_PAGE_LINES) -> tuple[list[str], list[list[str]], int]:
    """Return a header, a body with one line per label, and the number of labels that exceed ``max_lines``.

    A cell has the median over seeds, the worst seed with its interval, and the number of seeds. If the variants of a
    task lead to too many lines, a line has the worst variant of each seed.
    """
    if len(group_rows(rows)) > max_lines:
        rows = merge_variants(rows)
    by_label, unfit = group_rows(rows), select_unfit_labels(rows)
    lengths = list(next(iter(by_label.values())))
    header = ["row", "given", "trained on", "steps", "fits"]
    header += [f"{length:,} (n={format_num_examples(rows, length)})" for length in lengths]
    body = []
    for label, by_length in list(by_label.items())[:max_lines]:
        runs = [row for length_rows in by_length.values() for row in length_rows]
        fitted = {row["seed"]: row["fitted"] for row in runs}
        num_fits = sum(value >= FIT_THRESHOLD for value in fitted.values() if value is not None)
        fits = "-" if uses_loss(rows) else f"{num_fits} of {len(fitted)}{', did not fit' * (label in unfit)}"
        cells = [
            find_given_knowledge(runs),
            "-".join(f"{length:,}" for length in runs[0]["train_lengths"]),
            format_step_range(runs),
        ]
        body.append([label, *cells, fits, *(_format_summary(by_length, length) for length in lengths)])
    return header, body, max(0, len(by_label) - max_lines)


def _format_summary(by_length: Mapping[int, Rows], length: int) -> str:
    """Return the text of a cell; a dot stands for a seed that stopped at a shorter length without an exact match."""
    rows = by_length[length]
    num_skipped = count_skipped(rows)
    if num_skipped == len(rows):
        num_ended = num_skipped or count_ended(by_length, length)
        return f"· ({num_ended})" if num_ended else "-"
    summary, digits = summarize_seeds(rows), 2 if uses_loss(rows) else 3
    if num_skipped:
        return f"{summary.median:.{digits}f} / · ({len(rows)}, {num_skipped} stopped)"
    interval = "-" if summary.low is None or summary.high is None else f"[{summary.low:.2f}, {summary.high:.2f}]"
    start = f"{summary.median:.{digits}f} / " if len(rows) > 1 else ""
    return f"{start}{summary.worst:.{digits}f} {interval} ({len(rows)})"


def count_ended(by_length: Mapping[int, Rows], length: int) -> int:
    """Return the number of seeds of a label if none has a row at this length and all ended at 0; otherwise 0."""
    shorter = [rows for other, rows in sorted(by_length.items()) if other < length and rows]
    has_ended = not by_length[length] and shorter and all(row.get("exact_match") == 0 for row in shorter[-1])
    return len(shorter[-1]) if has_ended else 0


def merge_variants(rows: Rows) -> Rows:
    """Return one row per label, seed and length: the row of the variant with the lowest exact match.

    Only variants that all seeds of a label have in common count, and their number is appended to the label. Lengths are
    omitted if a variant has no row there.
    """
    if uses_loss(rows):
        return rows
    variants: dict[str, dict[int, set[str | None]]] = {}
    groups: dict[tuple[str, int, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        variants.setdefault(label_without_variant(row), {}).setdefault(row["seed"], set()).add(row.get("variant"))
        groups.setdefault((label_without_variant(row), row["seed"], row["length"]), []).append(row)
    merged = []
    for (label, _, _), group in groups.items():
        common = set.intersection(*variants[label].values())
        common_rows = [row for row in group if row.get("variant") in common]
        if common_rows and len(common_rows) == len(common):
            # Of two variants without an exact match, the evaluated one has an interval.
            worst = min(common_rows, key=lambda row: (float(row["exact_match"]), is_skipped(row)))
            name = label if len(common) == 1 else f"{label} (worst of {len(common)} variants)"
            merged.append({**worst, "row": name, "variant": None})
    return merged
