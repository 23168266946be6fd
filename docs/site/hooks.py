"""Hooks of MkDocs: the site has the paths of the repository, so that links work on GitHub and on the site."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

from lengthwise.cli.app import app

ROOT = Path(__file__).parents[2]
# Texts and pictures of the site.
PATTERNS = ("*.md", "docs/*.md", "docs/*.png", "docs/*.svg", "docs/*.json", "docs/reference/*.md", "benchmarks/**/*.md")
COMMANDS = "docs/reference/commands.md"
# Pages of the benchmarks are in a table of benchmarks/README.md, not in the navigation.
UNLISTED = "benchmarks/"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages and pictures of the repository under their own paths, and the page of the commands."""
    for path in sorted({path for pattern in PATTERNS for path in ROOT.glob(pattern)}):
        source = path.relative_to(ROOT).as_posix()
        level = InclusionLevel.NOT_IN_NAV if source.startswith(UNLISTED) else InclusionLevel.UNDEFINED
        files.append(File.generated(config, source, abs_src_path=str(path), inclusion=level))
    files.append(File.generated(config, COMMANDS, content="\n".join(_command_lines())))
    return files


def on_page_markdown(markdown: str, **context: Any) -> str:
    """Mark blocks of commands as a shell, which the highlighter knows."""
    return markdown.replace("```console", "```shell")


def _command_lines() -> Iterator[str]:
    """Yield the page of the commands: the help of each, without the borders of a terminal."""
    group = typer.main.get_command(app)
    context = group.make_context("lengthwise", ["list"], resilient_parsing=True)
    yield "# Commands\n\nThe help of every command, as `lengthwise COMMAND --help` prints it.\n"
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield f"## {name}\n\n{command.help}\n\n| argument or option | meaning |\n|---|---|"
        for parameter in command.params:
            names = ", ".join(f"`{each}`" for each in parameter.opts) if parameter.param_type_name == "option" else ""
            label = names or f"`{parameter.metavar or parameter.name.upper()}`"
            meaning = (getattr(parameter, "help", None) or "").replace("|", "\\|").replace("<", "&lt;")
            yield f"| {label} | {meaning} |"
        yield ""
