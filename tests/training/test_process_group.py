"""Several processes train the run of one process, up to rounding; only the first writes files."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.processes import run_processes
from tests.support.small_runs import (
    equal_tensors,
    folder_contents,
    run_weights,
    sampler_of,
    small_experiment,
    stop_after,
    training_facts,
)
from torch import Tensor

from lengthwise.cli import app as cli
from lengthwise.core.errors import DivergedError, SettingError, WorkerError
from lengthwise.experiments import run as run_module
from lengthwise.experiments.experiment import Experiment, build_decoder
from lengthwise.experiments.run import train
from lengthwise.positions import Coupled, Sequential
from lengthwise.tasks import Addition, MultiAddition, SparseParity
from lengthwise.training import process_group
from lengthwise.training.batch import Batch
from lengthwise.training.launch import LaunchInfo, read_launch_info
from lengthwise.training.loss import compute_answer_loss, mix_predicted_ids
from lengthwise.training.process_group import ProcessGroup, join_processes
from lengthwise.training.trainer import Trainer

pytestmark = [
    pytest.mark.linux,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

TOLERANCE = 1e-5
MIXED = {"batch_size": 13, "lengths_per_batch": 3}
DILUTED = replace(small_experiment(**MIXED, scheduled_sampling=0.4))
EXPERIMENTS = {
    # The first two use scheduled sampling, dilution, a cooldown and batches of several lengths.
    "diluted": replace(DILUTED, decoder=replace(DILUTED.decoder, dilution=0.5)),
    "fit": small_experiment(fit_every=2, fit_threshold=0.0, cooldown_steps=4, batch_size=5),
    "sequential": small_experiment(scheme=Sequential(), **MIXED),
    "coupled": small_experiment(Addition(), scheme=Coupled(num_position_ids=48), **MIXED),
    "predicted": small_experiment(**MIXED, scheduled_sampling=0.4),
    "two levels": small_experiment(MultiAddition(operands=(2, 2)), **MIXED),
    "increment": small_experiment(head="increment", **MIXED),
    "tilted": small_experiment(**MIXED, length_tilt=3.0),
    "one example": small_experiment(batch_size=1),
    "stages": small_experiment(SparseParity(most=6), scheme=Sequential(), stage_threshold=1.02, **MIXED),
}


@pytest.fixture(autouse=True, scope="module")
def _quick_fit() -> Iterator[None]:
    """Use few examples to measure the fit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "NUM_FIT_EXAMPLES", 16)
        yield


@dataclass(frozen=True, kw_only=True)
class Share(ProcessGroup):
    """Process group of one rank that collects counts, or replaces them by known totals."""

    totals: list[Tensor] | None = None
    counts: list[Tensor] = field(default_factory=list)

    def sum_counts(self, counts: list[Tensor]) -> list[Tensor]:
        """Collect the counts, and return the totals."""
        self.counts[:] = counts
        return counts if self.totals is None else self.totals


@pytest.mark.covering(1)
@pytest.mark.parametrize("size", [2, 3, 20])
@pytest.mark.parametrize("name", ["sequential", "coupled", "predicted", "two levels", "increment", "diluted"])
def test_the_losses_and_gradients_of_shares_add_up_to_those_of_all_examples(name, size):
    experiment = EXPERIMENTS[name]
    decoder = build_decoder(experiment).train()
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    batches = sampler_of(experiment).batches(0)
    share = experiment.training.scheduled_sampling

    def outcome_of(parts: list[Batch], group: ProcessGroup) -> tuple[Tensor, Tensor]:
        decoder.zero_grad()
        input_ids = mix_predicted_ids(decoder, parts, share) if share else None
        outcome = compute_answer_loss(decoder, parts, 0.7, input_ids, group)
        torch.autograd.backward(outcome.loss)
        values = [getattr(outcome, part.name).detach() for part in fields(outcome)]
        return torch.stack(values), torch.cat([each.grad.flatten() for each in decoder.parameters()])

    expected_values, expected_gradient = outcome_of(batches, ProcessGroup())
    shares = [[batch.take_shard(rank, size) for batch in batches] for rank in range(size)]
    groups = [Share(rank=rank, size=size) for rank in range(size)]
    for parts, group in zip(shares, groups, strict=True):
        outcome_of(parts, group)
    totals = [torch.stack(counts).sum(dim=0) for counts in zip(*(group.counts for group in groups), strict=True)]
    outcomes = [outcome_of(parts, replace(group, totals=totals)) for parts, group in zip(shares, groups, strict=True)]
    values, gradient = (torch.stack(each).sum(dim=0) for each in zip(*outcomes, strict=True))
    assert values.tolist() == pytest.approx(expected_values.tolist(), abs=1e-6)
    assert (gradient - expected_gradient).norm() <= 2e-6 * expected_gradient.norm()


