"""Start of the command line and of the package without the libraries that take seconds to import."""

import subprocess
import sys

import pytest

import lengthwise as lw
from lengthwise.cli import app as cli

COMMANDS = [command.name for command in cli.app.registered_commands]
SLOW = ("torch", "transformers", "numpy", "matplotlib")
# Prints the help of each command, and the slow libraries that are imported after it.
HELP_CODE = f"""
import sys
from lengthwise.cli.app import main
for arguments in ([], ["--help"], ["--version"], *([name, "--help"] for name in {COMMANDS})):
    main(arguments)
    print("imported:", *arguments, *sorted(sys.modules.keys() & {set(SLOW)}))
"""
NAMES_CODE = f"""
import sys
import lengthwise as lw
assert sys.modules.keys().isdisjoint({SLOW})
assert issubclass(lw.LengthwiseError, Exception)
"""


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout


def test_help_and_version_import_no_slow_library():
    lines = run_python(HELP_CODE).splitlines()
    imported = [line for line in lines if line.startswith("imported:")]
    expected = ["", " --help", " --version", *(f" {name} --help" for name in COMMANDS)]
    assert imported == [f"imported:{arguments}" for arguments in expected]
    assert sum("Usage: " in line for line in lines) == len(COMMANDS) + 2


def test_names_and_subpackages_of_the_package_are_imported_on_first_use():
    assert run_python(NAMES_CODE) == ""


def test_an_unknown_public_name_raises_an_error_with_the_known_names():
    with pytest.raises(AttributeError, match=r"lengthwise has no attribute trian; known: .*, train"):
        _ = lw.trian
