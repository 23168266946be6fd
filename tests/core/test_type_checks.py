"""Types of settings, over all tables: what is not of a field's type is refused where it is given."""

import inspect
import math
import os
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from tests.support.small_runs import small_experiment

import lengthwise as lw
from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_arguments, check_types
from lengthwise.encodings import ENCODINGS
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import SCHEMES
from lengthwise.tasks import TASKS, Parity
from lengthwise.training.trainer import TrainingSettings

SETTINGS = (TrainingSettings, DecoderSettings, EvaluationSettings, InfluenceSettings, Experiment)
LISTED = (*TASKS.values(), *SCHEMES.values(), *ENCODINGS.values())
# A value that no field of these types takes.
WRONG = {int: "10", float: "x", bool: "yes", str: 7}
CASES = [
    (made, field.name, WRONG[field.type])
    for made in (*SETTINGS, *LISTED)
    for field in fields(made)
    if field.type in WRONG
]


def label(case: tuple[type[Any], str, Any]) -> str:
    """A case in a test's name."""
    return f"{case[0].__name__}.{case[1]}"


def given(made: type[Any], name: str, value: Any) -> None:
    """Set one field as the constructor does; the checker of the tests refuses the call itself."""
    settings = made()
    object.__setattr__(settings, name, value)
    settings.__post_init__()


@pytest.mark.parametrize(("made", "name", "value"), CASES, ids=map(label, CASES))
def test_a_setting_of_the_wrong_type_is_refused_by_its_name(made, name, value):
    with pytest.raises(SettingError, match=rf"^{name} {value!r} has the wrong type; give "):
        given(made, name, value)


NUMBERS = [
    (made, field.name) for made in (*SETTINGS, *LISTED) for field in fields(made) if field.type in (float, float | None)
]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(("made", "name"), NUMBERS, ids=[f"{made.__name__}.{name}" for made, name in NUMBERS])
def test_no_setting_is_infinite_or_no_number(made, name, value):
    with pytest.raises(SettingError, match=rf"^{name} {value} is no finite number; use one$"):
        given(made, name, value)


@dataclass(frozen=True)
class Mixed:
    """Fields of every kind that is checked."""

    whole: int = 1
    share: float = 0.5
    pair: tuple[int, int] = (1, 2)
    several: tuple[str, ...] = ()
    nested: tuple[tuple[float, ...], ...] = ((0.5, 1),)
    perhaps: float | None = None
    anything: Any = None


