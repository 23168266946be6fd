"""Experiment: one frozen tree that says everything about a run, to and from JSON."""

import importlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

from lengthwise.core.devices import check_memory
from lengthwise.core.errors import LengthwiseError, RunFolderError, SettingError, UnknownNameError, unknown_name
from lengthwise.core.randomness import stream
from lengthwise.core.type_checks import check_types
from lengthwise.encodings import ENCODINGS, EncodingSettings, Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import SCHEMES, PositionScheme, Predicted
from lengthwise.tasks import PLACEMENTS, TASKS, HasRunFiles, JSONLTask, Parity, Task, is_task_file
from lengthwise.training.batch import Sampler
from lengthwise.training.trainer import TrainingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is learned, which IDs its tokens get, how these enter the decoder, and with what budget.

    ``train_lengths`` are the shortest and the longest training length, both included.
    """

    task: Task = field(default_factory=Parity)
    scheme: PositionScheme = field(default_factory=Predicted)
    encoding: EncodingSettings = field(default_factory=Rotary)
    decoder: DecoderSettings = field(default_factory=DecoderSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    train_lengths: tuple[int, int] = (1, 20)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        for name in (*TABLES, *PARTS):
            part = getattr(self, name)
            if part is None or isinstance(part, type | str | int | float | dict):
                raise SettingError(f"{name} {part!r} is not an object with settings; give one, such as a recipe has")


# A weight, its gradient and what AdamW keeps of it.
TRAINED_BYTES = 16
# What a saved name may stand for. A class overrides as module:Name is named again by whoever loads the run.
TABLES: dict[str, Mapping[str, type[Any]]] = {"task": TASKS, "scheme": SCHEMES, "encoding": ENCODINGS}
# A setting that holds an entry of a table, or a tuple of entries (a task within a task, the laws of a placement).
WITHIN: dict[str, Mapping[str, type[Any]]] = {**TABLES, "placement": PLACEMENTS, "laws": PLACEMENTS}
CONTRACTS: dict[str, type[Any]] = {"task": Task, "scheme": PositionScheme, "encoding": EncodingSettings}
PARTS: dict[str, type[Any]] = {
    "decoder": DecoderSettings,
    "training": TrainingSettings,
    "evaluation": EvaluationSettings,
}


def look_up(kind: str, name: str) -> type[Any]:
    """The class behind a table's name, or behind ``module:Name``; ``UnknownNameError`` names the nearest."""
    if ":" in name:
        return _imported(kind, name)
    if name not in TABLES[kind]:
        raise unknown_name(kind, name, TABLES[kind])
    return TABLES[kind][name]


def named(kind: str, name: str) -> Any:
    """What a user names to take a part's place: a class, or the one task that a file of rows is."""
    return JSONLTask(file=name) if kind == "task" and is_task_file(name) else look_up(kind, name)


def load_task(name: str) -> Task:
    """A task by its name or ``module:Name``, with default settings, or that of a file of rows, which is read here."""
    return JSONLTask(file=name).read() if is_task_file(name) else look_up("task", name)()


def _imported(kind: str, name: str) -> type[Any]:
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        # Where the user stands, as with python -m; last, so that it hides nothing.
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(
            f"{kind} '{name}' cannot be imported ({error}); write module:Name of a class on the path"
        ) from None
    if not isinstance(found, type) or not hasattr(found, "name"):
        raise SettingError(f"{kind} '{name}' is no {kind} class; write module:Name of one")
    if missing := _missing(kind, found):
        raise SettingError(
            f"{kind} '{name}' is no {kind} (it has no {', '.join(missing)}); "
            f"name a class that has all of {CONTRACTS[kind].__name__}"
        )
    if TABLES[kind].get(found.name, found) is not found:
        raise SettingError(f"{kind} '{name}' has the name '{found.name}' of another one of ours; choose its own")
    if not is_dataclass(found):
        raise SettingError(
            f"{kind} '{name}' is no dataclass, so its settings cannot be saved; write @dataclass(frozen=True) above it"
        )
    try:
        found()
    except TypeError as error:
        raise SettingError(f"{kind} '{name}' cannot be built ({error}); give each of its settings a default") from None
    return found


def _missing(kind: str, found: type[Any]) -> list[str]:
    """What the contract asks for and the class does not have, or has only as the contract leaves it open."""
    contract = CONTRACTS[kind]
    # A summary and a paper are for what stands in a table.
    listed = ("summary", "paper")
    names = [name for name in (*vars(contract), *contract.__annotations__) if name[0] != "_" and name not in listed]
    open_names = names if kind == "task" else ["assign", "build"]
    return [
        name
        for name in dict.fromkeys(names)
        if not hasattr(found, name) or (name in open_names and getattr(found, name) is getattr(contract, name, None))
    ]


def num_levels(experiment: Experiment) -> int:
    """On how many levels the scheme gives IDs to the task's tokens."""
    rng, task = stream(experiment.seed, "levels"), experiment.task
    if isinstance(task, HasRunFiles):
        examples = task.placeholder_example()
    else:
        examples = task.sample(length=experiment.train_lengths[0], size=1, rng=rng)
    return len(experiment.scheme.assign(examples, rng, training=False).position_ids)


