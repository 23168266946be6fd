"""Independent random streams, one per seed and purpose."""

import hashlib

import numpy as np


def random_stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return an independent generator for a seed and a purpose, such as ``random_stream(0, "examples", step)``.

    The same arguments give the same numbers on every machine. A new purpose does not change any other stream.
    """
    # The repr of a NumPy integer differs from the repr of a Python integer.
    hashed_parts = [part if isinstance(part, str) else int(part) for part in (seed, *purpose)]
    digest = hashlib.sha256(repr(tuple(hashed_parts)).encode()).digest()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(np.frombuffer(digest, dtype="<u4").tolist())))
