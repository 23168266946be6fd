"""Measure the time to sample a training batch of 64 sequences of about 44 tokens, for four tasks and two schemes."""

import argparse
import json
import statistics
import time
from pathlib import Path

import lengthwise as lw
from lengthwise.core.provenance import collect_provenance
from lengthwise.training.batch import TrainingSampler

# Task lengths at which a sequence has 43 to 45 tokens.
LENGTHS = {"parity": 20, "copy": 20, "reverse": 20, "addition": 13}
RESULTS = Path(__file__).parent / "results" / "sampler_speed.jsonl"


def measure_batch_ms(task: str, scheme: str, repeats: int) -> tuple[float, int]:
    """Return the median time of a batch in ms, and the number of tokens per sequence."""
    experiment = lw.experiment(task, scheme)
    lengths = (LENGTHS[task], LENGTHS[task])
    sampler = TrainingSampler(task=experiment.task, scheme=experiment.scheme, lengths=lengths, batch_size=64, seed=0)
    times = []
    for step in range(repeats):
        started = time.perf_counter()
        batch = sampler.batches(step)[0]
        times.append(time.perf_counter() - started)
    return 1e3 * statistics.median(times), batch.tokens.shape[1]


def main() -> None:
    """Print one row per task and scheme, and append the rows to the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("a") as file:
        for task in LENGTHS:
            for scheme in ("sequential", "predicted"):
                median, seq = measure_batch_ms(task, scheme, arguments.repeats)
                row = {"task": task, "scheme": scheme, "batch": 64, "seq": seq, "ms": round(median, 3)}
                print(row)
                file.write(json.dumps({**row, **collect_provenance()}) + "\n")


if __name__ == "__main__":
    main()
