"""Settings of training: the budget, the optimizer and the curriculum."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_types

PRECISIONS = ("auto", "float32", "bf16")
# Names of settings, a function that accepts their valid values, and the end of the error message for other values.
ALLOWED: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (
        ("steps", "batch_size", "lengths_per_batch", "log_every", "checkpoint_every"),
        lambda number: number >= 1,
        "is too small; use at least 1",
    ),
    (("learning_rate", "clip"), lambda number: number > 0, "is not positive; use a number above 0"),
    (("betas",), lambda betas: all(0 <= beta < 1 for beta in betas), "are out of range; use 0 or more and less than 1"),
    (
        ("scheduled_sampling", "final_share", "fit_threshold"),
        lambda share: 0 <= share <= 1,
        "is out of range; use 0 to 1",
    ),
    (
        ("weight_decay", "id_weight", "length_tilt", "warmup_steps", "cooldown_steps"),
        lambda number: number >= 0,
        "is negative; use 0 or more",
    ),
    (("fit_every",), lambda steps: steps is None or steps >= 1, "is too small; use at least 1, or None"),
    (("stage_threshold",), lambda loss: loss is None or loss > 0, "is not positive; use a number above 0, or None"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """Training budget and optimizer: AdamW with linear warm-up and linear decay to ``final_share`` of the rate.

    The examples of a step have ``lengths_per_batch`` different lengths (or all training lengths, if there are fewer).
    More lengths help sequential IDs to fit their training lengths, but a step takes longer; 1 trains every step on one
    length (``benchmarks/mixed_lengths.md``).

    The loss is the token loss plus ``id_weight`` times the ID loss. ``scheduled_sampling`` is the share of each batch
    that reads predicted response IDs instead of the correct IDs (PPC only; Mihaylova and Martins 2019, arXiv
    1906.07651); 0 is teacher forcing. ``length_tilt`` weights the lengths of a step by their loss: 0 takes the mean
    over all tokens, and a large value the worst length (``LengthTiltedLoss``).

    If ``fit_every`` is set, exact match at the longest training length is measured every ``fit_every`` steps, and
    training ends once it reaches ``fit_threshold``. If ``cooldown_steps`` is set, training then continues for this
    number of steps, and the learning rate decays only in these steps. A run with fewer steps decays in all of them.

    ``stage_threshold`` enables a curriculum for tasks with stages, from easy to hard: the next stage starts once the
    running loss (mean over about 20 steps, in nats) is below ``stage_threshold``. ``fit_every`` applies only to the
    last stage. Raises ``SettingError`` for a value of the wrong type or out of range.
    """

    steps: int = 500
    batch_size: int = 64
    lengths_per_batch: int = 8
    learning_rate: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    warmup_steps: int = 50
    final_share: float = 0.02
    clip: float = 1.0
    id_weight: float = 1.0
    length_tilt: float = 0.0
    scheduled_sampling: float = 0.0
    log_every: int = 25
    checkpoint_every: int = 250
    fit_every: int | None = None
    fit_threshold: float = 0.99
    cooldown_steps: int = 0
    stage_threshold: float | None = None
    precision: str = "auto"

    def __post_init__(self) -> None:
        check_types(self)
        for names, is_allowed, error in ALLOWED:
            for name in names:
                if not is_allowed(value := getattr(self, name)):
                    raise SettingError(f"{name} {value} {error}")
        if self.precision not in PRECISIONS:
            raise SettingError(f"precision '{self.precision}' is unknown; choose one of {', '.join(PRECISIONS)}")

    def learning_rate_at(self, step: int, end: int | None = None) -> float:
        """Return the learning rate of a step; steps count from 0, and training ends before step ``end``."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        end, num_decay_steps = self.steps if end is None else end, self.steps - self.warmup_steps
        if self.cooldown_steps:
            num_decay_steps = min(num_decay_steps, self.cooldown_steps)
        remaining = min(1.0, (end - step) / max(1, num_decay_steps))
        return self.learning_rate * (self.final_share + (1 - self.final_share) * remaining)
