"""Search settings for each encoding with equal effort: all encodings go through the same rounds.

``first``: every configuration of ``CONFIGURATIONS`` on one tuning seed. ``second``: the two best configurations and
their combination, with twice the steps, on two tuning seeds. ``third``: the best of these with six times the steps, if
it did not fit on both tuning seeds. The score is exact match at the longest training length, or the share of right
tokens if exact match is below 0.1. Longer lengths are not measured, so nothing is selected by them. Finished rows are
kept, so the script can be stopped and started again. The claims of ``lengthwise reproduce`` train the best
configurations on new seeds.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import lengthwise as lw
from lengthwise.core.provenance import collect_provenance
from lengthwise.encodings import ENCODINGS, Rotary
from lengthwise.experiments.experiment import build_decoder, build_sampler
from lengthwise.experiments.run import measure_training_fit
from lengthwise.positions import Predicted, Sequential
from lengthwise.tasks import Addition, Copy, Parity, Task, VariableAssignment
from lengthwise.training.trainer import Trainer

RESULTS = Path(__file__).parent / "results"
TUNING_SEEDS = (100, 101)
LENGTHS_PER_BATCH = 8
FIT_THRESHOLD = 0.99
# Below this exact match, the share of right tokens ranks configurations.
FEW_EXACT = 0.1
PPC = "predicted (PPC)"
METHODS = ("rotary", "sinusoidal", "learned", "alibi", "t5", "nope", "kerple_log", "fire", PPC)
DEFAULT_METHODS = ("rotary", "sinusoidal", "learned", "alibi", "nope")
# Steps of a round, as a multiple of the steps of the first round.
FIRST, SECOND, THIRD = 1, 2, 6
SMALL = {"num_layers": 2, "d_model": 64, "learning_rate": 3e-3, "batch_size": 64, "num_heads": 4}
LARGE = {"num_layers": 3, "d_model": 128, "learning_rate": 1e-3, "batch_size": 128, "num_heads": 4}
# Changes of the base settings of a task: a number multiplies the setting, another value replaces it.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "base": {},
    "one more layer": {"more_layers": 1, "learning_rate": 2 / 3},
    "two more layers": {"more_layers": 2, "learning_rate": 2 / 3},
    "6 layers": {"num_layers": 6, "learning_rate": 1 / 3},
    "twice as wide": {"d_model": 2, "learning_rate": 2 / 3},
    "a third of the learning rate": {"learning_rate": 1 / 3},
    "half of the heads": {"num_heads": 0.5},
    "previous token": {"previous_token_mix": True},
    "log scaling": {"length_scaling": "log"},
    "temperature 3": {"temperature": 3.0},
    "twice the batch": {"batch_size": 2},
    "curriculum": {"curriculum": True},
}
# The recipe of PPC before this sweep.
PPC_CONFIGURATIONS = {
    **CONFIGURATIONS,
    "1 layer, log scaling, temperature 3": {"num_layers": 1, "length_scaling": "log", "temperature": 3.0},
}
# Joins the names of two configurations.
AND = " + "
FACTORS = ("learning_rate", "d_model", "num_heads", "batch_size")
TRAINING_SETTINGS = ("learning_rate", "batch_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSweep:
    """A task with its longest training length, base settings and steps of the first round."""

    task: Task
    max_train_length: int
    steps: int
    num_position_ids: int
    base: Mapping[str, Any] = field(default_factory=lambda: LARGE)

    def settings(self, configuration: str) -> dict[str, Any]:
        """Return the decoder and training settings of a configuration, or of several joined by ``AND``."""
        settings = {"temperature": 1.0, "length_scaling": "none", **self.base}
        for name in configuration.split(AND):
            changes = dict(PPC_CONFIGURATIONS[name])
            settings["num_layers"] += changes.pop("more_layers", 0)
            for setting, value in changes.items():
                settings[setting] = type(settings[setting])(settings[setting] * value) if setting in FACTORS else value
        return settings


TASK_SWEEPS = {
    "copy": TaskSweep(task=Copy(), max_train_length=10, steps=500, num_position_ids=20_480, base=SMALL),
    "parity": TaskSweep(task=Parity(), max_train_length=10, steps=250, num_position_ids=20_480),
    "addition": TaskSweep(task=Addition(), max_train_length=3, steps=300, num_position_ids=2048),
    # With 2,048 names, most training time goes into learning the names: rotary is exact on 2% after 400 steps.
    "variable_assignment": TaskSweep(
        task=VariableAssignment(num_names=256), max_train_length=5, steps=200, num_position_ids=2048
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
    settings = sweep.settings(job.configuration)
    settings.pop("curriculum", None)
    training = {name: settings.pop(name) for name in TRAINING_SETTINGS}
    is_ppc = job.method == PPC
    return lw.Experiment(
        task=sweep.task,
        scheme=Predicted(num_position_ids=sweep.num_position_ids, max_gaps=10) if is_ppc else Sequential(),
        # PPC needs to separate neighboring IDs; the other methods use their published settings.
        encoding=Rotary(base=100.0, fastest=3.0) if is_ppc else ENCODINGS[job.method](),
        decoder=lw.DecoderSettings(**settings),
        training=lw.TrainingSettings(steps=job.steps, lengths_per_batch=LENGTHS_PER_BATCH, **training),
        train_lengths=(1, sweep.max_train_length),
        seed=job.seed,
    )


def train_lengths_at(job: Job, step: int, max_length: int) -> tuple[int, int]:
    """Return the training lengths of a step: a curriculum starts with half of the lengths for half of the steps."""
    has_curriculum = "curriculum" in job.configuration.split(AND)
    return (1, max_length // 2) if has_curriculum and step < job.steps // 2 else (1, max_length)


def run_job(job: Job) -> dict[str, Any]:
    """Train one run and return its row."""
    torch.set_num_threads(1)
    experiment, sweep = experiment_for_job(job), TASK_SWEEPS[job.task]
    with tempfile.TemporaryDirectory() as folder:
        samplers = {
            lengths: build_sampler(experiment, lengths)
            for lengths in {train_lengths_at(job, step, sweep.max_train_length) for step in (0, job.steps)}
        }
        trainer = Trainer(build_decoder(experiment), next(iter(samplers.values())), experiment.training, Path(folder))
        start = time.process_time()
        trainer.decoder.train()
        for step in range(job.steps):
            trainer.samplers[0] = samplers[train_lengths_at(job, step, sweep.max_train_length)]
            trainer.step()
        seconds = time.process_time() - start
    decoder = trainer.decoder.eval()
    fit = measure_training_fit(experiment, decoder)
    return {
        "task": job.task,
        "method": job.method,
        "configuration": job.configuration,
        "steps": job.steps,
        "seed": job.seed,
        "round": job.round,
        "fitted": fit.exact_match,
        "token_accuracy": fit.token_accuracy,
        "process_s": round(seconds, 1),
    }


def run_jobs(jobs: Sequence[Job], path: Path, num_workers: int) -> list[dict[str, Any]]:
    """Run the jobs that have no row yet, and return the rows of all jobs."""
    rows = {tuple(row[name] for name in Job.__slots__): row for row in read_rows(path)}
    pending = [job for job in jobs if job.key not in rows]
    facts = collect_provenance()
    with ProcessPoolExecutor(num_workers, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(run_job, job): job for job in pending}
        for future in as_completed(futures):
            row = {**future.result(), "provenance": facts}
            rows[futures[future].key] = row
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print({name: value for name, value in row.items() if name != "provenance"}, flush=True)
    return [rows[job.key] for job in jobs]


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the finished rows."""
    if path.exists():
        yield from (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())


