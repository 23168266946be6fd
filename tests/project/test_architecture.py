"""The layers, and what a module may not be."""

import ast
from pathlib import Path

import pytest

import lengthwise

SOURCE = Path(lengthwise.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))

# A module imports from rows above its own; modules of one row do not know each other. A folder counts as one module.
ROWS = (
    ("errors", "randomness", "paths", "example", "auto_classes", "json_text"),
    ("devices", "provenance", "field_types", "text_rows", "tokenizer", "intervals", "locks"),
    ("corpus", "row_file", "documents", "files"),
    ("tasks", "positions", "encodings"),
    ("position_heads", "attention", "id_check", "normalization", "batch", "checkpoint", "text_form"),
    ("weighing", "scores", "preparation", "reasoning_rows"),
    ("decoder_settings",),
    ("decoder",),
    ("generate", "loss", "influence", "theory"),
    ("grading", "training_state"),
    ("evaluation", "forecast", "training"),
    ("experiment", "report", "interruption", "progress", "terminal", "context_loss", "harness"),
    ("conformance", "folder", "worker_pool", "study_rows", "result_rows"),
    ("recipes", "run", "study", "hf"),
    (
        "answer",
        "choices",
        "comparison",
        "study_report",
        "study_parts",
        "language_models",
        "certificate_report",
        "diagnosis",
        "export",
    ),
    ("claims",),
    ("verbs",),
    ("cli",),
    ("__main__",),
)
ROW_OF = {name: row for row, names in enumerate(ROWS) for name in names}
FORBIDDEN_NAMES = {"utils", "common", "helpers", "misc", "base", "manager", "data"}
# Formats that run code when they are read.
FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def unit(path: Path) -> str:
    """The file or folder, directly in the package, that a path belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[str]:
    """The full names of all modules that a file imports, wherever in the file."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import in line {node.lineno}"
            assert node.module is not None
            found.append(node.module)
    return found


over_modules = pytest.mark.parametrize(
    "path", [pytest.param(path, id=str(path.relative_to(SOURCE))) for path in MODULES]
)


@over_modules
def test_a_module_imports_from_rows_above_its_own_alone(path):
    if path == SOURCE / "__init__.py":
        return
    assert unit(path) in ROW_OF, f"{unit(path)} stands in no row; give it one"
    for name in imports(path):
        package, *rest = name.split(".")
        if package != "lengthwise":
            continue
        assert rest, "the public names are for users; import the module that defines the name"
        if rest[0] == unit(path):
            assert len(rest) > 1, f"{path.name} imports the table of its own folder"
        else:
            assert ROW_OF[rest[0]] < ROW_OF[unit(path)], f"{unit(path)} must not know {rest[0]}"


@over_modules
def test_a_module_has_a_name_that_says_what_is_in_it(path):
    assert FORBIDDEN_NAMES.isdisjoint({path.stem, path.parent.name})


@over_modules
def test_a_module_stays_within_300_lines(path):
    assert len(path.read_text().splitlines()) <= 300


@over_modules
def test_no_module_hides_its_shapes_from_the_checker(path):
    assert "__future__" not in imports(path)


@over_modules
def test_nothing_is_unpickled(path):
    assert FORBIDDEN_IMPORTS.isdisjoint(name.split(".")[0] for name in imports(path))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            assert ast.unparse(node) not in {"torch.load", "torch.save", "torch.jit.load"}
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            assert {"load", "save"}.isdisjoint(alias.name for alias in node.names)
        if isinstance(node, ast.keyword):
            assert node.arg != "allow_pickle"


def test_no_module_stands_in_two_rows():
    assert len(ROW_OF) == sum(map(len, ROWS))
