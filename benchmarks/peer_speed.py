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
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import transformers
from peer_batches import python_batch
from peer_models import (
    Shape,
    gpt_neox_generation,
    gpt_neox_model,
    gpt_neox_steps,
    run_hf_trainer,
    x_transformers_steps,
)

import lengthwise as lw
from lengthwise.core.provenance import provenance
from lengthwise.evaluation.exact_match import eval_mode
from lengthwise.evaluation.grading import grade
from lengthwise.experiments.experiment import Experiment, build_decoder
from lengthwise.model.generate import generate
from lengthwise.training.batch import Batch, Sampler
from lengthwise.training.trainer import Trainer

SCHEMES = {"plain": "sequential", "coupled": "coupled", "PPC": "predicted"}
SIZES = {"2 x 64": (2, 64), "2 x 128": (2, 128), "4 x 256": (4, 256)}
BATCH, TRAIN_LENGTH, DECODE_SIZE = 64, 20, "2 x 128"
# Numbers of new tokens; a sequence has about twice as many tokens.
EXACT_MATCH_TOKENS, FREE_TOKENS, NUM_GRADED, FREE_SEQUENCES = (100, 1000), (100, 500), 16, (1, 64)
# Lengths of the sampled batches: 43 and 1,003 tokens.
SAMPLED_LENGTHS = (20, 500)
RESULTS = Path(__file__).parent / "results" / "peer_speed.jsonl"

Functions = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Seconds:
    """Wall time and processor time of one call; other processes of a busy machine change the processor time less."""

    wall: float
    cpu: float


Times = dict[str, list[Seconds]]


class Stopwatch:
    """Measure the seconds from construction to ``read``."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> Seconds:
        """Return the seconds since construction."""
        return Seconds(time.perf_counter() - self.wall, time.process_time() - self.cpu)


@dataclass(frozen=True, slots=True)
class PreparedBatches:
    """Replacement of the sampler that returns the same batches at every step."""

    prepared: list[Batch]

    def batches(self, step: int) -> list[Batch]:
        """Return the prepared batches."""
        return self.prepared


def experiment_of(scheme: str, size: str) -> Experiment:
    """Return the parity recipe with a scheme and a decoder size."""
    num_layers, d_model = SIZES[size]
    base = lw.experiment_for("parity", SCHEMES[scheme])
    decoder = replace(base.decoder, num_layers=num_layers, d_model=d_model, num_heads=d_model // 32)
    return replace(base, decoder=decoder, training=replace(base.training, steps=1_000_000, batch_size=BATCH))


def sample_batch(experiment: Experiment, length: int, num_examples: int) -> Batch:
    """Return examples of one length."""
    sampler = Sampler(
        task=experiment.task, scheme=experiment.scheme, lengths=(length, length), batch_size=num_examples, seed=0
    )
    return sampler.batches(0)[0]


def shape_of(experiment: Experiment) -> Shape:
    """Return the sizes that a peer needs."""
    settings = experiment.decoder
    return Shape(
        num_layers=settings.num_layers, d_model=settings.d_model, vocabulary_size=len(experiment.task.vocabulary)
    )


def run_round(functions: Functions, times: Times) -> None:
    """Call each function once and append its seconds."""
    for name, function in functions.items():
        stopwatch = Stopwatch()
        function()
        times.setdefault(name, []).append(stopwatch.read())


def time_in_rounds(functions: Functions, rounds: int) -> Times:
    """Return the seconds per call of functions that take turns, without a first round to warm up."""
    times: Times = {}
    for _ in range(rounds + 1):
        run_round(functions, times)
    return {name: seconds[1:] for name, seconds in times.items()}


def fastest(functions: Functions, rounds: int) -> str:
    """Return the name of the function with the smallest minimum."""
    times = time_in_rounds(functions, rounds)
    return min(times, key=lambda name: min(seconds.cpu for seconds in times[name]))


def row(part: str, shape: str, times: Times, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return one result row, in milliseconds per call."""
    return {
        "part": part,
        "shape": shape,
        **{
            f"{statistic}_{clock}_ms": {
                name: round(1e3 * summarize(getattr(seconds, clock) for seconds in calls), 3)
                for name, calls in times.items()
            }
            for clock in ("wall", "cpu")
            for statistic, summarize in (("median", statistics.median), ("min", min))
        },
        "rounds": min(len(seconds) for seconds in times.values()),
        "settings": dict(settings),
    }


