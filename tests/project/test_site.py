"""The documentation site builds without warnings, and a reader needs no network."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
import typer
import yaml

import lengthwise as lw
from lengthwise.cli import app as cli

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")
CONFIG = ROOT / "docs/site/mkdocs.yml"
# Tags that make a browser load something, with the attribute that names it; a link in <a> loads nothing.
LOADS = re.compile(r"<(?:script|link|img|iframe|source|object)\b[^>]*?\b(?:src|href|data)=[\"']?([^\"' >]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Folder of the site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(CONFIG)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(
        [*command, "--site-dir", str(folder)], env=quiet, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return folder


def pages_of(site):
    return {str(path.relative_to(site)): path.read_text(encoding="utf-8") for path in sorted(site.rglob("*.html"))}


def navigation():
    """Every page that the configuration names."""
    text = re.sub(r"!!python/\S+", "", CONFIG.read_text())
    entries, named = list(yaml.safe_load(text)["nav"]), []
    while entries:
        entry = entries.pop()
        values = entry.values() if isinstance(entry, dict) else [entry]
        for value in values:
            (entries.extend if isinstance(value, list) else named.append)(value)
    return set(named)


def test_the_navigation_names_every_page_of_docs():
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")}
    assert pages <= navigation()
    assert {name for name in navigation() if not name.startswith("reference/") and not (ROOT / name).exists()} == set()


def test_the_glossary_is_sorted():
    terms = re.findall(r"^\*\*(.+?)\.\*\*", (ROOT / "docs/glossary.md").read_text(), flags=re.MULTILINE)
    assert terms == sorted(terms, key=str.lower)
    assert terms


def test_the_pictures_of_the_teaching_page_are_what_their_commands_draw(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    figures = (ROOT / "docs/teaching.md").read_text().split("## A lecture")[0]
    commands = re.findall(r"^lengthwise (show .+ --out runs/\w+\.svg)$", figures, flags=re.MULTILINE)
    for command in commands:
        cli.main(command.split())
    drawn = {path.name: path.read_text() for path in (tmp_path / "runs").glob("*.svg")}
    assert len(drawn) == len(commands) == 4
    assert drawn == {name: (ROOT / "docs" / name).read_text() for name in drawn}


@pytest.mark.slow
def test_no_page_loads_anything_from_another_host(site):
    loaded = {name: LOADS.findall(text) for name, text in pages_of(site).items()}
    assert sum(map(len, loaded.values())) > 500
    others = {name: [url for url in urls if urlparse(url).netloc] for name, urls in loaded.items()}
    assert {name: urls for name, urls in others.items() if urls} == {}
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"url\([\"']?https?:", styles) == []


@pytest.mark.slow
def test_every_internal_link_of_the_site_leads_to_a_file_and_an_anchor(site):
    pages = pages_of(site)
    anchors = {name: set(re.findall(r"\bid=[\"']?([^\"' >]+)", text)) for name, text in pages.items()}
    dead = []
    for name, text in pages.items():
        # The page for wrong addresses has absolute links, because it is shown at any address.
        for link in re.findall(r"<a\b[^>]*?\bhref=[\"']?([^\"' >]+)", text) if name != "404.html" else ():
            parts = urlparse(link)
            if parts.scheme or parts.netloc:
                continue
            target = (site / name).parent / unquote(parts.path) if parts.path else site / name
            target = target / "index.html" if target.is_dir() else target
            known = anchors.get(os.path.relpath(target.resolve(), site.resolve()))
            if not target.exists() or (parts.fragment and known is not None and unquote(parts.fragment) not in known):
                dead.append((name, link))
    assert dead == []


@pytest.mark.slow
def test_the_reference_has_every_public_name_table_entry_and_command(site):
    pages = pages_of(site)
    python = pages["reference/python.html"]
    tables = {"TASKS", "SCHEMES", "ENCODINGS", "POSITION_HEADS", "MEASURES", "RECIPES"}
    named = [getattr(lw, name) for name in lw.__all__ if name not in tables]
    names = [f"{value.__module__}.{value.__qualname__}" for value in named]
    assert [name for name in names if f'id="{name}"' not in python] == []
    files = {"tasks": lw.TASKS, "schemes": lw.SCHEMES, "encodings": lw.ENCODINGS, "heads": lw.POSITION_HEADS}
    for file, table in {**files, "measures": lw.MEASURES}.items():
        page = pages[f"reference/{file}.html"]
        assert [
            key for key, value in table.items() if f'id="{value.__module__}.{value.__qualname__}"' not in page
        ] == []
    assert [name for name in lw.RECIPES if f'<h2 id="{name}"' not in pages["reference/recipes.html"]] == []
    commands = typer.main.get_command(cli.app).commands
    line = pages["reference/command_line.html"]
    assert [name for name in commands if f'<h2 id="{name}"' not in line] == []
    options = {option for command in commands.values() for each in command.params for option in each.opts}
    assert [option for option in sorted(options) if option.startswith("--") and option not in line] == []


@pytest.mark.slow
def test_search_finds_a_word_in_pages_that_were_opened_as_files(site):
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page, requests = browser.new_page(viewport={"width": 1440, "height": 900}), []
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.click(".md-search__input")
        page.keyboard.type("coupling", delay=20)
        page.wait_for_selector(".md-search-result__item", timeout=30_000)
        for width in (390, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            for name in ("index.html", "docs/which.html", "docs/paper.html", "reference/command_line.html"):
                page.goto((site / name).as_uri())
                assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        browser.close()
    assert {urlparse(url).scheme for url in requests} <= {"file", "data", "blob"}
