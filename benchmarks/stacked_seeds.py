"""Measure whether eight seeds of a small model train faster as one batched model than one after another, on a CPU.

    python benchmarks/stacked_seeds.py

The model is that of PPC in the demo. All contenders compute forward, backward, clipping and AdamW for the same batch,
on one thread, and take turns. ``vmap`` maps the loss and its gradient over the stacked weights of eight models
(``torch.func``). ``products`` computes only the matrix products of the linear layers, either eight times or batched,
which bounds what any batched implementation can gain.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rounds import row, time_in_rounds
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from lengthwise.core.provenance import collect_provenance
from lengthwise.experiments.experiment import Experiment, build_decoder
from lengthwise.experiments.recipes.comparisons import demo
from lengthwise.model.block import RMSNorm
from lengthwise.training.batch import Batch, TrainingSampler
from lengthwise.training.loss import compute_answer_loss

RESULTS = Path(__file__).parent / "results" / "stacked_seeds.jsonl"
SEEDS = 8


def demo_experiment() -> Experiment:
    """Return the experiment of PPC in the demo."""
    return next(each for each in demo().values() if each.scheme.predicts_ids)


class _Loss(nn.Module):
    """Loss of a decoder for one batch, as a module, for ``functional_call``."""

    def __init__(self, experiment: Experiment, batch: Batch) -> None:
        super().__init__()
        self.decoder, self.batch = build_decoder(experiment), batch

    def forward(self) -> Tensor:
        """Return the loss in nats."""
        return compute_answer_loss(self.decoder, [self.batch], id_weight=1.0).loss


def plain_norm(norm: RMSNorm, x: Tensor) -> Tensor:
    """Return the result of ``RMSNorm`` with the operations of torch."""
    return nn.functional.rms_norm(x, x.shape[-1:], norm.weight, norm.eps)


def update(optimizer: torch.optim.Optimizer, parameters: list[Tensor]) -> None:
    """Clip the gradients and change the parameters."""
    nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
    optimizer.step()


def single_step(loss: _Loss) -> Callable[[], None]:
    """Return the training step of one model."""
    parameters = list(loss.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        update(optimizer, parameters)

    return step


def stacked_step(losses: list[_Loss]) -> Callable[[], None]:
    """Return the training step of all models at once."""
    stacked, _ = stack_module_state(losses)  # type: ignore[arg-type]
    parameters = list(stacked.values())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    gradient = vmap(grad(lambda weights: functional_call(losses[0], weights, ())))

    def step() -> None:
        for name, value in gradient({name: each.detach() for name, each in stacked.items()}).items():
            stacked[name].grad = value
        update(optimizer, parameters)

    return step


def products(experiment: Experiment, num_tokens: int, seeds: int) -> Callable[[], None]:
    """Return the batched products of the linear layers of a step: one forward and two backward products each."""
    width = experiment.decoder.d_model
    sizes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    factors = [
        (torch.randn(seeds, num_tokens, a), torch.randn(seeds, num_tokens, b), torch.randn(seeds, a, b))
        for a, b in sizes
    ]

    def multiply() -> None:
        for x, y, weight in factors:
            x @ weight, y @ weight.mT, x.mT @ y

    return multiply


def measure(rounds: int, length: int) -> dict[str, Any]:
    """Return the times of one seed, of eight seeds in turn, and of eight seeds at once."""
    experiment = demo_experiment()
    sampler = TrainingSampler(
        task=experiment.task, scheme=experiment.scheme, lengths=(length, length), batch_size=64, seed=experiment.seed
    )
    (batch,) = sampler.batches(0)
    losses = [_Loss(replace(experiment, seed=seed), batch) for seed in range(SEEDS)]
    steps = [single_step(loss) for loss in losses]
    one, eight = (products(experiment, batch.tokens.numel(), seeds) for seeds in (1, SEEDS))
    functions = {
        "one seed": steps[0],
        "eight in turn": lambda: [step() for step in steps],
        "eight by vmap": stacked_step(losses),
        "products, eight in turn": lambda: [one() for _ in range(SEEDS)],
        "products, batched": eight,
    }
    return row("stacked seeds", f"64 x {batch.tokens.shape[1]} tokens", time_in_rounds(functions, rounds), {})


def main() -> None:
    """Print the times of each contender and append the row to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--length", type=int, default=6, help="Number of symbols to copy.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    # vmap does not map the fused normalization, which has its own backward pass.
    with patch.object(RMSNorm, "forward", plain_norm):
        result = measure(options.rounds, options.length)
    for clock in ("median_cpu_ms", "min_cpu_ms"):
        print(clock, result[clock])
    with options.out.open("a") as file:
        file.write(json.dumps({**result, **collect_provenance()}) + "\n")


if __name__ == "__main__":
    main()
