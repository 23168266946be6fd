"""Tests of covering designs: the fast tests contain every value of every axis."""

from itertools import product

import pytest
from tests.support.covering import covering


@pytest.mark.parametrize("times", [1, 2, 3])
def test_every_value_of_every_axis_occurs_at_least_times_times(times):
    axes = ("abcdefg", range(5), (True, False))
    cases = list(product(*axes))
    selection = [cases[index] for index in covering(cases, times)]
    assert len(selection) < len(cases) / 2
    for axis, values in enumerate(axes):
        assert all(sum(case[axis] == value for case in selection) >= times for value in values)


def test_a_value_with_few_cases_keeps_all_of_them():
    assert covering([("a", 1), ("a", 2), ("b", 1)], times=2) == {0, 1, 2}
