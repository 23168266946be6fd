"""Coupling of text by its lines: tokens at the same place of their lines have the same number."""

import numpy as np
from jaxtyping import Bool, Int


def couple_lines(ends_line: Bool[np.ndarray, "batch seq"]) -> Int[np.ndarray, "level batch seq"]:
    """Return the place of each token in its line (level 0) and the number of its line in the sequence (level 1).

    ``ends_line`` is True for the last token of each line. Both levels count from 0, and the first line starts with the
    first token. The numbers of a token depend only on earlier tokens, so a continuation can be numbered as it grows.
    """
    starts_line = np.ones_like(ends_line)
    starts_line[:, 1:] = ends_line[:, :-1]
    indexes = np.arange(ends_line.shape[1])
    line_starts = np.maximum.accumulate(np.where(starts_line, indexes, 0), axis=1)
    return np.stack([indexes - line_starts, starts_line.cumsum(axis=1) - 1])
