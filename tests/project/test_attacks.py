"""Small samples of the attacks that `benchmarks/faults.py` and `benchmarks/fuzz.py` run by thousands."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attacks.inputs import READERS, input_of, raises_error

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NUM_ATTACKS = {
    "types": 4,
    "commands": 12,
    "kills": 6,
    "mutations": 32,
    "lies": 28,
    "disk": 10,
    "rights": 10,
    "pairs": 10,
    "workers": 3,
    "sweep": 2,
    "ray": 2,
    "together": 6,
    "views": 24,
    "tables": 8,
    "settings": 12,
    "models": 16,
    "archives": 3,
    "streams": 16,
    "extensions": 12,
    "laws": 16,
    "trackers": 4,
    "clocks": 3,
    "two commands": 3,
    "pages": 4,
    "addresses": 2,
}


@pytest.mark.slow
@pytest.mark.linux
@pytest.mark.parametrize("kind", NUM_ATTACKS)
def test_a_sample_of_attacks_finds_no_fault(kind):
    if kind == "pages" and shutil.which("chromium") is None:
        pytest.skip("pages are opened in Chromium")
    number = str(NUM_ATTACKS[kind])
    command = [sys.executable, str(BENCHMARKS / "faults.py"), kind, "--number", number, "--seed", "3"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert f"'kind': '{kind}'" in process.stdout
    assert "'faults': 0" in process.stdout


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=200, deadline=None)
@given(choices=st.binary(min_size=60, max_size=120))
def test_a_reader_accepts_an_input_or_raises_its_documented_error(name, choices):
    raises_error(READERS[name], input_of(READERS[name], choices))
