"""Everything that only a CUDA machine can show, in one go: tests, step speed, long evaluation.

Stops itself after ``BUDGET_S`` seconds and goes on where it stopped when it is called again. Results go to ``$OUT``,
or to ``runs/gpu`` without it: ``gpu.jsonl``, a row per finished part, and ``tests.txt``.
"""

import multiprocessing
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import encoding_speed
import influence_speed
import numpy as np
import torch
from step_speed import measure

import lengthwise as lw
from lengthwise.core.provenance import provenance
from lengthwise.encodings import ENCODINGS
from lengthwise.experiments.recipes.language_model import context_length
from lengthwise.experiments.recipes.scheme_encoding_grid import which_remaining
from lengthwise.experiments.reproductions import CLAIMS, Claim
from lengthwise.experiments.run_folder import append_rows, read_rows, run_folder
from lengthwise.influence.measures import LeaveOneOut
from lengthwise.tasks import Text

KEPT = Path("runs/gpu")
ROWS = KEPT / "gpu.jsonl"
Part = Callable[[float], dict[str, Any]]


def tests(left: float) -> dict[str, Any]:
    """The tests marked gpu."""
    # Without the project's options: beartype may be missing there.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-o",
        "addopts=",
        "-o",
        "filterwarnings=",
        "tests/project/test_gpu.py",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=left, check=False)
    (KEPT / "tests.txt").write_text(ended.stdout + ended.stderr)
    return {
        "returncode": ended.returncode,
        "last_line": (ended.stdout.strip() or ended.stderr.strip()).splitlines()[-1],
    }


def step_speed(scheme: str, precision: str) -> Part:
    """A training step beside its plain products."""
    return lambda left: dict(measure(scheme, precision, 60, torch.device("cuda")))


def long_evaluation(recipe: str, lengths: tuple[int, ...], num_examples: tuple[int, ...], seed: int) -> Part:
    """Train a recipe and evaluate it far out."""
    tests = lw.EvaluationSettings(lengths=lengths, num_examples=num_examples)
    return measured(replace(lw.recipe(recipe), seed=seed, evaluation=tests), KEPT / f"{recipe}-{seed}")


def measured(experiment: lw.Experiment, folder: Path) -> Part:
    """Train and evaluate; training goes on where an earlier call stopped."""

    def part(left: float) -> dict[str, Any]:
        ends = time.monotonic() + left
        run = lw.train(experiment, folder, resume=True, device="cuda", stop=lambda: time.monotonic() > ends)
        if run is None:
            raise TimeoutError
        rows = lw.evaluate(run, experiment.evaluation)
        return {"train_s": run.facts["train_s"], "fitted": run.facts["fitted"], "results": rows}

    return part


def of_claim(claim: Claim, label: str, experiment: lw.Experiment) -> Part:
    """A row of a claim with one seed: its results, and what the claim reads of the run."""
    folder = run_folder(KEPT / claim.name, label, experiment.seed)

    def part(left: float) -> dict[str, Any]:
        row = measured(experiment, folder)(left)
        known = {"claim": claim.name, "row": label, "seed": experiment.seed, **row}
        if claim.read is None:
            return known
        return {**known, "reading": claim.read(lw.load_run(folder, device="cuda"), row["results"])}

    return part


def encoding_costs(left: float) -> dict[str, Any]:
    """Every encoding's training step and cached decoding step beside NoPE's."""
    return {"rows": [encoding_speed.measure(encoding, 9, torch.device("cuda")) for encoding in ENCODINGS]}


