"""Search settings for each encoding and for PPC with equal effort, then train the best settings on new seeds.

``tune`` trains every method with every configuration of ``CONFIGURATIONS`` on one tuning seed, then the two best
configurations of each method for twice the steps on two tuning seeds. The score is the exact match at the longest
training length; longer lengths are not measured. ``publish`` trains the best configuration of each method on five new
seeds and measures longer lengths. Finished rows are kept, so the script can be stopped and started again.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import lengthwise as lw
from lengthwise.core.provenance import provenance
from lengthwise.encodings import ENCODINGS, Rotary
from lengthwise.evaluation.exact_match import evaluate_by_length
from lengthwise.experiments.experiment import build_decoder, build_sampler
from lengthwise.experiments.run import measure_fit
from lengthwise.positions import Predicted, Sequential
from lengthwise.tasks import Copy, Parity, Task
from lengthwise.training.trainer import Trainer

RESULTS = Path(__file__).parent / "results"
TUNING_SEEDS, PUBLISHED_SEEDS = (100, 101), (0, 1, 2, 3, 4)
LENGTHS_PER_BATCH = 8
PPC = "predicted (PPC)"
METHODS = ("rotary", "alibi", "t5", "kerple_log", "nope", "fire", PPC)
# Decoder and training settings that each method is trained with.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "2 layers": {"num_layers": 2},
    "3 layers": {"num_layers": 3, "learning_rate": 2e-3},
    "4 layers": {"num_layers": 4, "learning_rate": 2e-3},
    "2 layers, d_model 128": {"num_layers": 2, "d_model": 128, "learning_rate": 2e-3},
    "2 layers, previous token": {"num_layers": 2, "previous_token_mix": True},
    "2 layers, log scaling": {"num_layers": 2, "length_scaling": "log"},
    "2 layers, temperature 3": {"num_layers": 2, "temperature": 3.0},
    "2 layers, batch 128": {"num_layers": 2, "batch_size": 128},
}
# The recipe of PPC, in addition to the configurations above.
PPC_CONFIGURATIONS = {
    **CONFIGURATIONS,
    "1 layer, log scaling, temperature 3": {"num_layers": 1, "length_scaling": "log", "temperature": 3.0},
}
TRAINING_SETTINGS = ("learning_rate", "batch_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSweep:
    """A task with its longest training length, longer test lengths and steps of the first round."""

    task: Task
    max_train_length: int
    test_lengths: tuple[int, ...]
    steps: int
    num_position_ids: int


TASK_SWEEPS = {
    "copy": TaskSweep(
        task=Copy(), max_train_length=10, test_lengths=(11, 12, 15, 20, 100), steps=500, num_position_ids=20_480
    ),
    "parity": TaskSweep(
        task=Parity(), max_train_length=10, test_lengths=(11, 12, 15, 20, 100), steps=750, num_position_ids=20_480
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training run of the sweep."""

    task: str
    method: str
    configuration: str
    steps: int
    seed: int
    round: str

    @property
    def key(self) -> tuple[Any, ...]:
        """Identity of the run in the file of rows."""
        return (self.task, self.method, self.configuration, self.steps, self.seed, self.round)


def experiment_for_job(job: Job) -> lw.Experiment:
    """Return the experiment of a job."""
    sweep = TASK_SWEEPS[job.task]
    settings = {**PPC_CONFIGURATIONS[job.configuration]}
    training = {name: settings.pop(name) for name in TRAINING_SETTINGS if name in settings}
    is_ppc = job.method == PPC
    decoder = {"d_model": 64, "num_heads": 4, "temperature": 1.0, "length_scaling": "none", **settings}
    return lw.Experiment(
        task=sweep.task,
        scheme=Predicted(num_position_ids=sweep.num_position_ids, max_gaps=10) if is_ppc else Sequential(),
        # PPC needs to separate neighboring IDs; the other methods use their published settings.
        encoding=Rotary(base=100.0, fastest=3.0) if is_ppc else ENCODINGS[job.method](),
        decoder=lw.DecoderSettings(**decoder),
        training=lw.TrainingSettings(steps=job.steps, lengths_per_batch=LENGTHS_PER_BATCH, **training),
        train_lengths=(1, sweep.max_train_length),
        seed=job.seed,
    )


