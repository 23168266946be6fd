"""Plain English in docstrings, messages and pages, and a small public surface."""

import ast
import functools
import re
from pathlib import Path

import pytest

import lengthwise as lw

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/lengthwise"
MODULES = sorted(SOURCE.rglob("*.py"))
PAGES = [ROOT / "README.md", *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"))]
PAGES += sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "benchmarks").glob("*.md"))
# Phrases that read as translated, each with the words to use in place of them.
PHRASES = {
    r"gone? on with": "continue, resume",
    r"foret(el|old)": "predict",
    r"of (one's|your|their|its) own\b(?! \w)": "custom",
    r"one's own": "custom",
    r"behind the (last|answer|prompt|gap)": "after",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\b(is|are|was) told of\b": "raises, reports",
    r"\bsays so\b": "raises, reports",
    r"\bis none\b": "say what is missing",
    r"\blikewise\b": "name the thing again",
    r"\bas ever\b": "drop it",
    r"something else than": "not the same as",
    r"\bis no (number|prompt|task|text|run|share|row|length)\b": "invalid",
    r"\bwithout a word\b": "silently",
    r"what rids": "what removes",
}
FIRST_WORDS = {"What", "Whether", "How", "Which", "Of", "Those", "As"}


def docstrings(path):
    """Yield (line, name, docstring) of the module and of each class and function in a file."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield getattr(node, "lineno", 1), getattr(node, "name", path.stem), text


def texts(path):
    """Return the string constants and the comments of a source file, one after the other."""
    source = path.read_text()
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    constants = [node.value for node in nodes if isinstance(node.value, str)]
    return "\n".join([*constants, *re.findall(r"#.*", source)])


@functools.cache
def all_texts():
    """Return the text of every source file and page, by its path."""
    # Texts that tasks train on are not ours to change: runs are bound to them.
    sources = {path: texts(path) for path in MODULES if path.name != "built_in_texts.py"}
    pages = {path: path.read_text() for path in PAGES}
    return {str(path.relative_to(ROOT)): text for path, text in {**sources, **pages}.items()}


def test_docstrings_start_with_a_noun_or_a_verb_and_say_something():
    short, interrogative = [], []
    for path in MODULES:
        for line, name, text in docstrings(path):
            place = f"{path.relative_to(SOURCE)}:{line} {name}"
            words = text.split()
            if words[0].strip(",.:") in FIRST_WORDS:
                interrogative.append(place)
            if len(words) < 5:
                short.append(place)
    assert interrogative == [], f"a docstring starts with one of {sorted(FIRST_WORDS)}"
    assert short == [], "a docstring of fewer than five words says nothing"


@pytest.mark.parametrize("phrase", PHRASES)
def test_the_old_voice_does_not_come_back(phrase):
    found = {path: match.group(0) for path, text in all_texts().items() if (match := re.search(phrase, text))}
    assert found == {}, f"write: {PHRASES[phrase]}"


def test_the_package_exports_at_most_43_names():
    assert len(lw.__all__) <= 43
    assert dir(lw) == sorted(lw.__all__)
