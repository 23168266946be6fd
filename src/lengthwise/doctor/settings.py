"""Settings of an examination of a language model."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_types, is_instance
from lengthwise.influence.report.bootstrap import MIN_DOCUMENTS

# Maximum number of targets in a block, and the smallest ratio of the trained context to this number.
MAX_TARGETS, CONTEXT_PER_TARGET = 256, 32
# Number of tokens before the first target in the shortest window.
MIN_CONTEXT = 64
# Fractions of the trained context that are always measured, and those beyond it, longest first.
FRACTIONS, EXTRAPOLATIONS = (1 / 8, 1 / 4, 1 / 2, 1.0), (4.0, 2.0, 1.5, 1.25)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorSettings:
    """Settings of an examination.

    ``lengths`` are the numbers of tokens that the model reads in one pass (None: chosen from the trained context).
    ``trained`` is the number of tokens that the model was trained on (None: read from its configuration). ``minutes``
    is the time limit, and ``documents`` the maximum number of documents.
    """

    lengths: tuple[int, ...] | None = None
    trained: int | None = None
    minutes: float = 20.0
    documents: int = 12
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self, is_instance)
        if not 0 < self.minutes < math.inf:
            raise SettingError(f"invalid minutes {self.minutes:g}; use a number above 0, such as 20")
        if self.documents < MIN_DOCUMENTS:
            raise SettingError(
                f"{self.documents} documents are too few for intervals; use at least {MIN_DOCUMENTS} for --documents"
            )
        if self.trained is not None and self.trained < 2 * CONTEXT_PER_TARGET:
            raise SettingError(f"invalid trained context {self.trained}; use at least {2 * CONTEXT_PER_TARGET} tokens")
        if self.lengths is not None:
            if len(self.lengths) < 2 or sorted(set(self.lengths)) != list(self.lengths):
                raise SettingError(f"invalid lengths {self.lengths}; use two or more, in increasing order")
            if self.lengths[0] < 2 * CONTEXT_PER_TARGET:
                raise SettingError(
                    f"invalid length {self.lengths[0]}; use lengths of at least {2 * CONTEXT_PER_TARGET} tokens"
                )

    def num_targets(self, trained: int) -> int:
        """Return the number of targets in a block for a model with this trained context."""
        limits = [MAX_TARGETS, trained // CONTEXT_PER_TARGET]
        if self.lengths is not None:
            # The shortest window has tokens before its targets.
            limits.append(max(self.lengths[0] // 4, self.lengths[0] - 1 - MIN_CONTEXT))
        return max(1, min(limits))

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return asdict(self)
