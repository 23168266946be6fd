"""Steps that a GPU records: their batches, their losses, and what happens if they cannot be recorded."""

import threading
from dataclasses import fields, replace

import pytest
import torch
from tests.support.small_runs import small_experiment

from lengthwise.experiments.experiment import build_decoder
from lengthwise.positions import Coupled
from lengthwise.training import cuda_graph_step
from lengthwise.training.batch import TrainingSampler
from lengthwise.training.cuda_graph_step import (
    SEQ_STEP,
    CUDAGraphTrainingStep,
    is_compilation_worthwhile,
    join_to_fixed_shape,
)
from lengthwise.training.loss import AnswerLoss
from lengthwise.training.trainer import BatchPrefetcher, Trainer

CPU = torch.device("cpu")
COUPLED = Coupled(num_position_ids=48)


def trainer_of(experiment, folder):
    sampler = TrainingSampler(
        task=experiment.task,
        scheme=experiment.scheme,
        lengths=experiment.train_lengths,
        batch_size=experiment.training.batch_size,
        seed=3,
        lengths_per_batch=experiment.training.lengths_per_batch,
    )
    torch.manual_seed(0)
    return Trainer(build_decoder(experiment).train(), sampler, experiment.training, folder)


class Graph:
    """Imitation of a CUDA graph: a replay runs the step on the batch in its memory and overwrites the outcome."""

    def __init__(self, function):
        self.function, self.replays = function, 0
        self.outcome = AnswerLoss(**{part.name: torch.zeros(()) for part in fields(AnswerLoss)})

    def replay(self):
        """Run the step."""
        self.replays += 1
        outcome = self.function()
        for part in fields(AnswerLoss):
            getattr(self.outcome, part.name).copy_(getattr(outcome, part.name))

    def pool(self):
        """Return what the next graph shares."""
        return "pool"


@pytest.fixture
def graphs(monkeypatch):
    """Imitations of the recorded graphs, and the pool that each shares."""
    recorded = []

    def record(function, pool):
        graph = Graph(function)
        recorded.append((graph, pool))
        return graph, graph.outcome

    monkeypatch.setattr(cuda_graph_step, "record_graph", record)
    return recorded


def losses_of(trainer, steps, recorder=None):
    losses = []
    for index in range(steps):
        batches = trainer.samplers[0].batches(index)
        outcome = trainer.update(batches) if recorder is None else recorder.step(recorder.prepare_batches(batches), CPU)
        losses.append(outcome.loss.item())
    return losses


@pytest.mark.parametrize("tilt", [0.0, 3.0])
@pytest.mark.parametrize("sampling", [0.0, 0.5])
@pytest.mark.parametrize("scheme", [None, COUPLED], ids=["predicted", "coupled"])
def test_recorded_steps_have_the_losses_of_plain_steps(scheme, sampling, tilt, graphs, tmp_path):
    if scheme is not None and sampling:
        pytest.skip("only predicted IDs are sampled")
    options = {"batch_size": 8, "lengths_per_batch": 2, "scheduled_sampling": sampling, "precision": "float32"}
    options |= {"length_tilt": tilt}
    experiment = replace(small_experiment(scheme=scheme, **options), train_lengths=(1, 12))
    trainer, plain = trainer_of(experiment, tmp_path), trainer_of(experiment, tmp_path)
    recorder = CUDAGraphTrainingStep(trainer.update, 1)
    assert losses_of(trainer, 12, recorder) == pytest.approx(losses_of(plain, 12), rel=1e-4)
    # One graph per rounded number of tokens: up to 16 and up to 32 tokens.
    assert [pool for _, pool in graphs] == [None, "pool"]
    assert sum(graph.replays for graph, _ in graphs) == 12 - len(graphs)


