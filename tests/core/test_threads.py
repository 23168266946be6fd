"""The number of CPU threads for training."""

import os
import subprocess
import sys

import pytest
import torch

from lengthwise.core.devices import WIDE_MODEL, limit_cpu_threads, num_training_threads
from lengthwise.core.errors import SettingError


@pytest.fixture(autouse=True)
def _unset(monkeypatch):
    """Remove the number of threads that the environment gives."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_a_narrow_model_trains_on_one_thread_and_a_wide_one_on_all():
    with limit_cpu_threads(2):
        assert num_training_threads(WIDE_MODEL - 1) == 1
        assert num_training_threads(WIDE_MODEL) == 2


def test_a_number_that_the_user_gives_counts(monkeypatch):
    with limit_cpu_threads(2):
        assert num_training_threads(8, 3) == 3
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        assert num_training_threads(8) == 2
    with pytest.raises(SettingError, match="invalid number of threads 0; use at least 1"):
        num_training_threads(8, 0)


def fail_with_threads() -> None:
    """Raise an error while two threads are set."""
    with limit_cpu_threads(2):
        assert torch.get_num_threads() == 2
        raise ValueError("inside")


def test_the_number_is_restored_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="inside"):
        fail_with_threads()
    assert torch.get_num_threads() == before


def test_waiting_threads_sleep_unless_the_user_decides_otherwise():
    code = "import os, lengthwise; print(os.environ['OMP_WAIT_POLICY'])"
    for given, expected in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | given
        process = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert process.stdout.strip() == expected
