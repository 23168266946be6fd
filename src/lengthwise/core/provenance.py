"""Provenance of results: package versions, git commit and hardware."""

import json
import os
import platform
import subprocess
import tomllib
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

# Folder of the clone: src/lengthwise/core/provenance.py is three folders below it.
SOURCE_ROOT = Path(__file__).resolve().parents[3]
# Folder that contains the imported package, such as site-packages.
PACKAGE_PARENT = Path(__file__).resolve().parents[2]
PACKAGES = ("lengthwise", "torch", "numpy", "safetensors")


def collect_provenance() -> dict[str, Any]:
    """Return versions, commit and hardware as JSON values.

    ``commit`` is the commit of the clone, or the commit that pip installed; None for other installations.
    """
    commit = git_commit(SOURCE_ROOT)
    return {
        "versions": {"python": platform.python_version(), **{name: _package_version(name) for name in PACKAGES}},
        "commit": installed_commit(PACKAGE_PARENT) if commit is None else commit,
        "hardware": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def git_commit(root: Path) -> str | None:
    """Return the commit of a lengthwise clone, with ``-dirty`` after local changes, or None for another folder.

    An installed package is often inside a user's repository, so this function ignores other repositories. The commit of
    a clone needs git: the metadata of an editable installation has no commit, and a version written at installation
    (setuptools-scm) keeps the commit of that day.
    """
    if not (root / ".git").exists() or not _is_lengthwise_project(root / "pyproject.toml"):
        return None
    # Disable the hooks and the file system monitor of the repository.
    options = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]
    command = ["git", *options, "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        process = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return process.stdout.strip()


def installed_commit(folder: Path) -> str | None:
    """Return the commit of the repository from which pip installed lengthwise into a folder (PEP 610), or None."""
    for distribution in metadata.distributions(name="lengthwise", path=[str(folder)]):
        # The file is missing after an installation from a registry, and has no commit after one from a folder.
        text = distribution.read_text("direct_url.json")
        with suppress(TypeError, ValueError, KeyError):
            return str(json.loads("{}" if text is None else text)["vcs_info"]["commit_id"])[:12]
    return None


def utc_timestamp() -> str:
    """Return the current UTC time in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _is_lengthwise_project(pyproject_path: Path) -> bool:
    try:
        return bool(tomllib.loads(pyproject_path.read_text(encoding="utf-8"))["project"]["name"] == "lengthwise")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _package_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
