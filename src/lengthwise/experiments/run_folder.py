"""Folders of runs, comparisons, sweeps and influence studies: their names, description files, models and result rows.

One atomic write of ``experiment.json`` extends a run by more training steps: before it, the run is the finished run of
the earlier steps; after it, the run is an unfinished run of more steps. The earlier run remains in a folder within the
run folder.
"""

import filecmp
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from lengthwise.core.checkpoint import load_tensors, save_tensors
from lengthwise.core.errors import RunFolderError, SettingError
from lengthwise.core.files import read_file, write_atomically, write_folder_atomically
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.core.json_parsing import parse_json
from lengthwise.core.provenance import collect_provenance
from lengthwise.core.type_checks import check_field_values
from lengthwise.experiments.experiment import Experiment, from_dict, to_dict
from lengthwise.tasks import HasFilesToSave
from lengthwise.training.trainer import METRICS, iter_checkpoints

EXPERIMENT, MODEL, RESULTS = "experiment.json", "model.safetensors", "results.jsonl"
# Files that a run, comparison, sweep or study writes after its description.
OUTPUT_FILES = (
    MODEL,
    METRICS,
    RESULTS,
    "figure.png",
    "figure.svg",
    "influence.jsonl",
    "influence.html",
    "summary.json",
)
# Copy of the model whose weights a run starts from.
START = "start.safetensors"
COMPARISON, STUDY, SWEEP = "comparison.json", "influence.json", "sweep.json"
# Runs of the last call of a sweep.
PLANNED_RUNS = "planned.json"
# Result rows of a run for its comparison or sweep.
COMPARISON_ROWS = "compared.jsonl"
# Error that ended a run, for the commands that show the states of runs.
FAILURE = "failure.json"
# Folder of the earlier runs, each in a folder named after its number of steps.
EARLIER = "earlier"
# Model of the earlier steps, and files that describe it.
OUTDATED = (RESULTS, COMPARISON_ROWS, MODEL)
# Keys of the experiment digest in a model and in a checkpoint, and of the digest of result rows.
EXPERIMENT_DIGEST_KEY, ROWS_DIGEST_KEY = "belongs_to", "sha256"
# Number of hexadecimal digits of the digest in a folder name.
NAME_DIGEST_LENGTH = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderKind:
    """Kind of folder, its description file, and the key of the description in that file."""

    name: str
    file: str
    key: str


RUN_FOLDER = FolderKind(name="run", file=EXPERIMENT, key="experiment")
COMPARISON_FOLDER = FolderKind(name="comparison", file=COMPARISON, key="comparison")
STUDY_FOLDER = FolderKind(name="study", file=STUDY, key="study")
SWEEP_FOLDER = FolderKind(name="sweep", file=SWEEP, key="sweep")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCheckpoint:
    """Model file whose weights a run starts from, and its ``origin``: path, digest and steps as JSON values."""

    content: bytes
    origin: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunExtension:
    """Extension in the provenance of a run: from a checkpoint at ``from_step`` of a run with ``earlier_steps``.

    ``steps`` is the new number of steps, and ``belongs_to`` is the digest of the earlier experiment.
    """

    from_step: int
    earlier_steps: int
    steps: int
    belongs_to: str


def experiment_folder_name(experiment: Experiment) -> str:
    """Return a folder name that depends only on the settings of the experiment, its seed included."""
    parts = (experiment.task.name, experiment.scheme.name, experiment.encoding.name)
    digest = hashlib.sha256(json.dumps(to_dict(experiment), sort_keys=True).encode()).hexdigest()
    return f"{to_folder_name('-'.join(parts))}-seed-{experiment.seed}-{digest[:NAME_DIGEST_LENGTH]}"


def run_folder(out: Path, label: str, seed: int) -> Path:
    """Return the folder of the run with this label and seed in a comparison."""
    return out / to_folder_name(label) / f"seed-{seed}"


def to_folder_name(label: str) -> str:
    """Convert a label to a folder name of lower-case letters, digits and hyphens."""
    return re.sub(r"[\W_]+", "-", label.lower()).strip("-")


