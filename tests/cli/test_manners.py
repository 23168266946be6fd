"""Manners of the command line: version, help without a command, completion, and tables that fit the terminal."""

import io
import re
from contextlib import redirect_stdout
from importlib import metadata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from lengthwise.cli import app as cli
from lengthwise.cli.terminal import print_table
from lengthwise.encodings import ENCODINGS
from lengthwise.experiments.recipes import RECIPES
from lengthwise.positions import SCHEMES
from lengthwise.tasks import TASKS

WORDS = st.text("abcdefgh0123456789.,-[]", min_size=1, max_size=12)
CELLS = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)


def test_version_is_that_of_the_installed_package(capsys):
    cli.main(["--version"])
    assert capsys.readouterr().out == f"lengthwise {metadata.version('lengthwise')}\n"


def test_without_a_command_the_help_is_printed(capsys):
    cli.main([])
    out = capsys.readouterr().out
    assert "Usage" in out
    assert all(command.name in out for command in cli.app.registered_commands)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("train --task ", TASKS),
        ("train --scheme ", SCHEMES),
        ("train --encoding ", ENCODINGS),
        ("train ", RECIPES),
    ],
)
def test_the_shell_completes_the_names_of_the_tables(words, names, monkeypatch, capsys):
    monkeypatch.setenv("_LENGTHWISE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"lengthwise {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) + 1))
    with pytest.raises(SystemExit):
        cli.app(prog_name="lengthwise")
    assert set(names) <= set(capsys.readouterr().out.split())


@settings(max_examples=30, deadline=None)
@given(data=st.data(), num_columns=st.integers(1, 14), wrap=st.booleans())
def test_every_table_fits_80_columns_and_breaks_no_word(data, num_columns, wrap):
    header = data.draw(st.lists(CELLS, min_size=num_columns, max_size=num_columns))
    body = data.draw(st.lists(st.lists(CELLS, min_size=num_columns, max_size=num_columns), min_size=1, max_size=3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        text = _printed(header, body, wrap)
    lines = text.splitlines()
    assert max(map(cell_len, lines)) <= 80
    printed_words = re.split(r"[\s│┃]+", text)
    for word in " ".join([*header, *(cell for cells in body for cell in cells)]).split():
        assert word in printed_words


def _printed(header, body, wrap):
    with redirect_stdout(io.StringIO()) as out:
        print_table("title", header, body, wrap=wrap)
    return out.getvalue()
