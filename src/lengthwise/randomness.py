"""Where all randomness starts: one independent, named stream per purpose."""

import hashlib

import numpy as np


def stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """An independent generator per (seed, purpose), so that a new consumer never shifts another one's draws.

    The same arguments give the same draws on every machine: ``stream(0, "examples", step)``.
    """
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    words = np.frombuffer(digest, dtype="<u4")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([int(word) for word in words])))
