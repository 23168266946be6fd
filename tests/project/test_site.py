"""Tests of the documentation site: it builds without a warning, has every page, and opens without a network."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import lengthwise as lw
from lengthwise.cli.app import app

ROOT = Path(__file__).parents[2]
# Attributes that make a browser load a file when it opens a page.
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src"}


class Resources(HTMLParser):
    """Addresses that a browser loads with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attrs):
        """Collect the address of a loaded file."""
        values = dict(attrs)
        if tag in LOADED and LOADED[tag] in values and values.get("rel") not in ("canonical", "next", "prev"):
            self.addresses.append(values[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr
    return folder


@pytest.mark.slow
def test_every_text_of_the_repository_is_a_page(site):
    sources = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
    names = {"README": "index"}
    pages = [path.relative_to(ROOT) for path in sources]
    missing = [page for page in pages if not (site / page.parent / f"{names.get(page.stem, page.stem)}.html").exists()]
    assert missing == []


@pytest.mark.slow
def test_no_page_loads_a_file_of_another_host(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        resources = Resources()
        resources.feed(page.read_text())
        assert [address for address in resources.addresses if re.match(r"(https?:)?//", address)] == []
        assert "url(http" not in page.read_text()


@pytest.mark.slow
def test_the_reference_has_every_command_and_the_public_functions(site):
    commands = (site / "docs/reference/commands.html").read_text()
    for command in app.registered_commands:
        assert f'<h2 id="{command.name}">' in commands
    python = (site / "docs/reference/python.html").read_text()
    functions = [name for name in lw.__all__ if name[0].islower()]
    missing = [name for name in functions if f'id="lengthwise.{name}"' not in python]
    assert missing == []
