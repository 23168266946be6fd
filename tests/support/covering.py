"""Covering designs: ``make test`` runs a few cases of a product, and ``make slow`` runs the full product."""

from collections import Counter
from collections.abc import Hashable, Sequence


def covering(cases: Sequence[Sequence[Hashable]], times: int) -> set[int]:
    """Return indexes of cases in which every value occurs at least ``times`` times, or as often as possible."""
    count: Counter[tuple[int, Hashable]] = Counter()
    selection = set()
    # Neighboring cases share most values, so visit the cases with large steps.
    for index in sorted(range(len(cases)), key=lambda index: index * 0.6180339887 % 1):
        values = list(enumerate(cases[index]))
        if any(count[value] < times for value in values):
            selection.add(index)
            count.update(values)
    return selection
