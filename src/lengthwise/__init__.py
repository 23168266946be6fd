"""Train transformers on short sequences, test them on long sequences, and find out why they fail or succeed.

This module exports the public API. Tasks, schemes, encodings and measures are in subpackages, for example
``lengthwise.tasks.Parity`` and ``lengthwise.encodings.Rotary``. Models for `transformers` are in ``lengthwise.hf``.

The names are listed in ``__init__.pyi`` and imported on first use, because importing torch takes seconds.
"""

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from lazy_loader import attach_stub

# Waiting threads sleep instead of spinning, so that processes on the same cores do not slow each other down. This has
# an effect only before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_import_name, __dir__, __all__ = attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Import a public name or a subpackage, or read the version; raise ``AttributeError`` for another name."""
    if name == "__version__":
        return import_module("importlib.metadata").version(__name__)
    if name in __all__:
        return _import_name(name)
    if find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__} has no attribute {name}; known: {', '.join(__all__)}")
    return import_module(f"{__name__}.{name}")
