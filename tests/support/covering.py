"""Covering designs: a few cases of a product for make test, the full product for make slow."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable

import pytest


def covering(
    cases: Iterable[tuple[Hashable, ...]], times: int = 2, make: Callable[..., tuple] = lambda *case: case
) -> list:
    """Return all cases as parameters; those not needed to have every value of every axis ``times`` times are slow.

    ``make`` turns the names of a case into its parameters.
    """
    count: Counter[tuple[int, Hashable]] = Counter()
    cases = list(cases)
    fast = set()
    # A large step through the product: neighbours share most of their values.
    order = sorted(range(len(cases)), key=lambda index: index * 0.6180339887 % 1)
    for index in order:
        values = list(enumerate(cases[index]))
        if any(count[value] < times for value in values):
            fast.add(index)
            count.update(values)
    return [
        pytest.param(*make(*case), id="-".join(map(str, case)), marks=() if index in fast else pytest.mark.slow)
        for index, case in enumerate(cases)
    ]
