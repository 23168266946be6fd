"""Distances between selected far tokens and their targets, weighted by gain."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from lengthwise.core.errors import SettingError

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
BINS_PER_OCTAVE = 2


class Distances:
    """Number of selected tokens and total gain (nats) at each distance (tokens)."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.gains: dict[int, float] = {}

    def add(self, distance: int, gain: float) -> None:
        """Add one selected token. Raises ``SettingError`` if its gain is not finite; a negative gain counts as 0."""
        if not math.isfinite(gain):
            raise SettingError(f"the gain at distance {distance} is {gain}; repeat the study in float32")
        self.counts[distance] = self.counts.get(distance, 0) + 1
        self.gains[distance] = self.gains.get(distance, 0.0) + max(0.0, gain)

    def summary(self) -> dict[str, Any]:
        """Return gain-weighted quantiles of the distance, and a histogram with bins of equal width on a log scale."""
        total_count, total_gain = sum(self.counts.values()), math.fsum(self.gains.values())
        return {
            "chosen": total_count,
            "gain": total_gain,
            "quantiles": [{"share": share, "distance": self._quantile(share * total_gain)} for share in QUANTILES],
            "bins": [self._bin(first, last, total_count, total_gain) for first, last in self._bins()],
        }

    def _bin(self, first: int, last: int, total_count: int, total_gain: float) -> dict[str, Any]:
        distances = range(first, last + 1)
        count = sum(self.counts.get(distance, 0) for distance in distances)
        gain = math.fsum(self.gains.get(distance, 0.0) for distance in distances)
        gain_share = None if total_gain == 0 else gain / total_gain
        return {"from": first, "to": last, "count_share": count / total_count, "gain_share": gain_share}

    def _quantile(self, gain: float) -> int | None:
        cumulative_gain = 0.0
        for distance in sorted(distance for distance, gain in self.gains.items() if gain):
            cumulative_gain += self.gains[distance]
            # Because of rounding, a sum in a different order may be slightly smaller than the total gain.
            if cumulative_gain >= gain * (1 - 1e-12):
                return distance
        return None

    def _bins(self) -> Iterator[tuple[int, int]]:
        """Yield the first and last distance of each bin, in increasing order."""
        if self.counts:
            first, last = (int(BINS_PER_OCTAVE * math.log2(bound)) for bound in (min(self.counts), max(self.counts)))
            edges = [math.ceil(2 ** (index / BINS_PER_OCTAVE)) for index in range(first, last + 2)]
            # Bins at small distances may contain no whole number.
            yield from ((start, end - 1) for start, end in pairwise(edges) if start < end)