def rank_configurations(rows: Sequence[dict[str, Any]], method: str) -> list[str]:
    """Return the configurations of a method, best first: by exact match, then right tokens, then training time."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["method"] == method:
            groups.setdefault(row["configuration"], []).append(row)

    def score(name: str) -> tuple[float, ...]:
        group = groups[name]
        fitted = statistics.mean(row["fitted"] for row in group)
        # The first rows of copy have no share of right tokens.
        right_tokens = statistics.mean(row.get("token_accuracy", 0.0) for row in group)
        return (
            0.0 if fitted < FEW_EXACT else fitted,
            right_tokens,
            -statistics.mean(row["process_s"] for row in group),
        )

    return sorted(groups, key=score, reverse=True)


def main() -> None:
    """Run the rounds of one task, and print the best configuration of each method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASK_SWEEPS)
    parser.add_argument("--methods", nargs="+", default=DEFAULT_METHODS, choices=METHODS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    path = arguments.out or RESULTS / f"fit_sweep_{arguments.task}.jsonl"
    steps, name = TASK_SWEEPS[arguments.task].steps, arguments.task

    def job(method: str, configuration: str, factor: int, seed: int, round_name: str) -> Job:
        return Job(
            task=name, method=method, configuration=configuration, steps=factor * steps, seed=seed, round=round_name
        )

    def run(jobs: Sequence[Job]) -> list[dict[str, Any]]:
        return run_jobs(jobs, path, arguments.workers)

    rows = run(
        [
            job(method, each, FIRST, TUNING_SEEDS[0], "first")
            for method in arguments.methods
            for each in (PPC_CONFIGURATIONS if method == PPC else CONFIGURATIONS)
        ]
    )
    best = {method: rank_configurations(rows, method)[:2] for method in arguments.methods}
    rows = run(
        [
            job(method, each, SECOND, seed, "second")
            for method in arguments.methods
            for each in dict.fromkeys([*best[method], combine(*best[method])])
            for seed in TUNING_SEEDS
        ]
    )
    winners = {method: rank_configurations(rows, method)[0] for method in arguments.methods}
    winning_rows = [row for row in rows if row["configuration"] == winners[row["method"]]]
    unfit = dict.fromkeys(row["method"] for row in winning_rows if row["fitted"] < FIT_THRESHOLD)
    rows = run([job(method, winners[method], THIRD, seed, "third") for method in unfit for seed in TUNING_SEEDS])
    print_table([*(row for row in winning_rows if row["method"] not in unfit), *rows])


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print the best configuration of each method as Markdown, with exact match on every tuning seed."""
    print(f"| method | best configuration | steps | {' | '.join(f'seed {seed}' for seed in TUNING_SEEDS)} | seconds |")
    print("|---" * (len(TUNING_SEEDS) + 4) + "|")
    for method in dict.fromkeys(row["method"] for row in rows):
        runs = {row["seed"]: row for row in rows if row["method"] == method}
        fits = " | ".join(f"{runs[seed]['fitted']:.3f}" for seed in TUNING_SEEDS)
        seconds = max(row["process_s"] for row in runs.values())
        first = runs[TUNING_SEEDS[0]]
        print(f"| {method} | {first['configuration']} | {first['steps']:,} | {fits} | {seconds:.0f} |")


def combine(first: str, second: str) -> str:
    """Return the name of both configurations together; the first one wins where both change the same setting."""
    if "base" in (first, second):
        return first if second == "base" else second
    return f"{second}{AND}{first}"


if __name__ == "__main__":
    main()
