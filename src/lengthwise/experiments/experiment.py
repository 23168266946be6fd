"""Experiment: all settings of a run in one frozen dataclass, with conversion to and from JSON."""

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
from lengthwise.positions.scheme import HasLevels
from lengthwise.tasks import (
    BACKGROUNDS,
    PLACEMENTS,
    TASKS,
    HasPlaceholder,
    HasRunFiles,
    JSONLTask,
    Parity,
    Task,
    is_task_file,
    wrong_file_name,
)
from lengthwise.training.batch import Sampler
from lengthwise.training.training_settings import TrainingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Settings of a run: task, position scheme, encoding, decoder, training and evaluation.

    ``train_lengths`` is the range of training lengths, both ends included.
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
        for name in (*TABLES, *SETTINGS_CLASSES):
            value = getattr(self, name)
            if value is None or isinstance(value, type | str | int | float | dict):
                advice = "use an instance, such as encoding=Rotary()"
                raise SettingError(f"{name} {value!r} is not a settings object; {advice}")


# Training settings that older runs did not save, with the values that they used.
UNSAVED_TRAINING_SETTINGS: dict[str, Any] = {"lengths_per_batch": 1}
# Settings of a task, by its name, that older runs did not save.
UNSAVED_TASK_SETTINGS: dict[str, dict[str, Any]] = {"text": {"structure": False}}
# New names of settings that older runs saved with another name.
RENAMED_SETTINGS = {"own_ids": "scheduled_sampling", "until_none": "stop_at_zero"}
# Bytes per weight in training: the weight, its gradient and two moments of AdamW.
BYTES_PER_WEIGHT = 16
# Classes by saved name. A custom class (module:Name) must be passed again when the run is loaded.
TABLES: dict[str, Mapping[str, type[Any]]] = {"task": TASKS, "scheme": SCHEMES, "encoding": ENCODINGS}
# Settings that contain an entry of a table or a tuple of entries (a task within a task, the laws of a placement).
NESTED_TABLES: dict[str, Mapping[str, type[Any]]] = {
    **TABLES,
    "placement": PLACEMENTS,
    "laws": PLACEMENTS,
    "background": BACKGROUNDS,
}
CONTRACTS: dict[str, type[Any]] = {"task": Task, "scheme": PositionScheme, "encoding": EncodingSettings}
SETTINGS_CLASSES: dict[str, type[Any]] = {
    "decoder": DecoderSettings,
    "training": TrainingSettings,
    "evaluation": EvaluationSettings,
}


def look_up(kind: str, name: str) -> type[Any]:
    """Return the class for a built-in name or ``module:Name``; ``UnknownNameError`` suggests the most similar name."""
    if ":" in name:
        return _import_class(kind, name)
    if kind == "task" and Path(name).suffix:
        raise wrong_file_name(name)
    if name not in TABLES[kind]:
        raise unknown_name(kind, name, TABLES[kind])
    return TABLES[kind][name]


def resolve_override(kind: str, name: str) -> Any:
    """Return the class (or, for a JSONL file, the task) that replaces a saved task, scheme or encoding."""
    return JSONLTask(file=name) if kind == "task" and is_task_file(name) else look_up(kind, name)


def load_task(name: str) -> Task:
    """Return a task with default settings by name or ``module:Name``, or read it from a JSONL file."""
    return JSONLTask(file=name).read() if is_task_file(name) else look_up("task", name)()


def _import_class(kind: str, name: str) -> type[Any]:
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        # Search the working folder too, as python -m does. It comes last, so that it hides no other module.
        sys.path.append(os.getcwd())
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(
            f"{kind} '{name}' cannot be imported ({error}); use module:Name of a class on the Python path"
        ) from None
    if not isinstance(cls, type) or not hasattr(cls, "name"):
        advice = "use module:Name, where Name is such a class"
        raise SettingError(f"{kind} '{name}' is not a class with the attribute 'name'; {advice}")
    if missing := _missing_members(kind, cls):
        contract = CONTRACTS[kind].__name__
        raise SettingError(f"{kind} '{name}' lacks {', '.join(missing)}; add these members (see {contract})")
    if TABLES[kind].get(cls.name, cls) is not cls:
        raise SettingError(f"{kind} '{name}' has the name '{cls.name}' of a built-in {kind}; choose another name")
    if not is_dataclass(cls):
        advice = "add @dataclass(frozen=True)"
        raise SettingError(f"{kind} '{name}' is not a dataclass, so its settings cannot be saved; {advice}")
    try:
        cls()
    except TypeError as error:
        raise SettingError(
            f"{kind} '{name}' cannot be built without arguments ({error}); give every setting a default value"
        ) from None
    return cls


def _missing_members(kind: str, cls: type[Any]) -> list[str]:
    # Only entries of a table need a summary and a paper.
    contract, optional = CONTRACTS[kind], ("summary", "paper")
    members = [name for name in (*vars(contract), *contract.__annotations__) if name[0] != "_" and name not in optional]
    required_methods = members if kind == "task" else ["assign", "build"]
    return [
        name
        for name in dict.fromkeys(members)
        if not hasattr(cls, name) or (name in required_methods and getattr(cls, name) is getattr(contract, name, None))
    ]


def num_levels(experiment: Experiment) -> int:
    """Return the number of ID levels that the scheme assigns to the tokens of the task."""
    rng, task = stream(experiment.seed, "levels"), experiment.task
    if isinstance(experiment.scheme, HasLevels):
        return experiment.scheme.num_levels
    if isinstance(task, HasPlaceholder):
        examples = task.placeholder_example()
    else:
        examples = task.sample(length=experiment.train_lengths[0], size=1, rng=rng)
    return len(experiment.scheme.assign(examples, rng, training=False).position_ids)


