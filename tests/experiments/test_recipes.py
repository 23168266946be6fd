"""Tests of recipes: the rules in their settings, and the recipe that a task and a scheme lead to."""

from dataclasses import replace

import pytest

import lengthwise as lw
from lengthwise.core.errors import SettingError
from lengthwise.experiments.recipes import RECIPES, recipe
from lengthwise.experiments.validation import check_settings
from lengthwise.positions import Discovered
from lengthwise.positions.knowledge import COUPLING, describe_knowledge
from lengthwise.tasks import VariableAssignment

FOUND = [name for name in RECIPES if isinstance(RECIPES[name]().scheme, Discovered)]


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUND)
def test_the_rule_of_a_recipe_is_the_one_found_in_examples_of_its_task(name):
    experiment = recipe(name)
    assert lw.find_coupling(experiment.task, seed=3).rule.texts == experiment.scheme.rule


def test_addition_and_variable_assignment_need_no_coupling():
    assert sorted(FOUND) == ["addition", "variable_assignment"]
    for name in FOUND:
        found, by_hand = (recipe(each) for each in (name, f"{name}_by_hand"))
        assert COUPLING not in describe_knowledge(found.task, found.scheme)
        assert COUPLING in describe_knowledge(by_hand.task, by_hand.scheme)


@pytest.mark.parametrize(
    ("scheme", "name"), [("predicted", "addition_by_hand"), ("coupled", "addition_coupled"), ("randomized", None)]
)
def test_another_scheme_takes_the_settings_of_its_own_recipe(scheme, name):
    experiment = lw.experiment_for("addition", scheme)
    assert experiment.decoder == recipe("addition_by_hand").decoder
    assert name is None or experiment == recipe(name)


def test_a_rule_that_names_a_token_of_another_vocabulary_is_refused():
    experiment = replace(recipe("variable_assignment"), task=VariableAssignment(num_names=256))
    message = (
        "the rule of scheme discovered names token number 2058, but task variable_assignment has only 270 tokens; "
        "find the coupling of this task with lengthwise couple"
    )
    with pytest.raises(SettingError, match=message):
        check_settings(experiment)
    check_settings(recipe("variable_assignment"))
