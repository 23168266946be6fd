"""Compare the speed of lengthwise with x-transformers and transformers, in one process on one thread.

    python benchmarks/peer_speed.py --out benchmarks/results/peer_speed.jsonl

Parts: a training step (batch on hand, forward, backward, clipping, AdamW), teacher-forced exact match compared with
decoding by ``generate`` of transformers, free decoding, and making a batch. All contenders of a part take turns in
rounds. The script prints medians and minima of wall time and of processor time, with their ratios. Each peer uses its
fastest setting, which a few rounds select. The loss of every contender covers the answer tokens only; only lengthwise
skips the prompt's queries in the last layer, and only PPC also predicts position IDs.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import transformers
from peer_batches import python_batch
from peer_decoding import PEER, free_decoding_row, generations
from peer_experiments import (
    BATCH,
    DECODE_SIZE,
    SCHEMES,
    SIZES,
    TRAIN_LENGTH,
    experiment_of,
    own_step,
    repeat_batch,
    sample_batch,
    sampler_of,
    shape_of,
)
from peer_models import Shape, gpt_neox_model, gpt_neox_steps
from peer_trainer import TRAINER, times_with_trainer
from peer_x_transformers import x_transformers_steps
from rounds import Functions, fastest, row, time_in_rounds
from step_speed import StepShape, multiply, products

from lengthwise.core.provenance import collect_provenance
from lengthwise.evaluation.grading import grade
from lengthwise.experiments.experiment import build_decoder
from lengthwise.training.batch import Batch

# Numbers of new tokens; a sequence has about twice as many tokens.
EXACT_MATCH_TOKENS, FREE_TOKENS, NUM_GRADED, FREE_SEQUENCES = (100, 1000), (100, 500), 16, (1, 64)
# Lengths of the sampled batches: 43 and 1,003 tokens.
SAMPLED_LENGTHS = (20, 500)
# The matrix products of a step, without the rest of it.
PRODUCTS = "products of lengthwise"
RESULTS = Path(__file__).parent / "results" / "peer_speed.jsonl"


def training_steps(rounds: int, sizes: Sequence[str] = tuple(SIZES)) -> Iterator[dict[str, Any]]:
    """Yield one row per size; ``transformers.Trainer`` drives the rounds, and the other steps run in its callback."""
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            functions: dict[str, Callable[[], object]] = {}
            for name in SCHEMES:
                experiment = experiment_of(name, size)
                batch = sample_batch(experiment, TRAIN_LENGTH, BATCH)
                step = own_step(experiment, repeat_batch(batch), Path(folder), torch.device("cpu"))
                functions[f"lengthwise {name}"] = step
            shape = shape_of(experiment)
            settings = {}
            for peer, steps in (
                ("x-transformers", x_transformers_steps(shape, batch)),
                ("GPT-NeoX loop", gpt_neox_steps(shape, batch, "float32")),
            ):
                settings[peer] = fastest(steps, 5)
                functions[peer] = steps[settings[peer]]
            functions[PRODUCTS] = _products(batch, shape)
            settings[TRAINER] = attention = settings["GPT-NeoX loop"]
            times = times_with_trainer(functions, gpt_neox_model(shape, attention=attention), batch, rounds)
            yield row("training step", size, times, settings)


def _products(batch: Batch, shape: Shape) -> Callable[[], object]:
    """Return a function that computes only the matrix products of a step of lengthwise, the limit of its speed."""
    seq = batch.tokens.shape[1] - 1
    step = StepShape(
        batch=len(batch.tokens), seq=seq, layers=shape.num_layers, d_model=shape.d_model, heads=shape.d_model // 32
    )
    num_queries = seq + 1 - int(batch.prompt_length[0])
    return partial(multiply, products(step, torch.device("cpu"), torch.float32, num_queries))


def exact_match(rounds: int) -> Iterator[dict[str, Any]]:
    """Yield one row per response length: grading with one forward pass compared with decoding all tokens."""
    for num_tokens in EXACT_MATCH_TOKENS:
        functions: dict[str, Callable[[], object]] = {}
        for name in ("plain", "PPC"):
            experiment = experiment_of(name, DECODE_SIZE)
            batch = sample_batch(experiment, num_tokens - 1, NUM_GRADED)
            decoder = build_decoder(experiment).eval()
            end = experiment.task.vocabulary.index("end")
            functions[f"lengthwise {name}"] = _grading(decoder, batch, end)
        candidates = generations(experiment, batch, num_tokens)
        attention = fastest(candidates, 1)
        functions[PEER] = candidates[attention]
        shape = f"{NUM_GRADED} sequences, {num_tokens} new tokens"
        yield row("exact match", shape, time_in_rounds(functions, rounds), {PEER: attention})


def _grading(decoder: Any, batch: Batch, end: int) -> Callable[[], object]:
    return lambda: grade(decoder, batch, end=end, decode="forced")


def free_decoding(rounds: int) -> Iterator[dict[str, Any]]:
    """Yield one row per number of sequences and new tokens."""
    for num_sequences in FREE_SEQUENCES:
        for num_tokens in FREE_TOKENS:
            yield free_decoding_row(num_sequences, num_tokens, rounds, torch.device("cpu"))


def batch_making(rounds: int) -> Iterator[dict[str, Any]]:
    """Yield one row per scheme and length: the sampler compared with a generator of single examples."""
    for name in SCHEMES:
        for length in SAMPLED_LENGTHS:
            experiment = experiment_of(name, DECODE_SIZE)
            sampler = sampler_of(experiment, length, BATCH)
            functions: Functions = {
                "lengthwise": lambda sampler=sampler: sampler.batches(0),  # type: ignore[misc]
                "Python generator": lambda length=length, experiment=experiment: python_batch(  # type: ignore[misc]
                    length, BATCH, experiment.scheme
                ),
            }
            shape = f"{name}, {BATCH} x {2 * length + 3} tokens"
            yield row("batch", shape, time_in_rounds(functions, rounds), {})


def print_row(result: Mapping[str, Any]) -> None:
    """Print one line per contender, with its median and its ratio to each lengthwise contender."""
    print(f"\n{result['part']}: {result['shape']} ({result['rounds']} rounds)")
    columns = [result[f"{statistic}_{clock}_ms"] for clock in ("wall", "cpu") for statistic in ("median", "min")]
    print("  ms: wall median, wall minimum, CPU median, CPU minimum; ratios in the same order")
    ours = [name for name in columns[0] if name.startswith("lengthwise")]
    for name in columns[0]:
        setting = f" [{result['settings'][name]}]" if name in result["settings"] else ""
        print(f"  {name}{setting}: " + ", ".join(f"{column[name]:.2f}" for column in columns))
        for own in ours if name not in ours else ():
            print(f"    / {own}: " + ", ".join(f"{column[name] / column[own]:.2f}" for column in columns))


# Function of each part, and its number of rounds.
PARTS: dict[str, tuple[Callable[[int], Iterator[dict[str, Any]]], int]] = {
    "step": (training_steps, 20),
    "exact": (exact_match, 3),
    "free": (free_decoding, 3),
    "batch": (batch_making, 30),
}


def main() -> None:
    """Measure the parts, print them, and append their rows to the results file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, help="Measure only this part.")
    parser.add_argument("--size", choices=SIZES, help="Measure only training steps of this size.")
    parser.add_argument("--rounds", type=int, help="Number of rounds; by default, each part has its own.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    peers = {name: metadata.version(name) for name in ("transformers", "x-transformers", "accelerate")}
    parts = dict(PARTS)
    if options.size is not None:
        parts = {"step": (partial(training_steps, sizes=[options.size]), PARTS["step"][1])}
    for part in parts if options.part is None else [options.part]:
        measure, rounds = parts[part]
        for result in measure(rounds if options.rounds is None else options.rounds):
            print_row(result)
            with options.out.open("a") as file:
                file.write(json.dumps({**result, "peers": peers, **collect_provenance()}) + "\n")


if __name__ == "__main__":
    main()