def acquire_folder(
    folder: Path,
    kind: FolderKind,
    description: Any,
    *,
    resume: bool,
    normalize: Callable[[Any], Any] = lambda tree: tree,
    files: Callable[[], Mapping[str, bytes]] = dict,
    **more_provenance: Any,
) -> None:
    """Write a description file into a folder; with ``resume``, check that the existing description is equal instead.

    ``normalize`` is applied to both descriptions before the comparison. ``files`` returns the contents of more files to
    write, by name. Raises ``RunFolderError`` if the path is a file, or if the folder has a description of another kind,
    a different description, or any description without ``resume``.
    """
    if folder.exists() and not folder.is_dir():
        raise RunFolderError(f"{folder} is a file, but a {kind.name} needs a folder; choose another --out")
    for other in (RUN_FOLDER, COMPARISON_FOLDER, STUDY_FOLDER, SWEEP_FOLDER):
        if other != kind and (folder / other.file).exists():
            raise RunFolderError(f"{folder} already contains a {other.name}; choose another --out for the {kind.name}")
    if not (folder / kind.file).exists():
        write_description(folder, kind, description, files(), **more_provenance)
        return
    if not resume:
        raise RunFolderError(
            f"{folder} already contains a {kind.name}; add --resume to continue it, or choose another --out"
        )
    tree, requested = read_description_file(folder, kind), json.loads(json.dumps(description))
    _check_equal(folder, kind, normalize(tree[kind.key]), normalize(requested))
    _check_equal(folder, kind, tree.get("files", {}), _file_digests(files()))


def write_description(
    folder: Path, kind: FolderKind, description: Any, files: Mapping[str, bytes], **more_provenance: Any
) -> None:
    """Write the files of a run and the description into a folder; the description makes the folder complete.

    Raises ``RunFolderError`` for a file that a run, comparison, sweep or study would replace.
    """
    if foreign := [name for name in OUTPUT_FILES if os.path.lexists(folder / name)]:
        raise RunFolderError(f"{folder} contains {foreign[0]}, but no {kind.name}; choose another --out")
    for name, content in files.items():
        write_atomically(folder / name, content)
    file_digests = {"files": _file_digests(files)} if files else {}
    write_description_file(
        folder,
        kind,
        {kind.key: description, **file_digests, "provenance": {**collect_provenance(), **more_provenance}},
    )


def write_description_file(folder: Path, kind: FolderKind, tree: Mapping[str, Any]) -> None:
    """Write the tree of a description file: the description, the digests of the files, and the provenance."""
    write_atomically(folder / kind.file, json.dumps(tree, indent=2).encode() + b"\n")


