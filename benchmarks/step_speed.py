"""Compare the time of a training step with the time of its matrix products alone.

A step consists of batch, forward, backward, clipping and optimizer. The decoder has 2 layers, d_model 128 and 4 heads,
and the batch has 100 x 44 tokens. ``share`` is the time of all matrix products of the model, divided by the time of the
step. ``executed_share`` counts only products that the step executes; the last layer skips the queries of the prompt.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import lengthwise as lw
from lengthwise.core.provenance import collect_provenance
from lengthwise.experiments.experiment import build_decoder
from lengthwise.experiments.recipes import with_scheme_and_encoding
from lengthwise.training.batch import TrainingSampler
from lengthwise.training.trainer import Trainer

Product = tuple[torch.Tensor, torch.Tensor, int]
RESULTS = Path(__file__).parent / "results" / "step_speed.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """Shape of a training step; ``seq`` is the number of input tokens of each of ``batch`` sequences."""

    batch: int
    seq: int
    layers: int
    d_model: int
    heads: int


MEASURED = StepShape(batch=100, seq=44, layers=2, d_model=128, heads=4)


def products(shape: StepShape, device: torch.device, dtype: torch.dtype, num_queries: int) -> list[Product]:
    """Return the operands and the count of every matrix product of a step, for forward and both gradients.

    ``num_queries`` is the number of token indexes at which the last layer computes hidden states, at most ``seq``.
    """
    d_model, heads = shape.d_model, shape.batch * shape.heads

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    pairs = []
    for last in (False, True):
        queries, count = (num_queries, 1) if last else (shape.seq, shape.layers - 1)
        rows, tokens = shape.batch * queries, shape.batch * shape.seq
        attention_inputs = (
            [(tokens, d_model, 3 * d_model)]
            if queries == shape.seq
            else [(rows, d_model, d_model), (tokens, d_model, 2 * d_model)]
        )
        for size, inputs, outputs in (
            *attention_inputs,
            (rows, d_model, d_model),
            (rows, d_model, 4 * d_model),
            (rows, 4 * d_model, d_model),
        ):
            x, y, weight = random(size, inputs), random(size, outputs), random(outputs, inputs)
            pairs += [(x, weight.T, count), (y, weight, count), (y.T, x, count)]
        query = random(heads, queries, d_model // shape.heads)
        key = random(heads, shape.seq, d_model // shape.heads)
        scores = random(heads, queries, shape.seq)
        # Forward and two gradients of the scores, and of the weighted sum of values.
        pairs += [(query, key.mT, 2 * count), (scores, key, 2 * count), (scores.mT, query, 2 * count)]
    return pairs


def multiply(pairs: Sequence[Product]) -> None:
    """Compute all products."""
    for left, right, count in pairs:
        for _ in range(count):
            left @ right


def count_flop(pairs: Sequence[Product]) -> int:
    """Return the number of multiplications and additions of all products."""
    return sum(2 * left.numel() * right.shape[-1] * count for left, right, count in pairs)


def time_call(function: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one call, including work on the GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def measure_step(scheme: str, precision: str, repeats: int, device: torch.device) -> dict[str, object]:
    """Return the median times of a step and of its products, measured in turn."""
    base = with_scheme_and_encoding(lw.recipe("parity"), scheme)
    experiment = replace(
        base,
        decoder=replace(base.decoder, num_layers=MEASURED.layers, d_model=MEASURED.d_model, num_heads=MEASURED.heads),
        training=replace(base.training, batch_size=MEASURED.batch, steps=1_000_000, precision=precision),
    )
    sampler = TrainingSampler(
        task=experiment.task,
        scheme=experiment.scheme,
        lengths=(21, 21),
        batch_size=MEASURED.batch,
        seed=experiment.seed,
    )
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    # The loss reads hidden states from the last prompt token on.
    num_queries = MEASURED.seq + 1 - int(sampler.batches(0)[0].prompt_length[0])
    all_products, executed = (products(MEASURED, device, dtype, size) for size in (MEASURED.seq, num_queries))

    step_times, all_times, executed_times = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        decoder = build_decoder(experiment).to(device)
        trainer = Trainer(decoder, sampler, experiment.training, Path(folder))
        for repeat in range(repeats + 5):
            functions = (trainer.step, lambda: multiply(all_products), lambda: multiply(executed))
            seconds = [time_call(function, device) for function in functions]
            if repeat >= 5:
                for times, second in zip((step_times, all_times, executed_times), seconds, strict=True):
                    times.append(second)
    return {
        "scheme": scheme,
        "precision": precision,
        "step_ms": round(1e3 * statistics.median(step_times), 2),
        "products_ms": round(1e3 * statistics.median(all_times), 2),
        "executed_products_ms": round(1e3 * statistics.median(executed_times), 2),
        "products_gflop": round(count_flop(all_products) / 1e9, 2),
        "executed_gflop": round(count_flop(executed) / 1e9, 2),
        "products_gflop_per_s": round(count_flop(all_products) / 1e9 / statistics.median(all_times), 1),
        "step_gflop_per_s": round(count_flop(all_products) / 1e9 / statistics.median(step_times), 1),
        "share": median_ratio(all_times, step_times),
        "executed_share": median_ratio(executed_times, step_times),
    }


def median_ratio(times: list[float], reference: list[float]) -> float:
    """Return the median ratio of times measured in the same rounds."""
    return round(statistics.median(one / other for one, other in zip(times, reference, strict=True)), 3)


def main() -> None:
    """Print one row per scheme and append the rows to the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("a") as file:
        for scheme, precision in (("coupled", "float32"), ("predicted", "float32"), ("coupled", "bf16")):
            row = measure_step(scheme, precision, arguments.repeats, torch.device(arguments.device))
            print(row)
            file.write(json.dumps({**row, **collect_provenance()}) + "\n")


if __name__ == "__main__":
    main()
