"""Hook of the documentation site: adds the pages of the repository and the generated reference.

A page keeps its path in the repository, so a relative link leads to the same page on the site and on GitHub.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import lengthwise as lw
from lengthwise.cli import app as cli
from lengthwise.experiments.recipes.recipe_table import Recipe

ROOT = Path(__file__).parents[2]
PATTERNS = (
    "*.md",
    "docs/*.md",
    "docs/*.png",
    "docs/*.svg",
    "docs/*.json",
    "benchmarks/*.md",
    "benchmarks/results/*.md",
    "benchmarks/claims/*/*.md",
    "benchmarks/claims/*/*.png",
)
# Page, title, first sentence and table of each family.
TABLES = (
    ("tasks", "Tasks", "Each task samples examples with their coupling.", "TASKS"),
    ("schemes", "Classes of position schemes", "A scheme assigns a position ID to each token.", "SCHEMES"),
    ("encodings", "Classes of encodings", "An encoding decides how position IDs enter the model.", "ENCODINGS"),
    ("heads", "Position heads", "A position head predicts the ID of the next token.", "POSITION_HEADS"),
    ("measures", "Influence measures", "A measure selects far tokens for a target.", "MEASURES"),
    ("recipes", "Recipes", "A recipe is an `Experiment` with tested settings: `lw.recipe(NAME)`.", "RECIPES"),
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the navigation of the benchmark pages, by the name of the page or of the folder of the claim."""
    pages = {path.stem: path for path in ROOT.glob("benchmarks/*.md")}
    overview = pages.pop("README")
    pages |= {path.parent.name: path for path in ROOT.glob("benchmarks/claims/*/README.md")}
    entries: list[Any] = [{"All claims": str(overview.relative_to(ROOT))}]
    entries += [str(path.relative_to(ROOT)) for _, path in sorted(pages.items())]
    (section,) = (entry for entry in config.nav if "Benchmarks" in entry)
    section["Benchmarks"] = entries
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and figures of the repository, and the reference."""
    for pattern in PATTERNS:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    for name, text in reference().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def reference() -> dict[str, str]:
    """Return the text of each reference page by its name."""
    pages = {"python": _public_page(), "command_line": _command_line_page()}
    for name, title, sentence, table in TABLES:
        pages[name] = f"# {title}\n\n{sentence}\n\n" + "\n".join(_table_entries(getattr(lw, table)))
    return pages


def _directive(value: Any) -> str:
    return f"::: {value.__module__}.{value.__qualname__}\n"


def _table_entries(table: dict[str, Any]) -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, Recipe):
            yield f"## {name}\n\n{value.summary.replace('``', '`')}\n"
            continue
        heading = f"{name}: {value.__name__}" if isinstance(value, type) else name
        yield f'{_directive(value)}    options:\n      heading: "{heading}"\n      members: false\n'


def _public_page() -> str:
    tables = {table: page for page, *_, table in TABLES}
    named = [name for name in lw.__all__ if name not in tables]
    links = ", ".join(f"[`{table}`]({page}.md)" for table, page in tables.items())
    first = f"`import lengthwise as lw` gives the names below, and the tables {links}, which map names to classes."
    return f"# Python\n\n{first}\n\n" + "\n".join(_directive(getattr(lw, name)) for name in named)


def _command_line_page() -> str:
    program = typer.main.get_command(cli.app)
    parts = ["# Command line\n\nThe text of `lengthwise COMMAND --help`, for each command.\n"]
    for name, command in program.commands.items():
        context = typer.Context(command, info_name=name)
        rows = [_option_row(parameter, context) for parameter in command.params]
        table = "\n".join(["| argument or option | meaning |", "|---|---|", *rows])
        parts.append(f"## {name}\n\n{_plain(command.help)}\n\n{table}\n")
    return "\n".join(parts)


def _option_row(parameter: click.Parameter, context: click.Context) -> str:
    record = parameter.get_help_record(context)
    names, meaning = record if record is not None else (parameter.name, "")
    return f"| `{names.replace('|', chr(92) + '|')}` | {_plain(meaning)} |"


def _plain(text: str) -> str:
    """Escape the characters that Markdown reads as markup."""
    for character in r"\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return text