@pytest.mark.parametrize("scheme", [None, COUPLED], ids=["predicted", "coupled"])
def test_batches_of_a_step_get_one_shape_and_keep_their_loss(scheme, tmp_path):
    experiment = replace(small_experiment(scheme=scheme, batch_size=8, lengths_per_batch=4), train_lengths=(1, 12))
    trainer, shapes = trainer_of(experiment, tmp_path), set()
    for index in range(6):
        batches = trainer.samplers[0].batches(index)
        joined = join_to_fixed_shape(batches)
        num_tokens = joined.tokens.shape[1]
        shapes.add(num_tokens)
        assert joined.prompt_range == (1, num_tokens - 1)
        assert max(batch.tokens.shape[1] for batch in batches) <= num_tokens
        assert int(joined.token_scored.sum()) == sum(int(batch.token_scored.sum()) for batch in batches)
        assert int(joined.id_scored.sum()) == sum(int(batch.id_scored.sum()) for batch in batches)
    assert shapes <= {SEQ_STEP + 1, 2 * SEQ_STEP + 1}


def test_large_steps_are_not_recorded(graphs, tmp_path):
    trainer = trainer_of(replace(small_experiment(), train_lengths=(4, 4)), tmp_path)
    recorder = CUDAGraphTrainingStep(trainer.update, 1 << 40)
    assert losses_of(trainer, 4, recorder)
    assert graphs == []


def test_only_a_limited_number_of_shapes_is_recorded(graphs, tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_graph_step, "MAX_RECORDINGS", 1)
    trainer = trainer_of(replace(small_experiment(), train_lengths=(1, 12)), tmp_path)
    assert losses_of(trainer, 12, CUDAGraphTrainingStep(trainer.update, 1))
    assert len(graphs) == 1


def test_steps_that_cannot_be_recorded_run_without_a_recording(monkeypatch, tmp_path):
    def record(function, pool):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graph_step, "record_graph", record)
    experiment = replace(small_experiment(), train_lengths=(4, 4))
    trainer, plain = trainer_of(experiment, tmp_path), trainer_of(experiment, tmp_path)
    recorder = CUDAGraphTrainingStep(trainer.update, 1)
    with pytest.warns(UserWarning, match="cannot be recorded: operation not permitted") as warned:
        losses = losses_of(trainer, 5, recorder)
    assert len(warned) == 1
    assert losses == pytest.approx(losses_of(plain, 5), rel=1e-5)


@pytest.mark.parametrize(
    ("lengths", "steps", "parameters", "pays"),
    [
        ((2048, 2048), 10_000, 100_000_000, True),
        ((1, 2048), 10_000, 100_000_000, False),
        ((2048, 2048), 10, 100_000_000, False),
        ((2048, 2048), 1_000_000_000, 1000, False),
    ],
    ids=["long training", "several lengths", "few steps", "recorded steps"],
)
def test_compilation_needs_one_length_and_much_work(lengths, steps, parameters, pays):
    experiment = small_experiment()
    sampler = TrainingSampler(task=experiment.task, scheme=experiment.scheme, lengths=lengths, batch_size=8, seed=0)
    assert is_compilation_worthwhile(sampler, steps, parameters) == pays


def test_prefetched_values_are_those_of_their_step():
    threads = []

    def prepare(stage, step):
        threads.append(threading.current_thread() is threading.main_thread())
        return stage, step

    prefetcher = BatchPrefetcher(prepare)
    assert prefetcher.get(0, 5) == (0, 5)
    prefetcher.start(0, 6)
    assert prefetcher.get(0, 6) == (0, 6)
    # After the start of the next stage, the prefetched batch of the old one is not used.
    prefetcher.start(0, 7)
    assert prefetcher.get(1, 7) == (1, 7)
    # Values without a start are computed in the main thread; a started value may still be waiting.
    assert threads[:2] == [True, False]
    assert threads.count(True) == 2


def test_an_error_in_the_thread_reaches_the_trainer():
    prefetcher = BatchPrefetcher(lambda stage, step: 1 // step)
    prefetcher.start(0, 0)
    with pytest.raises(ZeroDivisionError):
        prefetcher.get(0, 0)
