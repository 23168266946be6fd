"""Measurements of the targets of speed on one GPU, for ``gpu.py``: steps, decoding, long evaluation and many seeds.

Each function returns a result row with its ``target`` and whether the machine has ``reached`` it. All of them also run
on a CPU with small sizes, so the tests call them.
"""

import importlib
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import million_tokens
import torch
from peer_decoding import PEER, free_decoding_row
from peer_experiments import (
    BATCH,
    SIZES,
    TRAIN_LENGTH,
    experiment_of,
    own_step,
    repeat_batch,
    sample_batch,
    sampler_of,
    shape_of,
)
from peer_models import gpt_neox_model, gpt_neox_steps
from rounds import Functions, Times, fastest, row, time_in_rounds
from step_speed import count_flop, median_ratio, time_call
from transformers import PreTrainedModel

import lengthwise as lw
from lengthwise.encodings import Rotary
from lengthwise.experiments.executors import run_in_processes
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.training.batch import Batch
from lengthwise.training.trainer import Trainer
from lengthwise.training.training_settings import TrainingSettings

MIN_SPEEDUP, MIN_PRODUCT_SHARE, MAX_EXPONENT, MAX_SEED_RATIO = 5.0, 0.45, 1.15, 2.0
# Number of new tokens of free decoding.
DECODED_TOKENS = (100, 500)
# Products per measurement of the matrix rate, and rounds before the measurement of large steps.
PRODUCTS_PER_CALL, WARM_UP_ROUNDS = 10, 5
# Rounds that select the fastest setting of a peer.
SELECTION_ROUNDS = 5


def training_steps(rounds: int, device: torch.device, sizes: Sequence[str] = tuple(SIZES)) -> dict[str, Any]:
    """Compare a training step, with the making of its batch, with ``transformers.Trainer`` and a plain loop.

    The batch of the peers is on the device from the start. All contenders of a row have the same precision.
    """
    rows = [training_step_row(size, precision, rounds, device) for size in sizes for precision in ("float32", "bf16")]
    ratios = [ratio for each in rows for ratio in speedups(each, "GPT-NeoX Trainer").values()]
    return {
        "rows": rows,
        "target": f"at least {MIN_SPEEDUP} times as fast as transformers.Trainer, at each size and precision",
        "smallest_speedup": min(ratios, default=None),
        "reached": min(ratios) >= MIN_SPEEDUP if ratios else None,
    }


