"""Columns of numbers that summaries compute from the rows of a study."""

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.influence.targets import ELSEWHERE_SOURCE, OTHER_SOURCE

# Keys of a selection that identify its group.
GROUP_KEYS = ("mode", "knows", "from", "measure")
SOURCES = ("own", OTHER_SOURCE, ELSEWHERE_SOURCE)
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
BINS_PER_OCTAVE = 2

TargetMask = Bool[np.ndarray, " targets"]
TargetValues = Float[np.ndarray, " targets"]
ValuesByK = Float[np.ndarray, "measured k"]


class SelectionColumns(NamedTuple):
    """Columns of the targets with a selection of one group: row index, and values at each k.

    The values are losses and divergences in nats, and the number of visible far tokens.
    """

    target: Int[np.ndarray, " measured"]
    losses: ValuesByK
    divergences: ValuesByK
    tokens: ValuesByK

    def select_targets(self, mask: TargetMask) -> "SelectionColumns":
        """Return the columns of the targets in ``mask``."""
        in_mask = mask[self.target]
        return SelectionColumns(*(column[in_mask] for column in self))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceColumns:
    """Columns of one source of far tokens.

    ``exists`` is True for targets that have far tokens of this source, and ``loss`` is their loss with these tokens.
    The other masks are True if this loss is clearly lower or clearly higher than with near tokens only.
    """

    exists: TargetMask
    loss: TargetValues
    has_lower_loss: TargetMask
    has_higher_loss: TargetMask


class DistanceHistogram:
    """Weighted number of selected units and total gain (nats) at each distance (tokens)."""

    def __init__(self) -> None:
        self.num_units = 0
        self.counts: dict[int, float] = {}
        self.gains: dict[int, float] = {}

    def add(self, distance: int, gain: float, weight: float = 1.0) -> None:
        """Add one selected unit of a target with this weight; a negative gain counts as 0.

        Raises ``SettingError`` if the gain is not finite.
        """
        if not math.isfinite(gain):
            raise SettingError(f"the gain at distance {distance} is {gain}; repeat the study in float32")
        self.num_units += 1
        self.counts[distance] = self.counts.get(distance, 0.0) + weight
        self.gains[distance] = self.gains.get(distance, 0.0) + weight * max(0.0, gain)

    def summary(self) -> dict[str, Any]:
        """Return gain-weighted quantiles of the distance, and a histogram with bins of equal width on a log scale."""
        total_count, total_gain = math.fsum(self.counts.values()), math.fsum(self.gains.values())
        bins = []
        for first, last in self._bins():
            count = sum(self.counts.get(distance, 0) for distance in range(first, last + 1))
            gain = math.fsum(self.gains.get(distance, 0.0) for distance in range(first, last + 1))
            gain_share = None if total_gain == 0 else gain / total_gain
            bins.append({"from": first, "to": last, "count_share": count / total_count, "gain_share": gain_share})
        return {
            "chosen": self.num_units,
            "gain": total_gain,
            "quantiles": [{"share": share, "distance": self._quantile(share * total_gain)} for share in QUANTILES],
            "bins": bins,
        }

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


class StudyColumns:
    """Columns of all rows of one model. 100,000 rows need tens of megabytes of memory."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], ks: Sequence[int]) -> None:
        self.models: set[str] = set()
        self.document_indices: dict[str, int] = {}
        self.kinds: dict[str, array[int]] = {}
        self.num_ks = len(ks)
        self.distances: defaultdict[tuple[str, ...], DistanceHistogram] = defaultdict(DistanceHistogram)
        flat_selections: defaultdict[tuple[str, ...], array[float]] = defaultdict(lambda: array("d"))
        flat_values, target_documents = array("d"), array("l")
        for target, row in enumerate(rows):
            self.models.add(row["model"])
            target_documents.append(self.document_indices.setdefault(row["document"], len(self.document_indices)))
            flat_values.extend((row["loss_short"], row["divergence_short"], row["weight"]))
            for source in SOURCES:
                flat_values.extend(_source_values(row, source))
            for target_kind in row["kinds"]:
                self.kinds.setdefault(target_kind, array("l")).append(target)
            for selection in row["selections"]:
                self._check_num_ks(target, selection)
                name = tuple(selection[key] for key in GROUP_KEYS)
                values = (target, *selection["losses"], *selection["divergences"], *selection["tokens"])
                flat_selections[name].extend(values)
                for unit in selection["chosen"] if row["clear"] else ():
                    self.distances[name].add(unit["distance"], unit["gain"], row["weight"])
        if not target_documents:
            raise SettingError("the study has no rows; measure at least one target")
        self.target_documents = np.array(target_documents)
        columns = np.array(flat_values).reshape(len(target_documents), -1).T
        self.loss_short, self.divergence_short, self.weight = columns[:3]
        pairs = zip(SOURCES, columns[3:].reshape(3, 4, -1), strict=True)
        self.sources = {
            source: SourceColumns(exists=exists > 0, loss=loss, has_lower_loss=lower > 0, has_higher_loss=higher > 0)
            for source, (exists, loss, lower, higher) in pairs
        }
        self.groups: dict[tuple[str, ...], SelectionColumns] = {}
        for name, flat in flat_selections.items():
            values_by_target = np.array(flat).reshape(-1, 1 + 3 * self.num_ks)
            losses, divergences, tokens = np.split(values_by_target[:, 1:], 3, axis=1)
            measured_targets = values_by_target[:, 0].astype(np.int64)
            self.groups[name] = SelectionColumns(measured_targets, losses, divergences, tokens)
        self._check_values()

    def mask_of_target_kind(self, kind: str) -> TargetMask:
        """Return the mask of the targets of one kind."""
        return np.isin(np.arange(len(self.target_documents)), self.kinds[kind])

    def excess_loss(self, source: str) -> TargetValues:
        """Return the loss with far tokens of a source minus the loss with own far tokens."""
        return self.sources[source].loss - self.sources["own"].loss

    def _check_num_ks(self, target: int, selection: Mapping[str, Any]) -> None:
        if len(selection["losses"]) != self.num_ks:
            raise SettingError(
                f"row {target + 1} has {len(selection['losses'])} losses, but k has {self.num_ks} values; "
                "use the same k as the study that wrote the rows"
            )

    def _check_values(self) -> None:
        if len(self.models) > 1:
            models = ", ".join(sorted(self.models))
            raise SettingError(f"the rows belong to several models ({models}); summarize each model separately")
        invalid = ~np.isfinite(self.loss_short + self.divergence_short)
        for source in self.sources.values():
            invalid |= source.exists & ~np.isfinite(source.loss)
        for group in self.groups.values():
            invalid[group.target[~np.isfinite(group.losses + group.divergences).all(axis=1)]] = True
        if invalid.any():
            row = int(invalid.argmax()) + 1
            raise SettingError(f"row {row} has a loss that is not finite; repeat the study in float32")


def _source_values(row: Mapping[str, Any], source: str) -> tuple[float, float, float, float]:
    """Return the values of a row for the four fields of ``SourceColumns``, as floats."""
    own = {"loss": row["loss_long"], "gains": row["clear"], "loses": row["loses"]}
    entry = own if source == "own" else row["controls"].get(source, {})
    loss, has_lower_loss, has_higher_loss = (float(entry.get(name, 0)) for name in ("loss", "gains", "loses"))
    return float(bool(entry)), loss, has_lower_loss, has_higher_loss
