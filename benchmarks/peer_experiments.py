"""Experiments, batches and training steps of lengthwise that are compared with other libraries."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from peer_models import Shape

import lengthwise as lw
from lengthwise.experiments.experiment import Experiment, build_decoder
from lengthwise.experiments.recipes import with_scheme_and_encoding
from lengthwise.positions import Sequential
from lengthwise.tasks import Parity
from lengthwise.training.batch import Batch, TrainingSampler
from lengthwise.training.trainer import Trainer

SCHEMES = {"plain": "sequential", "coupled": "coupled", "PPC": "predicted"}
SIZES = {"2 x 64": (2, 64), "2 x 128": (2, 128), "4 x 256": (4, 256)}
BATCH, TRAIN_LENGTH, DECODE_SIZE = 64, 20, "2 x 128"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedBatch(TrainingSampler):
    """Replacement of the sampler that returns the same batch at every step."""

    batch: Batch

    def batches(self, step: int) -> list[Batch]:
        """Return the batch."""
        return [self.batch]


def repeat_batch(batch: Batch) -> PreparedBatch:
    """Return a sampler of this batch."""
    lengths, size = (batch.length, batch.length), len(batch.tokens)
    return PreparedBatch(task=Parity(), scheme=Sequential(), lengths=lengths, batch_size=size, seed=0, batch=batch)


def experiment_of(scheme: str, size: str) -> Experiment:
    """Return the parity recipe with a scheme and a decoder size."""
    num_layers, d_model = SIZES[size]
    base = with_scheme_and_encoding(lw.recipe("parity"), SCHEMES[scheme])
    decoder = replace(base.decoder, num_layers=num_layers, d_model=d_model, num_heads=d_model // 32)
    return replace(base, decoder=decoder, training=replace(base.training, steps=1_000_000, batch_size=BATCH))


def sampler_of(experiment: Experiment, length: int, num_examples: int) -> TrainingSampler:
    """Return a sampler of examples of one length."""
    return TrainingSampler(
        task=experiment.task, scheme=experiment.scheme, lengths=(length, length), batch_size=num_examples, seed=0
    )


def sample_batch(experiment: Experiment, length: int, num_examples: int) -> Batch:
    """Return examples of one length."""
    return sampler_of(experiment, length, num_examples).batches(0)[0]


def shape_of(experiment: Experiment) -> Shape:
    """Return the sizes that a peer needs."""
    settings = experiment.decoder
    return Shape(
        num_layers=settings.num_layers, d_model=settings.d_model, vocabulary_size=len(experiment.task.vocabulary)
    )


def own_step(
    experiment: Experiment, sampler: TrainingSampler, folder: Path, device: torch.device
) -> Callable[[], object]:
    """Return a training step of lengthwise, with the batches of ``sampler``."""
    trainer = Trainer(build_decoder(experiment).to(device), sampler, experiment.training, folder)
    trainer.decoder.train()
    return trainer.step
