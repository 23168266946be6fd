"""What every test shares; lengthwise is not imported: its annotations are checked only if the plugin comes first."""

import numpy as np
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def rng() -> np.random.Generator:
    """The same draws for every test."""
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _same_weights() -> None:
    """Modules draw their first weights from torch's own generator."""
    torch.manual_seed(0)
