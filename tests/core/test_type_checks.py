"""Type checks of settings and arguments, over all tables and public functions."""

import inspect
import math
import os
import typing
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from tests.support.small_runs import small_experiment

import lengthwise as lw
from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_arguments, check_types, is_instance
from lengthwise.encodings import ENCODINGS
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.hf.export import export_hf, export_to_lm_eval, import_hf
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import SCHEMES
from lengthwise.tasks import TASKS, Parity
from lengthwise.tasks.reasoning_gym import reasoning_records, write_reasoning_records
from lengthwise.tasks.text.documents import read_documents
from lengthwise.theory.planted_task_certificate import certify_planted_task
from lengthwise.training.training_settings import TrainingSettings

SETTINGS = (TrainingSettings, DecoderSettings, EvaluationSettings, InfluenceSettings, Experiment)
TABLE_CLASSES = (*TASKS.values(), *SCHEMES.values(), *ENCODINGS.values())
# Values of the wrong type for a field.
WRONG = {int: "10", float: "x", bool: "yes", str: 7}
CASES = [
    (cls, field.name, WRONG[field.type])
    for cls in (*SETTINGS, *TABLE_CLASSES)
    for field in fields(cls)
    if field.type in WRONG
]


def label(case: tuple[type[Any], str, Any]) -> str:
    """Return the ID of a test case."""
    return f"{case[0].__name__}.{case[1]}"


def construct(cls: type[Any], name: str, value: Any) -> None:
    """Set one field as the constructor does; the type checker of the tests would reject the call itself."""
    settings = cls()
    object.__setattr__(settings, name, value)
    settings.__post_init__()


@pytest.mark.parametrize(("cls", "name", "value"), CASES, ids=map(label, CASES))
def test_a_setting_of_the_wrong_type_raises_an_error_with_its_name(cls, name, value):
    with pytest.raises(SettingError, match=rf"^{name} {value!r} has the wrong type; use "):
        construct(cls, name, value)


NUMBERS = [
    (cls, field.name)
    for cls in (*SETTINGS, *TABLE_CLASSES)
    for field in fields(cls)
    if field.type in (float, float | None)
]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(("cls", "name"), NUMBERS, ids=[f"{cls.__name__}.{name}" for cls, name in NUMBERS])
@pytest.mark.covering(1)
def test_an_infinite_or_nan_setting_raises_an_error(cls, name, value):
    with pytest.raises(SettingError, match=rf"^{name} {value} is not finite; use a finite number$"):
        construct(cls, name, value)


@dataclass(frozen=True)
class Mixed:
    """A field of each checked type."""

    whole: int = 1
    share: float = 0.5
    pair: tuple[int, int] = (1, 2)
    several: tuple[str, ...] = ()
    nested: tuple[tuple[float, ...], ...] = ((0.5, 1),)
    perhaps: float | None = None
    anything: Any = None


@pytest.mark.parametrize(
    "values",
    [{"share": 1}, {"pair": (0, -3)}, {"several": ("a", "b")}, {"nested": ()}, {"perhaps": 2}, {"anything": {}}],
    ids=str,
)
def test_values_of_the_declared_types_are_accepted(values):
    check_types(Mixed(**values))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"whole": True}, r"^whole True has the wrong type; use a whole number$"),
        ({"whole": 1.0}, r"^whole 1\.0 .* use a whole number$"),
        ({"pair": (1, 2, 3)}, r"^pair \(1, 2, 3\) .* use a tuple of \(a whole number, a whole number\)$"),
        ({"pair": [1, 2]}, r"^pair \[1, 2\] .* use a tuple"),
        ({"several": "ab"}, r"^several 'ab' .* use a tuple of \(a string, \.\.\.\)$"),
        ({"nested": ((0.5, math.inf),)}, r"^nested \(\(0.5, inf\),\) is not finite; use a finite number$"),
        ({"nested": ((1, "a"),)}, r"^nested \(\(1, 'a'\),\) "),
        ({"perhaps": "2"}, r"^perhaps '2' has the wrong type; use a number or None$"),
    ],
    ids=str,
)
def test_an_error_names_the_value_of_the_wrong_type_and_the_declared_type(values, text):
    with pytest.raises(SettingError, match=text):
        check_types(Mixed(**values))


@pytest.mark.parametrize("part", ["parity", Parity, None], ids=str)
def test_a_part_of_an_experiment_without_settings_raises_an_error(part):
    with pytest.raises(SettingError, match=r"^task .* is not a settings object; use an instance"):
        construct(Experiment, "task", part)


# Entry points: those of the package, and those that stay in their rooms.
ROOM_FUNCTIONS = (
    certify_planted_task,
    export_hf,
    export_to_lm_eval,
    import_hf,
    read_documents,
    reasoning_records,
    write_reasoning_records,
)
FUNCTIONS = {name: getattr(lw, name) for name in lw.__all__ if inspect.isfunction(getattr(lw, name))}
FUNCTIONS |= {function.__name__: function for function in ROOM_FUNCTIONS}
PATHS = [
    (name, parameter, declared.annotation)
    for name, function in FUNCTIONS.items()
    for parameter, declared in inspect.signature(function).parameters.items()
    if "Path" in str(declared.annotation)
]


