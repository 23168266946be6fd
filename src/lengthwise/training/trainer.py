"""Training: a trainer that stops and resumes at any step."""

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
from lengthwise.training.loss import AnswerLoss, answer_loss, feed_own_ids
from lengthwise.training.training_state import STAGE_START, Progress, load_training, read_progress, training_tensors

# Logged rows between two measurements of exact match while training.
MATCH_EVERY = 4
# Steps that the running loss of a stage remembers.
STAGE_MEMORY = 20
PRECISIONS = ("auto", "float32", "bf16")
# What settings may be, and what is said of any other value.
ALLOWED: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (
        ("steps", "batch_size", "log_every", "checkpoint_every"),
        lambda number: number >= 1,
        "trains nothing; use at least 1",
    ),
    (("learning_rate",), lambda rate: rate > 0, "trains nothing; use a positive number"),
    (("clip",), lambda norm: norm > 0, "leaves nothing of a gradient; use a positive number"),
    (("betas",), lambda betas: all(0 <= beta < 1 for beta in betas), "are no shares; use 0 to below 1"),
    (("own_ids", "final_share", "fit_threshold"), lambda share: 0 <= share <= 1, "is no share; use 0 to 1"),
    (("weight_decay", "id_weight", "warmup_steps"), lambda size: size >= 0, "is no size; use 0 or more"),
    (("fit_every",), lambda steps: steps is None or steps >= 1, "looks for no fit; use at least 1, or None"),
    (("stage_loss",), lambda loss: loss is None or loss > 0, "is never reached; use a positive number, or None"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """Budget and optimiser (AdamW, linear warm-up, linear decay to ``final_share`` of the learning rate).

    ``id_weight`` is the weight of the ID loss beside the token loss. ``own_ids`` is the share of each batch that is fed
    the response IDs which the decoder predicts, in place of the right ones (PPC only; in parallel, from one pass with
    the right ones, after Mihaylova and Martins 2019, arXiv 1906.07651): 0 is teacher forcing.

    With ``fit_every``, training ends as soon as exact match at the longest training length reaches ``fit_threshold``,
    looked at every so many steps. With ``cooldown_steps`` it then goes on for so many: the learning rate stays up until
    there, and decays only in them.

    ``stage_loss`` is a curriculum, for tasks with stages: training begins with the easiest, and goes on to the next as
    soon as the running loss (its mean over about ``STAGE_MEMORY`` steps) is below. Only the last is asked for a fit.
    """

    steps: int = 500
    batch_size: int = 64
    learning_rate: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    warmup_steps: int = 50
    final_share: float = 0.02
    clip: float = 1.0
    id_weight: float = 1.0
    own_ids: float = 0.0
    log_every: int = 25
    checkpoint_every: int = 250
    fit_every: int | None = None
    fit_threshold: float = 0.99
    cooldown_steps: int = 0
    stage_loss: float | None = None
    precision: str = "auto"

    def __post_init__(self) -> None:
        check_types(self)
        for names, allowed, told in ALLOWED:
            for name in names:
                if not allowed(value := getattr(self, name)):
                    raise SettingError(f"{name} {value} {told}")
        if not 0 <= self.cooldown_steps <= self.steps:
            raise SettingError(
                f"cooldown_steps {self.cooldown_steps} is not within the {self.steps} steps; use 0 or up to as many"
            )
        if self.precision not in PRECISIONS:
            raise SettingError(f"precision '{self.precision}' is unknown; choose one of {', '.join(PRECISIONS)}")

    def rate(self, step: int, end: int | None = None) -> float:
        """The learning rate of a step, counted from 0, of a training that ends before ``end``."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        end = self.steps if end is None else end
        left = min(1.0, (end - step) / max(1, self.cooldown_steps or self.steps - self.warmup_steps))
        return self.learning_rate * (self.final_share + (1 - self.final_share) * left)


class Trainer:
    """Trains a decoder; stopped and resumed, it ends with the same weights (on CPU, to the bit)."""

    def __init__(
        self, decoder: Decoder, sampler: Sampler, settings: TrainingSettings, folder: Path, belongs_to: str = ""
    ) -> None:
        """``belongs_to`` is kept in checkpoints: one of another training is refused."""
        self.decoder = decoder
        self.settings = settings
        stages = (
            sampler.task.stages() if settings.stage_loss is not None and isinstance(sampler.task, HasStages) else ()
        )
        self.samplers = [replace(sampler, task=task) for task in stages] or [sampler]
        self.folder = folder
        self.progress = Progress(belongs_to=belongs_to)
        self.device = next(decoder.parameters()).device
        # Kept on the device: adding a step up must not wait for it.
        self.sums = torch.zeros(len(fields(AnswerLoss)), dtype=torch.float64, device=self.device)
        decayed: list[nn.Parameter] = []
        kept: list[nn.Parameter] = []
        for parameter in decoder.parameters():
            # A number per head, of shape (heads, 1, 1), is no matrix: decay would change how sharply it attends.
            (decayed if sum(size > 1 for size in parameter.shape) >= 2 else kept).append(parameter)
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": kept, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(
            groups, lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay, fused=True
        )

    def run(
        self,
        *,
        report: Callable[[dict[str, Any]], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
        fitted: Callable[[], bool] = lambda: False,
        exact_match: Callable[[], float] | None = None,
    ) -> bool:
        """Train to the end; False when ``stop`` asked to leave earlier, with a checkpoint of where that was.

        A row of ``metrics.jsonl``, also given to ``report``, holds the numbers of its own batch (``loss`` in nats,
        ``token_accuracy``, ``id_accuracy``, ``ids_in_reach``) and, as ``mean_loss`` and so on, their means over all
        steps since the row before. Every ``MATCH_EVERY`` rows, and in the last step, ``exact_match`` is measured too.
        ``DivergedError`` when the loss is infinite or no number where it is logged or a checkpoint is due.
        """
        settings, progress = self.settings, self.progress
        self.decoder.train()
        # Without a buffer, so that each row can be read at once.
        with (self.folder / "metrics.jsonl").open("ab", buffering=0) as metrics:
            # What was logged after the newest checkpoint is logged again.
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
                if progress.end is None and self._fits(fitted):
                    progress.end = min(settings.steps, progress.step + settings.cooldown_steps)
                progress.finished = progress.step >= (settings.steps if progress.end is None else progress.end)
                progress.train_s += time.perf_counter() - started
                leave = stop() and not progress.finished
                if leave or progress.finished or progress.step % settings.checkpoint_every == 0:
                    self._check_loss(outcome)
                    os.fsync(metrics.fileno())
                    progress.metrics_bytes = metrics.tell()
                    self._save()
                if leave:
                    return False
        return True

    def restore(self) -> bool:
        """Go on from the newest complete checkpoint; False when there is none yet."""
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
        """One batch, one update."""
        progress = self.progress
        batch = self.samplers[progress.stage].batch(progress.step)
        progress.saw(batch.position_ids)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.rate(progress.step, progress.end)
        batch = batch.to(self.device)
        with self._precision():
            fed = feed_own_ids(self.decoder, batch, self.settings.own_ids) if self.settings.own_ids else None
            outcome = answer_loss(self.decoder, batch, self.settings.id_weight, fed)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(outcome.loss)
        nn.utils.clip_grad_norm_(self.decoder.parameters(), self.settings.clip)
        self.optimizer.step()
        self.sums += torch.stack([getattr(outcome, part.name).detach().double() for part in fields(outcome)])
        progress.step += 1
        progress.summed_steps += 1
        if progress.stage < len(self.samplers) - 1:
            self._promote(outcome.loss.item())
        return outcome

    def _promote(self, loss: float) -> None:
        """Go on to the next stage, if this one is learned."""
        progress, wanted = self.progress, self.settings.stage_loss
        progress.running_loss += (loss - progress.running_loss) / STAGE_MEMORY
        if wanted is not None and progress.running_loss < wanted:
            progress.stage, progress.running_loss = progress.stage + 1, STAGE_START

    def _precision(self) -> AbstractContextManager[Any]:
        # On a CPU bf16 is a choice: it is faster only where the processor has it and the model is wide enough
        # (benchmarks/speed.md).
        wanted = self.settings.precision
        bf16 = wanted == "bf16" or (wanted == "auto" and self.device.type == "cuda")
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
        measured = {name: round(getattr(outcome, name).item(), 8) for name in names}
        means = {
            f"mean_{name}": round(total / progress.summed_steps, 8)
            for name, total in zip(names, self.sums.tolist(), strict=True)
        }
        self.sums.zero_()
        progress.summed_steps = 0
        due = progress.step % (MATCH_EVERY * settings.log_every) == 0 or progress.step == settings.steps
        match = {"exact_match": exact_match()} if due and exact_match is not None else {}
        rate = settings.rate(progress.step - 1, progress.end)
        stage = {"stage": progress.stage} if len(self.samplers) > 1 else {}
        return {"step": progress.step, **measured, **means, **match, "learning_rate": rate, **stage}

    def _fits(self, fitted: Callable[[], bool]) -> bool:
        every = self.settings.fit_every
        if every is None or self.progress.step % every or self.progress.stage < len(self.samplers) - 1:
            return False
        self.decoder.eval()
        fits = fitted()
        self.decoder.train()
        return fits

    def _save(self) -> None:
        tensors = training_tensors(self.decoder, self.optimizer)
        self.progress.sums = self.sums.tolist()
        checkpoints = self.folder / "checkpoints"
        save_tensors(checkpoints / f"step-{self.progress.step:08d}.safetensors", tensors, asdict(self.progress))
        # The one before stays, in case this one is damaged later.
        for old in sorted(checkpoints.glob("step-*.safetensors"))[:-2]:
            old.unlink()
