"""The run folder: what stands in it, and who may write there."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lengthwise.core.checkpoint import load_tensors, save_tensors
from lengthwise.core.errors import RunFolderError
from lengthwise.core.files import write_atomically
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.core.json_parsing import parse_json
from lengthwise.core.provenance import provenance
from lengthwise.experiments.experiment import Experiment, from_dict, to_dict
from lengthwise.tasks import HasRunFiles

EXPERIMENT, MODEL, RESULTS = "experiment.json", "model.safetensors", "results.jsonl"
COMPARISON, STUDY = "comparison.json", "influence.json"
# Where a model and a checkpoint say what they belong to, and where sealed rows have their digest.
BOUND, SEAL = "belongs_to", "sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderKind:
    """What a folder can hold, the file that says which one, and under which key of it."""

    name: str
    file: str
    key: str


RUN_FOLDER = FolderKind(name="run", file=EXPERIMENT, key="experiment")
COMPARISON_FOLDER = FolderKind(name="comparison", file=COMPARISON, key="comparison")
STUDY_FOLDER = FolderKind(name="study", file=STUDY, key="study")


def claim_folder(
    folder: Path,
    kind: FolderKind,
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
        found = _read(folder, kind)
        _check_same(folder, kind, plain(found[kind.key]), plain(json.loads(json.dumps(asked))))
        _check_same(folder, kind, found.get("files", {}), _digests(files()))
        return
    write_description(folder, kind, asked, files())


def write_description(folder: Path, kind: FolderKind, asked: Any, files: Mapping[str, bytes]) -> None:
    """Write what a folder is for, and the files that are kept with it, into a folder that holds nothing yet."""
    for name, content in files.items():
        write_atomically(folder / name, content)
    tree = {kind.key: asked, **({"files": _digests(files)} if files else {}), "provenance": provenance()}
    write_atomically(folder / kind.file, json.dumps(tree, indent=2).encode() + b"\n")


def _digests(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def claim_run_folder(folder: Path, experiment: Experiment, *, resume: bool) -> None:
    """Make a folder that of a run, with the files that its task keeps."""
    task = experiment.task
    files = task.run_files if isinstance(task, HasRunFiles) else dict
    claim_folder(folder, RUN_FOLDER, to_dict(experiment), resume=resume, files=files)


def read_description(folder: Path, kind: FolderKind) -> dict[str, Any]:
    """What a folder is for, as ``claim_folder`` wrote it."""
    found: dict[str, Any] = _read(folder, kind)[kind.key]
    return found


def experiment_digest(folder: Path) -> str:
    """Digest of what the weights of a run belong to: its experiment, and the files that its task keeps.

    ``RunFolderError`` when such a file is not the one that was kept.
    """
    tree = _read(folder, RUN_FOLDER)
    for name, digest in tree.get("files", {}).items():
        try:
            content = (folder / Path(name).name).read_bytes()
        except OSError as error:
            raise RunFolderError(f"{folder / name} cannot be read ({error.strerror}); train the run again") from None
        if hashlib.sha256(content).hexdigest() != digest:
            raise RunFolderError(f"{folder / name} has changed since training (its digest differs); bring the old back")
    bound = {key: tree[key] for key in ("experiment", "files") if key in tree}
    return hashlib.sha256(json.dumps(bound, sort_keys=True).encode()).hexdigest()


def _read(folder: Path, kind: FolderKind) -> dict[str, Any]:
    """What ``claim_folder`` wrote, of the right form."""
    try:
        tree: dict[str, Any] = parse_json((folder / kind.file).read_bytes())
        for key, value in {kind.key: tree.get(kind.key), "files": tree.get("files", {})}.items():
            if not isinstance(value, dict):
                raise ValueError(f"it has no {key}")
        return tree
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{folder / kind.file} cannot be read ({error}); make the {kind.name} again in another folder"
        ) from None


def _check_same(folder: Path, kind: FolderKind, found: Any, asked: Any) -> None:
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


def read_experiment(folder: Path, *, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment of a run folder; ``RunFolderError`` says what is missing or damaged."""
    if not folder.exists():
        raise RunFolderError(f"{folder} does not exist; give the folder of a run, such as train --out made")
    if not (folder / EXPERIMENT).is_file():
        raise RunFolderError(f"{folder} is no run folder (it has no {EXPERIMENT}); give one that train --out made")
    return from_dict(read_description(folder, RUN_FOLDER), overrides=overrides, folder=folder)


def read_model(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Weights and facts of a finished run."""
    if not (folder / MODEL).exists():
        raise RunFolderError(
            f"{folder} has no {MODEL}: its training has not ended; go on with train --resume --out {folder}"
        )
    tensors, facts = load_tensors(folder / MODEL)
    if facts.pop(BOUND, None) != experiment_digest(folder):
        raise RunFolderError(
            f"{folder / MODEL} belongs to another experiment than {folder / EXPERIMENT}, or one of them was changed; "
            "bring back the files as training wrote them, or train the run again"
        )
    return tensors, facts


def write_model(folder: Path, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
    """Save weights and facts of a finished run, bound to the experiment in its folder."""
    save_tensors(folder / MODEL, tensors, {**facts, BOUND: experiment_digest(folder)})


def append_rows(path: Path, rows: Sequence[Mapping[str, Any]], *, once: bool = False) -> None:
    """Add result rows to a JSON-lines file; those that other processes add at the same time stay.

    ``once``: rows that are in it already are not added again. A last line that was cut stays as it is, alone.
    """
    with exclusive_lock(path.parent, wait=True):
        old = path.read_bytes() if path.exists() else b""
        if old and not old.endswith(b"\n"):
            old += b"\n"
        known = set(old.splitlines()) if once else set()
        write_atomically(path, old + b"".join(line for line in _lines(rows) if line.rstrip() not in known))


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put result rows in the place of those of a JSON-lines file."""
    write_atomically(path, b"".join(_lines(rows)))


def seal_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write result rows and, as the last line, their digest: what is used again later must be whole."""
    content = b"".join(_lines(rows))
    write_atomically(path, content + b"".join(_lines([{SEAL: hashlib.sha256(content).hexdigest()}])))


def read_sealed(path: Path) -> list[dict[str, Any]]:
    """The rows that ``seal_rows`` wrote; none if there is no file."""
    rows = read_rows(path)
    sealed = rows.pop() if rows else {}
    if (rows or sealed) and sealed != {SEAL: hashlib.sha256(b"".join(_lines(rows))).hexdigest()}:
        raise RunFolderError(f"{path} is not what was measured (its digest differs); delete it to measure again")
    return rows


def _lines(rows: Sequence[Mapping[str, Any]]) -> list[bytes]:
    return [json.dumps(row).encode() + b"\n" for row in rows]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file; none if there is no file."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    rows: list[dict[str, Any]] = []
    try:
        for line in lines:
            rows.append(parse_json(line))
    except ValueError as error:
        raise RunFolderError(
            f"{path} line {len(rows) + 1} is damaged ({error}); delete that line, or the file"
        ) from None
    return rows


def run_folder(out: Path, label: str, seed: int) -> Path:
    """Where a comparison keeps the run of a row with a seed."""
    return out / slug(label) / f"seed-{seed}"


def slug(label: str) -> str:
    """A label as the name of a folder."""
    return re.sub(r"[\W_]+", "-", label.lower()).strip("-")
