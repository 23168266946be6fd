"""Trainer that can stop and resume at any step, and the checkpoints with its state."""

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

from lengthwise.core.checkpoint import check_tensors, load_tensors, save_tensors
from lengthwise.core.errors import DivergedError, RunFolderError, SettingError
from lengthwise.core.files import check_regular_file
from lengthwise.core.type_checks import check_types
from lengthwise.model.decoder import Decoder
from lengthwise.training.batch import Batch, TrainingSampler
from lengthwise.training.cuda_graph_step import CUDAGraphTrainingStep, is_compilation_worthwhile
from lengthwise.training.loss import AnswerLoss, LengthTiltedLoss, compute_answer_loss, mix_predicted_ids
from lengthwise.training.process_group import ONE_PROCESS, ProcessGroup
from lengthwise.training.training_settings import TrainingSettings

# Number of logged rows per measurement of exact match.
ROWS_PER_EXACT_MATCH = 4
# Values of ``AnswerLoss`` that only a decoder with a position head has.
ID_VALUES = ("id_accuracy", "ids_in_reach")
# Number of steps in the average that the running loss of a stage approximates.
STAGE_LOSS_WINDOW = 20
# Folder of the checkpoints in a run folder, and file of the logged rows.
CHECKPOINTS, METRICS = "checkpoints", "metrics.jsonl"
# State of AdamW for each parameter.
OPTIMIZER_STATE = ("step", "exp_avg", "exp_avg_sq")
# Initial running loss of a stage, in nats.
STAGE_START = 1.0


@dataclass(slots=True)
class TrainingProgress:
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


def read_training_progress(
    path: Path, facts: Mapping[str, Any], belongs_to: Collection[str], stages: int, steps: int
) -> TrainingProgress:
    """Return the progress in a checkpoint's facts; raise ``RunFolderError`` if they are invalid for this run.

    ``belongs_to`` contains the digests of the experiments whose checkpoints the run accepts.
    """
    progress = TrainingProgress()
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


