"""Provenance: the commit of lengthwise, never that of a repository that contains an installed package."""

import json
import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lengthwise.core import provenance as provenance_module
from lengthwise.core.provenance import SOURCE_ROOT, collect_provenance, git_commit, installed_commit, utc_timestamp

PROJECT = '[project]\nname = "{}"\n'


def repository(root: Path, project: str = "lengthwise") -> Path:
    """Create a repository with one commit."""
    (root / "src").mkdir(parents=True)
    (root / "pyproject.toml").write_text(PROJECT.format(project))
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(root)]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    return root


def test_the_commit_of_a_clone_with_local_changes_ends_in_dirty(tmp_path):
    root = repository(tmp_path)
    clean = git_commit(root)
    assert clean is not None
    assert re.fullmatch("[0-9a-f]{12}", clean)
    (root / "pyproject.toml").write_text(PROJECT.format("lengthwise") + 'version = "1"\n')
    assert git_commit(root) == f"{clean}-dirty"


def test_a_package_inside_the_repository_of_its_user_has_no_commit(tmp_path):
    root = repository(tmp_path, project="thesis")
    assert git_commit(root) is None
    # For example, site-packages inside the repository.
    assert git_commit(root / "src") is None
    # A copy of lengthwise in a folder of the repository.
    (root / "src" / "pyproject.toml").write_text(PROJECT.format("lengthwise"))
    assert git_commit(root / "src") is None


@pytest.mark.linux
def test_reading_the_commit_runs_no_hook_of_the_repository(tmp_path):
    root, marker = repository(tmp_path), tmp_path / "ran"
    hook = root / "monitor"
    hook.write_text(f"#!/bin/sh\ntouch {marker}\n")
    hook.chmod(0o755)
    subprocess.run(["git", "-C", str(root), "config", "core.fsmonitor", str(hook)], check=True)
    (root / "pyproject.toml").touch()
    assert git_commit(root) is not None
    assert not marker.exists()


@pytest.mark.parametrize("content", ["", "[project]\n", "[[", "project = 3\n"])
def test_a_repository_with_a_damaged_project_file_has_no_commit(content, tmp_path):
    root = repository(tmp_path)
    (root / "pyproject.toml").write_text(content)
    assert git_commit(root) is None


def install(folder: Path, direct_url: str | None) -> Path:
    """Write the metadata that pip writes into site-packages."""
    metadata = folder / "lengthwise-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.4\nName: lengthwise\nVersion: 0.1.0\n")
    if direct_url is not None:
        (metadata / "direct_url.json").write_text(direct_url)
    return folder


def test_a_package_installed_from_a_repository_has_the_commit_of_its_installation(tmp_path, monkeypatch):
    commit = "0123456789abcdef0123456789abcdef01234567"
    url = {"url": "https://example.org/lengthwise.git", "vcs_info": {"vcs": "git", "commit_id": commit}}
    folder = install(tmp_path / "site-packages", json.dumps(url))
    assert installed_commit(folder) == commit[:12]
    monkeypatch.setattr(provenance_module, "PACKAGE_PARENT", folder)
    # A clone has its own commit.
    assert collect_provenance()["commit"] == git_commit(SOURCE_ROOT)
    monkeypatch.setattr(provenance_module, "SOURCE_ROOT", tmp_path)
    assert collect_provenance()["commit"] == commit[:12]


@pytest.mark.parametrize("direct_url", [None, "", "[]", "3", '{"url": "file:///src", "dir_info": {"editable": true}}'])
def test_a_package_installed_from_elsewhere_has_no_commit(direct_url, tmp_path):
    assert installed_commit(install(tmp_path, direct_url)) is None
    assert installed_commit(tmp_path / "empty") is None


def test_the_time_is_in_utc():
    time = datetime.fromisoformat(json.loads(json.dumps(utc_timestamp())))
    assert time.tzinfo == UTC
    assert abs(datetime.now(UTC) - time) < timedelta(minutes=5)


def test_provenance_looks_for_the_commit_in_the_folder_of_this_project():
    project = Path(__file__).resolve().parents[2]
    assert project == SOURCE_ROOT
    assert collect_provenance()["commit"] == git_commit(project)
    # A source archive has no commit.
    assert (git_commit(project) is not None) == (project / ".git").exists()