@pytest.mark.parametrize("size", [2, 5])
def test_the_mixed_ids_of_shares_are_those_of_all_examples(size):
    # The IDs of this head depend on the hidden states, and so on the dilution.
    experiment = small_experiment(head="class", batch_size=40, lengths_per_batch=3)
    experiment = replace(experiment, decoder=replace(experiment.decoder, dilution=0.9))
    decoder = build_decoder(experiment).train()
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=1.0)
    batches = sampler_of(experiment).batches(0)
    expected = mix_predicted_ids(decoder, batches, 0.8)
    assert not all(torch.equal(ids, batch.position_ids) for ids, batch in zip(expected, batches, strict=True))
    for rank in range(size):
        shares = [batch.take_shard(rank, size) for batch in batches]
        for ids, share, whole in zip(mix_predicted_ids(decoder, shares, 0.8), shares, expected, strict=True):
            assert torch.equal(
                ids[:, : len(share.find_example_indexes())], whole[:, list(share.find_example_indexes())]
            )


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same_run(one: Path, other: Path) -> None:
    """Compare the metrics and the facts of two runs, up to rounding."""
    assert len(rows(one)) == len(rows(other)) > 0
    for row, other_row in zip(rows(one), rows(other), strict=True):
        assert row == pytest.approx(other_row, abs=TOLERANCE)
    assert training_facts(one) == training_facts(other)


def train_in_processes(experiment: Experiment, folder: Path, size: int = 2, **options: Any) -> list[int]:
    """Train a run in several processes; those after the first get another folder, which must not appear."""

    def train_share(rank: int) -> None:
        out = folder if rank == 0 else folder.with_name("unused")
        run = train(experiment, out, device="cpu", **options)
        # Every process returns the run with the same weights and facts.
        torch.save((run.decoder.state_dict(), run.facts), folder.with_name(f"weights-{rank}"))

    codes = run_processes(train_share, size)
    assert not folder.with_name("unused").exists()
    return codes


@pytest.mark.first(2)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_two_processes_train_the_run_of_one_process(name, tmp_path):
    train(EXPERIMENTS[name], tmp_path / "one", device="cpu")
    assert train_in_processes(EXPERIMENTS[name], tmp_path / "two") == [0, 0]
    assert_same_run(tmp_path / "one", tmp_path / "two")
    assert rows(tmp_path / "two")[-1].get("stage", 1) > 0
    (weights, facts), (other_weights, other_facts) = (torch.load(tmp_path / f"weights-{rank}") for rank in range(2))
    assert equal_tensors(weights, other_weights)
    assert facts == other_facts
    assert equal_tensors(weights, run_weights(tmp_path / "two"))


@pytest.mark.slow
def test_three_processes_share_fewer_examples_than_processes(tmp_path):
    experiment = small_experiment(batch_size=2, lengths_per_batch=2, scheduled_sampling=0.5)
    train(experiment, tmp_path / "one", device="cpu")
    assert train_in_processes(experiment, tmp_path / "three", 3) == [0, 0, 0]
    assert_same_run(tmp_path / "one", tmp_path / "three")


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (2, 2)])
def test_a_run_continues_with_another_number_of_processes(sizes, tmp_path):
    experiment = EXPERIMENTS["predicted"]
    train(experiment, tmp_path / "whole", device="cpu")

    def stop_early(rank: int) -> None:
        # Only the last process is asked to stop.
        stop = stop_after(7) if rank == sizes[0] - 1 else lambda: False
        assert train(experiment, tmp_path / "run", device="cpu", stop=stop) is None

    def resume(rank: int) -> None:
        # The other processes may be on machines without this folder.
        out = tmp_path / ("run" if rank == 0 else "unused")
        assert train(experiment, out, device="cpu", resume=True) is not None

    assert run_processes(stop_early, sizes[0]) == [0] * sizes[0]
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()].count("step-00000007.safetensors") == 1
    assert len(rows(tmp_path / "run")) == 3
    assert run_processes(resume, sizes[1]) == [0] * sizes[1]
    assert_same_run(tmp_path / "whole", tmp_path / "run")
    before = folder_contents(tmp_path / "run")
    # A finished run is loaded in all processes.
    assert run_processes(resume, sizes[1]) == [0] * sizes[1]
    assert folder_contents(tmp_path / "run") == before


def command(folder: Path, *more: str) -> list[str]:
    names = ("--task", "parity", "--scheme", "predicted", "--device", "cpu", "--quick")
    return ["train", *names, "--out", str(folder), *more]


def run_command(arguments: list[str], output: Path, size: int = 2, before: Callable[[int], None] | None = None):
    """Run a command in several processes; return their exit codes, and what each one printed."""

    def run(rank: int) -> None:
        stream = os.open(output / f"output-{rank}", os.O_CREAT | os.O_WRONLY)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        if before is not None:
            before(rank)
        try:
            cli.main(arguments)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()

    codes = run_processes(run, size)
    return codes, [(output / f"output-{rank}").read_text() for rank in range(size)]