@pytest.mark.parametrize(("name", "parameter", "declared"), PATHS, ids=[f"{each[0]}({each[1]})" for each in PATHS])
def test_every_path_argument_of_a_public_function_may_be_a_string(name, parameter, declared):
    # Also within an iterable.
    types = {
        *typing.get_args(declared),
        *(part for each in typing.get_args(declared) for part in typing.get_args(each)),
    }
    assert str in types


def test_training_loading_and_comparing_accept_strings_as_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = lw.train(small_experiment(steps=1), "runs/x", device="cpu")
    assert run is not None
    assert run.folder == Path("runs/x")
    assert lw.load_run("runs/x", device="cpu").facts == run.facts
    assert lw.compare({"a": small_experiment(steps=1)}, "runs/y", workers=1, device="cpu").folder == Path("runs/y")


# These only pass their arguments on.
PASS_THROUGH = {"certify_planted_task", "make_assignment"}


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - PASS_THROUGH))
def test_a_public_function_raises_an_error_for_an_argument_of_the_wrong_type(name):
    function = FUNCTIONS[name]
    arguments = {parameter: object() for parameter in inspect.signature(function).parameters}
    first = next(iter(arguments))
    with pytest.raises(SettingError, match=f"^{first} <object .*has the wrong type; use "):
        function(**arguments)


WRONG_ARGUMENTS = [
    (str | os.PathLike[str], 3, "use a string or a path"),
    (Sequence[int], "12", "use a list of items that are each a whole number"),
    (Sequence[int], [1, "2"], "use a list of items that are each a whole number"),
    (Sequence[str], "tales", "use a list of items that are each a string"),
    (Iterable[str | Path], "tales", "use a list of items that are each a string or Path"),
    (Mapping[str, Any] | None, [], "use a dict from a string to anything or None"),
    (Mapping[str, Experiment], {"x": 1}, "use a dict from a string to Experiment"),
    (Callable[[int], None], None, "use a function"),
    (Experiment, "parity", "use Experiment"),
    (lw.Task, Parity, "use Task"),
    (bool, 1, "use True or False"),
    (tuple[int, ...], (1, 2.5), r"use a tuple of \(a whole number, ...\)"),
]


@pytest.mark.parametrize(("declared", "value", "ending"), WRONG_ARGUMENTS)
def test_an_argument_of_the_wrong_type_raises_an_error_with_its_name(declared, value, ending):
    def function(argument):
        return argument

    function.__annotations__["argument"] = declared
    with pytest.raises(SettingError, match=f"^argument .* has the wrong type; {ending}$"):
        check_arguments(function)(value)


WRONG_VALUES = {
    "trackers": lambda folder: lw.train(small_experiment(), folder, trackers=range(3)),
    "experiment": lambda folder: lw.quick_version(None),
    "model": lambda folder: lw.InfluenceStudy(model=None, codec=None, texts=[], settings=InfluenceSettings()),
    "max_new_tokens": lambda folder: lw.generate_from_prompt(lw.train(small_experiment(), folder), "01", -1),
    "out": lambda folder: lw.train(small_experiment(), f"{folder}/a\0b"),
    "experiments": lambda folder: lw.compare({}, folder),
    "only": lambda folder: lw.compare({"a": small_experiment()}, folder, only=[]),
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_a_value_that_no_function_can_use_raises_an_error_with_its_name(name, tmp_path):
    with pytest.raises(SettingError, match=name):
        WRONG_VALUES[name](tmp_path)


@pytest.mark.parametrize("declared", [Sequence[str], Iterable[str]])
@pytest.mark.parametrize("value", [range(3), deque([1]), {1}, dict.fromkeys([1]).keys(), [None]], ids=repr)
def test_the_items_of_every_collection_are_checked(declared, value):
    assert not is_instance(value, declared)


VALID_ARGUMENTS = [
    (str | os.PathLike[str], Path("x")),
    (Sequence[int], range(3)),
    (Iterable[str], iter(["x"])),
    (Mapping[str, Any], {}),
    (Callable[[int], None], print),
    (lw.Task, Parity()),
    (float, 1),
    (Any, object()),
]


@pytest.mark.parametrize(("declared", "value"), VALID_ARGUMENTS)
def test_an_argument_of_the_declared_type_is_accepted(declared, value):
    def function(argument):
        return argument

    function.__annotations__["argument"] = declared
    assert check_arguments(function)(value) is value


def test_the_check_does_not_consume_an_iterator():
    item = {"question": "1 + 2 =", "answer": "3"}
    assert [record["response"] for record in reasoning_records(iter([item, item]))] == [["3"], ["3"]]


def test_a_missing_argument_raises_the_type_error_of_python():
    with pytest.raises(TypeError, match="missing a required argument: 'out'"):
        export_hf("run")
