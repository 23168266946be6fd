"""How much of the machine's matrix-product rate a whole training step reaches.

A step (batch, forward, backward, clipping, optimiser) of a 2-layer decoder with d_model 128 and 4 heads on 100 x 44
tokens is timed in turn with plain matrix products: ``share`` is the time of all products of the model over that of the
step, ``executed_share`` that of the products alone that the step executes (the last layer skips the prompt's queries).
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

import lengthwise as lw
from lengthwise.core.provenance import provenance
from lengthwise.experiments.experiment import build_decoder
from lengthwise.training.batch import Sampler
from lengthwise.training.trainer import Trainer

BATCH, SEQ, LAYERS, D_MODEL, HEADS = 100, 44, 2, 128, 4
RESULTS = Path(__file__).parent / "results" / "step_speed.jsonl"


def products(device: torch.device, dtype: torch.dtype, asked: int) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
    """The operands of every matrix product of a step, and how often it occurs: forward and both gradients.

    ``asked`` is the number of token indexes whose hidden states the last layer computes; ``SEQ`` is the whole model.
    """

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    pairs = []
    for last in (False, True):
        queries, times = (asked, 1) if last else (SEQ, LAYERS - 1)
        rows, tokens = BATCH * queries, BATCH * SEQ
        into = (
            [(tokens, D_MODEL, 3 * D_MODEL)]
            if queries == SEQ
            else [(rows, D_MODEL, D_MODEL), (tokens, D_MODEL, 2 * D_MODEL)]
        )
        for size, inputs, outputs in (
            *into,
            (rows, D_MODEL, D_MODEL),
            (rows, D_MODEL, 4 * D_MODEL),
            (rows, 4 * D_MODEL, D_MODEL),
        ):
            x, y, weight = random(size, inputs), random(size, outputs), random(outputs, inputs)
            pairs += [(x, weight.T, times), (y, weight, times), (y.T, x, times)]
        query = random(BATCH * HEADS, queries, D_MODEL // HEADS)
        key = random(BATCH * HEADS, SEQ, D_MODEL // HEADS)
        scores = random(BATCH * HEADS, queries, SEQ)
        # Forward and two gradients each of the scores and of what they mix.
        pairs += [(query, key.mT, 2 * times), (scores, key, 2 * times), (scores.mT, query, 2 * times)]
    return pairs


def flop(pairs: list[tuple[torch.Tensor, torch.Tensor, int]]) -> int:
    """Multiplications and additions of all products."""
    return sum(2 * left.numel() * right.shape[-1] * times for left, right, times in pairs)


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def measure(scheme: str, precision: str, repeats: int, device: torch.device) -> dict[str, object]:
    """Median seconds of a step and of its products, taken in turn."""
    base = lw.experiment_for("parity", scheme)
    experiment = replace(
        base,
        decoder=replace(base.decoder, num_layers=LAYERS, d_model=D_MODEL, num_heads=HEADS),
        training=replace(base.training, batch_size=BATCH, steps=1_000_000, precision=precision),
    )
    sampler = Sampler(
        task=experiment.task, scheme=experiment.scheme, lengths=(21, 21), batch_size=BATCH, seed=experiment.seed
    )
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    # The loss reads hidden states from the last prompt token on.
    asked = SEQ + 1 - int(sampler.batch(0).prompt_length[0])
    whole, executed = products(device, dtype, SEQ), products(device, dtype, asked)

    def multiply(pairs: list[tuple[torch.Tensor, torch.Tensor, int]]) -> None:
        for left, right, times in pairs:
            for _ in range(times):
                left @ right

    steps, plain, needed = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        decoder = build_decoder(experiment).to(device)
        trainer = Trainer(decoder, sampler, experiment.training, Path(folder))
        for repeat in range(repeats + 5):
            works = (trainer.step, lambda: multiply(whole), lambda: multiply(executed))
            seconds = [timed(work, device) for work in works]
            if repeat >= 5:
                for times, second in zip((steps, plain, needed), seconds, strict=True):
                    times.append(second)
    return {
        "scheme": scheme,
        "precision": precision,
        "step_ms": round(1e3 * statistics.median(steps), 2),
        "products_ms": round(1e3 * statistics.median(plain), 2),
        "executed_products_ms": round(1e3 * statistics.median(needed), 2),
        "products_gflop": round(flop(whole) / 1e9, 2),
        "executed_gflop": round(flop(executed) / 1e9, 2),
        "products_gflop_per_s": round(flop(whole) / 1e9 / statistics.median(plain), 1),
        "step_gflop_per_s": round(flop(whole) / 1e9 / statistics.median(steps), 1),
        "share": round(statistics.median(one / other for one, other in zip(plain, steps, strict=True)), 3),
        "executed_share": round(statistics.median(one / other for one, other in zip(needed, steps, strict=True)), 3),
    }


def main() -> None:
    """Print a row per scheme and add them to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("a") as file:
        for scheme, precision in (("coupled", "float32"), ("predicted", "float32"), ("coupled", "bf16")):
            row = measure(scheme, precision, arguments.repeats, torch.device(arguments.device))
            print(row)
            file.write(json.dumps({**row, **provenance()}) + "\n")


if __name__ == "__main__":
    main()
