"""Arithmetic of result rows: groups by label and length, values over seeds, and the fit of training lengths."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lengthwise.core.intervals import interval_over_models
from lengthwise.evaluation.tally import LengthResult, skipped_result

Rows = Sequence[Mapping[str, Any]]
FIT_THRESHOLD = 0.99


def is_skipped(row: Mapping[str, Any]) -> bool:
    """Return True for a row of a length that was not evaluated, because an earlier length had no exact match."""
    return bool(row.get("skipped"))


def complete_rows(rows: Rows) -> Rows:
    """Return the rows with a skipped row at each length at which the evaluation of a run had already stopped.

    Rows of earlier versions lack these rows, so a mean over their seeds would be one over the seeds that did not stop.
    The lengths of a run are those of all runs with its label and task. A run without an exact match at its longest
    length has stopped there. Rows with losses are returned as they are.
    """
    lengths: dict[tuple[str, str], set[int]] = {}
    runs: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if "loss" not in row:
            lengths.setdefault((label_of(row), str(row["task"])), set()).add(int(row["length"]))
            runs.setdefault((label_of(row), str(row["task"]), row.get("variant"), row["seed"]), []).append(row)
    skipped_rows: dict[int, list[dict[str, Any]]] = {}
    for (label, task, _, _), run_rows in runs.items():
        last_row = max(run_rows, key=lambda row: int(row["length"]))
        if last_row["exact_match"] == 0:
            longer = sorted(length for length in lengths[label, task] if length > last_row["length"])
            skipped_rows[id(last_row)] = [_skipped_row(last_row, length) for length in longer]
    return [each for row in rows for each in (row, *skipped_rows.get(id(row), ()))]


def _skipped_row(last_row: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Return the row of a skipped length, with the facts of the run and the keys of its last row."""
    result = asdict(skipped_result(length, str(last_row.get("decode"))))
    unknown = {name: None for name in ("text_tokens", "requested_tokens") if name in last_row}
    return {**last_row, **{name: result[name] for name in result.keys() & last_row.keys()}, **unknown, "skipped": True}


def group_rows(rows: Rows) -> dict[str, dict[int, Rows]]:
    """Group result rows by label (the value of ``row``) and then by length; a group has one row per seed.

    A seed whose evaluation stopped has a skipped row at the longer lengths (`complete_rows`).
    """
    rows = complete_rows(rows)
    labels = list(dict.fromkeys(str(row["row"]) for row in rows))
    lengths = sorted({int(row["length"]) for row in rows})
    return {
        label: {length: [row for row in rows if row["row"] == label and row["length"] == length] for length in lengths}
        for label in labels
    }


def describe_misfit(result: LengthResult) -> str | None:
    """Return the errors of a run that does not fit, by kind; None if it fits the length of the result."""
    first = result.first_error
    if result.exact_match >= FIT_THRESHOLD or first is None:
        return None
    counts = {"a token": first.token, "an ID": first.id, "the end token": first.end}
    percentages = {kind: 100 * count / result.num_examples for kind, count in counts.items() if count}
    shares = {kind: f"{share:.{0 if 1 <= share <= 99 or share == 100 else 1}f}%" for kind, share in percentages.items()}
    if len(shares) > 1:
        return (
            f"the first error is {', '.join(f'{kind} in {share}' for kind, share in shares.items())} of the sequences"
        )
    ((kind, share),) = shares.items()
    before = "; everything before it is right" if first.end else ""
    return f"{kind} is wrong in {share} of the sequences{before}"


def uses_loss(rows: Rows) -> bool:
    """Return True for rows with losses, False for rows with exact match; a table never contains both."""
    return "loss" in rows[0]


