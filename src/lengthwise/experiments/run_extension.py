"""Extension of a run by more training steps, from its newest checkpoint.

One atomic write of ``experiment.json`` extends the run: before it, the run is the finished run of the earlier steps;
after it, the run is an unfinished run of more steps. The earlier run remains in a folder within the run folder.
"""

import filecmp
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lengthwise.core.errors import RunFolderError, SettingError
from lengthwise.core.files import atomic_folder, read_file, write_atomically
from lengthwise.core.provenance import provenance
from lengthwise.core.type_checks import check_values
from lengthwise.experiments.experiment import Experiment, to_dict, upgrade_saved_experiment
from lengthwise.experiments.run_folder import (
    COMPARISON_ROWS,
    EXPERIMENT,
    EXPERIMENT_DIGEST_KEY,
    MODEL,
    RESULTS,
    RUN_FOLDER,
    StartModel,
    claim_run_description,
    claim_run_folder,
    experiment_digest,
    read_description_file,
    read_model,
    write_description_file,
)
from lengthwise.training.training_state import METRICS, iter_checkpoints

# Folder of the earlier runs, each in a folder named after its number of steps.
EARLIER = "earlier"
# Model of the earlier steps, and files that describe it.
OUTDATED = (RESULTS, COMPARISON_ROWS, MODEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """Extension in the provenance of a run: from a checkpoint at ``from_step`` of a run with ``earlier_steps``.

    ``steps`` is the new number of steps, and ``belongs_to`` is the digest of the earlier experiment.
    """

    from_step: int
    earlier_steps: int
    steps: int
    belongs_to: str


def claim_or_extend(folder: Path, experiment: Experiment, *, resume: bool, start: StartModel | None = None) -> None:
    """Prepare a run folder for training; with ``resume``, extend its run if ``experiment`` only has more steps.

    Raises ``RunFolderError`` as ``claim_run_folder`` does, and if the run has more steps than ``experiment``, or no
    checkpoint to continue from.
    """
    if resume and (folder / EXPERIMENT).exists():
        _extend(folder, experiment, start)
        _delete_outdated(folder)
    claim_run_folder(folder, experiment, resume=resume, start=start)


def check_run_folder(folder: Path, experiment: Experiment) -> None:
    """Raise ``RunFolderError`` if a folder has a run of another experiment, also if the number of steps differs."""
    if (folder / EXPERIMENT).exists():
        claim_run_folder(folder, experiment, resume=True)


def read_extensions(folder: Path) -> list[Extension]:
    """Return the extensions of a run, the first one first; raise ``RunFolderError`` if their record is damaged."""
    records = _provenance(read_description_file(folder, RUN_FOLDER)).get("extensions", [])
    try:
        return [_to_extension(record) for record in records]
    except (SettingError, TypeError) as error:
        raise RunFolderError(
            f"{folder / EXPERIMENT} has invalid extensions ({error}); restore the original, or train the run again"
        ) from None


def _to_extension(record: Any) -> Extension:
    if not isinstance(record, dict):
        raise TypeError(f"{record!r:.40} is not an object")
    check_values(Extension, record)
    return Extension(**{name: record[name] for name in Extension.__dataclass_fields__})


def _provenance(tree: Mapping[str, Any]) -> dict[str, Any]:
    provenance_tree = tree.get("provenance")
    return provenance_tree if isinstance(provenance_tree, dict) else {}


def _extend(folder: Path, experiment: Experiment, start: StartModel | None) -> None:
    """Record more steps in the folder of a run that otherwise has the same experiment; do nothing for equal steps."""
    tree = read_description_file(folder, RUN_FOLDER)
    saved, description = upgrade_saved_experiment(tree[RUN_FOLDER.key]), to_dict(experiment)
    training, steps = saved.get("training"), experiment.training.steps
    earlier_steps = training.get("steps") if isinstance(training, dict) else None
    if type(earlier_steps) is not int or earlier_steps == steps:
        return
    # All other settings must be equal.
    earlier_description = {**description, "training": {**description["training"], "steps": earlier_steps}}
    claim_run_description(folder, experiment.task, earlier_description, resume=True, start=start)
    if steps < earlier_steps:
        raise RunFolderError(
            f"{folder} is a run of up to {earlier_steps} steps, more than {steps}; use more than {earlier_steps} "
            "steps to extend it, or choose another --out"
        )
    extension = Extension(
        from_step=_newest_step(folder),
        earlier_steps=earlier_steps,
        steps=steps,
        belongs_to=experiment_digest(folder),
    )
    if (folder / MODEL).exists():
        read_model(folder)
        _copy_run(folder, _earlier_folder(folder, extension), tree.get("files", {}))
    origin = _provenance(tree)
    extensions = [*origin.get("extensions", []), {**asdict(extension), **provenance()}]
    extended = {**tree, RUN_FOLDER.key: description, "provenance": {**origin, "extensions": extensions}}
    write_description_file(folder, RUN_FOLDER, extended)


def _earlier_folder(folder: Path, extension: Extension) -> Path:
    return folder / EARLIER / f"{extension.earlier_steps}-steps"


def _newest_step(folder: Path) -> int:
    """Return the step of the newest complete checkpoint, or 0 for an unfinished run without checkpoints."""
    digests = {experiment_digest(folder), *(extension.belongs_to for extension in read_extensions(folder))}
    for path, _, facts in iter_checkpoints(folder):
        if facts.get(EXPERIMENT_DIGEST_KEY) not in digests or not isinstance(facts.get("step"), int):
            raise RunFolderError(f"{path} belongs to another experiment; train that one, or choose another --out")
        return int(facts["step"])
    if (folder / MODEL).exists():
        raise RunFolderError(
            f"{folder} has no complete checkpoint to continue from; train a new run from its weights: --from {folder}"
        )
    return 0


def _copy_run(folder: Path, target: Path, file_names: Mapping[str, Any]) -> None:
    """Copy a finished run without its checkpoints, so that it can be loaded and evaluated later."""
    # A copy of an extension that was interrupted before it was recorded.
    shutil.rmtree(target, ignore_errors=True)
    with atomic_folder(target) as copy:
        for name in (EXPERIMENT, METRICS, *OUTDATED, *(Path(name).name for name in file_names)):
            if (folder / name).exists():
                write_atomically(copy / name, read_file(folder / name))


def _delete_outdated(folder: Path) -> None:
    """Delete the model and the results of earlier steps; repeat this safely after an interruption.

    A file is deleted only if it equals its copy in the folder of an earlier run.
    """
    for extension in read_extensions(folder):
        for name in OUTDATED:
            path, copy = folder / name, _earlier_folder(folder, extension) / name
            if path.is_file() and copy.is_file() and filecmp.cmp(path, copy, shallow=False):
                path.unlink()
