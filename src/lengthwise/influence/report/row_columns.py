"""Columns of numbers that summaries compute from the rows of a study."""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionColumns:
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
        return SelectionColumns(
            target=self.target[in_mask],
            losses=self.losses[in_mask],
            divergences=self.divergences[in_mask],
            tokens=self.tokens[in_mask],
        )


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
        return {
            "chosen": self.num_units,
            "gain": total_gain,
            "quantiles": [{"share": share, "distance": self._quantile(share * total_gain)} for share in QUANTILES],
            "bins": [self._bin(first, last, total_count, total_gain) for first, last in self._bins()],
        }

    def _bin(self, first: int, last: int, total_count: float, total_gain: float) -> dict[str, Any]:
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


@dataclass(slots=True)
class _SelectionArrays:
    target: "array[int]" = field(default_factory=lambda: array("l"))
    losses: "array[float]" = field(default_factory=lambda: array("d"))
    divergences: "array[float]" = field(default_factory=lambda: array("d"))
    tokens: "array[float]" = field(default_factory=lambda: array("d"))
    distances: DistanceHistogram = field(default_factory=DistanceHistogram)

    def add(self, target: int, selection: Mapping[str, Any], weight: float, *, has_clear_gain: bool) -> None:
        self.target.append(target)
        self.losses.extend(selection["losses"])
        self.divergences.extend(selection["divergences"])
        self.tokens.extend(selection["tokens"])
        for unit in selection["chosen"] if has_clear_gain else ():
            self.distances.add(unit["distance"], unit["gain"], weight)

    def columns(self, num_ks: int) -> SelectionColumns:
        values = (np.array(values).reshape(-1, num_ks) for values in (self.losses, self.divergences, self.tokens))
        losses, divergences, tokens = values
        return SelectionColumns(target=np.array(self.target), losses=losses, divergences=divergences, tokens=tokens)


class StudyColumns:
    """Columns of all rows of one model. 100,000 rows need tens of megabytes of memory."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], ks: Sequence[int]) -> None:
        self.models: set[str] = set()
        self.document_indices: dict[str, int] = {}
        self.kinds: dict[str, array[int]] = {}
        self.num_ks = len(ks)
        arrays: dict[tuple[str, ...], _SelectionArrays] = {}
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
                arrays.setdefault(name, _SelectionArrays()).add(
                    target, selection, row["weight"], has_clear_gain=row["clear"]
                )
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
        self.groups = {name: group.columns(self.num_ks) for name, group in arrays.items()}
        self.distances = {name: group.distances for name, group in arrays.items()}
        self._check_values()

    @property
    def all_targets(self) -> TargetMask:
        """Mask that contains all targets of the rows."""
        return np.ones(len(self.target_documents), dtype=bool)

    def mask_of_target_kind(self, kind: str) -> TargetMask:
        """Return the mask of the targets of one kind."""
        mask = np.zeros(len(self.target_documents), dtype=bool)
        mask[np.array(self.kinds[kind])] = True
        return mask

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
