"""A few attacks of every kind; `benchmarks/faults.py` and `fuzz.py` make thousands."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.inputs import READERS, input_of, refused

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# Of what takes seconds to make, the long samples are slow.
FEW = {"kills": 6, "commands": 20, "types": 60}
SLOW = {"mutations": 32, "lies": 28, "disk": 10, "rights": 10, "pairs": 10, "workers": 3}


@pytest.mark.parametrize("kind", [*FEW, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW)])
def test_a_few_attacks_find_nothing(kind):
    number = {**FEW, **SLOW}[kind]
    command = [sys.executable, str(BENCHMARKS / "faults.py"), kind, "--number", str(number), "--seed", "3"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert f"'kind': '{kind}'" in ended.stdout
    assert "'faults': 0" in ended.stdout


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=200, deadline=None)
@given(choices=st.binary(min_size=60, max_size=120))
def test_a_reader_takes_an_input_or_refuses_it(name, choices):
    refused(READERS[name], input_of(READERS[name], choices))
