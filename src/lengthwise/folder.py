"""The run folder: what stands in it, and who may write there."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lengthwise.checkpoint import load_tensors, write_atomically
from lengthwise.errors import RunFolderError
from lengthwise.experiment import Experiment, from_dict, to_dict
from lengthwise.locks import alone_in
from lengthwise.provenance import provenance
from lengthwise.tasks import KeepsFiles

EXPERIMENT, MODEL, RESULTS = "experiment.json", "model.safetensors", "results.jsonl"
COMPARISON, STUDY = "comparison.json", "influence.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a folder can hold, the file that says which one, and under which key of it."""

    name: str
    file: str
    key: str


RUN_FOLDER = Kind(name="run", file=EXPERIMENT, key="experiment")
COMPARISON_FOLDER = Kind(name="comparison", file=COMPARISON, key="comparison")
STUDY_FOLDER = Kind(name="study", file=STUDY, key="study")


def claim(
    folder: Path,
    kind: Kind,
    asked: Any,
    *,
    resume: bool,
    plain: Callable[[Any], Any] = lambda tree: tree,
    files: Callable[[], Mapping[str, bytes]] = dict,
) -> None:
    """Say in a folder what it is for, unless it says so already and is to go on with it.

    ``plain`` takes out of a tree what may differ; ``files`` come before what says that the folder is taken.
    ``RunFolderError`` when the folder is a file, holds something else, or holds this and is not to go on with it.
    """
    if folder.exists() and not folder.is_dir():
        raise RunFolderError(f"{folder} is a file, a {kind.name} needs a folder; choose another --out")
    for other in (RUN_FOLDER, COMPARISON_FOLDER, STUDY_FOLDER):
        if other != kind and (folder / other.file).exists():
            raise RunFolderError(f"{folder} holds a {other.name} already; choose another --out for the {kind.name}")
    if (folder / kind.file).exists():
        if not resume:
            raise RunFolderError(
                f"{folder} holds a {kind.name} already; add --resume to go on with it, or choose another --out"
            )
        _check_same(folder, kind, plain(read_asked(folder, kind)), plain(json.loads(json.dumps(asked))))
        return
    for name, content in files().items():
        write_atomically(folder / name, content)
    tree = {kind.key: asked, "provenance": provenance()}
    write_atomically(folder / kind.file, json.dumps(tree, indent=2).encode() + b"\n")


def claim_run(folder: Path, experiment: Experiment, *, resume: bool) -> None:
    """Make a folder that of a run, with the files that its task keeps."""
    task = experiment.task
    files = task.kept_files if isinstance(task, KeepsFiles) else dict
    claim(folder, RUN_FOLDER, to_dict(experiment), resume=resume, files=files)


def read_asked(folder: Path, kind: Kind) -> dict[str, Any]:
    """What a folder is for, as ``claim`` wrote it."""
    try:
        found = json.loads((folder / kind.file).read_text())[kind.key]
        return dict(found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{folder / kind.file} cannot be read ({error!r}); make the {kind.name} again in another folder"
        ) from None


def _check_same(folder: Path, kind: Kind, found: Any, asked: Any) -> None:
    if names := sorted(_differences(found, asked)):
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        raise RunFolderError(
            f"{folder} holds another {kind.name} than the one asked for: {shown} differ; choose another --out"
        )


def _differences(found: Any, asked: Any, name: str = "") -> Iterator[str]:
    """The names of what is not the same in two trees."""
    if isinstance(found, dict) and isinstance(asked, dict):
        for key in {**found, **asked}:
            yield from _differences(found.get(key), asked.get(key), f"{name}.{key}" if name else key)
    elif found != asked:
        yield name


def read_experiment(folder: Path, *, brought: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment of a run folder; ``RunFolderError`` says what is missing or damaged."""
    if not folder.exists():
        raise RunFolderError(f"{folder} does not exist; give the folder of a run, such as train --out made")
    if not (folder / EXPERIMENT).is_file():
        raise RunFolderError(f"{folder} is no run folder (it has no {EXPERIMENT}); give one that train --out made")
    return from_dict(read_asked(folder, RUN_FOLDER), brought=brought, folder=folder)


def read_model(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Weights and facts of a finished run."""
    if not (folder / MODEL).exists():
        raise RunFolderError(
            f"{folder} has no {MODEL}: its training has not ended; go on with train --resume --out {folder}"
        )
    return load_tensors(folder / MODEL)


def append_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add result rows to a JSON-lines file; those that other processes add at the same time stay."""
    with alone_in(path.parent, wait=True):
        old = path.read_bytes() if path.exists() else b""
        write_atomically(path, old + _lines(rows))


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put result rows in the place of those of a JSON-lines file."""
    write_atomically(path, _lines(rows))


def _lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file; none if there is no file."""
    try:
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    except ValueError as error:
        raise RunFolderError(f"{path} is damaged ({error}); delete it to have it written again") from None


def run_folder(out: Path, label: str, seed: int) -> Path:
    """Where a comparison keeps the run of a row with a seed."""
    return out / slug(label) / f"seed-{seed}"


def slug(label: str) -> str:
    """A label as the name of a folder."""
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")
