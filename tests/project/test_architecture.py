"""The rooms and their order, and what a module may not contain."""

import ast
from pathlib import Path

import pytest

import lengthwise

SOURCE = Path(lengthwise.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))

# Lowest first: a room imports only from the rooms before it.
ROOMS = (
    "core",
    "tasks",
    "positions",
    "encodings",
    "model",
    "training",
    "theory",
    "evaluation",
    "experiments",
    "influence",
    "report",
    "hf",
    "doctor",
    "cli",
)
FORBIDDEN_NAMES = {"utils", "common", "helpers", "misc", "base", "manager", "data"}
# Formats that run code when they are read.
FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def imports(path: Path) -> list[str]:
    """The full names of all modules that a file imports, wherever in the file."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import in line {node.lineno}"
            assert node.module is not None
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [name if is_module(name) else node.module for name in names]
    return found


def is_module(name: str) -> bool:
    """Return True if the full name is a module or package of ours."""
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


IMPORTS = {path: imports(path) for path in MODULES}


def violations(broken):
    """List the modules, by path in the package, that a predicate over a path and its imports finds broken."""
    return [str(path.relative_to(SOURCE)) for path, names in IMPORTS.items() if broken(path, names)]


def test_the_package_holds_the_rooms_and_nothing_else():
    names = {path.name for path in SOURCE.iterdir() if path.name != "__pycache__"}
    assert names == {*ROOMS, "__init__.py", "__init__.pyi", "__main__.py", "py.typed"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_the_rooms_before_it(room):
    allowed = {*ROOMS[: ROOMS.index(room)], room}

    def broken(path, names):
        ours = [name.split(".") for name in names if name.split(".")[0] == "lengthwise"]
        inside = path.relative_to(SOURCE).parts[0] == room
        return inside and any(len(parts) < 2 or parts[1] not in allowed for parts in ours)

    assert violations(broken) == []


def test_no_module_imports_the_table_of_its_own_folder():
    def broken(path, names):
        package = ".".join(("lengthwise", *path.relative_to(SOURCE).parent.parts))
        return path.name != "__init__.py" and path.parent != SOURCE and package in names

    assert violations(broken) == []


def test_module_names_describe_their_content():
    assert violations(lambda path, names: not FORBIDDEN_NAMES.isdisjoint({path.stem, path.parent.name})) == []


def test_no_module_hides_its_shapes_from_the_checker():
    assert violations(lambda path, names: "__future__" in names) == []


def test_nothing_is_unpickled():
    def broken(path, names):
        return not FORBIDDEN_IMPORTS.isdisjoint(name.split(".")[0] for name in names) or any(
            map(unpickles, ast.walk(ast.parse(path.read_text())))
        )

    assert violations(broken) == []


def unpickles(node):
    """Return True for code that reads or writes a format that can run code."""
    if isinstance(node, ast.Attribute):
        return ast.unparse(node) in {"torch.load", "torch.save", "torch.jit.load"}
    if isinstance(node, ast.ImportFrom) and node.module == "torch":
        return not {"load", "save"}.isdisjoint(alias.name for alias in node.names)
    return isinstance(node, ast.keyword) and node.arg == "allow_pickle"