def training_state_tensors(decoder: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
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


def load_training_state(
    path: Path, tensors: Mapping[str, Tensor], decoder: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Load weights and optimizer state from a checkpoint; raise ``RunFolderError`` for a wrong name, shape or type.

    A fused optimizer does not check the sizes of its state and would write out of bounds.
    """
    check_tensors(path, tensors, training_state_tensors(decoder, optimizer))
    decoder.load_state_dict({name[6:]: tensor for name, tensor in tensors.items() if name.startswith("model.")})
    for name, parameter in decoder.named_parameters():
        optimizer.state[parameter] = {part: tensors[f"{part}.{name}"].to(parameter.device) for part in OPTIMIZER_STATE}


class BatchPrefetcher:
    """Batches of each stage and step, which a thread can prepare while a GPU computes the step before."""

    def __init__(self, prepare: Callable[[int, int], list[Batch]]) -> None:
        self.prepare = prepare
        self.executor = ThreadPoolExecutor(1, "lengthwise-batches")
        self.pending: dict[tuple[int, int], Future[list[Batch]]] = {}

    def start(self, stage: int, step: int) -> None:
        """Start to prepare the batches of a step, and forget those of any other step."""
        self.pending = {(stage, step): self.executor.submit(self.prepare, stage, step)}

    def get(self, stage: int, step: int) -> list[Batch]:
        """Return the batches of a step."""
        future = self.pending.pop((stage, step), None)
        return self.prepare(stage, step) if future is None else future.result()


class Trainer:
    """Trainer of a decoder; a resumed run ends with the same weights as an uninterrupted one (bitwise on a CPU)."""

    def __init__(
        self,
        decoder: Decoder,
        sampler: TrainingSampler,
        settings: TrainingSettings,
        folder: Path,
        belongs_to: str = "",
        processes: ProcessGroup = ONE_PROCESS,
    ) -> None:
        """Initialize the trainer; ``restore`` rejects checkpoints whose experiment is not ``belongs_to``.

        Only the first of several ``processes`` uses the folder. The others need ``restore`` before ``run``.
        """
        self.decoder = decoder
        self.processes = processes
        self.settings = settings
        stages = () if settings.stage_threshold is None else sampler.task.curriculum_stages()
        self.samplers = [replace(sampler, task=task) for task in stages] or [sampler]
        tilt = settings.length_tilt
        self.tilt = LengthTiltedLoss(tilt=tilt, max_length=sampler.lengths[1]) if tilt else None
        self.folder = folder
        self.progress = TrainingProgress(belongs_to=belongs_to)
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
        on_gpu = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            groups,
            # A recorded step reads the rate from the GPU.
            lr=torch.tensor(settings.learning_rate, device=self.device) if on_gpu else settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
            capturable=on_gpu,
        )
        num_parameters = sum(parameter.numel() for parameter in self.parameters)
        # A recording cannot contain the messages between processes.
        is_recorded = on_gpu and processes.size == 1
        self.recorder = CUDAGraphTrainingStep(self.update, num_parameters) if is_recorded else None
        self.prefetcher = BatchPrefetcher(self._prepare)
        decoder.compiles_training = on_gpu and is_compilation_worthwhile(sampler, settings.steps, num_parameters)

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
        (``mean_loss`` and so on). The values of IDs are None for a decoder that predicts no IDs. Every
        ``ROWS_PER_EXACT_MATCH`` rows and at the last step, the row also has ``exact_match``. Rows after the measurement
        at which the run fits have ``last_step``, at which training ends.
        Raises ``DivergedError`` if the loss is infinite or NaN at a logged row or a checkpoint.

        With several processes, ``stop()`` in any process stops all after the same step. ``is_fit`` is called only in
        the first process.
        """
        settings, progress = self.settings, self.progress
        self.decoder.train()
        with self._open_metrics() as metrics:
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
                stopped = self.processes.any_process(stop()) and not progress.finished
                if stopped or progress.finished or progress.step % settings.checkpoint_every == 0:
                    self._check_loss(outcome)
                    os.fsync(metrics.fileno())
                    progress.metrics_bytes = metrics.tell()
                    self.processes.call_in_first(self._save)
                if stopped:
                    return False
        return True

    def restore(self, earlier: Collection[str] = ()) -> bool:
        """Restore the newest complete checkpoint; return False if there is no checkpoint.

        ``earlier`` contains the digests of experiments that this run extends. A checkpoint of such an experiment
        continues with the schedule of this run, also if the earlier run had ended. All processes get the state of the
        first.
        """
        is_restored, self.progress = self.processes.call_in_first(lambda: self._read_newest_checkpoint(earlier))
        if self.processes.size > 1:
            add_optimizer_state(self.decoder, self.optimizer)
            self.processes.broadcast_from_first(list(training_state_tensors(self.decoder, self.optimizer).values()))
        self.sums.copy_(torch.tensor(self.progress.sums, dtype=self.sums.dtype))
        return is_restored

    def _read_newest_checkpoint(self, earlier: Collection[str]) -> tuple[bool, TrainingProgress]:
        belongs_to = self.progress.belongs_to
        for path, tensors, facts in iter_checkpoints(self.folder):
            progress = read_training_progress(
                path, facts, (belongs_to, *earlier), len(self.samplers), self.settings.steps
            )
            if progress.belongs_to != belongs_to:
                progress = replace(progress, belongs_to=belongs_to, end=None, finished=False)
            load_training_state(path, tensors, self.decoder, self.optimizer)
            return True, progress
        return False, self.progress

    def _open_metrics(self) -> IO[bytes]:
        if self.processes.rank > 0:
            return tempfile.TemporaryFile(buffering=0)
        # Unbuffered, so that other processes can read each row immediately.
        path = self.folder / METRICS
        if path.exists():
            check_regular_file(path)
        return path.open("ab", buffering=0)

    def step(self) -> AnswerLoss:
        """Train on the examples of one step with one optimizer update, and return their loss."""
        progress = self.progress
        batches = self.prefetcher.get(progress.stage, progress.step)
        progress.update_id_range([batch.position_ids for batch in batches])
        self._set_rate(self.settings.learning_rate_at(progress.step, progress.end))
        if self.recorder is not None:
            outcome = self.recorder.step(batches, self.device)
            self.prefetcher.start(progress.stage, progress.step + 1)
        else:
            if self.processes.size > 1:
                batches = [batch.take_shard(self.processes.rank, self.processes.size) for batch in batches]
            outcome = self.update([batch.to(self.device) for batch in batches])
        progress.step += 1
        progress.summed_steps += 1
        if progress.stage < len(self.samplers) - 1:
            self._promote(outcome.loss.item())
        return outcome

    def update(self, batches: Sequence[Batch]) -> AnswerLoss:
        """Update the weights once, add to ``sums``, and return the loss of the batches before the update."""
        with self._precision():
            share = self.settings.scheduled_sampling
            input_ids = mix_predicted_ids(self.decoder, batches, share) if share else None
            id_weight = self.settings.id_weight
            outcome = compute_answer_loss(self.decoder, batches, id_weight, input_ids, self.processes, self.tilt)
        for parameter in self.parameters:
            parameter.grad = None
        torch.autograd.backward(outcome.loss)
        values = [getattr(outcome, part.name).detach() for part in fields(outcome)]
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        self.processes.all_reduce_sum([*gradients, *values])
        nn.utils.clip_grad_norm_(self.parameters, self.settings.clip, foreach=True)
        self.optimizer.step()
        self.sums += torch.stack([value.double() for value in values])
        return AnswerLoss(**dict(zip([part.name for part in fields(outcome)], values, strict=True)))

    def _prepare(self, stage: int, step: int) -> list[Batch]:
        """Return the batches of a step, on the CPU."""
        batches = self.samplers[stage].batches(step)
        return batches if self.recorder is None else self.recorder.prepare_batches(batches)

    def _set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _promote(self, loss: float) -> None:
        """Update the running loss, and move to the next stage if it is low enough."""
        progress, threshold = self.progress, self.settings.stage_threshold
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
        values: dict[str, float | None] = {name: round(getattr(outcome, name).item(), 8) for name in names}
        means: dict[str, float | None] = {
            f"mean_{name}": round(total / progress.summed_steps, 8)
            for name, total in zip(names, self.sums.tolist(), strict=True)
        }
        if not self.decoder.predicts_ids:
            # Not the constants of the loss, which look like perfect predictions.
            values |= dict.fromkeys(ID_VALUES)
            means |= {f"mean_{name}": None for name in ID_VALUES}
        self.sums.zero_()
        progress.summed_steps = 0
        is_due = progress.step % (ROWS_PER_EXACT_MATCH * settings.log_every) == 0 or progress.step == settings.steps
        match = {"exact_match": exact_match()} if is_due and exact_match is not None else {}
        rate = settings.learning_rate_at(progress.step - 1, progress.end)
        end = {} if progress.end is None else {"last_step": progress.end}
        stage = {"stage": progress.stage} if len(self.samplers) > 1 else {}
        return {"step": progress.step, **values, **means, **match, "learning_rate": rate, **end, **stage}

    def _has_fit(self, is_fit: Callable[[], bool]) -> bool:
        every = self.settings.fit_every
        if every is None or self.progress.step % every or self.progress.stage < len(self.samplers) - 1:
            return False
        self.decoder.eval()
        fit = self.processes.call_in_first(is_fit)
        self.decoder.train()
        return fit

    def _save(self) -> None:
        tensors = training_state_tensors(self.decoder, self.optimizer)
        self.progress.sums = self.sums.tolist()
        checkpoints = self.folder / CHECKPOINTS
        save_tensors(checkpoints / f"step-{self.progress.step:08d}.safetensors", tensors, asdict(self.progress))
        # Keep the previous checkpoint too, in case the newest one gets damaged.
        for old in sorted(checkpoints.glob("step-*.safetensors"))[:-2]:
            old.unlink()