def run_job(job: Job) -> dict[str, Any]:
    """Train one run and return its row."""
    torch.set_num_threads(1)
    experiment, sweep = experiment_for_job(job), TASK_SWEEPS[job.task]
    with tempfile.TemporaryDirectory() as folder:
        sampler = build_sampler(experiment, experiment.train_lengths)
        trainer = Trainer(build_decoder(experiment), sampler, experiment.training, Path(folder))
        start = time.process_time()
        trainer.decoder.train()
        for _ in range(job.steps):
            trainer.step()
        seconds = time.process_time() - start
    decoder = trainer.decoder.eval()
    row = {
        "task": job.task,
        "method": job.method,
        "configuration": job.configuration,
        "steps": job.steps,
        "seed": job.seed,
        "round": job.round,
        "fitted": measure_fit(experiment, decoder).exact_match,
        "process_s": round(seconds, 1),
    }
    if job.round == "publish":
        settings = lw.EvaluationSettings(lengths=sweep.test_lengths, num_examples=(512,))
        results = evaluate_by_length(decoder, experiment.task, experiment.scheme, settings)
        row["exact_match"] = {str(result.length): result.exact_match for result in results}
    return row


def run_jobs(jobs: Sequence[Job], path: Path, num_workers: int) -> list[dict[str, Any]]:
    """Run the jobs that have no row yet, and return the rows of all jobs."""
    rows = {tuple(row[name] for name in Job.__slots__): row for row in read_rows(path)}
    pending = [job for job in jobs if job.key not in rows]
    facts = provenance()
    with ProcessPoolExecutor(num_workers, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(run_job, job): job for job in pending}
        for future in as_completed(futures):
            row = {**future.result(), "provenance": facts}
            rows[futures[future].key] = row
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print({name: value for name, value in row.items() if name != "provenance"}, flush=True)
    return [rows[job.key] for job in jobs]


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the finished rows."""
    if path.exists():
        yield from (json.loads(line) for line in path.read_text().splitlines())


def rank_configurations(rows: Sequence[dict[str, Any]], method: str) -> list[str]:
    """Return the configurations of a method by the mean of ``fitted``, best first; ties go to the faster one."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["method"] == method:
            groups.setdefault(row["configuration"], []).append(row)

    def score(name: str) -> tuple[float, float]:
        fits = [row["fitted"] for row in groups[name]]
        return statistics.mean(fits), -statistics.mean(row["process_s"] for row in groups[name])

    return sorted(groups, key=score, reverse=True)


def main() -> None:
    """Tune, publish, or both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASK_SWEEPS)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    path = arguments.out or RESULTS / f"fit_sweep_{arguments.task}.jsonl"
    steps, name = TASK_SWEEPS[arguments.task].steps, arguments.task

    def configurations(method: str) -> dict[str, dict[str, Any]]:
        return PPC_CONFIGURATIONS if method == PPC else CONFIGURATIONS

    def job(method: str, configuration: str, factor: int, seed: int, round_name: str) -> Job:
        return Job(
            task=name, method=method, configuration=configuration, steps=factor * steps, seed=seed, round=round_name
        )

    first = [
        job(method, each, 1, TUNING_SEEDS[0], "first")
        for method in arguments.methods
        for each in configurations(method)
    ]
    first_rows = run_jobs(first, path, arguments.workers)
    second = [
        job(method, each, 2, seed, "second")
        for method in arguments.methods
        for each in rank_configurations(first_rows, method)[:2]
        for seed in TUNING_SEEDS
    ]
    second_rows = run_jobs(second, path, arguments.workers)
    published = [
        job(method, rank_configurations(second_rows, method)[0], 2, seed, "publish")
        for method in arguments.methods
        for seed in PUBLISHED_SEEDS
    ]
    for row in run_jobs(published, path, arguments.workers):
        print(row["method"], row["configuration"], row["seed"], row["fitted"], row["exact_match"])


if __name__ == "__main__":
    main()