def pool_seeds(rows: Rows) -> tuple[float, float | None, float | None]:
    """Return the exact match over the examples of all seeds, with its 95% interval (all seeds use the same examples).

    A seed with a skipped row counts as 0; if all rows are skipped, the bounds of the interval are None.

    For losses, return the perplexity of the mean loss over seeds. The bounds of its interval are means over seeds
    too, because all seeds use the same documents; they are None if a seed has none.
    """
    if uses_loss(rows):
        perplexity, low, high = (_perplexity([row[loss_name] for row in rows]) for loss_name in ("loss", "low", "high"))
        assert perplexity is not None
        return perplexity, low, high
    if all(map(is_skipped, rows)):
        return 0.0, None, None
    # A skipped seed counts as 0 with the weight of an evaluated one.
    most = max(int(row["num_examples"]) for row in rows)
    num_examples = [most if is_skipped(row) else int(row["num_examples"]) for row in rows]
    num_exact = [round(float(row["exact_match"]) * count) for row, count in zip(rows, num_examples, strict=True)]
    return (sum(num_exact) / sum(num_examples), *interval_over_models(num_exact, num_examples))


def _perplexity(losses: Sequence[float | None]) -> float | None:
    """Return the perplexity of the mean of one loss per seed; a bound that one seed lacks (None) has no mean."""
    known_losses = [loss for loss in losses if loss is not None]
    return math.exp(sum(known_losses) / len(losses)) if len(known_losses) == len(losses) else None


def label_of(row: Mapping[str, Any]) -> str:
    """Return the label of a row without its variant."""
    label, variant = str(row["row"]), row.get("variant")
    return label if variant is None else label.removesuffix(f", {variant}")


def value_range(runs: Rows) -> tuple[float, float]:
    """Return the smallest and largest value over seeds, or the 95% interval of a single seed."""
    if len(runs) == 1:
        pooled_value, low, high = pool_seeds(runs)
        return (pooled_value, pooled_value) if low is None or high is None else (low, high)
    seed_values = [pool_seeds([row])[0] for row in runs]
    return min(seed_values), max(seed_values)


def longest_exact_length(rows: Rows, threshold: float) -> int:
    """Return the longest test length of a run up to which every length and variant has at least this exact match.

    Returns 0 if the shortest test length has less.
    """
    longest = 0
    for length in sorted({int(row["length"]) for row in rows}):
        if min(row["exact_match"] for row in rows if row["length"] == length) < threshold:
            break
        longest = length
    return longest


def knowledge_of(rows: Rows) -> str:
    """Return the field ``told`` of the rows of a label; a dash for rows of earlier versions without this field."""
    return next((str(row["told"]) for row in rows if "told" in row), "-")


def count_skipped(rows: Rows) -> int:
    """Return the number of seeds whose evaluation stopped at a shorter length, and which count as 0."""
    return sum(map(is_skipped, rows))


def count_ended(by_length: Mapping[int, Rows], length: int) -> int:
    """Return the number of seeds of a label if none has a row at this length and all ended at 0; otherwise 0."""
    shorter = [rows for each, rows in sorted(by_length.items()) if each < length and rows]
    has_ended = not by_length[length] and shorter and all(row.get("exact_match") == 0 for row in shorter[-1])
    return len(shorter[-1]) if has_ended else 0


def select_unfit(rows: Rows) -> set[str]:
    """Return the labels (``row``) of which no seed fits its training lengths, so they say nothing about longer lengths.

    Labels with losses or an unknown fit are left out. An exact test does not count as a fit, because a variant of the
    task can be easier than the training.
    """
    best: dict[str, float] = {}
    for row in rows:
        label, is_unknown = str(row["row"]), "loss" in row or row["fitted"] is None
        best[label] = max(best.get(label, 0.0), 1.0 if is_unknown else float(row["fitted"]))
    return {label for label, value in best.items() if value < FIT_THRESHOLD}


def merge_variants(rows: Rows) -> Rows:
    """Return one row per label, seed and length: the row of the variant with the lowest exact match.

    Only variants that all seeds of a label have in common count, and their number is appended to the label. Lengths are
    omitted if a variant has no row there.
    """
    if uses_loss(rows):
        return rows
    rows = complete_rows(rows)
    variants: dict[str, dict[int, set[str | None]]] = {}
    groups: dict[tuple[str, int, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        variants.setdefault(label_of(row), {}).setdefault(row["seed"], set()).add(row.get("variant"))
        groups.setdefault((label_of(row), row["seed"], row["length"]), []).append(row)
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
