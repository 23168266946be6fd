"""Reach of a run: the longest test length that it answers exactly, in training lengths."""

from collections.abc import Mapping
from typing import Any

from lengthwise.evaluation.result_rows import FIT_THRESHOLD, Rows, longest_exact_length
from lengthwise.experiments.run import Run

# Minimum exact match at which a test length counts toward the reach of a run.
EXACT_MATCH_THRESHOLD = 0.9


def read_reach(run: Run, rows: Rows) -> dict[str, Any]:
    """Return the longest training length, the steps, whether the run fits, and its reach in training lengths."""
    longest = run.experiment.train_lengths[1]
    return {
        "trained_on": longest,
        "steps": run.facts["steps"],
        "fits": run.facts["fitted"] >= FIT_THRESHOLD,
        "reached": longest_exact_length(rows, EXACT_MATCH_THRESHOLD) / longest,
    }


def format_reach(reading: Mapping[str, Any]) -> str:
    """Return the reach of a reading as a table cell."""
    return f"{reading['reached']:g}x" + ("" if reading["fits"] else " (does not fit)")
