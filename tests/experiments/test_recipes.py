"""Tests of recipes: the rules in their settings, and the recipe that a task and a scheme lead to."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import lengthwise as lw
from lengthwise.core.errors import DefaultSettingsWarning, SettingError
from lengthwise.experiments.experiment import SettingChange, change_settings
from lengthwise.experiments.recipes import DEFAULT_RECIPES, RECIPES, recipe
from lengthwise.experiments.recipes.recipe_table import COPY_RULE
from lengthwise.experiments.recipes.tuned_encodings import describe_settings, tuned_tasks
from lengthwise.experiments.setting_checks import check_settings
from lengthwise.positions import SCHEMES, DiscoveredCoupling, Predicted
from lengthwise.positions.scheme import COUPLING, describe_given_information
from lengthwise.tasks import Copy, Parity, VariableAssignment

FOUND = [name for name in RECIPES if isinstance(RECIPES[name]().scheme, DiscoveredCoupling)]


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUND)
def test_the_rule_of_a_recipe_is_the_one_found_in_examples_of_its_task(name):
    experiment = recipe(name)
    assert lw.find_coupling(experiment.task, seed=3).rule.saved_texts == experiment.scheme.rule


@pytest.mark.slow
def test_the_rule_of_the_demo_is_the_one_found_in_examples_of_copying():
    assert lw.find_coupling(Copy(), seed=3).rule.saved_texts == COPY_RULE


def test_the_default_recipe_of_a_task_is_its_first_recipe_with_the_scheme():
    experiments = [recipe(name) for name in RECIPES]
    assert set(DEFAULT_RECIPES) == {experiment.task.name for experiment in experiments}
    for task, (default, by_scheme) in DEFAULT_RECIPES.items():
        of_task = [experiment for experiment in experiments if experiment.task.name == task]
        assert recipe(default) == next(each for each in of_task if each.scheme.name != DiscoveredCoupling.name)
        for scheme in SCHEMES:
            with_scheme = [experiment for experiment in of_task if experiment.scheme.name == scheme]
            assert recipe(by_scheme.get(scheme, default)) == [*with_scheme, recipe(default)][0]


@dataclass(frozen=True)
class ParityUnderAnotherName(Parity):
    """Task without a recipe."""

    name = "another_parity"


def test_a_task_without_a_recipe_names_the_settings_that_it_has_from_another_task():
    with pytest.warns(DefaultSettingsWarning, match="task another_parity .* decoder, training, test lengths .* parity"):
        experiment = lw.experiment(ParityUnderAnotherName(), "predicted")
    assert isinstance(experiment.scheme, Predicted)
    assert experiment.training == recipe("parity").training


def test_addition_and_variable_assignment_need_no_coupling():
    assert sorted(FOUND) == ["addition", "variable_assignment"]
    for name in FOUND:
        found, by_hand = (recipe(each) for each in (name, f"{name}_by_hand"))
        assert COUPLING not in describe_given_information(found.task, found.scheme)
        assert COUPLING in describe_given_information(by_hand.task, by_hand.scheme)


@pytest.mark.parametrize(("scheme", "name"), [("predicted", "addition_by_hand"), ("coupled", "addition_coupled")])
def test_another_scheme_takes_the_settings_of_its_own_recipe(scheme, name):
    experiment = lw.experiment("addition", scheme)
    assert experiment.decoder == recipe("addition_by_hand").decoder
    assert experiment == recipe(name)


FITTED = [(task, encoding) for task, fitted in tuned_tasks().items() for encoding in fitted.encodings.values()]


@pytest.mark.parametrize(("task", "fitted"), FITTED, ids=[f"{task}-{each.encoding.name}" for task, each in FITTED])
def test_a_baseline_has_the_settings_that_fit_with_its_encoding(task, fitted):
    known = tuned_tasks()[task]
    experiment = lw.experiment(known.task, "sequential", fitted.encoding.name, train_lengths=(1, known.train_length))
    assert (experiment.encoding, experiment.decoder, experiment.training) == (
        fitted.encoding,
        fitted.decoder,
        fitted.training,
    )
    assert f"up to {known.train_length}" in str(describe_settings(experiment))
    # Longer training lengths and other schemes have more steps, and training stops when the run fits.
    for scheme, max_length in (("sequential", known.train_length + 1), ("randomized", known.train_length)):
        other = lw.experiment(known.task, scheme, fitted.encoding.name, train_lengths=(1, max_length))
        assert other.decoder == fitted.decoder
        assert other.training.steps > fitted.training.steps
        assert other.training.fit_every is not None
        assert "not known to fit" in str(describe_settings(other))
    for changes in ({"steps": 5}, {"batch_size": 3}):
        changed = replace(experiment, training=replace(experiment.training, **changes))
        assert "not known to fit" not in str(describe_settings(experiment))
        assert "not known to fit" in str(describe_settings(changed))


def test_the_page_lists_the_encodings_with_found_settings():
    page = (Path(__file__).parents[2] / "docs/train.md").read_text(encoding="utf-8")
    for task, known in tuned_tasks().items():
        (line,) = [line for line in page.splitlines() if line.startswith(f"| `{task}`")]
        _, encodings, length = (cell.strip() for cell in line.strip("|").split("|"))
        assert encodings.split(", ") == [f"`{each.encoding.name}`" for each in known.encodings.values()]
        assert int(length.split()[0]) == known.train_length


@pytest.mark.parametrize("task", ["copy", "parity", "reverse"])
def test_a_baseline_without_found_settings_has_a_default_and_says_so(task):
    experiment = lw.experiment(task, "sequential", "fire")
    assert experiment.decoder.num_layers > recipe(task).decoder.num_layers
    assert "default" in str(describe_settings(experiment))
    # The recipes of PPC and of tasks without a coupling, and settings of the user, are no baselines.
    assert describe_settings(recipe(task)) is None
    assert describe_settings(replace(experiment, decoder=recipe(task).decoder)) is None
    assert describe_settings(lw.experiment("recall", "sequential", "fire")) is None


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_trained_for_a_few_steps(name):
    for experiment in (
        change_settings(recipe(name), [SettingChange(path="training.steps", value=9, source="--set")]),
        replace(recipe(name), training=replace(recipe(name).training, steps=9)),
    ):
        rates = [experiment.training.learning_rate_at(step) for step in range(9)]
        assert all(0 < rate <= experiment.training.learning_rate for rate in rates)


def test_a_rule_that_names_a_token_of_another_vocabulary_is_refused():
    experiment = replace(recipe("variable_assignment"), task=VariableAssignment(num_names=256))
    message = (
        "the rule of scheme discovered names token number 2058, but task variable_assignment has only 270 tokens; "
        "find the coupling of this task with lengthwise couple"
    )
    with pytest.raises(SettingError, match=message):
        check_settings(experiment)
    check_settings(recipe("variable_assignment"))


def test_a_quick_experiment_is_the_quick_version_of_the_experiment():
    assert lw.experiment("copy", "coupled", quick=True) == lw.quick_version(lw.experiment("copy", "coupled"))
