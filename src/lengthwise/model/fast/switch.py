"""Switch of all faster forms of computations: ``plain_forms`` replaces them by plain ones.

Both forms have equal results up to rounding. ``benchmarks/fast_paths.py`` measures what each of them gains.
"""

from collections.abc import Iterator
from contextlib import contextmanager

_is_enabled = True


def is_enabled() -> bool:
    """Return True unless the caller runs inside ``plain_forms``."""
    return _is_enabled


@contextmanager
def plain_forms() -> Iterator[None]:
    """Compute without the faster forms, for tests and measurements; on a GPU, this applies to new trainers."""
    global _is_enabled  # noqa: PLW0603
    before, _is_enabled = _is_enabled, False
    try:
        yield
    finally:
        _is_enabled = before
