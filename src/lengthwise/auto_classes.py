"""Our model types in the Auto classes of `transformers`, as soon as these are there; without importing them here."""

import sys
from contextlib import suppress
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

MODELS = "transformers.models.auto.modeling_auto"
# What is registered when a module of `transformers` has been imported. The Auto classes of models are often imported
# in the middle of the other two, on which our models are built: these are tried again when they are whole.
AFTER = {
    "transformers.models.auto.configuration_auto": "register_configs",
    MODELS: "register_models",
    "transformers.modeling_utils": "register_models",
    "transformers.generation.utils": "register_models",
}


class _Watch(MetaPathFinder):
    """Finds nothing itself; what is watched for is found as ever, and something is done when it has run."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module's own spec, once."""
        if fullname not in AFTER:
            return None
        sys.meta_path.remove(self)
        try:
            spec = find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_register(module: ModuleType) -> None:
            run(module)
            _register(fullname)

        spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


def register_when_imported() -> None:
    """Make ``AutoModelForCausalLM`` and ``AutoConfig`` know our model types, now or when `transformers` is imported."""
    for name in AFTER:
        if name in sys.modules:
            _register(name)
    sys.meta_path.insert(0, _Watch())


def _register(name: str) -> None:
    if AFTER[name] == "register_models" and MODELS not in sys.modules:
        return
    # A transformers that is too old for our models is no reason to import neither.
    with suppress(ImportError):
        getattr(import_module("lengthwise.hf.registration"), AFTER[name])()
