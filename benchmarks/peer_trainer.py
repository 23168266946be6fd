"""Training steps of ``transformers.Trainer``, which needs accelerate, in turns with other functions."""

import tempfile
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import transformers
from peer_models import CLIP, LEARNING_RATE
from rounds import Functions, Stopwatch, Times, run_round
from torch import Tensor

from lengthwise.training.batch import Batch

TRAINER = "GPT-NeoX Trainer"


class _StepTimer(transformers.TrainerCallback):
    """Callback that calls a function before the first and after every step of ``transformers.Trainer``."""

    def __init__(self, after_step: Callable[[], None]) -> None:
        self.after_step = after_step

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Call the function before the first step."""
        self.after_step()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Call the function after a step."""
        self.after_step()


class _TrainerOnHand(transformers.Trainer):
    """Trainer whose loader repeats one batch, so that its steps include no work for making batches."""

    batch: dict[str, Tensor]

    def get_train_dataloader(self) -> Sequence[dict[str, Tensor]]:
        """Return as many references to the batch as there are steps."""
        return list(repeat(self.batch, self.args.max_steps))


def run_hf_trainer(
    model: transformers.PreTrainedModel,
    batch: Batch,
    *,
    steps: int,
    folder: str,
    after_step: Callable[[], None],
    precision: str = "float32",
) -> None:
    """Train with ``transformers.Trainer``; it calls ``after_step`` before the first and after every step."""
    labels = batch.tokens.masked_fill(~batch.token_scored, -100)
    arguments = transformers.TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=len(batch.tokens),
        learning_rate=LEARNING_RATE,
        max_grad_norm=CLIP,
        optim="adamw_torch_fused",
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        bf16=precision == "bf16",
        use_cpu=batch.tokens.device.type == "cpu",
    )
    trainer = _TrainerOnHand(model=model, args=arguments, train_dataset=[{}], callbacks=[_StepTimer(after_step)])
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.batch = {"input_ids": batch.tokens, "labels": labels}
    trainer.train()


def times_with_trainer(
    functions: Functions, model: transformers.PreTrainedModel, batch: Batch, rounds: int, precision: str = "float32"
) -> Times:
    """Return the seconds per call of functions and of a step of ``transformers.Trainer``, which drives the rounds."""
    times: Times = {}
    stopwatches: list[Stopwatch] = []

    def after_step() -> None:
        if stopwatches:
            times.setdefault(TRAINER, []).append(stopwatches[-1].read())
        run_round(functions, times)
        stopwatches.append(Stopwatch())

    with tempfile.TemporaryDirectory() as folder:
        run_hf_trainer(model, batch, steps=rounds + 1, folder=folder, after_step=after_step, precision=precision)
    return {name: seconds[-rounds:] for name, seconds in times.items()}
