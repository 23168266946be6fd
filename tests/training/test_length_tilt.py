"""Tilted loss over lengths: limits, gradients, an independent reference, processes and errors."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from tests.support.small_runs import equal_tensors, run_weights, sampler_of, small_experiment
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.experiments.experiment import Experiment, build_decoder
from lengthwise.experiments.run import train
from lengthwise.model.decoder import Decoder
from lengthwise.positions import Coupled, Sequential
from lengthwise.tasks import MultiAddition
from lengthwise.training.batch import Batch
from lengthwise.training.loss import LengthTiltedLoss, compute_answer_loss
from lengthwise.training.process_group import ONE_PROCESS, ProcessGroup

ID_WEIGHT, MAX_LENGTH = 0.7, 6
MIXED = {"batch_size": 13, "lengths_per_batch": 4}
EXPERIMENTS = {
    "predicted": small_experiment(**MIXED),
    "sequential": small_experiment(scheme=Sequential(), **MIXED),
    "coupled": small_experiment(scheme=Coupled(num_position_ids=48), **MIXED),
    "two levels": small_experiment(MultiAddition(operands=(2, 2)), **MIXED),
}


def tilt_of(value: float) -> LengthTiltedLoss:
    return LengthTiltedLoss(tilt=value, max_length=MAX_LENGTH)


def decoder_and_batches(experiment: Experiment) -> tuple[Decoder, list[Batch]]:
    """Return a decoder with large random weights, and the batches of one step."""
    decoder = build_decoder(experiment).train()
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return decoder, sampler_of(experiment).batches(0)


def gradient_of(decoder: Decoder, loss: Tensor) -> Tensor:
    decoder.zero_grad()
    torch.autograd.backward(loss)
    return torch.cat([each.grad.flatten() for each in decoder.parameters() if each.grad is not None])


def losses_by_length(decoder: Decoder, batches: list[Batch]) -> tuple[Tensor, Tensor]:
    """Return the share of the tokens and the loss of each length, from separate passes with only this length scored."""
    num_tokens = sum(int(batch.token_scored.sum()) for batch in batches)
    num_ids = sum(int(batch.id_scored.sum()) for batch in batches)
    shares, losses = [], []
    for length in sorted({length for batch in batches for length in batch.example_length.tolist()}):
        masks = [(batch.example_length == length)[:, None] for batch in batches]
        parts = [
            replace(batch, token_scored=batch.token_scored & mask, id_scored=batch.id_scored & mask)
            for batch, mask in zip(batches, masks, strict=True)
        ]
        token_loss = compute_answer_loss(decoder, parts, 0.0).loss
        id_loss = compute_answer_loss(decoder, parts, 1.0).loss - token_loss
        part_tokens = sum(int(part.token_scored.sum()) for part in parts)
        part_ids = sum(int(part.id_scored.sum()) for part in parts)
        total = token_loss * part_tokens / num_tokens + ID_WEIGHT * id_loss * part_ids / max(1, num_ids)
        shares.append(part_tokens / num_tokens)
        losses.append(total / shares[-1])
    return torch.tensor(shares), torch.stack(losses)


@pytest.mark.parametrize("tilt", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_tilted_loss_and_its_gradient_equal_an_independent_reference(name, tilt):
    decoder, batches = decoder_and_batches(EXPERIMENTS[name])
    shares, losses = losses_by_length(decoder, batches)
    assert len(shares) == 4
    expected = (shares.log() + tilt * losses).logsumexp(dim=0) / tilt
    expected_gradient = gradient_of(decoder, expected)
    loss = compute_answer_loss(decoder, batches, ID_WEIGHT, tilt=tilt_of(tilt)).loss
    gradient = gradient_of(decoder, loss)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert (gradient - expected_gradient).norm() <= 1e-4 * expected_gradient.norm()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_tilted_loss_rises_from_the_mean_to_the_worst_length(name):
    decoder, batches = decoder_and_batches(EXPERIMENTS[name])
    mean = compute_answer_loss(decoder, batches, ID_WEIGHT)
    _, losses = losses_by_length(decoder, batches)
    outcomes = [
        compute_answer_loss(decoder, batches, ID_WEIGHT, tilt=tilt_of(tilt)) for tilt in (1e-3, 0.1, 1.0, 10.0, 1e4)
    ]
    values = [outcome.loss.item() for outcome in outcomes]
    assert values == sorted(values)
    assert values[0] == pytest.approx(mean.loss.item(), abs=1e-3)
    assert values[-1] == pytest.approx(losses.max().item(), abs=1e-3)
    assert values[-1] > values[0] + 0.01
    # A tilt changes only the loss.
    for outcome in outcomes:
        for part in ("token_accuracy", "id_accuracy", "ids_in_reach"):
            assert getattr(outcome, part).item() == pytest.approx(getattr(mean, part).item(), rel=1e-6)


@pytest.mark.parametrize("tilt", [0.1, 2.0, 1e3, 1e6])
def test_the_weights_of_the_lengths_add_up_to_one(tilt):
    generator = torch.Generator().manual_seed(0)
    counts = torch.tensor([0, 5, 0, 2, 9])
    shares = counts / counts.sum()
    # A common change of all losses changes the tilted loss by the same amount.
    common = torch.zeros((), requires_grad=True)
    losses = torch.rand(5, generator=generator) * 4
    loss = tilt_of(tilt).loss(shares * (losses + common), counts, ONE_PROCESS)
    torch.autograd.backward(loss)
    assert common.grad.item() == pytest.approx(1.0, rel=1e-5)
    assert (shares * losses).sum() < loss.item() <= losses[counts > 0].max().item() * (1 + 1e-6)


def test_equal_losses_have_their_own_value_as_tilted_loss():
    counts = torch.tensor([0, 3, 4])
    parts = 1.5 * counts / counts.sum()
    assert tilt_of(7.0).loss(parts, counts, ONE_PROCESS).item() == pytest.approx(1.5, rel=1e-6)


@dataclass(frozen=True, kw_only=True)
class Share(ProcessGroup):
    """Process group of one rank that records what it adds, or replaces it by known totals."""

    totals: list[Tensor] = field(default_factory=list)
    recorded: list[Tensor] = field(default_factory=list)

    def all_reduce_sum(self, tensors):
        """Record the tensors, and replace them by the totals."""
        for tensor in tensors:
            self.recorded.append(tensor.clone())
            if len(self.recorded) <= len(self.totals):
                tensor.copy_(self.totals[len(self.recorded) - 1])


@pytest.mark.first(1)
@pytest.mark.parametrize("size", [2, 5, 20])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_tilted_losses_and_gradients_of_processes_add_up_to_those_of_one(name, size):
    decoder, batches = decoder_and_batches(EXPERIMENTS[name])
    tilt = tilt_of(3.0)

    def outcome_of(parts: list[Batch], group: ProcessGroup) -> tuple[float, Tensor]:
        loss = compute_answer_loss(decoder, parts, ID_WEIGHT, None, group, tilt).loss
        return loss.item(), gradient_of(decoder, loss)

    expected_loss, expected_gradient = outcome_of(batches, ONE_PROCESS)
    shares = [[batch.take_shard(rank, size) for batch in batches] for rank in range(size)]
    totals: list[Tensor] = []
    outcomes = []
    # Each round finds the totals of one more call of ``add``: first those of the counts, then those of the losses.
    for num_totals in range(1, 4):
        groups = [Share(rank=rank, size=size, totals=totals) for rank in range(size)]
        outcomes = [outcome_of(parts, group) for parts, group in zip(shares, groups, strict=True)]
        recorded = [torch.stack(each).sum(dim=0) for each in zip(*(group.recorded for group in groups), strict=True)]
        totals = recorded[:num_totals]
    assert len(totals) == 2
    assert sum(loss for loss, _ in outcomes) == pytest.approx(expected_loss, rel=1e-5)
    gradient = torch.stack([each for _, each in outcomes]).sum(dim=0)
    assert (gradient - expected_gradient).norm() <= 1e-4 * expected_gradient.norm()


def test_training_with_a_tilt_gives_other_weights(tmp_path):
    for tilt in (0.0, 5.0):
        train(small_experiment(**MIXED, length_tilt=tilt), tmp_path / str(tilt), device="cpu")
    assert not equal_tensors(run_weights(tmp_path / "0.0"), run_weights(tmp_path / "5.0"))


@pytest.mark.parametrize(
    "changes",
    [{"lengths_per_batch": 1}, {"batch_size": 1}, {"train_lengths": (4, 4)}],
    ids=lambda each: next(iter(each)),
)
def test_a_tilt_needs_steps_with_several_lengths(changes, tmp_path):
    experiment = small_experiment(**MIXED, length_tilt=2.0)
    lengths = changes.get("train_lengths", (1, 4))
    training = replace(experiment.training, **{name: each for name, each in changes.items() if name != "train_lengths"})
    with pytest.raises(SettingError, match=r"^length_tilt 2 has no effect, because every step has one length; use sev"):
        train(replace(experiment, training=training, train_lengths=lengths), tmp_path, device="cpu")


def test_a_negative_tilt_raises_an_error():
    with pytest.raises(SettingError, match=r"^length_tilt -1.0 is negative; use 0 or more$"):
        small_experiment(length_tilt=-1.0)
