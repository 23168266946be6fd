"""Where a training stands: all that a checkpoint holds, and what is checked before a training goes on with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lengthwise.core.checkpoint import check_tensors
from lengthwise.core.errors import RunFolderError, SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.training.loss import AnswerLoss

# What AdamW keeps of each parameter.
KEPT = ("step", "exp_avg", "exp_avg_sq")
# What the running loss of a stage starts at, in nats.
STAGE_START = 1.0


@dataclass(slots=True)
class Progress:
    """Where a run stands: all that a checkpoint holds beside tensors.

    ``belongs_to``: the digest of the experiment that is trained.
    """

    belongs_to: str = ""
    step: int = 0
    smallest_id: int | float = 0
    largest_id: int | float = 0
    largest_distance: int | float = 0
    metrics_bytes: int = 0
    train_s: float = 0.0
    end: int | None = None
    finished: bool = False
    stage: int = 0
    running_loss: float = STAGE_START
    # Sums over the steps since the last logged row, one for each number of ``AnswerLoss``.
    sums: list[float] = field(default_factory=lambda: [0.0] * len(fields(AnswerLoss)))
    summed_steps: int = 0

    def saw(self, position_ids: Tensor) -> None:
        """Widen the range of IDs met in training; a distance is that of the outermost IDs of one sequence."""
        smallest, largest = position_ids.amin(dim=-1), position_ids.amax(dim=-1)
        self.smallest_id = smallest.min().item() if self.step == 0 else min(self.smallest_id, smallest.min().item())
        self.largest_id = max(self.largest_id, largest.max().item())
        self.largest_distance = max(self.largest_distance, (largest - smallest).max().item())


def read_progress(path: Path, facts: Mapping[str, Any], belongs_to: str, stages: int, steps: int) -> Progress:
    """Read the facts of a checkpoint; ``RunFolderError`` for those of no training of so many stages and steps."""
    progress = Progress()
    named = {part.name for part in fields(progress)}
    try:
        if other := named ^ {*facts}:
            raise SettingError(f"{', '.join(sorted(other))} missing or unknown")
        for name, value in facts.items():
            setattr(progress, name, value)
        check_types(progress)
        counts = (progress.step, progress.metrics_bytes, progress.summed_steps, progress.stage)
        if min(counts) < 0 or progress.stage >= stages or max(progress.step, progress.end or 0) > steps:
            raise SettingError(f"{counts} and the end {progress.end} are none of {steps} steps")
        sums: Any = progress.sums
        if not isinstance(sums, list) or [type(each) for each in sums] != [float] * len(fields(AnswerLoss)):
            raise SettingError(f"sums {sums!r}")
    except SettingError as error:
        raise RunFolderError(f"{path} has facts of no training ({error}); delete it to go on without it") from None
    if progress.belongs_to != belongs_to:
        raise RunFolderError(f"{path} belongs to another experiment; train that one, or choose another --out")
    return progress


def training_tensors(decoder: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights and what the optimizer keeps of each; before the first step, tensors of the same form."""
    tensors = {f"model.{name}": tensor for name, tensor in decoder.state_dict().items()}
    for name, parameter in decoder.named_parameters():
        state = optimizer.state.get(parameter) or dict(zip(KEPT, (torch.zeros(()), parameter, parameter), strict=True))
        tensors |= {f"{part}.{name}": state[part] for part in KEPT}
    return tensors


def load_training(
    path: Path, tensors: Mapping[str, Tensor], decoder: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Put the tensors of a checkpoint where they belong; ``RunFolderError`` where one has another form.

    A fused optimizer does not look at sizes: it would write past the end of what it is given.
    """
    check_tensors(path, tensors, training_tensors(decoder, optimizer))
    decoder.load_state_dict({name[6:]: tensor for name, tensor in tensors.items() if name.startswith("model.")})
    for name, parameter in decoder.named_parameters():
        optimizer.state[parameter] = {part: tensors[f"{part}.{name}"].to(parameter.device) for part in KEPT}
