"""Switch of all faster forms of computations: ``disable_fast_paths`` replaces them by plain ones.

Both forms have equal results up to rounding. ``benchmarks/fast_paths.py`` measures what each of them gains.
"""

from collections.abc import Iterator
from contextlib import contextmanager

_is_enabled = True


def fast_paths_enabled() -> bool:
    """Return True unless the caller runs inside ``disable_fast_paths``."""
    return _is_enabled


@contextmanager
def disable_fast_paths() -> Iterator[None]:
    """Compute without the faster forms, for tests and measurements; on a GPU, this applies to new trainers."""
    global _is_enabled  # noqa: PLW0603
    before, _is_enabled = _is_enabled, False
    try:
        yield
    finally:
        _is_enabled = before