def _file_digests(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def acquire_run_folder(
    folder: Path, experiment: Experiment, *, resume: bool, start: StartCheckpoint | None = None, extend: bool = False
) -> None:
    """Write the experiment of a run and its files into a folder, or compare them; see ``acquire_folder``.

    A run that starts from another run's weights keeps a copy of them. It resumes with and without ``start``.
    ``extend`` extends a run to resume if ``experiment`` only has more steps. It raises ``RunFolderError`` if the run
    has more steps than ``experiment``, or no checkpoint to continue from.
    """
    if extend and resume and (folder / EXPERIMENT).exists():
        _extend(folder, experiment, start)
        _delete_outdated(folder)
    _acquire_run(folder, experiment, to_dict(experiment), resume=resume, start=start)


def _acquire_run(
    folder: Path, experiment: Experiment, description: Any, *, resume: bool, start: StartCheckpoint | None
) -> None:
    def files() -> dict[str, bytes]:
        task_files = experiment.task.files_to_save() if isinstance(experiment.task, HasFilesToSave) else {}
        if start is not None:
            return {**task_files, START: start.content}
        return {**task_files, **(read_start_model_file(folder) if (folder / EXPERIMENT).exists() else {})}

    origin: dict[str, Any] = {} if start is None else {"start": start.origin}
    acquire_folder(folder, RUN_FOLDER, description, resume=resume, files=files, **origin)


def read_extensions(folder: Path) -> list[RunExtension]:
    """Return the extensions of a run, the first one first; raise ``RunFolderError`` if their record is damaged."""
    extensions = []
    try:
        for record in _provenance(read_description_file(folder, RUN_FOLDER)).get("extensions", []):
            if not isinstance(record, dict):
                raise TypeError(f"{record!r:.40} is not an object")
            check_field_values(RunExtension, record)
            extensions.append(RunExtension(**{name: record[name] for name in RunExtension.__dataclass_fields__}))
    except (SettingError, TypeError) as error:
        raise RunFolderError(
            f"{folder / EXPERIMENT} has invalid extensions ({error}); restore the original, or train the run again"
        ) from None
    return extensions


def _provenance(tree: Mapping[str, Any]) -> dict[str, Any]:
    provenance_tree = tree.get("provenance")
    return provenance_tree if isinstance(provenance_tree, dict) else {}


def _extend(folder: Path, experiment: Experiment, start: StartCheckpoint | None) -> None:
    """Record more steps in the folder of a run that otherwise has the same experiment; do nothing for equal steps."""
    tree, description = read_description_file(folder, RUN_FOLDER), to_dict(experiment)
    training, steps = tree[RUN_FOLDER.key].get("training"), experiment.training.steps
    earlier_steps = training.get("steps") if isinstance(training, dict) else None
    if type(earlier_steps) is not int or earlier_steps == steps:
        return
    # All other settings must be equal.
    earlier_description = {**description, "training": {**description["training"], "steps": earlier_steps}}
    _acquire_run(folder, experiment, earlier_description, resume=True, start=start)
    if steps < earlier_steps:
        raise RunFolderError(
            f"{folder} is a run of up to {earlier_steps} steps, more than {steps}; use more than {earlier_steps} "
            "steps to extend it, or choose another --out"
        )
    extension = RunExtension(
        from_step=_newest_step(folder),
        earlier_steps=earlier_steps,
        steps=steps,
        belongs_to=experiment_digest(folder),
    )
    if (folder / MODEL).exists():
        read_model(folder)
        _copy_run(folder, _earlier_folder(folder, extension), tree.get("files", {}))
    origin = _provenance(tree)
    extensions = [*origin.get("extensions", []), {**asdict(extension), **collect_provenance()}]
    extended = {**tree, RUN_FOLDER.key: description, "provenance": {**origin, "extensions": extensions}}
    write_description_file(folder, RUN_FOLDER, extended)


def _earlier_folder(folder: Path, extension: RunExtension) -> Path:
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
    with write_folder_atomically(target) as copy:
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


@contextmanager
def record_failure(folder: Path) -> Iterator[None]:
    """Write the error that ends a run into its folder, and first delete the record of an earlier error."""
    (folder / FAILURE).unlink(missing_ok=True)
    try:
        yield
    except Exception as error:
        record = {"error": type(error).__name__, "message": str(error)}
        # If the folder is not writable, the error itself is more important than its record.
        with suppress(RunFolderError):
            write_atomically(folder / FAILURE, json.dumps(record).encode() + b"\n")
        raise


def read_start_model_file(folder: Path) -> dict[str, bytes]:
    """Return the name and content of the model that a run starts from, or an empty mapping if it has no such model."""
    digests = read_description_file(folder, RUN_FOLDER).get("files", {})
    return {START: _read_file(folder, START, digests[START])} if START in digests else {}


def read_description(folder: Path, kind: FolderKind) -> dict[str, Any]:
    """Return the description that ``acquire_folder`` wrote to a folder."""
    description: dict[str, Any] = read_description_file(folder, kind)[kind.key]
    return description


def experiment_digest(folder: Path) -> str:
    """Return the SHA-256 digest of a run and its task files; raise ``RunFolderError`` if one is missing or changed."""
    tree = read_description_file(folder, RUN_FOLDER)
    for name, digest in tree.get("files", {}).items():
        _read_file(folder, name, digest)
    digested_entries = {key: tree[key] for key in ("experiment", "files") if key in tree}
    return hashlib.sha256(json.dumps(digested_entries, sort_keys=True).encode()).hexdigest()


def _read_file(folder: Path, name: str, digest: str) -> bytes:
    """Return the content of a file that belongs to a run; raise ``RunFolderError`` if it is missing or changed."""
    try:
        content = read_file(folder / Path(name).name)
    except OSError as error:
        raise RunFolderError(f"{folder / name} cannot be read ({error.strerror}); train the run again") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise RunFolderError(f"{folder / name} has changed since training (its digest differs); restore the original")
    return content


def read_description_file(folder: Path, folder_kind: FolderKind) -> dict[str, Any]:
    """Read a description file; raise ``RunFolderError`` if it is missing or damaged."""
    try:
        tree: dict[str, Any] = parse_json(read_file(folder / folder_kind.file))
        for key, value in {folder_kind.key: tree.get(folder_kind.key), "files": tree.get("files", {})}.items():
            if not isinstance(value, dict):
                raise ValueError(f"it has no object {key}")
        return tree
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{folder / folder_kind.file} cannot be read ({error}); repeat the {folder_kind.name} in another folder"
        ) from None


def _check_equal(folder: Path, folder_kind: FolderKind, saved_tree: Any, requested_tree: Any) -> None:
    if value_names := sorted(_differences(saved_tree, requested_tree)):
        differences = ", ".join(value_names[:3]) + (f" and {len(value_names) - 3} more" if len(value_names) > 3 else "")
        raise RunFolderError(
            f"{folder} contains another {folder_kind.name} (different values: {differences}); choose another --out"
        )


