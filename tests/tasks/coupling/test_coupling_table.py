"""Table of tasks whose rule is right, and of traps: the rule of a trap fails at longer lengths, so it is refused."""

import pytest
from coupling_table import RIGHT, TRAPS, find_in_table, measure_long_rows, write_table_file

from lengthwise.core.errors import CouplingError


@pytest.mark.first(1)
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_rule_is_accepted_and_has_no_wrong_answer_at_longer_lengths(name, tmp_path):
    file = write_table_file(name, tmp_path / "rows.jsonl")
    assert measure_long_rows(find_in_table(name, file), file)["wrong"] == 0


@pytest.mark.first(2)
@pytest.mark.parametrize("name", TRAPS)
def test_a_rule_whose_errors_are_no_noise_is_refused(name, tmp_path):
    file = write_table_file(name, tmp_path / "rows.jsonl")
    with pytest.raises(CouplingError):
        find_in_table(name, file)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a rare letter shifts all", "a rare 2 inverts all"])
def test_a_refused_rule_can_be_accepted_as_noisy(name, tmp_path):
    file = write_table_file(name, tmp_path / "rows.jsonl")
    assert 0.9 < find_in_table(name, file, allow_noise=True).accuracy < 1
