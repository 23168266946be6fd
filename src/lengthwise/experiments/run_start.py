"""Start of a run from the weights of another run, for example to fine-tune it on longer sequences."""

import hashlib
import os
import reprlib
from pathlib import Path
from typing import Any

from lengthwise.core.checkpoint import check_tensors, load_tensors
from lengthwise.core.errors import SettingError
from lengthwise.core.files import read_file
from lengthwise.experiments.experiment import TABLES, Experiment, num_levels, to_dict
from lengthwise.experiments.run_folder import (
    EXPERIMENT,
    MODEL,
    RUN_FOLDER,
    START,
    StartModel,
    read_description,
    read_experiment,
    read_model,
    read_start_file,
)
from lengthwise.model.decoder import Decoder


def read_start_model(folder: Path, experiment: Experiment, decoder: Decoder, source: Experiment | None) -> StartModel:
    """Return the model of a finished run from which ``decoder``, the decoder of ``experiment``, can start.

    ``source`` is the experiment of the run if it is loaded, otherwise it is read from ``folder``. Raises
    ``SettingError`` for the first setting of the decoder that differs.
    """
    if source is None:
        source = read_experiment(folder, overrides=_custom_classes(folder, experiment))
    tensors, training_facts = read_model(folder)
    shapes, new_shapes = (
        {name: tensor.shape for name, tensor in each.items()} for each in (tensors, decoder.state_dict())
    )
    settings, new_settings = decoder_settings(source), decoder_settings(experiment)
    if settings.items() == new_settings.items() and shapes != new_shapes:
        # Some position heads have one output per ID.
        settings["num_position_ids"] = source.scheme.num_position_ids
        new_settings["num_position_ids"] = experiment.scheme.num_position_ids
    for name in {**settings, **new_settings}:
        old, new = settings.get(name), new_settings.get(name)
        if old != new:
            raise SettingError(
                f"{folder} has {name} {reprlib.repr(old)}, but the new run has {reprlib.repr(new)}; use the value of "
                f"{folder}, or train without --from"
            )
    check_tensors(folder / MODEL, tensors, decoder.state_dict())
    content = read_file(folder / MODEL)
    origin = {
        # JSON cannot contain a name that is not UTF-8.
        "run": os.fsencode(folder.absolute()).decode(errors="backslashreplace"),
        "sha256": hashlib.sha256(content).hexdigest(),
        "steps": training_facts.get("steps"),
    }
    return StartModel(content=content, origin=origin)


def load_start(folder: Path, decoder: Decoder) -> None:
    """Load the weights that the run in a folder starts from, if it starts from another run."""
    if read_start_file(folder):
        tensors, _ = load_tensors(folder / START)
        check_tensors(folder / START, tensors, decoder.state_dict())
        decoder.load_state_dict(tensors)


def decoder_settings(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that must not change between a run and its start, by name."""
    parts = {"decoder": experiment.decoder, "encoding": experiment.encoding}
    return {
        **{f"{part}.{name}": value for part, settings in parts.items() for name, value in to_dict(settings).items()},
        "vocabulary": tuple(experiment.task.vocabulary),
        "separators": tuple(experiment.task.separators),
        "predicts_ids": experiment.scheme.predicts_ids,
        "num_levels": num_levels(experiment),
    }


def _custom_classes(folder: Path, experiment: Experiment) -> dict[str, Any]:
    """Return the custom classes of an experiment that a saved run also uses, because loading imports no code."""
    if not (folder / EXPERIMENT).is_file():
        return {}
    saved = read_description(folder, RUN_FOLDER)
    names = {kind: saved[kind].get("name") for kind in TABLES if isinstance(saved.get(kind), dict)}
    parts = {kind: getattr(experiment, kind) for kind in names}
    return {
        kind: type(part) for kind, part in parts.items() if names[kind] == part.name and part.name not in TABLES[kind]
    }
