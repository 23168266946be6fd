"""What the documents say is true: their commands run, their maps match the tree."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from lengthwise import cli
from test_architecture import ROWS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


COMMANDS = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()]


def run_readme(commands, folder):
    """Every command in the order of the README, as a reader would type them."""
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "lengthwise", f"'{command}' is no command of ours"
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            cli.main(arguments)


def test_the_readme_has_commands_for_every_verb():
    verbs = {command.split()[1] for command in COMMANDS}
    assert verbs == {command.name for command in cli.app.registered_commands}


def test_every_command_of_the_readme_runs_at_its_quick_size(tmp_path, capsys):
    quick = [f"{command} --quick" if command.split()[1] in ("train", "compare") else command for command in COMMANDS]
    run_readme(quick, tmp_path)
    assert (tmp_path / "runs/parity/results.jsonl").exists()
    assert (tmp_path / "runs/copy/figure.png").exists()


@pytest.mark.slow
def test_every_command_of_the_readme_runs_as_it_stands(tmp_path, capsys):
    run_readme(COMMANDS, tmp_path)


def test_the_python_example_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = blocks("python")
    exec(compile(example, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["4", "8"]


def test_the_readme_maps_every_file_at_the_top_of_the_tree():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    top = {f"{path.split('/')[0]}/" if "/" in path else path for path in tracked}
    named = set(re.findall(r"^\| `([^`]+)` \|", README.split("## Map of files")[1], flags=re.MULTILINE))
    hidden_or_itself = {path for path in top if path.startswith(".")} | {"README.md"}
    assert {"src/" if path.startswith("src/") else path for path in named} == top - hidden_or_itself


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_paths_in_documents_lead_somewhere(document):
    text = (ROOT / document).read_text()
    links = re.findall(r"\]\(([^)#]+)\)", text)
    local = [link for link in links if not link.startswith("http")]
    paths = re.findall(r"`((?:src|tests|docs|benchmarks|encodings)/[\w./]+\.\w+)`", text)
    for path in [*local, *(f"src/lengthwise/{path}" if path.startswith("encodings") else path for path in paths)]:
        assert (ROOT / path).exists(), f"{document} names {path}"


def test_the_layers_of_the_architecture_page_are_those_that_are_tested():
    rows = re.findall(r"^\| \d+ \| (.+) \|$", ARCHITECTURE, flags=re.MULTILINE)
    assert [{name.strip("/") for name in re.findall(r"`([^`]+)`", row)} for row in rows] == [set(row) for row in ROWS]


def test_the_makefile_has_the_targets_that_the_readme_names():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    named = re.findall(r"`(\w+)`", next(line for line in README.splitlines() if line.startswith("| `Makefile`")))
    assert set(named) - {"Makefile"} <= set(targets)


@pytest.mark.slow
def test_the_demo_ends_well_from_a_clean_clone(tmp_path):
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "clone")], check=True)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    ended = subprocess.run(
        ["make", "demo"], cwd=tmp_path / "clone", env=plain, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert (tmp_path / "clone/runs/demo/figure.png").exists()
    assert "predicted (PPC)" in ended.stdout
