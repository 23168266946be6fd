"""What an influence study measures: sizes, measure, meanings of "plus k", controls, and which targets."""

from dataclasses import asdict, dataclass, field
from typing import Any

from lengthwise.core.errors import SettingError, unknown_name
from lengthwise.core.type_checks import check_types
from lengthwise.influence.measures.greedy import Greedy
from lengthwise.influence.measures.measure import InfluenceMeasure
from lengthwise.influence.placebo import ELSEWHERE, OTHER
from lengthwise.influence.probing.hidden_context import MODES
from lengthwise.influence.probing.objective import OBJECTIVES
from lengthwise.influence.targets import Rule

# What selection by the measure is compared with: any k tokens; the same search among another text's far tokens, and
# among those from elsewhere in the same document.
CONTROLS = ("random", OTHER, ELSEWHERE)


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluenceSettings:
    """``near`` and ``far`` in tokens; ``ks`` are numbers of far tokens.

    Losses with the target's own, another text's and elsewhere's far tokens are measured of all ``num_targets`` (None:
    every one that the texts have). Far tokens are chosen for those that the ``rule`` calls clear with their own or with
    the other text's far tokens, and for a random ``background_fraction`` of the others. ``max_document_tokens`` cuts
    longer texts into pieces of so many tokens. ``sink`` tokens more, the first of each context, are never hidden:
    models that were trained without a first token of their own may rest their attention there. Targets are asked about
    ``block`` at a time; what is written is whole blocks.
    """

    near: int = 64
    far: int = 1024
    ks: tuple[int, ...] = (1, 2, 4, 8, 16)
    measure: InfluenceMeasure = field(default_factory=Greedy)
    modes: tuple[str, ...] = ("strict",)
    objectives: tuple[str, ...] = ("prediction",)
    controls: tuple[str, ...] = ("random", OTHER)
    random_draws: int = 4
    rule: Rule = field(default_factory=Rule)
    num_targets: int | None = 500
    background_fraction: float = 0.1
    max_document_tokens: int | None = None
    sink: int = 0
    seed: int = 0
    block: int = 16

    def __post_init__(self) -> None:
        check_types(self)
        for setting in ("near", "far", "random_draws", "block", "num_targets", "max_document_tokens"):
            value = getattr(self, setting)
            if value is not None and value < 1:
                raise SettingError(f"{setting} {value} measures nothing; use at least 1")
        if self.sink < 0:
            raise SettingError(f"sink {self.sink} is no number of tokens; use 0 or more")
        if not self.ks or min(self.ks) < 1 or list(self.ks) != sorted(set(self.ks)):
            raise SettingError(
                f"k {','.join(map(str, self.ks))} are no numbers of far tokens; give rising ones, such as 1,2,4,8"
            )
        if self.ks[-1] > self.far:
            raise SettingError(f"k {self.ks[-1]} is more than the {self.far} far tokens; use smaller ones, or more far")
        if not 0 <= self.background_fraction <= 1:
            raise SettingError(f"background_fraction {self.background_fraction} is not a fraction; use 0 to 1")
        self._check_names("mode", self.modes, MODES)
        self._check_names("objective", self.objectives, OBJECTIVES)
        if self.controls:
            self._check_names("control", self.controls, CONTROLS)

    @property
    def context(self) -> int:
        """The number of tokens before a target."""
        return self.sink + self.far + self.near

    def _check_names(self, kind: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
        if not names:
            raise SettingError(f"no {kind} is named; choose among {', '.join(known)}")
        for name in names:
            if name not in known:
                raise unknown_name(kind, name, known)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the measure by its name, with its own settings."""
        plain = asdict(self)
        plain["measure"] = measure_to_dict(self.measure)
        return plain


def measure_to_dict(measure: InfluenceMeasure) -> dict[str, Any]:
    """A measure's name and settings."""
    parts: dict[str, Any] = {"name": measure.name}
    for name in getattr(measure, "__slots__", ()):
        value = getattr(measure, name)
        parts[name] = measure_to_dict(value) if isinstance(value, InfluenceMeasure) else value
    return parts
