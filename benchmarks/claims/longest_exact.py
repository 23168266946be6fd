"""Reach of a run: the longest test length that it answers exactly, in training lengths."""

from collections.abc import Mapping
from typing import Any

from lengthwise.evaluation.result_rows import FIT_THRESHOLD, Rows, longest_exact_length
from lengthwise.experiments.run import Run

# Minimum exact match at which a test length counts toward the reach of a run.
EXACT_MATCH_THRESHOLD = 0.9


def measure_longest_exact(run: Run, rows: Rows) -> dict[str, Any]:
    """Return the longest training length, the steps, whether the run fits, and its reach in training lengths."""
    longest = run.experiment.train_lengths[1]
    return {
        "trained_on": longest,
        "steps": run.facts["steps"],
        "fits": run.facts["fitted"] >= FIT_THRESHOLD,
        "longest_exact": longest_exact_length(rows, EXACT_MATCH_THRESHOLD) / longest,
    }


def format_longest_exact(measurement: Mapping[str, Any]) -> str:
    """Return the reach of a measurement as a table cell."""
    return f"{measurement['longest_exact']:g}x" + ("" if measurement["fits"] else " (does not fit)")
