"""Where all randomness starts: one independent, named stream per purpose."""

import hashlib

import numpy as np


def stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """An independent generator per (seed, purpose), so that a new consumer never shifts another one's draws.

    The same arguments give the same draws on every machine: ``stream(0, "examples", step)``.
    """
    # NumPy integers print otherwise than Python's.
    plain = [part if isinstance(part, str) else int(part) for part in (seed, *purpose)]
    digest = hashlib.sha256(repr(tuple(plain)).encode()).digest()
    words = np.frombuffer(digest, dtype="<u4")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([int(word) for word in words])))
