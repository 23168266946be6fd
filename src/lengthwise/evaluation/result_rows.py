"""Arithmetic of result rows: groups by label and length, values over seeds, and the fit of training lengths."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lengthwise.core.confidence_intervals import interval_over_models
from lengthwise.evaluation.grading import LengthResult

Rows = Sequence[Mapping[str, Any]]
FIT_THRESHOLD = 0.99
HELD_OUT_ADVICE = "use held-out records with --task FILE.jsonl"


def is_skipped(row: Mapping[str, Any]) -> bool:
    """Return True for a row of a length that was not evaluated, because an earlier length had no exact match."""
    return bool(row.get("skipped"))


def group_rows(rows: Rows) -> dict[str, dict[int, Rows]]:
    """Group result rows by label (the value of ``row``) and then by length; a group has one row per seed.

    A seed whose evaluation stopped has skipped rows at the longer lengths.
    """
    lengths = sorted({int(row["length"]) for row in rows})
    groups: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for row in rows:
        label = str(row["row"])
        if label not in groups:
            groups[label] = {length: [] for length in lengths}
        groups[label][int(row["length"])].append(row)
    return {label: dict(by_length) for label, by_length in groups.items()}


def describe_fit_errors(result: LengthResult) -> str | None:
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


def label_with_variant(label: str, variant: str | None) -> str:
    """Return the label of the rows of a task variant."""
    return label if variant is None else f"{label}, {variant}"


def label_without_variant(row: Mapping[str, Any]) -> str:
    """Return the label of a row without its variant."""
    label, variant = str(row["row"]), row.get("variant")
    return label if variant is None else label.removesuffix(f", {variant}")


def seed_value_range(runs: Rows) -> tuple[float, float]:
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


def find_given_knowledge(rows: Rows) -> str:
    """Return the field ``given`` of the rows of a label; a dash for rows of earlier versions without this field."""
    return next((str(row["given"]) for row in rows if "given" in row), "-")


def count_skipped(rows: Rows) -> int:
    """Return the number of seeds whose evaluation stopped at a shorter length, and which count as 0."""
    return sum(map(is_skipped, rows))


def lengths_seen_in_training(rows: Rows) -> str:
    """Return the lengths, separated by commas, at which test examples also occur in the training data."""
    return ", ".join(f"{length:,}" for length in sorted({row["length"] for row in rows if row.get("seen_in_training")}))


def select_unfit_labels(rows: Rows) -> set[str]:
    """Return the labels (``row``) of which no seed fits its training lengths, so they say nothing about longer lengths.

    Labels with losses or an unknown fit are left out. An exact test does not count as a fit, because a variant of the
    task can be easier than the training.
    """
    best: dict[str, float] = {}
    for row in rows:
        label, is_unknown = str(row["row"]), "loss" in row or row["fitted"] is None
        best[label] = max(best.get(label, 0.0), 1.0 if is_unknown else float(row["fitted"]))
    return {label for label, value in best.items() if value < FIT_THRESHOLD}