def build_decoder(experiment: Experiment) -> Decoder:
    """Return a decoder with initial weights that depend only on the settings and the seed.

    Raises ``SettingError`` if the decoder does not fit into the memory of this machine.
    """
    vocabulary, settings = experiment.task.vocabulary, experiment.decoder
    d_model = settings.d_model
    size = settings.num_layers * (4 + 2 * settings.mlp_factor) * d_model**2 + len(vocabulary) * d_model
    check_memory(BYTES_PER_WEIGHT * size, f"a decoder of {size:,} weights", "use a smaller num_layers or d_model")
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
    """Return a sampler of training batches; ``lengths`` is the shortest and the longest length."""
    return Sampler(
        task=experiment.task,
        scheme=experiment.scheme,
        lengths=lengths,
        batch_size=experiment.training.batch_size,
        lengths_per_batch=experiment.training.lengths_per_batch,
        seed=experiment.seed,
    )


def to_dict(value: Any) -> Any:
    """Convert settings to plain JSON values; tasks, schemes, encodings and placements include their name."""
    if is_dataclass(value) and not isinstance(value, type):
        name_entry = {"name": getattr(value, "name", None)} if hasattr(type(value), "name") else {}
        # Fields with compare=False are locations, not settings.
        return name_entry | {each.name: to_dict(getattr(value, each.name)) for each in fields(value) if each.compare}
    return [to_dict(element) for element in value] if isinstance(value, tuple) else value


def upgrade_saved_experiment(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved experiment with the current names of its settings, and with settings that it did not save."""
    upgraded: dict[str, Any] = {
        part: {RENAMED_SETTINGS.get(name, name): value for name, value in settings.items()}
        if part in SETTINGS_CLASSES and isinstance(settings, Mapping)
        else settings
        for part, settings in tree.items()
    }
    if isinstance(upgraded.get("training"), Mapping):
        upgraded["training"] = {**UNSAVED_TRAINING_SETTINGS, **upgraded["training"]}
    if isinstance(upgraded.get("task"), Mapping):
        upgraded["task"] = {**UNSAVED_TASK_SETTINGS.get(str(upgraded["task"].get("name")), {}), **upgraded["task"]}
    return upgraded


def from_dict(
    tree: Mapping[str, Any], *, overrides: Mapping[str, Any] | None = None, folder: Path | None = None
) -> Experiment:
    """Restore an experiment from the JSON values of ``to_dict``, without importing custom classes.

    ``overrides`` replaces the saved ``task``, ``scheme`` or ``encoding`` by an instance or a class. A class receives
    the saved settings that it also has. For example, an encoding that replaces rotary keeps the trained rotary angles.
    A task reads its saved files from ``folder``. Raises ``RunFolderError`` for invalid values.
    """
    overrides = {} if overrides is None else overrides
    upgraded = upgrade_saved_experiment(tree)
    try:
        parts = {each.name: _restore_part(each.name, upgraded[each.name], overrides) for each in fields(Experiment)}
        if folder is not None and isinstance(parts["task"], HasRunFiles):
            parts["task"] = parts["task"].from_run_folder(folder)
        return Experiment(**parts)
    except SettingError as error:
        if overrides:
            raise
        raise RunFolderError(f"the saved experiment has an invalid setting: {error}; or train the run again") from None
    except LengthwiseError:
        raise
    except (KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"the saved experiment cannot be read ({error!r}); train the run again") from None


def _restore_part(name: str, value: Any, overrides: Mapping[str, Any]) -> Any:
    """Return one field of an experiment from its saved value or, if ``overrides`` contains it, from the override."""
    if (name in TABLES or name in SETTINGS_CLASSES) and not isinstance(value, Mapping):
        raise TypeError(f"{name} is {value!r:.40} instead of a JSON object")
    if name in overrides:
        return _apply_override(overrides[name], value)
    if name in TABLES:
        return _restore_entry(name, value)
    if name in SETTINGS_CLASSES:
        return SETTINGS_CLASSES[name](**_restore_settings(value))
    return tuple(value) if isinstance(value, list) else value


def build_entry(kind: str, tree: Mapping[str, Any]) -> Any:
    """Build an object of ``kind`` (such as a placement) from user-written JSON; raise ``SettingError`` if invalid."""
    try:
        return _restore_entry(kind, tree)
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise SettingError(f"invalid {kind} ({error}); use an object with its name and its settings as keys") from None


def _apply_override(override: Any, saved_settings: Mapping[str, Any]) -> Any:
    if not isinstance(override, type):
        return override
    # Pass only the settings that differ from the default, because a custom class may not accept them.
    defaults = json.loads(json.dumps(to_dict(override())))
    changed = {name: value for name, value in saved_settings.items() if name in defaults and value != defaults[name]}
    return override(**_restore_settings(changed))


def _restore_entry(kind: str, saved_settings: Mapping[str, Any]) -> Any:
    name, table = saved_settings["name"], NESTED_TABLES[kind]
    if name not in table:
        advice = f"pass --{kind} module:Name" if kind in TABLES else "pass --task module:Name of a task that builds it"
        raise UnknownNameError(f"unknown saved {kind} '{name}'; if it is custom, {advice}")
    return table[name](**_restore_settings(saved_settings))


def _restore_settings(saved_settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _restore_value(name, value) for name, value in saved_settings.items() if name != "name"}


def _restore_value(name: str, value: Any) -> Any:
    """Restore one setting: JSON saves a tuple as a list, and a nested task or placement as an object."""
    if isinstance(value, list):
        return tuple(_restore_value(name, element) for element in value)
    is_entry = name in TABLES or (name in NESTED_TABLES and isinstance(value, Mapping))
    return _restore_entry(name, value) if is_entry else value