def _differences(saved_tree: Any, requested_tree: Any, name: str = "") -> Iterator[str]:
    """Yield the names of the values that differ between two nested mappings, such as ``training.steps``."""
    if isinstance(saved_tree, dict) and isinstance(requested_tree, dict):
        for key in {**saved_tree, **requested_tree}:
            yield from _differences(saved_tree.get(key), requested_tree.get(key), f"{name}.{key}" if name else key)
    elif saved_tree != requested_tree:
        yield name


def is_run_folder(name: str | Path) -> bool:
    """Return True for a run folder, and False for a name of anything else, such as a model."""
    return (Path(name) / EXPERIMENT).is_file()


def read_experiment(folder: Path, *, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """Read the experiment of a run folder; raise ``RunFolderError`` if it is missing or damaged."""
    if not folder.exists():
        raise RunFolderError(f"{folder} does not exist; pass a run folder that train --out has written")
    if not is_run_folder(folder):
        raise RunFolderError(
            f"{folder} is not a run folder (it has no {EXPERIMENT}); pass a run folder that train --out has written"
        )
    return from_dict(read_description(folder, RUN_FOLDER), overrides=overrides, folder=folder)


def read_model(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read the weights and training facts of a finished run."""
    if not (folder / MODEL).exists():
        raise RunFolderError(
            f"{folder} has no {MODEL} because training is unfinished; run train --resume --out {folder}"
        )
    tensors, training_facts = load_tensors(folder / MODEL)
    if training_facts.pop(EXPERIMENT_DIGEST_KEY, None) != experiment_digest(folder):
        raise RunFolderError(
            f"{folder / MODEL} does not belong to {folder / EXPERIMENT}, or one of them has changed; "
            "restore the original files, or train the run again"
        )
    return tensors, training_facts


def write_model(folder: Path, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
    """Save the weights and the training facts of a finished run, with the digest of its experiment."""
    save_tensors(folder / MODEL, tensors, {**facts, EXPERIMENT_DIGEST_KEY: experiment_digest(folder)})


def append_rows(path: Path, rows: Sequence[Mapping[str, Any]], *, skip_existing: bool = False) -> None:
    """Append result rows to a JSON-lines file; several processes may append to the same file.

    ``skip_existing`` skips rows that the file already contains. New rows never continue an incomplete last line.
    """
    with exclusive_lock(path.parent, wait=True):
        content = read_file(path) if path.exists() else b""
        if content and not content.endswith(b"\n"):
            content += b"\n"
        existing_lines = set(content.splitlines()) if skip_existing else set()
        new_lines = [line for line in _encode_rows(rows) if line.rstrip() not in existing_lines]
        write_atomically(path, content + b"".join(new_lines))


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write result rows to a JSON-lines file and replace its content."""
    write_atomically(path, b"".join(_encode_rows(rows)))


def write_rows_with_digest(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write result rows to a JSON-lines file, with their SHA-256 digest as the last line, which reveals damage."""
    content = b"".join(_encode_rows(rows))
    write_atomically(path, content + b"".join(_encode_rows([{ROWS_DIGEST_KEY: hashlib.sha256(content).hexdigest()}])))


def read_rows_with_digest(path: Path) -> list[dict[str, Any]]:
    """Read rows written by ``write_rows_with_digest``; return an empty list if the file does not exist."""
    rows = read_rows(path)
    digest_row = rows.pop() if rows else {}
    digest = hashlib.sha256(b"".join(_encode_rows(rows))).hexdigest()
    if (rows or digest_row) and digest_row != {ROWS_DIGEST_KEY: digest}:
        raise RunFolderError(
            f"{path} has changed since it was written (its digest differs); delete the file to measure its rows again"
        )
    return rows


def _encode_rows(rows: Sequence[Mapping[str, Any]]) -> list[bytes]:
    return [json.dumps(row).encode() + b"\n" for row in rows]


def read_rows(path: Path, *, is_growing: bool = False) -> list[dict[str, Any]]:
    """Read the rows of a JSON-lines file; return an empty list if the file does not exist.

    ``is_growing`` skips an incomplete last line, which the process of a run is writing.
    """
    lines = read_file(path).splitlines(keepends=True) if path.exists() else []
    if is_growing and lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    rows: list[dict[str, Any]] = []
    try:
        for line in lines:
            rows.append(parse_json(line))
    except ValueError as error:
        raise RunFolderError(
            f"{path} line {len(rows) + 1} is damaged ({error}); delete this line, or the whole file"
        ) from None
    return rows
