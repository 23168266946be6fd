"""Compare training steps with one length and with several lengths per batch.

``speed`` measures the share of fill and the time per token that is not fill (processor time on a CPU, wall time on a
GPU); steps of all settings alternate in one process with one thread. ``fit`` trains rotary encodings as published on
short lengths, and measures exact match at the longest training length during training.
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

import lengthwise as lw
from lengthwise.core.provenance import collect_provenance
from lengthwise.encodings import Rotary
from lengthwise.experiments.experiment import build_decoder, build_sampler
from lengthwise.experiments.run import measure_training_fit
from lengthwise.positions import PositionScheme, Predicted, Sequential
from lengthwise.tasks import Addition, Copy, Parity, Task
from lengthwise.training.batch import Batch
from lengthwise.training.trainer import Trainer

RESULTS = Path(__file__).parent / "results" / "mixed_lengths.jsonl"
LENGTHS_PER_BATCH = (1, 4, 8, 20)
TASKS = {"parity": (Parity(), (1, 20)), "addition": (Addition(), (1, 10))}
SCHEMES = {"sequential": Sequential(), "predicted": Predicted()}
# Layers, d_model, batch size.
SIZES = ((2, 64, 64), (3, 128, 128))


def experiment_of(
    task: Task, lengths: tuple[int, int], scheme: PositionScheme, size: tuple[int, int, int], **training: object
) -> lw.Experiment:
    """Return an experiment without length scaling and with rotary as published."""
    num_layers, d_model, batch_size = size
    return lw.Experiment(
        task=task,
        scheme=scheme,
        encoding=Rotary(),
        decoder=lw.DecoderSettings(
            num_layers=num_layers, d_model=d_model, num_heads=4, temperature=1.0, length_scaling="none"
        ),
        training=replace(lw.TrainingSettings(batch_size=batch_size), **training),
        train_lengths=lengths,
    )


def trainer_of(experiment: lw.Experiment, folder: str, device: str = "cpu") -> Trainer:
    """Return a trainer at step 0."""
    sampler = build_sampler(experiment, experiment.train_lengths)
    return Trainer(build_decoder(experiment).to(device), sampler, experiment.training, Path(folder))


def count_tokens(batches: list[Batch]) -> tuple[int, int]:
    """Return the number of tokens up to the end token, and the number of all tokens."""
    num_used = sum(int((batch.token_scored.sum(dim=1) + batch.prompt_length).sum()) for batch in batches)
    return num_used, sum(batch.tokens.numel() for batch in batches)


def read_clock(device: str) -> float:
    """Return the processor time on a CPU, or the wall time after all work of a GPU, in seconds."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def measure_speed(num_steps: int, device: str = "cpu") -> list[dict[str, object]]:
    """Return one row per task, scheme, size and number of lengths per batch."""
    rows: list[dict[str, object]] = []
    for task_name, (task, lengths) in TASKS.items():
        for scheme_name, scheme in SCHEMES.items():
            for size in SIZES:
                with tempfile.TemporaryDirectory() as folder:
                    trainers = {
                        number: trainer_of(
                            experiment_of(task, lengths, scheme, size, lengths_per_batch=number), folder, device
                        )
                        for number in LENGTHS_PER_BATCH
                    }
                    for trainer in trainers.values():
                        trainer.step()  # The first step is slower.
                    totals = {number: [0.0, 0, 0, 0] for number in LENGTHS_PER_BATCH}
                    for step in range(num_steps):
                        for number, trainer in trainers.items():
                            start = read_clock(device)
                            trainer.step()
                            seconds = read_clock(device) - start
                            batches = trainer.samplers[0].batches(step + 1)
                            num_used, num_tokens = count_tokens(batches)
                            sums = (seconds, num_used, num_tokens, len(batches))
                            totals[number] = [total + value for total, value in zip(totals[number], sums, strict=True)]
                reference = totals[1][0] / totals[1][1]
                for number, (seconds, num_used, num_tokens, num_batches) in totals.items():
                    rows.append(
                        {
                            "part": "speed",
                            "task": task_name,
                            "scheme": scheme_name,
                            "num_layers": size[0],
                            "d_model": size[1],
                            "batch_size": size[2],
                            "lengths_per_batch": number,
                            "num_steps": num_steps,
                            "groups": round(num_batches / num_steps, 2),
                            "fill": round(1 - num_used / num_tokens, 4),
                            "step_ms": round(1000 * seconds / num_steps, 2),
                            "relative_time_per_token": round(seconds / num_used / reference, 3),
                        }
                    )
                    print(rows[-1], flush=True)
    return rows


def measure_fit_curves(
    num_steps: int, seeds: tuple[int, ...], lengths_per_batch: tuple[int, ...]
) -> list[dict[str, object]]:
    """Return the exact match at the longest training length every tenth of the steps."""
    rows: list[dict[str, object]] = []
    for task_name, task in (("parity", Parity()), ("copy", Copy())):
        for number in lengths_per_batch:
            for seed in seeds:
                experiment = replace(
                    experiment_of(task, (1, 10), Sequential(), SIZES[0], lengths_per_batch=number, steps=num_steps),
                    seed=seed,
                )
                curve = []
                with tempfile.TemporaryDirectory() as folder:
                    trainer = trainer_of(experiment, folder)
                    start = time.process_time()
                    for step in range(1, num_steps + 1):
                        trainer.decoder.train()
                        trainer.step()
                        if step % (num_steps // 10) == 0:
                            trainer.decoder.eval()
                            curve.append([step, measure_training_fit(experiment, trainer.decoder).exact_match])
                rows.append(
                    {
                        "part": "fit",
                        "task": task_name,
                        "lengths_per_batch": number,
                        "seed": seed,
                        "exact_match": curve,
                        "process_s": round(time.process_time() - start, 1),
                    }
                )
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Run both parts and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["speed", "fit", "both"], default="both")
    parser.add_argument("--speed-steps", type=int, default=60)
    parser.add_argument("--fit-steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--fit-lengths-per-batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [] if arguments.part == "fit" else measure_speed(arguments.speed_steps)
    if arguments.part != "speed":
        numbers = tuple(arguments.fit_lengths_per_batch)
        rows += measure_fit_curves(arguments.fit_steps, tuple(arguments.seeds), numbers)
    facts = collect_provenance()
    arguments.out.write_text("".join(json.dumps({**row, "provenance": facts}) + "\n" for row in rows))


if __name__ == "__main__":
    main()
