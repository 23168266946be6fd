"""Measure the time, the memory and the exact match of long evaluations: from a thousand tokens to a million.

Each run trains a recipe (``parity_long`` or ``copy_long``) on at most 20 bits or symbols, then evaluates single
sequences, from short to long, with teacher forcing and with free decoding. Up to ``MAX_DENSE_LENGTH``, dense attention
must predict the same tokens. Finished rows are kept in ``results/million_tokens.jsonl``; the script prints them and the
exponents of time and memory.
"""

import argparse
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import lengthwise as lw
from lengthwise.core.provenance import collect_provenance
from lengthwise.evaluation.exact_match import iter_examples
from lengthwise.experiments.run_folder import append_rows, read_rows
from lengthwise.model.attention_scores import NO_HOOKS, AttentionHooks
from lengthwise.model.fast.near_attention import NearAttention

RESULTS = Path(__file__).parent / "results" / "million_tokens.jsonl"
# A sequence has about twice as many tokens.
LENGTHS = {"forced": (500, 2000, 8000, 20_000, 32_000, 128_000, 500_000), "free": (12_500, 25_000, 50_000)}
MAX_DENSE_LENGTH = 20_000
# Shorter evaluations are dominated by constant time.
MIN_FIT_LENGTH = 8000


def measure(recipe: str, run: lw.Run, lengths: Mapping[str, Sequence[int]]) -> Iterator[dict[str, Any]]:
    """Yield one result row of a run of a recipe per decode mode and length."""
    torch.set_num_threads(1)
    kept_keys = ("length", "decode", "exact_match", "exact_tokens", "id_accuracy", "fitted", "given", "omitted_weight")
    seed, device = run.experiment.seed, next(run.decoder.parameters()).device
    for decode, length in ((mode, length) for mode, values in lengths.items() for length in values):
        before = time.process_time()
        reset_peak(device)
        settings = lw.EvaluationSettings(lengths=(length,), num_examples=(1,), seed=seed, decode=decode)
        (row,) = lw.evaluate(run, settings)
        kept = {key: row[key] for key in kept_keys}
        used = {"cpu_s": round(time.process_time() - before, 2), "wall_s": row["wall_s"], "train_s": row["train_s"]}
        memory = {"peak_gib": round(peak_bytes(device) / 2**30, 2)}
        comparison = compare_with_dense(run, length, seed) if decode == "forced" else {}
        yield {"recipe": recipe, "seed": seed, **kept, **used, **memory, **comparison}


def reset_peak(device: torch.device) -> None:
    """Forget the peak memory of a GPU; the peak of a process on a CPU remains."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """Return the peak memory of the GPU since its last reset, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10


@torch.no_grad()
def compare_with_dense(run: lw.Run, length: int, seed: int) -> dict[str, Any]:
    """Return whether dense attention predicts the same tokens, and the largest difference of two logits."""
    if length > MAX_DENSE_LENGTH:
        return {}
    run.decoder.eval()
    device = next(run.decoder.parameters()).device
    batch = next(iter_examples(run.experiment.task, run.experiment.scheme, length, 1, seed))[1].to(device)
    start, near = int(batch.prompt_length[0]) - 1, NearAttention()
    logits = []
    for hooks in (NO_HOOKS, AttentionHooks(near=near)):
        inputs = batch.tokens[:, :-1], batch.position_ids[:, :, :-1]
        logits.append(run.decoder.token_logits(run.decoder(*inputs, query_start=start, hooks=hooks)[0]))
    difference = float((logits[0] - logits[1]).abs().max())
    same = bool((logits[0].argmax(-1) == logits[1].argmax(-1)).all())
    return {"same_as_dense": same, "logit_difference": difference, "dense_queries": near.num_dense}


def exponent(rows: list[dict[str, Any]], key: str, decode: str) -> float:
    """Return the slope of ``log(value)`` against ``log(length)``."""
    points = [(row["length"], row[key]) for row in rows if row["length"] >= MIN_FIT_LENGTH and row["decode"] == decode]
    lengths, values = np.log(np.array(points)).T
    return float(np.polyfit(lengths, values, 1)[0])


def main() -> None:
    """Measure all recipes and seeds that have no row yet, and print the rows and the exponents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*", default=["parity_long", "copy_long"])
    parser.add_argument("--first-seed", type=int, default=9000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    done = read_rows(arguments.out) if arguments.out.exists() else []
    for recipe in arguments.recipes:
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            rows = [row for row in done if (row["recipe"], row["seed"]) == (recipe, seed)]
            if not rows:
                with TemporaryDirectory() as folder:
                    run = lw.train(replace(lw.recipe(recipe), seed=seed), Path(folder) / "run", device="cpu", threads=1)
                    assert run is not None
                    rows = list(measure(recipe, run, LENGTHS))
                append_rows(arguments.out, [{**row, "provenance": collect_provenance()} for row in rows])
            print(*rows, sep="\n")
            for decode, key in (("forced", "cpu_s"), ("forced", "peak_gib"), ("free", "cpu_s")):
                print(f"{recipe}, seed {seed}, {decode}: {key} ~ length^{exponent(rows, key, decode):.2f}", flush=True)


if __name__ == "__main__":
    main()
