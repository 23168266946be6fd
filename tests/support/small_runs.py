"""Small experiments that train in less than a second, and functions that read run folders."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lengthwise.core.checkpoint import load_tensors
from lengthwise.encodings import EncodingSettings, Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment, build_decoder, build_sampler
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import PositionScheme, Predicted
from lengthwise.tasks import Parity, Task
from lengthwise.training.batch import TrainingSampler
from lengthwise.training.trainer import Trainer
from lengthwise.training.training_settings import TrainingSettings


def small_experiment(
    task: Task | None = None,
    scheme: PositionScheme | None = None,
    encoding: EncodingSettings | None = None,
    *,
    head: str = "pointer",
    **training: Any,
) -> Experiment:
    """Return an experiment with 12 steps of a one-layer decoder on lengths up to 4.

    Each step has one length, which takes less time than several; ``tests/training/test_mixed_batches.py`` has several.
    """
    budget = {"steps": 12, "batch_size": 4, "warmup_steps": 3, "log_every": 2, "checkpoint_every": 4}
    budget |= {"lengths_per_batch": 1, **training}
    return Experiment(
        task=Parity() if task is None else task,
        scheme=Predicted(num_position_ids=48) if scheme is None else scheme,
        encoding=Rotary() if encoding is None else encoding,
        decoder=DecoderSettings(num_layers=1, d_model=16, num_heads=2, head=head),
        training=TrainingSettings(**budget),
        train_lengths=(1, 4),
        evaluation=EvaluationSettings(lengths=(4, 8), num_examples=(16,)),
    )


def sampler_of(experiment: Experiment) -> TrainingSampler:
    """Return the sampler of training batches of an experiment."""
    return build_sampler(experiment, experiment.train_lengths)


def trainer_of(experiment: Experiment, folder: Path) -> Trainer:
    """Return a trainer at step 0 with the initial weights of the decoder."""
    return Trainer(build_decoder(experiment), sampler_of(experiment), experiment.training, folder)


def decoder_after(experiment: Experiment, steps: int, folder: Path) -> Decoder:
    """Return a decoder after a number of training steps."""
    settings = replace(experiment.training, steps=steps, checkpoint_every=steps)
    trainer = trainer_of(replace(experiment, training=settings), folder)
    trainer.run()
    return trainer.decoder.eval()


def stop_after(steps: int) -> Callable[[], bool]:
    """Return a stop condition for a trainer; it is true after this number of steps."""
    calls = []

    def stop() -> bool:
        calls.append(1)
        return len(calls) >= steps

    return stop


def run_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return copies of the weights of a run, because the loaded tensors share memory with the file."""
    return {name: tensor.clone() for name, tensor in load_tensors(folder / "model.safetensors")[0].items()}


def training_facts(folder: Path) -> dict[str, Any]:
    """Return the facts that a run stores about its training, without the training time."""
    return {
        name: fact
        for name, fact in load_tensors(folder / "model.safetensors")[1].items()
        if name not in ("train_s", "belongs_to")
    }


def equal_tensors(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Return True if both dictionaries contain equal tensors under the same names, to the last bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def folder_contents(folder: Path) -> dict[str, bytes | None]:
    """Return the content of every path in a folder; subfolders have the content None."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
