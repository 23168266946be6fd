"""Covering designs keep every value of every axis in the fast tests."""

from itertools import product

import pytest
from tests.support.covering import covering


@pytest.mark.parametrize("times", [1, 2, 3])
def test_every_value_of_every_axis_occurs_the_given_number_of_times(times):
    axes = ("abcdefg", range(5), (True, False))
    cases = list(product(*axes))
    kept = [cases[index] for index in covering(cases, times)]
    assert len(kept) < len(cases) / 2
    for axis, values in enumerate(axes):
        assert all(sum(case[axis] == value for case in kept) >= times for value in values)


def test_a_value_with_few_cases_keeps_all_of_them():
    assert covering([("a", 1), ("a", 2), ("b", 1)], times=2) == {0, 1, 2}