def training_steps(rounds: int, sizes: Sequence[str] = tuple(SIZES)) -> Iterator[dict[str, Any]]:
    """Yield one row per size; ``transformers.Trainer`` drives the rounds, and the other steps run in its callback."""
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            functions: dict[str, Callable[[], object]] = {}
            for name in SCHEMES:
                experiment = experiment_of(name, size)
                prepared: Any = PreparedBatches([sample_batch(experiment, TRAIN_LENGTH, BATCH)])
                trainer = Trainer(build_decoder(experiment), prepared, experiment.training, Path(folder))
                trainer.decoder.train()
                functions[f"lengthwise {name}"] = trainer.step
            batch, shape = prepared.prepared[0], shape_of(experiment)
            settings = {}
            for peer, steps in (
                ("x-transformers", x_transformers_steps(shape, batch)),
                ("GPT-NeoX loop", gpt_neox_steps(shape, batch)),
            ):
                settings[peer] = fastest(steps, 5)
                functions[peer] = steps[settings[peer]]
            settings["GPT-NeoX Trainer"] = attention = settings["GPT-NeoX loop"]
            yield row("training step", size, _times_with_trainer(functions, shape, batch, attention, rounds), settings)


def _times_with_trainer(functions: Functions, shape: Shape, batch: Batch, attention: str, rounds: int) -> Times:
    times: Times = {}
    stopwatches: list[Stopwatch] = []

    def after_step() -> None:
        if stopwatches:
            times.setdefault("GPT-NeoX Trainer", []).append(stopwatches[-1].read())
        run_round(functions, times)
        stopwatches.append(Stopwatch())

    with tempfile.TemporaryDirectory() as folder:
        model = gpt_neox_model(shape, attention=attention)
        run_hf_trainer(model, batch, steps=rounds + 1, folder=folder, after_step=after_step)
    return {name: seconds[-rounds:] for name, seconds in times.items()}


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
        generations = _generations(experiment, batch, num_tokens)
        attention = fastest(generations, 1)
        functions["GPT-NeoX generate"] = generations[attention]
        shape = f"{NUM_GRADED} sequences, {num_tokens} new tokens"
        yield row("exact match", shape, time_in_rounds(functions, rounds), {"GPT-NeoX generate": attention})


def _grading(decoder: Any, batch: Batch, end: int) -> Callable[[], object]:
    return lambda: grade(decoder, batch, end=end, decode="forced")


def _generations(experiment: Experiment, batch: Batch, num_tokens: int) -> dict[str, Callable[[], torch.Tensor]]:
    """Return the greedy decoding of the same prompts by GPT-NeoX, for each attention implementation."""
    prompt = batch.tokens[:, : int(batch.prompt_length[0])]
    return {
        attention: gpt_neox_generation(gpt_neox_model(shape_of(experiment), attention=attention), prompt, num_tokens)
        for attention in ("eager", "sdpa")
    }


def free_decoding(rounds: int) -> Iterator[dict[str, Any]]:
    """Yield one row per number of sequences and new tokens; no token ends a sequence early."""
    for num_sequences in FREE_SEQUENCES:
        for num_tokens in FREE_TOKENS:
            functions: dict[str, Callable[[], object]] = {}
            for name in ("plain", "PPC"):
                experiment = experiment_of(name, DECODE_SIZE)
                batch = sample_batch(experiment, num_tokens - 1, num_sequences)
                functions[f"lengthwise {name}"] = _decoding(build_decoder(experiment), batch, num_tokens)
            generations = _generations(experiment, batch, num_tokens)
            attention = fastest(generations, 1)
            functions["GPT-NeoX generate"] = generations[attention]
            shape = f"{num_sequences} sequences, {num_tokens} new tokens"
            yield row("free decoding", shape, time_in_rounds(functions, rounds), {"GPT-NeoX generate": attention})


def _decoding(decoder: Any, batch: Batch, num_tokens: int) -> Callable[[], object]:
    prompt_length = int(batch.prompt_length[0])
    ids = batch.position_ids[:, :, : prompt_length if decoder.predicts_ids else None]

    def decode() -> object:
        with eval_mode(decoder):
            return generate(decoder, batch.tokens[:, :prompt_length], ids, end=-1, max_new_tokens=num_tokens)

    return decode


def batch_making(rounds: int) -> Iterator[dict[str, Any]]:
    """Yield one row per scheme and length: the sampler compared with a generator of single examples."""
    for name in SCHEMES:
        for length in SAMPLED_LENGTHS:
            experiment = experiment_of(name, DECODE_SIZE)
            sampler = Sampler(
                task=experiment.task, scheme=experiment.scheme, lengths=(length, length), batch_size=BATCH, seed=0
            )
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
                file.write(json.dumps({**result, "peers": peers, **provenance()}) + "\n")


if __name__ == "__main__":
    main()
