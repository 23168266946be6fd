"""Provenance of results: package versions, git commit and hardware."""

import os
import platform
import subprocess
import tomllib
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("lengthwise", "torch", "numpy", "safetensors")


def provenance() -> dict[str, Any]:
    """Return versions, commit and hardware as JSON values; ``commit`` is None outside a clone of lengthwise."""
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "commit": git_commit(Path(__file__).resolve().parents[2]),
        "hardware": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def git_commit(root: Path) -> str | None:
    """Return the commit of a clone of lengthwise, with ``-dirty`` after local changes; None for any other folder.

    An installed package is often inside a repository of its user. The commit of that repository is not returned.
    """
    if not (root / ".git").exists() or not _is_lengthwise(root / "pyproject.toml"):
        return None
    # Do not run hooks or a file system monitor of the repository.
    options = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]
    try:
        process = subprocess.run(
            ["git", *options, "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return process.stdout.strip()


def now() -> str:
    """Return the current UTC time in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _is_lengthwise(pyproject_path: Path) -> bool:
    try:
        return bool(tomllib.loads(pyproject_path.read_text())["project"]["name"] == "lengthwise")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
