"""Sweep files: a JSON file with a grid of settings, or a Python file that defines experiments."""

import importlib
import itertools
import json
import math
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lengthwise.core.errors import LengthwiseError, SettingError, unknown_name_error
from lengthwise.core.files import read_file
from lengthwise.core.json_parsing import parse_json
from lengthwise.experiments import recipes
from lengthwise.experiments.experiment import (
    TABLES,
    Experiment,
    SettingChange,
    change_settings,
    find_changed_train_lengths,
)
from lengthwise.experiments.recipes import recipe, with_scheme_and_encoding

KEYS = ("base", "grid", "seeds")
# Settings whose value can be a name, as on the command line.
NAMED_PARTS = ("recipe", "task", "scheme", "encoding")
MAX_EXPERIMENTS = 10_000
SEEDS_ADVICE = "use a number of seeds such as 3, or a list of different seeds such as [0, 1, 2]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFile:
    """Experiments of a sweep by label, and the seeds of each (None: the seed of the experiment)."""

    experiments: Mapping[str, Experiment]
    seeds: tuple[int, ...] | None = None


def read_sweep_file(path: Path) -> SweepFile:
    """Read a sweep file that ends in .json or .py; raise ``SettingError`` with the file and the key of an error."""
    if path.suffix not in (".json", ".py"):
        raise SettingError(f"sweep file {path} has an unknown ending; use a file that ends in .json or .py")
    try:
        content = read_file(path)
    except OSError as error:
        raise SettingError(f"sweep file {path} cannot be read ({error.strerror}); pass an existing file") from None
    return _read_json(path, content) if path.suffix == ".json" else _read_python(path)


def check_seeds(seeds: Any, place: str) -> tuple[int, ...]:
    """Return the seeds for a number of seeds or a list; raise ``SettingError`` with ``place`` for another value."""
    values = list(range(seeds)) if type(seeds) is int and seeds <= MAX_EXPERIMENTS else seeds
    is_list = isinstance(values, list | tuple) and len(values) > 0
    if not is_list or not all(type(seed) is int and seed >= 0 for seed in values) or len({*values}) < len(values):
        raise SettingError(f"{place} has invalid seeds {seeds!r:.60}; {SEEDS_ADVICE}")
    return tuple(values)


def _read_json(path: Path, content: bytes) -> SweepFile:
    try:
        document = parse_json(content)
    except ValueError as error:
        raise SettingError(
            f"sweep file {path} is invalid ({error}); use an object with the keys base, grid and seeds"
        ) from None
    for key in document:
        if key not in KEYS:
            raise unknown_name_error(f"key in {path}", key, KEYS)
    base, grid = document.get("base"), document.get("grid", {})
    if not isinstance(base, dict):
        raise SettingError(f'{path} has no object base; add one such as "base": {{"task": "parity"}}')
    if not isinstance(grid, dict) or not all(isinstance(values, list) and values for values in grid.values()):
        raise SettingError(f'{path} has an invalid grid; use lists such as "grid": {{"encoding": ["rotary", "alibi"]}}')
    if (number := math.prod(map(len, grid.values()))) > MAX_EXPERIMENTS:
        raise SettingError(f"the grid in {path} has {number:,} experiments; use at most {MAX_EXPERIMENTS:,}")
    seeds = check_seeds(document["seeds"], str(path)) if "seeds" in document else None
    return SweepFile(experiments=_grid_experiments(path, base, grid), seeds=seeds)