@pytest.mark.parametrize(
    "given",
    [{"share": 1}, {"pair": (0, -3)}, {"several": ("a", "b")}, {"nested": ()}, {"perhaps": 2}, {"anything": {}}],
    ids=str,
)
def test_what_fits_is_taken(given):
    check_types(Mixed(**given))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"whole": True}, r"^whole True has the wrong type; give a whole number$"),
        ({"whole": 1.0}, r"^whole 1\.0 .* give a whole number$"),
        ({"pair": (1, 2, 3)}, r"^pair \(1, 2, 3\) .* give a tuple of \(a whole number, a whole number\)$"),
        ({"pair": [1, 2]}, r"^pair \[1, 2\] .* give a tuple"),
        ({"several": "ab"}, r"^several 'ab' .* give a tuple of \(a text, \.\.\.\)$"),
        ({"nested": ((0.5, math.inf),)}, r"^nested \(\(0.5, inf\),\) is no finite number; use one$"),
        ({"nested": ((1, "a"),)}, r"^nested \(\(1, 'a'\),\) "),
        ({"perhaps": "2"}, r"^perhaps '2' has the wrong type; give a number or None$"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named_with_what_is_allowed(given, text):
    with pytest.raises(SettingError, match=text):
        check_types(Mixed(**given))


@pytest.mark.parametrize("part", ["parity", Parity, None], ids=str)
def test_a_part_of_an_experiment_is_an_object_with_settings(part):
    with pytest.raises(SettingError, match=r"^task .* is not an object with settings; give one"):
        given(Experiment, "task", part)


PATHS = [
    (name, parameter, declared.annotation)
    for name in lw.__all__
    if inspect.isfunction(getattr(lw, name))
    for parameter, declared in inspect.signature(getattr(lw, name)).parameters.items()
    if "Path" in str(declared.annotation)
]


@pytest.mark.parametrize(("name", "parameter", "declared"), PATHS, ids=[f"{each[0]}({each[1]})" for each in PATHS])
def test_every_path_of_a_public_function_may_be_a_text(name, parameter, declared):
    # Also within an iterable.
    whole = {
        *typing.get_args(declared),
        *(part for each in typing.get_args(declared) for part in typing.get_args(each)),
    }
    assert str in whole


def test_training_loading_and_comparing_take_texts_as_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = lw.train(small_experiment(steps=1), "runs/x", device="cpu")
    assert run is not None
    assert run.folder == Path("runs/x")
    assert lw.load_run("runs/x", device="cpu").facts == run.facts
    assert lw.compare({"a": small_experiment(steps=1)}, "runs/y", jobs=1, device="cpu").folder == Path("runs/y")


# What takes tensors, and is checked with their shapes; and what does no more than hand its argument on.
OF_TENSORS = {"evaluate_by_length", "generate", "loss_by_context", "short_context_losses", "tokenized"}
SIMPLE = {"build_decoder", "certify_law", "quick", "scored_everywhere", "stream", "format_examples", "without_copies"}
VERBS = sorted(name for name in lw.__all__ if inspect.isfunction(getattr(lw, name)) and name not in OF_TENSORS | SIMPLE)


@pytest.mark.parametrize("name", VERBS)
def test_a_public_function_refuses_arguments_of_another_type(name):
    function = getattr(lw, name)
    arguments = {parameter: object() for parameter in inspect.signature(function).parameters}
    first = next(iter(arguments))
    with pytest.raises(SettingError, match=f"^{first} <object .*has the wrong type; give "):
        function(**arguments)


ARGUMENTS = [
    (str | os.PathLike[str], 3, "give a text or a path"),
    (Sequence[int], "12", "give a list, each of it a whole number"),
    (Sequence[int], [1, "2"], "give a list, each of it a whole number"),
    (Sequence[str], "tales", "give a list, each of it a text"),
    (Iterable[str | Path], "tales", "give a list, each of it a text or Path"),
    (Mapping[str, Any] | None, [], "give a dict from a text to anything or None"),
    (Mapping[str, Experiment], {"x": 1}, "give a dict from a text to Experiment"),
    (Callable[[int], None], None, "give a function"),
    (Experiment, "parity", "give Experiment"),
    (lw.Task, Parity, "give Task"),
    (bool, 1, "give True or False"),
    (tuple[int, ...], (1, 2.5), r"give a tuple of \(a whole number, ...\)"),
]


@pytest.mark.parametrize(("declared", "value", "ending"), ARGUMENTS)
def test_an_argument_of_the_wrong_type_is_refused_by_its_name(declared, value, ending):
    def function(given):
        return given

    function.__annotations__["given"] = declared
    with pytest.raises(SettingError, match=f"^given .* has the wrong type; {ending}$"):
        check_arguments(function)(value)


RIGHT = [
    (str | os.PathLike[str], Path("x")),
    (Sequence[int], range(3)),
    (Iterable[str], iter(["x"])),
    (Mapping[str, Any], {}),
    (Callable[[int], None], print),
    (lw.Task, Parity()),
    (float, 1),
    (Any, object()),
]


@pytest.mark.parametrize(("declared", "value"), RIGHT)
def test_an_argument_of_the_right_type_is_taken(declared, value):
    def function(given):
        return given

    function.__annotations__["given"] = declared
    assert check_arguments(function)(value) is value


def test_python_itself_says_which_argument_is_missing():
    with pytest.raises(TypeError, match="missing a required argument: 'out'"):
        lw.export_hf("run")
