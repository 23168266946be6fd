"""Settings of an influence study."""

from dataclasses import asdict, dataclass, field
from typing import Any

from lengthwise.core.defaults import FAR_TOKENS
from lengthwise.core.errors import SettingError, unknown_name_error
from lengthwise.core.type_checks import check_at_least, check_types
from lengthwise.influence.hidden_context import MODES
from lengthwise.influence.measures import OBJECTIVES, InfluenceMeasure, ProposedGreedy
from lengthwise.influence.targets import ELSEWHERE_SOURCE, OTHER_SOURCE, ClearGainSelection
from lengthwise.influence.units import check_unit

# Controls: random or the nearest own units, and the same search among far tokens of another text or from elsewhere in
# the text.
CONTROL_SELECTIONS = ("random", "nearest", OTHER_SOURCE, ELSEWHERE_SOURCE)

# Default number of sink tokens in the modes that hide tokens which other tokens have read.
NUM_SINK_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluenceSettings:
    """Settings of an influence study; ``near`` and ``far`` are numbers of tokens, ``ks`` are numbers of units.

    ``unit`` is what a measure selects as a whole: ``token``, ``word``, ``sentence``, or ``span:N`` for N consecutive
    tokens. A study measures the losses with full contexts for all ``num_targets`` targets (None: every token with a
    full context). ``measure`` then selects ``ks`` units for about ``searched`` of the targets (None: for all). The
    probability of a target increases with the divergence that far tokens cause, and weights correct for it.
    ``max_document_tokens`` splits longer texts. Each context starts with ``sink`` tokens that are always visible and do
    not count as far tokens (default: 4 with the modes masked and decode, else 0). Models rest attention on the first
    tokens of a context, so in these modes a model without them fails for a reason other than missing information (Xiao
    et al. 2023, arXiv:2309.17453). Targets are sampled in blocks of ``block`` consecutive tokens, which share their far
    tokens, so one pass gives the losses of a block: the i-th target of a block has i more near tokens. A study writes
    rows in these blocks.
    """

    near: int = 64
    far: int = FAR_TOKENS
    ks: tuple[int, ...] = (1, 2, 4, 8, 16)
    unit: str = "span:8"
    measure: InfluenceMeasure = field(default_factory=ProposedGreedy)
    modes: tuple[str, ...] = ("strict",)
    objectives: tuple[str, ...] = ("prediction",)
    controls: tuple[str, ...] = ("random", "nearest", OTHER_SOURCE)
    random_draws: int = 1
    rule: ClearGainSelection = field(default_factory=ClearGainSelection)
    num_targets: int | None = 500
    searched: int | None = 200
    max_document_tokens: int | None = None
    sink: int | None = None
    seed: int = 0
    block: int = 16

    def __post_init__(self) -> None:
        check_types(self)
        check_at_least(
            self, 1, "near", "far", "random_draws", "block", "num_targets", "searched", "max_document_tokens"
        )
        check_at_least(self, 0, "sink")
        if not self.ks or min(self.ks) < 1 or list(self.ks) != sorted(set(self.ks)):
            ks = ",".join(map(str, self.ks))
            raise SettingError(f"invalid k {ks}; use increasing numbers of far tokens, such as 1,2,4,8")
        check_unit(self.unit, self.far, self.ks[-1])
        tables = {
            "mode": (self.modes, MODES),
            "objective": (self.objectives, OBJECTIVES),
            "control": (self.controls, CONTROL_SELECTIONS),
        }
        for setting, (names, options) in tables.items():
            if not names and setting != "control":
                raise SettingError(f"missing {setting}; use one or more of {', '.join(options)}")
            for name in names:
                if name not in options:
                    raise unknown_name_error(setting, name, options)

    @property
    def context(self) -> int:
        """Number of tokens before a target, including the sink tokens."""
        return self.num_sink_tokens + self.far + self.near

    @property
    def num_sink_tokens(self) -> int:
        """Number of sink tokens, which depends on the modes by default."""
        default = NUM_SINK_TOKENS if set(self.modes) - {"strict"} else 0
        return default if self.sink is None else self.sink

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values. The measure is a dictionary with its name and settings."""
        return asdict(self) | {"measure": _measure_to_dict(self.measure), "sink": self.num_sink_tokens}


def _measure_to_dict(measure: InfluenceMeasure) -> dict[str, Any]:
    json_settings: dict[str, Any] = {"name": measure.name}
    for name in getattr(measure, "__slots__", ()):
        value = getattr(measure, name)
        json_settings[name] = _measure_to_dict(value) if isinstance(value, InfluenceMeasure) else value
    return json_settings