def training_step_row(size: str, precision: str, rounds: int, device: torch.device) -> dict[str, Any]:
    """Return the row of one size and precision; without accelerate, it lacks ``transformers.Trainer``."""
    functions: dict[str, Callable[[], object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("plain", "PPC"):
            base = experiment_of(name, size)
            experiment = replace(base, training=replace(base.training, precision=precision))
            sampler = sampler_of(experiment, TRAIN_LENGTH, BATCH)
            functions[f"lengthwise {name}"] = own_step(experiment, sampler, Path(folder), device)
        batch, shape = sample_batch(experiment, TRAIN_LENGTH, BATCH).to(device), shape_of(experiment)
        loops = gpt_neox_steps(shape, batch, precision)
        attention = fastest(loops, SELECTION_ROUNDS)
        functions["GPT-NeoX loop"] = loops[attention]
        times, missing = times_of_steps(functions, gpt_neox_model(shape, attention=attention), batch, rounds, precision)
    result = row("training step", f"{size}, {BATCH} x {batch.tokens.shape[1]} tokens", times, {"GPT-NeoX": attention})
    return {**result, "precision": precision, "missing": missing}


def times_of_steps(
    functions: Functions, model: PreTrainedModel, batch: Batch, rounds: int, precision: str
) -> tuple[Times, str | None]:
    """Return the times of the functions and of ``transformers.Trainer``, or the reason why the latter cannot run."""
    try:
        if importlib.util.find_spec("accelerate") is None:
            raise ImportError("accelerate is not installed")
        trainer = importlib.import_module("peer_trainer")
        return trainer.times_with_trainer(functions, model, batch, rounds, precision), None
    except ImportError as error:  # Also raised for a version of accelerate that is too old.
        return time_in_rounds(functions, rounds), f"transformers.Trainer was not measured: {error}"


def speedups(result: Mapping[str, Any], peer: str) -> dict[str, float]:
    """Return the median wall time of a peer divided by that of each lengthwise contender."""
    medians = result["median_wall_ms"]
    ours = [name for name in medians if name.startswith("lengthwise") and peer in medians]
    return {name: round(medians[peer] / medians[name], 2) for name in ours}


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeStep:
    """Sizes of a training step that is dominated by matrix products, and of the product that it is compared with."""

    decoder: DecoderSettings
    vocabulary_size: int
    seq: int
    batch_sizes: tuple[int, ...]
    product_size: int


# 135M parameters; 110M of them are factors of products, because the embedding is a table.
DECODER_125M = LargeStep(
    decoder=DecoderSettings(num_layers=12, d_model=768, num_heads=12, length_scaling="none", segments=False),
    vocabulary_size=32_768,
    seq=2048,
    batch_sizes=(4, 8, 16, 32),
    product_size=8192,
)


def large_step(sizes: LargeStep, rounds: int, device: torch.device) -> dict[str, Any]:
    """Compare the floating-point rate of a training step in bf16 with that of a large matrix product in bf16.

    The operations of a step are ``6 * parameters * tokens``, without the parameters of the embedding, plus
    ``6 * layers * d_model * seq * tokens`` for causal attention, which computes half of all pairs of a query and a key.
    A step consists of forward, backward, clipping and AdamW.
    """
    decoder = Decoder(sizes.decoder, Rotary(), vocabulary_size=sizes.vocabulary_size).to(device)
    rows = []
    for batch_size in sizes.batch_sizes:
        try:
            rows.append(large_step_row(decoder, sizes, batch_size, rounds, device))
        except torch.OutOfMemoryError:
            rows.append({"batch_size": batch_size, "error": "out of memory"})
            break
    share = max((each["share"] for each in rows if "share" in each), default=0.0)
    return {
        "parameters": sum(parameter.numel() for parameter in decoder.parameters()),
        "rows": rows,
        "target": f"at least {MIN_PRODUCT_SHARE} of the rate of a product of {sizes.product_size}^3 in bf16",
        "largest_share": share,
        "reached": share >= MIN_PRODUCT_SHARE,
    }


def large_step_row(
    decoder: Decoder, sizes: LargeStep, batch_size: int, rounds: int, device: torch.device
) -> dict[str, Any]:
    """Return the row of one batch size; step and product take turns."""
    left, right = (torch.randn(sizes.product_size, sizes.product_size, device=device).bfloat16() for _ in range(2))
    product_flop, flop = count_flop([(left, right, PRODUCTS_PER_CALL)]), step_flop(decoder, batch_size, sizes.seq)
    batch = random_batch(sizes.vocabulary_size, batch_size, sizes.seq + 1)
    settings = TrainingSettings(batch_size=batch_size, steps=1_000_000, precision="bf16")

    def multiply() -> None:
        for _ in range(PRODUCTS_PER_CALL):
            left @ right

    step_times, product_times = [], []
    million_tokens.reset_peak(device)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(decoder, repeat_batch(batch), settings, Path(folder))
        decoder.train()
        for _ in range(WARM_UP_ROUNDS + rounds):
            step_times.append(time_call(trainer.step, device))
            product_times.append(time_call(multiply, device))
    step_times, product_times = step_times[WARM_UP_ROUNDS:], product_times[WARM_UP_ROUNDS:]
    rates = [flop / seconds for seconds in step_times], [product_flop / seconds for seconds in product_times]
    return {
        "batch_size": batch_size,
        "median_step_ms": round(1e3 * statistics.median(step_times), 2),
        "min_step_ms": round(1e3 * min(step_times), 2),
        "model_gflop": round(flop / 1e9, 3),
        "step_gflop_per_s": round(statistics.median(rates[0]) / 1e9, 1),
        "product_gflop_per_s": round(statistics.median(rates[1]) / 1e9, 1),
        "share": median_ratio(*rates),
        "peak_gib": round(million_tokens.peak_bytes(device) / 2**30, 2),
    }


def step_flop(decoder: Decoder, batch_size: int, seq: int) -> int:
    """Return the floating-point operations of a training step by the formula of ``large_step``."""
    settings, tokens = decoder.settings, batch_size * seq
    factors = sum(parameter.numel() for parameter in decoder.parameters()) - decoder.embedding.numel()
    return 6 * factors * tokens + 6 * settings.num_layers * settings.d_model * seq * tokens


def random_batch(vocabulary_size: int, batch_size: int, num_tokens: int) -> Batch:
    """Return random tokens with sequential IDs; all tokens except the first are scored."""
    generator = torch.Generator().manual_seed(0)
    scored = torch.ones(batch_size, num_tokens, dtype=torch.bool)
    scored[:, 0] = False
    return Batch(
        length=num_tokens,
        tokens=torch.randint(vocabulary_size, (batch_size, num_tokens), generator=generator),
        position_ids=torch.arange(num_tokens).expand(1, batch_size, -1),
        example_length=torch.full((batch_size,), num_tokens),
        prompt_length=torch.ones(batch_size, dtype=torch.int64),
        token_scored=scored,
        id_scored=torch.zeros_like(scored),
    )


def free_decoding(
    num_sequences: int, rounds: int, device: torch.device, new_tokens: Sequence[int] = DECODED_TOKENS
) -> dict[str, Any]:
    """Compare the free decoding of many sequences with ``generate`` of transformers in its fastest setting."""
    rows = [free_decoding_row(num_sequences, num_tokens, rounds, device) for num_tokens in new_tokens]
    smallest = min(ratio for each in rows for ratio in speedups(each, PEER).values())
    return {
        "rows": rows,
        "target": f"at least {MIN_SPEEDUP} times as fast as generate of transformers, plain and PPC",
        "smallest_speedup": smallest,
        "reached": smallest >= MIN_SPEEDUP,
    }


def long_evaluation(recipe: str, run: lw.Run, decode: str, lengths: Sequence[int]) -> dict[str, Any]:
    """Evaluate single long sequences of a run, with teacher forcing or free decoding."""
    rows = list(million_tokens.measure(recipe, run, {decode: lengths}))
    exponent = million_tokens.exponent(rows, "wall_s", decode)
    same_tokens = all(each.get("same_as_dense", True) for each in rows)
    return {
        "rows": rows,
        "target": f"wall time ~ length^{MAX_EXPONENT} at most, with the tokens of dense attention",
        "exponent": round(exponent, 2),
        "reached": exponent <= MAX_EXPONENT and same_tokens,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedJob:
    """One training of an experiment in its own folder, on a device."""

    experiment: lw.Experiment
    folder: str
    device: str


def train_seed(job: SeedJob) -> float:
    """Train a run in this process, and return its training time in seconds."""
    run = lw.train(job.experiment, job.folder, device=job.device)
    assert run is not None
    return float(run.facts["train_s"])


def time_seeds(experiment: lw.Experiment, count: int, device: torch.device) -> tuple[float, list[float]]:
    """Return the wall time of the training of several seeds in as many processes, and the training time of each."""
    train_s: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            SeedJob(experiment=replace(experiment, seed=seed), folder=f"{folder}/{seed}", device=device.type)
            for seed in range(experiment.seed, experiment.seed + count)
        ]
        started = time.perf_counter()
        run_in_processes(train_seed, jobs, count, lambda _, seconds: train_s.append(round(seconds, 2)))
        return round(time.perf_counter() - started, 2), train_s


def parallel_seeds(experiment: lw.Experiment, num_seeds: int, rounds: int, device: torch.device) -> dict[str, Any]:
    """Compare the wall time of one training in one process with that of several seeds in as many processes.

    Both include the start of the processes. The training times of the processes are stated apart.
    """
    results = [[time_seeds(experiment, count, device) for count in (1, num_seeds)] for _ in range(rounds)]
    one, several = ([wall for wall, _ in column] for column in zip(*results, strict=True))
    ratio = min(several) / min(one)
    return {
        "one_wall_s": one,
        "all_wall_s": several,
        "train_s": [[train_s for _, train_s in both] for both in results],
        "target": f"{num_seeds} seeds take at most {MAX_SEED_RATIO} times as long as one",
        "ratio": round(ratio, 2),
        "reached": ratio <= MAX_SEED_RATIO,
    }