def corpus() -> Path:
    """The sources of the Python at hand, prepared once."""
    folder = KEPT / "corpus"
    if not (folder / "corpus.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        lw.prepare_corpus([f"code={sysconfig.get_paths()['stdlib']}"], folder, vocabulary_size=2048)
    return folder


def language_model(name: str, experiment: lw.Experiment) -> Part:
    """Loss by context length of a model of source code."""

    def part(left: float) -> dict[str, Any]:
        started = time.monotonic()
        task = Text(corpus=str(corpus().resolve()))
        there = measured(replace(experiment, task=task, seed=2000), KEPT / "language_models" / name)
        return there(left - (time.monotonic() - started))

    return part


def influence_cost(left: float) -> dict[str, Any]:
    """Seconds per far token of leaving each of 1,024 out, beside a plain forward of the same tokens."""
    lm = influence_speed.model(device="cuda")
    window = influence_speed.windows(1)[0]
    tokens = torch.from_numpy(window.tokens)[None].cuda()

    @torch.no_grad()
    def plain() -> None:
        lm.model(input_ids=tokens, logits_to_keep=1).logits.cpu()

    def ours() -> None:
        LeaveOneOut().select(influence_speed.scorer_of(lm, window), 8, np.random.default_rng(0))

    own, forward = influence_speed.in_turns(ours, plain)
    return {"s_per_far_token": own / influence_speed.FAR, "plain_forward_s": forward}


def wrapper_cost(left: float) -> dict[str, Any]:
    """What PPC around a model of transformers costs, as its benchmark prints it."""
    command = [sys.executable, "benchmarks/hf_overhead.py", "--rounds", "3", "--size", "larger"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=left, check=False)
    return {"returncode": ended.returncode, "table": ended.stdout.splitlines(), "last": ended.stderr[-500:]}


PARTS: dict[str, Part] = {
    "tests": tests,
    "step_speed float32": step_speed("coupled", "float32"),
    "step_speed bf16": step_speed("coupled", "bf16"),
    "parity seed 2000": long_evaluation("parity", (2000, 20_000, 100_000), (512, 64, 4), 2000),
    "parity_rank seed 2000": long_evaluation("parity_rank", (2000, 20_000, 100_000), (512, 64, 4), 2000),
    "addition seed 2000": long_evaluation("addition", (100, 1000), (256, 256), 2000),
    "addition_coupled seed 2000": long_evaluation("addition_coupled", (100, 1000), (256, 256), 2000),
    "encoding costs": encoding_costs,
    "influence cost": influence_cost,
    "wrapper cost": wrapper_cost,
    "multiplication seed 2000": long_evaluation("multiplication", (10, 100, 200), (512, 256, 64), 2000),
    "sort seed 2000": long_evaluation("sort", (10, 40, 64), (512, 512, 512), 2000),
    "multi_addition seed 2000": long_evaluation("multi_addition", (5, 10, 20, 30), (256, 256, 64, 64), 2000),
    **{
        f"{name} seed 2000": language_model(name, lw.recipe(name))
        for name in ("language_model_small", "language_model", "language_model_large")
    },
    **{
        f"context_length {label}": language_model(label.replace(" ", "-"), experiment)
        for label, experiment in context_length().items()
    },
    # Every claim at its full size: all rows with one seed, then with the next.
    **{
        f"{name} {label} seed {experiment.seed + more}": of_claim(
            claim, label, replace(experiment, seed=experiment.seed + more)
        )
        for more in range(max(claim.experiments_at("gpu")[1] for claim in CLAIMS.values()))
        for name, claim in CLAIMS.items()
        for label, experiment in claim.experiments_at("gpu")[0].items()
        if more < claim.experiments_at("gpu")[1]
    },
    # What the comparisons which_parity, which_copy and which_addition leave out.
    **{
        f"{task} {label}": measured(replace(experiment, seed=2000), KEPT / task / label.replace("/", "-"))
        for task in ("parity", "copy", "addition")
        for label, experiment in which_remaining(task).items()
    },
}


# What is timed has the machine for itself; the rest are small models, of which many fit side by side.
ALONE = ("tests", "step_speed float32", "step_speed bf16", "encoding costs", "influence cost", "wrapper cost")
WORKERS = max(1, min(14, (os.cpu_count() or 1) - 2))


def run_parts(ends: float) -> list[str]:
    """Run what is not done yet until the time is over; the names of what is left."""
    done = {row["part"] for row in read_rows(ROWS)}
    left = dict.fromkeys(name for name in PARTS if name not in done)
    corpus()
    for name in [name for name in left if name in ALONE]:
        _end(name, run_part(name, ends), left)
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        running = {pool.submit(run_part, name, ends): name for name in left if name not in ALONE}
        for future in as_completed(running):
            _end(running[future], future.result(), left)
    return list(left)


def run_part(name: str, ends: float) -> dict[str, Any] | None:
    """The row of a part; None when there was no time, or why it failed is printed."""
    started = time.monotonic()
    if started >= ends:
        return None
    try:
        row = PARTS[name](ends - started)
    except (TimeoutError, subprocess.TimeoutExpired):
        return None
    except Exception as error:  # One part that fails must not cost the others.
        print(f"{name} failed: {error!r}", file=sys.stderr, flush=True)
        return None
    return {"part": name, "wall_s": round(time.monotonic() - started, 1), **row, **provenance()}


def _end(name: str, row: dict[str, Any] | None, left: dict[str, None]) -> None:
    if row is not None:
        append_rows(ROWS, [row])
        del left[name]
        print(f"{name}: {row['wall_s']:.0f} s", flush=True)


def main() -> int:
    """0 when all is done, 3 when there is more to do."""
    if not torch.cuda.is_available():
        print("make gpu needs a CUDA device and torch sees none; run it on a machine with one", file=sys.stderr)
        return 2
    KEPT.mkdir(parents=True, exist_ok=True)
    left = run_parts(time.monotonic() + float(os.environ.get("BUDGET_S", "540")))
    if os.environ.get("OUT"):
        for path in (ROWS, KEPT / "tests.txt"):
            if path.exists():
                shutil.copy(path, os.environ["OUT"])
    print(f"left to do: {', '.join(left) or 'nothing'}")
    return 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