def build_decoder(experiment: Experiment) -> Decoder:
    """A decoder with the experiment's initial weights: the same for the same seed, whatever ran before.

    ``SettingError`` for one that this machine cannot train.
    """
    vocabulary, settings = experiment.task.vocabulary, experiment.decoder
    width = settings.d_model
    size = settings.num_layers * (4 + 2 * settings.mlp_factor) * width**2 + len(vocabulary) * width
    check_memory(TRAINED_BYTES * size, f"a decoder of {size:,} weights", "use fewer num_layers or a smaller d_model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(experiment.seed, "initial weights").integers(2**63)))
        return Decoder(
            experiment.decoder,
            experiment.encoding,
            vocabulary_size=len(vocabulary),
            separators=tuple(vocabulary.index(separator) for separator in experiment.task.separators),
            num_predicted_ids=(experiment.scheme.num_position_ids or 1) if experiment.scheme.predicts_ids else None,
            num_levels=num_levels(experiment),
        )


def build_sampler(experiment: Experiment, lengths: tuple[int, int]) -> Sampler:
    """Draw the experiment's training batches, of these lengths."""
    return Sampler(
        task=experiment.task,
        scheme=experiment.scheme,
        lengths=lengths,
        batch_size=experiment.training.batch_size,
        seed=experiment.seed,
    )


def to_dict(value: Any) -> Any:
    """A frozen tree as plain JSON values; what stands in a table carries its name."""
    if is_dataclass(value) and not isinstance(value, type):
        named = {"name": getattr(value, "name", None)} if hasattr(type(value), "name") else {}
        # What does not compare says where something lies, not what it is.
        return named | {part.name: to_dict(getattr(value, part.name)) for part in fields(value) if part.compare}
    if isinstance(value, tuple):
        return [to_dict(part) for part in value]
    return value


def from_dict(
    tree: Mapping[str, Any], *, overrides: Mapping[str, Any] | None = None, folder: Path | None = None
) -> Experiment:
    """The experiment that ``to_dict`` wrote; ``RunFolderError`` if it is none. Nothing is imported on a file's word.

    ``overrides`` are a ``task``, ``scheme`` or ``encoding`` that take the place of the saved ones: instances, or classes
    of one's own, which no file can name. A class gets the saved settings that it has too: the angles of rotary stay
    those that were trained when a scaling takes its place. ``folder`` is where a task finds the files that it keeps.
    """
    overrides = {} if overrides is None else overrides
    values: dict[str, Any] = {}
    try:
        for part in fields(Experiment):
            values[part.name] = _part(part.name, tree[part.name], overrides)
        if folder is not None and isinstance(values["task"], HasRunFiles):
            values["task"] = values["task"].from_run_folder(folder)
        return Experiment(**values)
    except LengthwiseError:
        raise
    except (KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"the saved experiment cannot be read ({error!r}); train the run again") from None


def _part(name: str, value: Any, overrides: Mapping[str, Any]) -> Any:
    """A part of an experiment, as it was saved or as it is overrides."""
    if (name in TABLES or name in PARTS) and not isinstance(value, Mapping):
        raise TypeError(f"{name} is {value!r:.40}, and no object")
    if name in overrides:
        return _brought(overrides[name], value)
    if name in TABLES:
        return _entry(name, value)
    if name in PARTS:
        return PARTS[name](**_settings(value))
    return tuple(value) if isinstance(value, list) else value


def build_entry(kind: str, tree: Mapping[str, Any]) -> Any:
    """An entry of a table that a user wrote as JSON, by its name; ``SettingError`` for settings it does not have."""
    try:
        return _entry(kind, tree)
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise SettingError(f"this is no {kind} ({error}); write its settings by their names") from None


def _brought(own: Any, tree: Mapping[str, Any]) -> Any:
    if not isinstance(own, type):
        return own
    built = own()
    # Settings are passed on only where they differ: a class of one's own need not take any.
    default = json.loads(json.dumps(to_dict(built)))
    changed = {name: value for name, value in tree.items() if name in default and value != default[name]}
    return own(**_settings(changed))


def _entry(kind: str, tree: Mapping[str, Any]) -> Any:
    """What stands in a table, by its saved name."""
    name, table = tree["name"], WITHIN[kind]
    if name not in table:
        way_out = f"name it again (--{kind} module:Name)" if kind in TABLES else "bring a task that builds it (--task)"
        raise UnknownNameError(f"the saved {kind} '{name}' is in no table; if it is your own, {way_out}")
    return table[name](**_settings(tree))


def _settings(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The saved settings of an entry; some of them may be entries themselves."""
    return {name: _setting(name, value) for name, value in tree.items() if name != "name"}


def _setting(name: str, value: Any) -> Any:
    """JSON knows no tuples, and of an entry only what ``to_dict`` wrote."""
    if isinstance(value, list):
        return tuple(_setting(name, part) for part in value)
    held = name in TABLES or (name in WITHIN and isinstance(value, Mapping))
    return _entry(name, value) if held else value