def test_only_the_first_process_prints(tmp_path):
    codes, (first, other) = run_command(command(tmp_path / "run"), tmp_path)
    assert codes == [0, 0]
    assert "20 steps in 0 s on 2 processes with 1 thread each; exact match" in re.sub(r"in \d s", "in 0 s", first)
    assert other == ""


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_any_process_stops_all_with_one_checkpoint(signal_number, tmp_path):
    def interrupt(rank: int) -> None:
        update = Trainer.update

        def update_and_interrupt(self: Trainer, batches: Any) -> Any:
            if self.progress.step == 6:
                os.kill(os.getpid(), signal_number)
            return update(self, batches)

        if rank == 1:
            Trainer.update = update_and_interrupt

    codes, (first, other) = run_command(command(tmp_path / "run"), tmp_path, before=interrupt)
    assert codes == [1, 1]
    assert f"stopped and saved; continue with: lengthwise train --resume --out {tmp_path / 'run'}" in first
    assert other == ""
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step-00000007.safetensors"]


def test_an_error_of_all_processes_is_printed_by_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "REPORT_S", 0.0)
    train(small_experiment(), tmp_path / "run", device="cpu")
    before = folder_contents(tmp_path / "run")
    codes, (first, other) = run_command(command(tmp_path / "run"), tmp_path)
    assert codes == [2, 2]
    error = f"error: {tmp_path / 'run'} already contains a run; add --resume to continue it, or choose another --out\n"
    # Without a launcher that ends the other process, it prints the error, too.
    assert (first, other) == (error, error)
    assert folder_contents(tmp_path / "run") == before


def test_all_processes_raise_the_error_of_a_diverged_run(tmp_path):
    experiment = small_experiment(learning_rate=1e30, clip=1e30)

    def diverge(rank: int) -> None:
        with pytest.raises(DivergedError, match=r"training diverged: the loss is nan at step \d+; use a smaller"):
            train(experiment, tmp_path / "run", device="cpu")

    assert run_processes(diverge) == [0, 0]


def test_the_end_of_a_process_raises_an_error_in_the_others(tmp_path):
    def lose_second(rank: int) -> None:
        stop = stop_after(5)

        def end() -> bool:
            if stop():
                os._exit(9)
            return False

        if rank == 1:
            train(small_experiment(), tmp_path / "run", device="cpu", stop=end)
        with pytest.raises(WorkerError, match=r"lost the connection to another process .*; fix its error, and cont"):
            train(small_experiment(), tmp_path / "run", device="cpu")

    assert run_processes(lose_second) == [0, 9]
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step-00000004.safetensors"]


def test_an_error_in_one_process_is_raised_in_all():
    def fail_in_one(rank: int) -> None:
        processes = join_processes(read_launch_info(), "cpu")
        assert processes.call_in_all(lambda: rank) == rank
        assert processes.call_in_first(lambda: rank + 5) == 5
        assert processes.any_process(rank == 1) is True
        assert processes.any_process(False) is False

        def fail() -> None:
            if rank == 1:
                raise SettingError("a value of rank 1")

        with pytest.raises(SettingError, match="a value of rank 1"):
            processes.call_in_all(fail)

    assert run_processes(fail_in_one) == [0, 0]


def test_tensors_are_added_in_buckets(monkeypatch):
    monkeypatch.setattr(process_group, "BUCKET_SIZE", 8)
    sizes = [(3, 2), (2,), (1,), (3, 4), ()]

    def add(rank: int) -> None:
        tensors = [torch.full(size, float(rank + index)) for index, size in enumerate(sizes)]
        join_processes(read_launch_info(), "cpu").all_reduce_sum(tensors)
        for index, (tensor, size) in enumerate(zip(tensors, sizes, strict=True)):
            assert torch.equal(tensor, torch.full(size, 2.0 * index + 1))

    assert run_processes(add) == [0, 0]


def test_one_process_needs_no_launcher(monkeypatch):
    assert read_launch_info({}) == read_launch_info({"WORLD_SIZE": "1"}) == LaunchInfo()
    environment = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "host", "MASTER_PORT": "1"}
    assert read_launch_info(environment) == LaunchInfo(rank=3, local_rank=1, size=4)
    assert join_processes(LaunchInfo(), "cuda") == ProcessGroup()


@pytest.mark.slow
def test_the_command_of_the_page_trains_the_run_of_one_process(tmp_path):
    page = (Path(__file__).parents[2] / "docs/several_processes.md").read_text()
    (line,) = re.findall(r"^torchrun .*", page, flags=re.MULTILINE)
    program, *arguments = shlex.split(line)
    launcher = [sys.executable, "-m", "torch.distributed.run"]
    ended = subprocess.run([*launcher, *arguments, "--quick"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert program == "torchrun"
    assert "on 2 processes with" in ended.stdout
    train_arguments = arguments[arguments.index("train") :]
    folder = train_arguments[train_arguments.index("--out") + 1]
    cli.main([*train_arguments, "--quick", "--out", str(tmp_path / "one")])
    assert [row["step"] for row in rows(tmp_path / "one")] == [row["step"] for row in rows(tmp_path / folder)]
    assert rows(tmp_path / folder)[0] == pytest.approx(rows(tmp_path / "one")[0], abs=TOLERANCE)
