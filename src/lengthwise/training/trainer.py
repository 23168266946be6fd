"""Trainer that can stop and resume at any step, and its settings."""

import json
import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lengthwise.core.checkpoint import load_tensors, save_tensors
from lengthwise.core.errors import DivergedError, RunFolderError, SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.model.decoder import Decoder
from lengthwise.tasks import HasStages
from lengthwise.training.batch import Sampler
from lengthwise.training.loss import AnswerLoss, answer_loss, mix_predicted_ids
from lengthwise.training.training_state import STAGE_START, Progress, load_training, read_progress, training_tensors

# Number of logged rows per measurement of exact match.
ROWS_PER_EXACT_MATCH = 4
# Number of steps in the average that the running loss of a stage approximates.
STAGE_LOSS_WINDOW = 20
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
    (("weight_decay", "id_weight", "warmup_steps"), lambda number: number >= 0, "is negative; use 0 or more"),
    (("fit_every",), lambda steps: steps is None or steps >= 1, "is too small; use at least 1, or None"),
    (("stage_loss",), lambda loss: loss is None or loss > 0, "is not positive; use a number above 0, or None"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """Training budget and optimizer: AdamW with linear warm-up and linear decay to ``final_share`` of the rate.

    The examples of a step have ``lengths_per_batch`` different lengths (or all training lengths, if there are fewer).
    More lengths help sequential IDs to fit their training lengths, but a step takes longer; 1 trains every step on one
    length (``benchmarks/mixed_lengths.md``).

    The loss is the token loss plus ``id_weight`` times the ID loss. ``scheduled_sampling`` is the share of each batch
    that reads predicted response IDs instead of the correct IDs (PPC only; Mihaylova and Martins 2019, arXiv
    1906.07651); 0 is teacher forcing.

    If ``fit_every`` is set, exact match at the longest training length is measured every ``fit_every`` steps, and
    training ends once it reaches ``fit_threshold``. If ``cooldown_steps`` is set, training then continues for this
    number of steps, and the learning rate decays only in these steps.

    ``stage_loss`` enables a curriculum for tasks with stages, from easy to hard: the next stage starts once the running
    loss (mean over about ``STAGE_LOSS_WINDOW`` steps, in nats) is below ``stage_loss``. ``fit_every`` applies only to
    the last stage. Raises ``SettingError`` for a value of the wrong type or out of range.
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
    scheduled_sampling: float = 0.0
    log_every: int = 25
    checkpoint_every: int = 250
    fit_every: int | None = None
    fit_threshold: float = 0.99
    cooldown_steps: int = 0
    stage_loss: float | None = None
    precision: str = "auto"

    def __post_init__(self) -> None:
        check_types(self)
        for names, is_allowed, error in ALLOWED:
            for name in names:
                if not is_allowed(value := getattr(self, name)):
                    raise SettingError(f"{name} {value} {error}")
        if not 0 <= self.cooldown_steps <= self.steps:
            raise SettingError(
                f"cooldown_steps {self.cooldown_steps} is out of range; use 0 to {self.steps}, the number of steps"
            )
        if self.precision not in PRECISIONS:
            raise SettingError(f"precision '{self.precision}' is unknown; choose one of {', '.join(PRECISIONS)}")

    def rate(self, step: int, end: int | None = None) -> float:
        """Return the learning rate of a step; steps count from 0, and training ends before step ``end``."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        end = self.steps if end is None else end
        remaining = min(1.0, (end - step) / max(1, self.cooldown_steps or self.steps - self.warmup_steps))
        return self.learning_rate * (self.final_share + (1 - self.final_share) * remaining)


class Trainer:
    """Trainer of a decoder; a resumed run ends with the same weights as an uninterrupted one (bitwise on a CPU)."""

    def __init__(
        self, decoder: Decoder, sampler: Sampler, settings: TrainingSettings, folder: Path, belongs_to: str = ""
    ) -> None:
        """Initialize the trainer; ``restore`` rejects checkpoints whose experiment is not ``belongs_to``."""
        self.decoder = decoder
        self.settings = settings
        stages = (
            sampler.task.stages() if settings.stage_loss is not None and isinstance(sampler.task, HasStages) else ()
        )
        self.samplers = [replace(sampler, task=task) for task in stages] or [sampler]
        self.folder = folder
        self.progress = Progress(belongs_to=belongs_to)
        self.device = next(decoder.parameters()).device
        # The sums are on the device, so that adding to them does not synchronize.
        self.sums = torch.zeros(len(fields(AnswerLoss)), dtype=torch.float64, device=self.device)
        # The list saves a search through all modules in every step.
        self.parameters = list(decoder.parameters())
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for parameter in self.parameters:
            # No weight decay for parameters of shape (heads, 1, 1): it would flatten the attention of the heads.
            (matrices if sum(size > 1 for size in parameter.shape) >= 2 else others).append(parameter)
        groups: list[dict[str, Any]] = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(
            groups, lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay, fused=True
        )

    def run(
        self,
        *,
        report: Callable[[dict[str, Any]], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
        is_fit: Callable[[], bool] = lambda: False,
        exact_match: Callable[[], float] | None = None,
    ) -> bool:
        """Train to the end and return True, or save a checkpoint and return False once ``stop()`` is True.

        Each row of ``metrics.jsonl``, also passed to ``report``, has the metrics of its batch (``loss`` in nats,
        ``token_accuracy``, ``id_accuracy``, ``ids_in_reach``) and their means over all steps since the previous row
        (``mean_loss`` and so on). Every ``ROWS_PER_EXACT_MATCH`` rows and at the last step, the row also has
        ``exact_match``. Raises ``DivergedError`` if the loss is infinite or NaN at a logged row or a checkpoint.
        """
        settings, progress = self.settings, self.progress
        self.decoder.train()
        # Unbuffered, so that other processes can read each row immediately.
        with (self.folder / "metrics.jsonl").open("ab", buffering=0) as metrics:
            # Delete the rows after the newest checkpoint, because training logs them again.
            metrics.seek(metrics.truncate(min(progress.metrics_bytes, metrics.tell())))
            while not progress.finished:
                started = time.perf_counter()
                outcome = self.step()
                if progress.step % settings.log_every == 0 or progress.step == settings.steps:
                    self._check_loss(outcome)
                    row = self._row(outcome, exact_match)
                    metrics.write(json.dumps(row).encode() + b"\n")
                    if report is not None:
                        report(row)
                if progress.end is None and self._has_fit(is_fit):
                    progress.end = min(settings.steps, progress.step + settings.cooldown_steps)
                progress.finished = progress.step >= (settings.steps if progress.end is None else progress.end)
                progress.train_s += time.perf_counter() - started
                stopped = stop() and not progress.finished
                if stopped or progress.finished or progress.step % settings.checkpoint_every == 0:
                    self._check_loss(outcome)
                    os.fsync(metrics.fileno())
                    progress.metrics_bytes = metrics.tell()
                    self._save()
                if stopped:
                    return False
        return True

    def restore(self) -> bool:
        """Restore the newest complete checkpoint; return False if there is no checkpoint."""
        for path in sorted((self.folder / "checkpoints").glob("step-*.safetensors"), reverse=True):
            try:
                tensors, facts = load_tensors(path)
            except RunFolderError:
                continue
            self.progress = read_progress(
                path, facts, self.progress.belongs_to, len(self.samplers), self.settings.steps
            )
            load_training(path, tensors, self.decoder, self.optimizer)
            self.sums.copy_(torch.tensor(self.progress.sums, dtype=self.sums.dtype))
            return True
        return False

    def step(self) -> AnswerLoss:
        """Train on the examples of one step with one optimizer update, and return their loss."""
        progress = self.progress
        batches = self.samplers[progress.stage].batches(progress.step)
        progress.update_id_range([batch.position_ids for batch in batches])
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.rate(progress.step, progress.end)
        batches = [batch.to(self.device) for batch in batches]
        with self._precision():
            share = self.settings.scheduled_sampling
            input_ids = mix_predicted_ids(self.decoder, batches, share) if share else None
            outcome = answer_loss(self.decoder, batches, self.settings.id_weight, input_ids)
        for parameter in self.parameters:
            parameter.grad = None
        torch.autograd.backward(outcome.loss)
        nn.utils.clip_grad_norm_(self.parameters, self.settings.clip, foreach=True)
        self.optimizer.step()
        self.sums += torch.stack([getattr(outcome, part.name).detach().double() for part in fields(outcome)])
        progress.step += 1
        progress.summed_steps += 1
        if progress.stage < len(self.samplers) - 1:
            self._promote(outcome.loss.item())
        return outcome

    def _promote(self, loss: float) -> None:
        """Update the running loss, and move to the next stage if it is low enough."""
        progress, threshold = self.progress, self.settings.stage_loss
        progress.running_loss += (loss - progress.running_loss) / STAGE_LOSS_WINDOW
        if threshold is not None and progress.running_loss < threshold:
            progress.stage, progress.running_loss = progress.stage + 1, STAGE_START

    def _precision(self) -> AbstractContextManager[Any]:
        # "auto" uses float32 on a CPU: bf16 is faster there only with hardware support and a wide model
        # (benchmarks/speed.md).
        precision = self.settings.precision
        bf16 = precision == "bf16" or (precision == "auto" and self.device.type == "cuda")
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=bf16)

    def _check_loss(self, outcome: AnswerLoss) -> None:
        loss, settings = outcome.loss.item(), self.settings
        if not math.isfinite(loss):
            raise DivergedError(
                f"training diverged: the loss is {loss} at step {self.progress.step}; use a smaller learning_rate "
                f"(now {settings.learning_rate}) or a smaller clip (now {settings.clip})"
            )

    def _row(self, outcome: AnswerLoss, exact_match: Callable[[], float] | None) -> dict[str, Any]:
        settings, progress = self.settings, self.progress
        names = [part.name for part in fields(outcome)]
        values = {name: round(getattr(outcome, name).item(), 8) for name in names}
        means = {
            f"mean_{name}": round(total / progress.summed_steps, 8)
            for name, total in zip(names, self.sums.tolist(), strict=True)
        }
        self.sums.zero_()
        progress.summed_steps = 0
        is_due = progress.step % (ROWS_PER_EXACT_MATCH * settings.log_every) == 0 or progress.step == settings.steps
        match = {"exact_match": exact_match()} if is_due and exact_match is not None else {}
        rate = settings.rate(progress.step - 1, progress.end)
        stage = {"stage": progress.stage} if len(self.samplers) > 1 else {}
        return {"step": progress.step, **values, **means, **match, "learning_rate": rate, **stage}

    def _has_fit(self, is_fit: Callable[[], bool]) -> bool:
        every = self.settings.fit_every
        if every is None or self.progress.step % every or self.progress.stage < len(self.samplers) - 1:
            return False
        self.decoder.eval()
        fit = is_fit()
        self.decoder.train()
        return fit

    def _save(self) -> None:
        tensors = training_tensors(self.decoder, self.optimizer)
        self.progress.sums = self.sums.tolist()
        checkpoints = self.folder / "checkpoints"
        save_tensors(checkpoints / f"step-{self.progress.step:08d}.safetensors", tensors, asdict(self.progress))
        # Keep the previous checkpoint too, in case the newest one gets damaged.
        for old in sorted(checkpoints.glob("step-*.safetensors"))[:-2]:
            old.unlink()
