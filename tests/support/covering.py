"""Covering designs: make test runs a few cases of a product, make slow the full product."""

from collections import Counter
from collections.abc import Hashable, Sequence


def covering(cases: Sequence[Sequence[Hashable]], times: int) -> set[int]:
    """Return the indexes of cases in which every value of every axis occurs at least ``times`` times, if it can."""
    count: Counter[tuple[int, Hashable]] = Counter()
    kept = set()
    # A large step through the product: neighbours share most of their values.
    for index in sorted(range(len(cases)), key=lambda index: index * 0.6180339887 % 1):
        values = list(enumerate(cases[index]))
        if any(count[value] < times for value in values):
            kept.add(index)
            count.update(values)
    return kept