def _grid_experiments(path: Path, base: Mapping[str, Any], grid: Mapping[str, list[Any]]) -> dict[str, Experiment]:
    """Return one experiment for each combination of the values in the grid, by label."""
    experiments: dict[str, Experiment] = {}
    # A search for a coupling takes long, so experiments with the same parts share one start.
    starts: dict[str, Experiment] = {}
    for values in itertools.product(*grid.values()):
        choice = dict(zip(grid, values, strict=True))
        place, settings = f"{path}, {_label(choice) or 'base'}", {**base, **choice}
        if "seed" in settings:
            raise SettingError(f"{place}: a seed is not a setting of the grid; use the key seeds")
        names = {kind: name for kind in NAMED_PARTS if (name := _name_of(settings.get(kind))) is not None}
        changes = [
            SettingChange(path=name, value=value, source=place)
            for name, value in settings.items()
            if name not in NAMED_PARTS or not isinstance(value, str)
        ]
        train_lengths = find_changed_train_lengths(changes)
        key = json.dumps([names, train_lengths])
        if key not in starts:
            starts[key] = _start(names, train_lengths, place)
        experiment = change_settings(starts[key], changes)
        label = _label(choice) or "/".join(getattr(experiment, kind).name for kind in TABLES)
        if label in experiments:
            raise SettingError(f"the grid in {path} contains {label} twice; use different values in each list")
        experiments[label] = experiment
    return experiments


def _name_of(value: Any) -> str | None:
    """Return the name of a part that is given as a name, or as an object with its name and settings."""
    name = value.get("name") if isinstance(value, dict) else value
    return name if isinstance(name, str) else None


def _start(names: Mapping[str, str], train_lengths: tuple[int, int] | None, place: str) -> Experiment:
    """Return the experiment with these names of a recipe or of a task, and of a scheme and an encoding."""
    scheme, encoding = names.get("scheme"), names.get("encoding")
    if "recipe" in names and "task" in names:
        raise SettingError(f"{place}: recipe '{names['recipe']}' sets the task; leave out the recipe or the task")
    if "recipe" not in names and "task" not in names:
        raise SettingError(f"{place}: the experiment has no task; add the name of a task or of a recipe to base")
    try:
        if "recipe" in names:
            return with_scheme_and_encoding(recipe(names["recipe"]), scheme, encoding)
        scheme = "predicted" if scheme is None else scheme
        return recipes.experiment(names["task"], scheme, encoding, train_lengths=train_lengths)
    except LengthwiseError as error:
        raise type(error)(f"{place}: {error}") from None


def _label(choice: Mapping[str, Any]) -> str:
    """Return a label such as ``learning_rate=0.001, encoding=rotary``, with short names if they are unique."""
    short_names = [path.rpartition(".")[2] for path in choice]
    names = short_names if len({*short_names}) == len(short_names) else list(choice)
    texts = [value if isinstance(value, str) else json.dumps(value) for value in choice.values()]
    return ", ".join(f"{name}={text}" for name, text in zip(names, texts, strict=True))


def _read_python(path: Path) -> SweepFile:
    module = _import_file(path)
    experiments: Any = getattr(module, "EXPERIMENTS", None)
    items = experiments.items() if isinstance(experiments, Mapping) else ()
    if not items or not all(isinstance(label, str) and isinstance(value, Experiment) for label, value in items):
        raise SettingError(f"{path} defines no valid EXPERIMENTS; define a dict from labels to lengthwise.Experiment")
    seeds = check_seeds(module.SEEDS, f"SEEDS in {path}") if hasattr(module, "SEEDS") else None
    return SweepFile(experiments=experiments, seeds=seeds)


def _import_file(path: Path) -> Any:
    """Import a Python file under its own name, so that worker processes can import its classes."""
    path = path.resolve()
    if str(path.parent) not in sys.path:
        # Workers search the same folders. It comes last, so that it hides no other module.
        sys.path.append(str(path.parent))
    previous_file = getattr(sys.modules.get(path.stem), "__file__", None)
    if previous_file is not None and Path(previous_file).resolve() == path:
        # The file may have changed since.
        del sys.modules[path.stem]
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(path.stem)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = next((f" in line {frame.lineno}" for frame in reversed(frames) if frame.filename == str(path)), "")
        message = f"{type(error).__name__}{place}: {' '.join(str(error).split())}"
        raise SettingError(f"sweep file {path} raises {message}; correct the file") from None
    if Path(module.__file__ or "").resolve() != path:
        raise SettingError(f"sweep file {path} has the name of another module; use another file name")
    return module
