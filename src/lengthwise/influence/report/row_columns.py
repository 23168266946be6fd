"""Rows of a study as columns of plain numbers, which summaries are made of."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.influence.placebo import ELSEWHERE, OTHER
from lengthwise.influence.token_kinds import Distances

GROUP = ("mode", "knows", "from", "measure")
SOURCES = ("own", OTHER, ELSEWHERE)

Targets = Bool[np.ndarray, " targets"]
PerTarget = Float[np.ndarray, " targets"]
Values = Float[np.ndarray, "measured k"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One selection's targets, by their rows, with the loss and the divergence at each k."""

    target: Int[np.ndarray, " measured"]
    losses: Values
    divergences: Values

    def among(self, within: Targets) -> "Measured":
        """Those of the targets ``within``."""
        kept = within[self.target]
        return Measured(target=self.target[kept], losses=self.losses[kept], divergences=self.divergences[kept])


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Far tokens of one source: which targets have any, the loss with all of them, and whether that gains or loses."""

    exists: Targets
    loss: PerTarget
    gains: Targets
    loses: Targets


@dataclass(slots=True)
class _Group:
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


class Columns:
    """What summaries need of each row: 100,000 rows take some tens of megabytes."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], ks: Sequence[int]) -> None:
        self.models: set[str] = set()
        self.documents: dict[str, int] = {}
        self.kinds: dict[str, array[int]] = {}
        self.num_ks = len(ks)
        self._groups: dict[tuple[str, ...], _Group] = {}
        numbers, document = array("d"), array("l")
        for target, row in enumerate(rows):
            self.models.add(row["model"])
            document.append(self.documents.setdefault(row["document"], len(self.documents)))
            numbers.extend((row["loss_short"], row["divergence_short"], row["weight"]))
            for source in SOURCES:
                numbers.extend(_of_source(row, source))
            for kind in row["kinds"]:
                self.kinds.setdefault(kind, array("l")).append(target)
            for selection in row["selections"]:
                self._add(target, selection, clear=row["clear"])
        if not document:
            raise SettingError("no rows to summarize; measure at least one target")
        self.document = np.array(document)
        columns = np.array(numbers).reshape(len(document), -1).T
        self.short, self.divergence, self.weight = columns[:3]
        self.sources = {
            source: Source(exists=exists > 0, loss=loss, gains=gains > 0, loses=loses > 0)
            for source, (exists, loss, gains, loses) in zip(SOURCES, columns[3:].reshape(3, 4, -1), strict=True)
        }
        self.groups = {name: self._measured(group) for name, group in self._groups.items()}
        self.distances = {name: group.distances for name, group in self._groups.items()}
        self._check()

    @property
    def everything(self) -> Targets:
        """All targets."""
        return np.ones(len(self.document), dtype=bool)

    def of_kind(self, kind: str) -> Targets:
        """The targets of one kind."""
        within = np.zeros(len(self.document), dtype=bool)
        within[np.array(self.kinds[kind])] = True
        return within

    def _add(self, target: int, selection: Mapping[str, Any], *, clear: bool) -> None:
        if len(selection["losses"]) != self.num_ks:
            raise SettingError(
                f"row {target + 1} has {len(selection['losses'])} losses but k takes {self.num_ks} values; "
                "give the k of the run that wrote the rows"
            )
        name = tuple(selection[part] for part in GROUP)
        self._groups.setdefault(name, _Group()).add(target, selection, clear=clear)

    def _measured(self, group: _Group) -> Measured:
        return Measured(
            target=np.array(group.target),
            losses=np.array(group.losses).reshape(-1, self.num_ks),
            divergences=np.array(group.divergences).reshape(-1, self.num_ks),
        )

    def _check(self) -> None:
        if len(self.models) > 1:
            raise SettingError(f"rows of several models ({', '.join(sorted(self.models))}); summarize each alone")
        bad = ~np.isfinite(self.short + self.divergence)
        for source in self.sources.values():
            bad |= source.exists & ~np.isfinite(source.loss)
        for group in self.groups.values():
            bad[group.target[~np.isfinite(group.losses + group.divergences).all(axis=1)]] = True
        if bad.any():
            raise SettingError(f"row {int(bad.argmax()) + 1} has a loss that is not finite; measure it in float32")


def _of_source(row: Mapping[str, Any], source: str) -> tuple[float, float, float, float]:
    """Whether there are far tokens, the loss with them, whether they gain and whether they lose: numbers for arrays."""
    if source == "own":
        found = {"loss": row["loss_long"], "gains": row["clear"], "loses": row["loses"]}
    else:
        found = row["controls"].get(source, {})
    loss, gains, loses = (float(found.get(name, 0)) for name in ("loss", "gains", "loses"))
    return float(bool(found)), loss, gains, loses
