"""How much of the machine's matrix-product rate a whole training step reaches.

A step (batch, forward, backward, clipping, optimiser) of a 2-layer decoder with d_model 128 and 4 heads on 100 x 44
tokens is timed in turn with the plain matrix products that it consists of; the share is the ratio of the two times.
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
from lengthwise.folder import provenance

BATCH, SEQ, LAYERS, D_MODEL, HEADS = 100, 44, 2, 128, 4
RESULTS = Path(__file__).parent / "results" / "step_speed.jsonl"


def products(device: torch.device, dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
    """The operands of every matrix product of a step, and how often it occurs: forward and both gradients."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    tokens, d_head = BATCH * SEQ, D_MODEL // HEADS
    pairs = []
    for inputs, outputs in ((D_MODEL, 3 * D_MODEL), (D_MODEL, D_MODEL), (D_MODEL, 4 * D_MODEL), (4 * D_MODEL, D_MODEL)):
        x, y, weight = random(tokens, inputs), random(tokens, outputs), random(outputs, inputs)
        pairs += [(x, weight.T, LAYERS), (y, weight, LAYERS), (y.T, x, LAYERS)]
    query = random(BATCH * HEADS, SEQ, d_head)
    scores = random(BATCH * HEADS, SEQ, SEQ)
    # Scores and their gradient by value; mixing and both gradients of scores.
    pairs += [(query, query.mT, 2 * LAYERS), (scores, query, 4 * LAYERS)]
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
    sampler = lw.Sampler(
        task=experiment.task, scheme=experiment.scheme, lengths=(21, 21), batch_size=BATCH, seed=experiment.seed
    )
    pairs = products(device, torch.float32 if precision == "float32" else torch.bfloat16)

    def multiply() -> None:
        for left, right, times in pairs:
            for _ in range(times):
                left @ right

    steps, plain = [], []
    with tempfile.TemporaryDirectory() as folder:
        decoder = lw.build_decoder(experiment).to(device)
        trainer = lw.Trainer(decoder, sampler, experiment.training, Path(folder))
        for repeat in range(repeats + 5):
            seconds = timed(trainer.step, device), timed(multiply, device)
            if repeat >= 5:
                steps.append(seconds[0])
                plain.append(seconds[1])
    shares = [one / other for one, other in zip(plain, steps, strict=True)]
    return {
        "scheme": scheme,
        "precision": precision,
        "step_ms": round(1e3 * statistics.median(steps), 2),
        "products_ms": round(1e3 * statistics.median(plain), 2),
        "products_gflop": round(flop(pairs) / 1e9, 2),
        "products_gflop_per_s": round(flop(pairs) / 1e9 / statistics.median(plain), 1),
        "step_gflop_per_s": round(flop(pairs) / 1e9 / statistics.median(steps), 1),
        "share": round(statistics.median(shares), 3),
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
