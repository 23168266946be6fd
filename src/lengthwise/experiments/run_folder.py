"""Folders of runs, comparisons and influence studies: their description files, models and result rows."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lengthwise.core.checkpoint import load_tensors, save_tensors
from lengthwise.core.errors import RunFolderError
from lengthwise.core.files import read_file, write_atomically
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.core.json_parsing import parse_json
from lengthwise.core.provenance import provenance
from lengthwise.experiments.experiment import Experiment, from_dict, to_dict, upgrade_saved_experiment
from lengthwise.tasks import HasRunFiles, Task
from lengthwise.training.training_state import METRICS

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
# Keys of the experiment digest in a model and in a checkpoint, and of the digest of result rows.
EXPERIMENT_DIGEST_KEY, ROWS_DIGEST_KEY = "belongs_to", "sha256"


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
class StartModel:
    """Model file whose weights a run starts from, and its ``origin``: path, digest and steps as JSON values."""

    content: bytes
    origin: dict[str, Any]


def claim_folder(
    folder: Path,
    kind: FolderKind,
    description: Any,
    *,
    resume: bool,
    normalize: Callable[[Any], Any] = lambda tree: tree,
    files: Callable[[], Mapping[str, bytes]] = dict,
) -> None:
    """Write a description file into a folder; with ``resume``, check that the existing description is equal instead.

    ``normalize`` is applied to both descriptions before the comparison. ``files`` returns the contents of more files to
    write, by name. Raises ``RunFolderError`` if the path is a file, or if the folder has a description of another kind,
    a different description, or any description without ``resume``.
    """
    _check_kind(folder, kind)
    if (folder / kind.file).exists():
        if not resume:
            raise RunFolderError(
                f"{folder} already contains a {kind.name}; add --resume to continue it, or choose another --out"
            )
        tree = read_description_file(folder, kind)
        _check_equal(folder, kind, normalize(tree[kind.key]), normalize(json.loads(json.dumps(description))))
        _check_equal(folder, kind, tree.get("files", {}), _file_digests(files()))
        return
    write_description(folder, kind, description, files())


def _check_kind(folder: Path, kind: FolderKind) -> None:
    """Raise ``RunFolderError`` if the path is a file, or if the folder has a description of another kind."""
    if folder.exists() and not folder.is_dir():
        raise RunFolderError(f"{folder} is a file, but a {kind.name} needs a folder; choose another --out")
    for other in (RUN_FOLDER, COMPARISON_FOLDER, STUDY_FOLDER, SWEEP_FOLDER):
        if other != kind and (folder / other.file).exists():
            raise RunFolderError(f"{folder} already contains a {other.name}; choose another --out for the {kind.name}")


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
        folder, kind, {kind.key: description, **file_digests, "provenance": {**provenance(), **more_provenance}}
    )


def write_description_file(folder: Path, kind: FolderKind, tree: Mapping[str, Any]) -> None:
    """Write the tree of a description file: the description, the digests of the files, and the provenance."""
    write_atomically(folder / kind.file, json.dumps(tree, indent=2).encode() + b"\n")


def _file_digests(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def claim_run_folder(folder: Path, experiment: Experiment, *, resume: bool, start: StartModel | None = None) -> None:
    """Write the experiment of a run and its files into a folder, or compare them; see `claim_folder`.

    A run that starts from another run's weights keeps a copy of them. It resumes with and without ``start``.
    """
    claim_run_description(folder, experiment.task, to_dict(experiment), resume=resume, start=start)


def claim_run_description(
    folder: Path, task: Task, description: Any, *, resume: bool, start: StartModel | None = None
) -> None:
    """Do the same as ``claim_run_folder``, for an experiment of ``task`` that is already in its saved form."""
    exists = (folder / EXPERIMENT).exists()

    def files() -> dict[str, bytes]:
        task_files = task.run_files() if isinstance(task, HasRunFiles) else {}
        if start is not None:
            return {**task_files, START: start.content}
        return {**task_files, **(read_start_file(folder) if exists else {})}

    if start is not None and not exists:
        _check_kind(folder, RUN_FOLDER)
        write_description(folder, RUN_FOLDER, description, files(), start=start.origin)
        return
    claim_folder(folder, RUN_FOLDER, description, resume=resume, normalize=upgrade_saved_experiment, files=files)


def read_start_file(folder: Path) -> dict[str, bytes]:
    """Return the name and content of the model that a run starts from, or an empty mapping if it has no such model."""
    digests = read_description_file(folder, RUN_FOLDER).get("files", {})
    return {START: _read_file(folder, START, digests[START])} if START in digests else {}


def read_description(folder: Path, kind: FolderKind) -> dict[str, Any]:
    """Return the description that ``claim_folder`` wrote to a folder."""
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


def read_experiment(folder: Path, *, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """Read the experiment of a run folder; raise ``RunFolderError`` if it is missing or damaged."""
    if not folder.exists():
        raise RunFolderError(f"{folder} does not exist; pass a run folder that train --out has written")
    if not (folder / EXPERIMENT).is_file():
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
