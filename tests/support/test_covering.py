"""Covering designs keep every value of every axis in the fast tests."""

from itertools import product

import pytest
from tests.support.covering import covering


@pytest.mark.parametrize("times", [1, 2, 3])
def test_every_value_of_every_axis_is_fast_the_given_number_of_times(times):
    cases = list(product("abcdefg", range(5), (True, False)))
    parameters = covering(cases, times)
    assert [parameter.values for parameter in parameters] == cases
    fast = [parameter.values for parameter in parameters if not parameter.marks]
    assert len(fast) < len(cases)
    for axis, values in enumerate(("abcdefg", range(5), (True, False))):
        assert all(sum(case[axis] == value for case in fast) >= times for value in values)
