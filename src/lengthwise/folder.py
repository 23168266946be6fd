"""The run folder: what stands in it, and who may write there."""

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from lengthwise.checkpoint import load_tensors, write_atomically
from lengthwise.errors import RunFolderError
from lengthwise.experiment import Experiment, from_dict, to_dict
from lengthwise.locks import alone_in
from lengthwise.tasks import KeepsFiles

EXPERIMENT, MODEL, RESULTS = "experiment.json", "model.safetensors", "results.jsonl"
COMPARISON = "comparison.json"


def claim(folder: Path, experiment: Experiment, *, resume: bool) -> None:
    """Write ``experiment.json`` into a folder that is free, or that holds the same run when it is resumed."""
    if folder.exists() and not folder.is_dir():
        raise RunFolderError(f"{folder} is a file, a run needs a folder; choose another --out")
    if (folder / EXPERIMENT).exists():
        if not resume:
            raise RunFolderError(
                f"{folder} holds a run already; add --resume to go on with it, or choose another --out"
            )
        if _read_tree(folder) != json.loads(json.dumps(to_dict(experiment))):
            raise RunFolderError(f"{folder} holds another run than the one asked for; choose another --out")
        return
    if (folder / COMPARISON).exists():
        raise RunFolderError(f"{folder} holds a comparison; choose another --out")
    tree = {"experiment": to_dict(experiment), "provenance": provenance()}
    if isinstance(experiment.task, KeepsFiles):
        for name, content in experiment.task.kept_files().items():
            write_atomically(folder / name, content)
    write_atomically(folder / EXPERIMENT, json.dumps(tree, indent=2).encode() + b"\n")


def claim_comparison(folder: Path, experiments: Mapping[str, Experiment], num_seeds: int) -> None:
    """Write ``comparison.json`` into a folder that is free, or that holds the same comparison."""
    if folder.exists() and not folder.is_dir():
        raise RunFolderError(f"{folder} is a file, a comparison needs a folder; choose another --out")
    tree = {
        "experiments": {label: to_dict(experiment) for label, experiment in experiments.items()},
        "num_seeds": num_seeds,
    }
    path = folder / COMPARISON
    if path.exists():
        if _read_comparison(path) != json.loads(json.dumps(tree)):
            raise RunFolderError(f"{folder} holds another comparison than the one asked for; choose another --out")
        return
    if (folder / EXPERIMENT).exists():
        raise RunFolderError(f"{folder} holds a run already; choose another --out for the comparison")
    write_atomically(path, json.dumps({"comparison": tree, "provenance": provenance()}, indent=2).encode())


def read_experiment(folder: Path, *, brought: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment of a run folder; ``RunFolderError`` says what is missing or damaged."""
    return from_dict(_read_tree(folder), brought=brought, folder=folder)


def _read_tree(folder: Path) -> Any:
    if not folder.exists():
        raise RunFolderError(f"{folder} does not exist; give the folder of a run, such as train --out made")
    if not (folder / EXPERIMENT).is_file():
        raise RunFolderError(f"{folder} is no run folder (it has no {EXPERIMENT}); give one that train --out made")
    try:
        return json.loads((folder / EXPERIMENT).read_text())["experiment"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{folder / EXPERIMENT} cannot be read ({error!r}); train the run again") from None


def _read_comparison(path: Path) -> Any:
    try:
        return json.loads(path.read_text())["comparison"]
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{path} cannot be read ({error!r}); choose another --out") from None


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


def provenance() -> dict[str, Any]:
    """Versions, commit and hardware, for whoever reads the numbers later."""
    packages = ("lengthwise", "torch", "numpy", "safetensors")
    here = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "commit": commit,
        "hardware": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def run_folder(out: Path, label: str, seed: int) -> Path:
    """Where a comparison keeps the run of a row with a seed."""
    return out / slug(label) / f"seed-{seed}"


def slug(label: str) -> str:
    """A label as the name of a folder."""
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
