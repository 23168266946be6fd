"""Columns of numbers from the rows of a study, as input of summaries."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.influence.placebo import ELSEWHERE, OTHER
from lengthwise.influence.report.distances import Distances

# Keys of a row's selection that identify the kind of selection.
GROUP = ("mode", "knows", "from", "measure")
SOURCES = ("own", OTHER, ELSEWHERE)

TargetMask = Bool[np.ndarray, " targets"]
PerTarget = Float[np.ndarray, " targets"]
PerK = Float[np.ndarray, "measured k"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionColumns:
    """Row indices of the targets with one kind of selection, and their losses and divergences at each k."""

    target: Int[np.ndarray, " measured"]
    losses: PerK
    divergences: PerK

    def restrict(self, mask: TargetMask) -> "SelectionColumns":
        """Return the entries of the targets in ``mask``."""
        inside = mask[self.target]
        return SelectionColumns(
            target=self.target[inside], losses=self.losses[inside], divergences=self.divergences[inside]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceColumns:
    """Per-target columns of one source: existence of its context, loss, and flags for clearly lower or higher loss."""

    exists: TargetMask
    loss: PerTarget
    gains: TargetMask
    loses: TargetMask


@dataclass(slots=True)
class _SelectionArrays:
    target: "array[int]" = field(default_factory=lambda: array("l"))
    losses: "array[float]" = field(default_factory=lambda: array("d"))
    divergences: "array[float]" = field(default_factory=lambda: array("d"))
    distances: Distances = field(default_factory=Distances)

    def add(self, target: int, selection: Mapping[str, Any], *, clear: bool) -> None:
        self.target.append(target)
        self.losses.extend(selection["losses"])
        self.divergences.extend(selection["divergences"])
        for token in selection["chosen"] if clear else ():
            self.distances.add(token["distance"], token["gain"])

    def columns(self, num_ks: int) -> SelectionColumns:
        return SelectionColumns(
            target=np.array(self.target),
            losses=np.array(self.losses).reshape(-1, num_ks),
            divergences=np.array(self.divergences).reshape(-1, num_ks),
        )


class RowColumns:
    """Columns of all rows of one model; 100,000 rows take some tens of megabytes."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], ks: Sequence[int]) -> None:
        self.models: set[str] = set()
        self.documents: dict[str, int] = {}
        self.kinds: dict[str, array[int]] = {}
        self.num_ks = len(ks)
        arrays: dict[tuple[str, ...], _SelectionArrays] = {}
        numbers, document = array("d"), array("l")
        for target, row in enumerate(rows):
            self.models.add(row["model"])
            document.append(self.documents.setdefault(row["document"], len(self.documents)))
            numbers.extend((row["loss_short"], row["divergence_short"], row["weight"]))
            for source in SOURCES:
                numbers.extend(_source_numbers(row, source))
            for kind in row["kinds"]:
                self.kinds.setdefault(kind, array("l")).append(target)
            for selection in row["selections"]:
                self._check_num_ks(target, selection)
                name = tuple(selection[key] for key in GROUP)
                arrays.setdefault(name, _SelectionArrays()).add(target, selection, clear=row["clear"])
        if not document:
            raise SettingError("no rows to summarize; measure at least one target")
        self.document = np.array(document)
        columns = np.array(numbers).reshape(len(document), -1).T
        self.short, self.divergence, self.weight = columns[:3]
        self.sources = {
            source: SourceColumns(exists=exists > 0, loss=loss, gains=gains > 0, loses=loses > 0)
            for source, (exists, loss, gains, loses) in zip(SOURCES, columns[3:].reshape(3, 4, -1), strict=True)
        }
        self.groups = {name: group.columns(self.num_ks) for name, group in arrays.items()}
        self.distances = {name: group.distances for name, group in arrays.items()}
        self._check()

    @property
    def all_targets(self) -> TargetMask:
        """Mask that includes all targets."""
        return np.ones(len(self.document), dtype=bool)

    def kind_mask(self, kind: str) -> TargetMask:
        """Return the mask of the targets of one kind."""
        mask = np.zeros(len(self.document), dtype=bool)
        mask[np.array(self.kinds[kind])] = True
        return mask

    def _check_num_ks(self, target: int, selection: Mapping[str, Any]) -> None:
        if len(selection["losses"]) != self.num_ks:
            raise SettingError(
                f"row {target + 1} has {len(selection['losses'])} losses, but k has {self.num_ks} values; "
                "use the k of the study that wrote the rows"
            )

    def _check(self) -> None:
        if len(self.models) > 1:
            raise SettingError(f"rows of several models ({', '.join(sorted(self.models))}); summarize each separately")
        invalid = ~np.isfinite(self.short + self.divergence)
        for source in self.sources.values():
            invalid |= source.exists & ~np.isfinite(source.loss)
        for group in self.groups.values():
            invalid[group.target[~np.isfinite(group.losses + group.divergences).all(axis=1)]] = True
        if invalid.any():
            raise SettingError(f"row {int(invalid.argmax()) + 1} has a loss that is not finite; measure it in float32")


def _source_numbers(row: Mapping[str, Any], source: str) -> tuple[float, float, float, float]:
    """Return the columns of a source as numbers: existence, loss, ``gains`` and ``loses``."""
    if source == "own":
        entry = {"loss": row["loss_long"], "gains": row["clear"], "loses": row["loses"]}
    else:
        entry = row["controls"].get(source, {})
    loss, gains, loses = (float(entry.get(name, 0)) for name in ("loss", "gains", "loses"))
    return float(bool(entry)), loss, gains, loses
