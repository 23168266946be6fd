"""What every test shares; lengthwise is not imported: its annotations are checked only if the plugin comes first."""

import sys
from collections import defaultdict

import numpy as np
import pytest
import torch
from tests.support.covering import covering

torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what ``covering(times)`` and ``first(number)`` leave out of a test's cases."""
    groups = defaultdict(list)
    for item in items:
        for mark in item.iter_markers():
            if mark.name in ("covering", "first"):
                assert hasattr(item, "callspec"), f"{item.nodeid} has no parameters, so {mark.name} has no effect"
                groups[item.nodeid.partition("[")[0], mark.name, mark.args[0]].append(item)
    for (_, name, number), cases in groups.items():
        values = [[repr(value) for value in case.callspec.params.values()] for case in cases]
        kept = covering(values, number) if name == "covering" else range(number)
        for index, case in enumerate(cases):
            if index not in kept:
                case.add_marker(pytest.mark.slow)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need Linux on other systems; docs/systems.md lists what differs."""
    if sys.platform != "linux" and item.get_closest_marker("linux") is not None:
        pytest.skip("needs fork, /proc or the signals of Linux")


@pytest.fixture
def rng() -> np.random.Generator:
    """The same draws for every test."""
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _same_weights() -> None:
    """Modules draw their first weights from torch's own generator."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _unlimited_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables have no width limit, which the workers of pytest-xdist would set."""
    monkeypatch.delenv("COLUMNS", raising=False)
