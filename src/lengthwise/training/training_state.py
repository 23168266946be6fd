"""State of a training run: the content of a checkpoint, and checks of this content when training resumes."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lengthwise.core.checkpoint import check_tensors, load_tensors
from lengthwise.core.errors import RunFolderError, SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.training.loss import AnswerLoss

# Folder of the checkpoints in a run folder, and file of the logged rows.
CHECKPOINTS, METRICS = "checkpoints", "metrics.jsonl"
# State of AdamW for each parameter.
OPTIMIZER_STATE = ("step", "exp_avg", "exp_avg_sq")
# Initial running loss of a stage, in nats.
STAGE_START = 1.0


@dataclass(slots=True)
class Progress:
    """Progress of a training run, saved in its checkpoints; ``belongs_to`` is the digest of the run's experiment."""

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
    # Sums over the steps since the last logged row, one for each field of ``AnswerLoss``.
    sums: list[float] = field(default_factory=lambda: [0.0] * len(fields(AnswerLoss)))
    summed_steps: int = 0

    def update_id_range(self, position_ids: Sequence[Tensor]) -> None:
        """Extend the range of training IDs, and the largest distance between two IDs of a sequence."""
        smallest = [ids.amin(dim=-1) for ids in position_ids]
        largest = [ids.amax(dim=-1) for ids in position_ids]
        self.smallest_id = min(self.smallest_id if self.step else math.inf, *(ids.min().item() for ids in smallest))
        self.largest_id = max(self.largest_id, *(ids.max().item() for ids in largest))
        distances = [(high - low).max().item() for low, high in zip(smallest, largest, strict=True)]
        self.largest_distance = max(self.largest_distance, *distances)


def iter_checkpoints(folder: Path) -> Iterator[tuple[Path, dict[str, Tensor], dict[str, Any]]]:
    """Yield the path, tensors and facts of each complete checkpoint in a run folder, the newest first."""
    for path in sorted((folder / CHECKPOINTS).glob("step-*.safetensors"), reverse=True):
        try:
            tensors, facts = load_tensors(path)
        except RunFolderError:
            continue
        yield path, tensors, facts


def read_progress(
    path: Path, facts: Mapping[str, Any], belongs_to: Collection[str], stages: int, steps: int
) -> Progress:
    """Return the progress in a checkpoint's facts; raise ``RunFolderError`` if they are invalid for this run.

    ``belongs_to`` contains the digests of the experiments whose checkpoints the run accepts.
    """
    progress = Progress()
    names = {part.name for part in fields(progress)}
    try:
        if other := names ^ {*facts}:
            raise SettingError(f"missing or unknown: {', '.join(sorted(other))}")
        for name, value in facts.items():
            setattr(progress, name, value)
        check_types(progress)
        counts = (progress.step, progress.metrics_bytes, progress.summed_steps, progress.stage)
        if min(counts) < 0 or progress.stage >= stages or max(progress.step, progress.end or 0) > steps:
            raise SettingError(f"counts {counts} or end {progress.end} do not match {steps} steps")
        sums: Any = progress.sums
        if not isinstance(sums, list) or [type(total) for total in sums] != [float] * len(fields(AnswerLoss)):
            raise SettingError(f"invalid sums {sums!r}")
    except SettingError as error:
        raise RunFolderError(f"{path} has invalid training facts ({error}); delete it to resume without it") from None
    if progress.belongs_to not in belongs_to:
        raise RunFolderError(f"{path} belongs to another experiment; train that one, or choose another --out")
    return progress


def training_tensors(decoder: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return weights and optimizer state by name; before the first step, the state has placeholders of equal shape."""
    tensors = {f"model.{name}": tensor for name, tensor in decoder.state_dict().items()}
    for name, parameter in decoder.named_parameters():
        state = optimizer.state.get(parameter) or dict(
            zip(OPTIMIZER_STATE, (torch.zeros(()), parameter, parameter), strict=True)
        )
        tensors |= {f"{part}.{name}": state[part] for part in OPTIMIZER_STATE}
    return tensors


def add_optimizer_state(decoder: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Add the initial state of AdamW for every parameter without state, as its first step would."""
    for parameter in decoder.parameters():
        if not optimizer.state.get(parameter):
            zeros = torch.zeros((), device=parameter.device), torch.zeros_like(parameter), torch.zeros_like(parameter)
            optimizer.state[parameter] = dict(zip(OPTIMIZER_STATE, zeros, strict=True))


def load_training(
    path: Path, tensors: Mapping[str, Tensor], decoder: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Load weights and optimizer state from a checkpoint; raise ``RunFolderError`` for a wrong name, shape or type.

    A fused optimizer does not check the sizes of its state and would write out of bounds.
    """
    check_tensors(path, tensors, training_tensors(decoder, optimizer))
    decoder.load_state_dict({name[6:]: tensor for name, tensor in tensors.items() if name.startswith("model.")})
    for name, parameter in decoder.named_parameters():
        optimizer.state[parameter] = {part: tensors[f"{part}.{name}"].to(parameter.device) for part in OPTIMIZER_STATE}
