"""Tests of what a release needs: one version, and a changelog in the form of Keep a Changelog."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import lengthwise

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_citation_has_the_version_of_the_package():
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_package_has_its_version():
    assert lengthwise.__version__ == VERSION


def test_the_changelog_has_dated_versions_and_known_kinds_of_changes():
    _, *sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    versions = [section.partition("\n")[0] for section in sections]
    assert versions[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", text) for text in versions[1:])
    for section in sections:
        kinds = re.findall(r"^### (.*)$", section, flags=re.MULTILINE)
        assert set(kinds) <= KINDS
        assert len(set(kinds)) == len(kinds)


@pytest.mark.slow
def test_a_type_checker_knows_the_type_of_every_public_name(tmp_path):
    names = lengthwise.__all__
    (tmp_path / "user.py").write_text(
        "import lengthwise as lw\n" + "".join(f"reveal_type(lw.{each})\n" for each in names)
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "user.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    types = re.findall(r'Revealed type is "(.*)"', ran.stdout)
    assert ran.returncode == 0, ran.stdout
    assert len(types) == len(names)
    untyped = [name for name, revealed in zip(names, types, strict=True) if revealed in ("Any", "builtins.object")]
    assert not untyped
