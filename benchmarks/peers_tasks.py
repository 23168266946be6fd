"""Train on tasks that other projects generate, with nothing given but their files.

    python benchmarks/peers_tasks.py FOLDER [NAME ...] --first-seed 0 --seeds 3 [--part 0 --parts 2]

FOLDER has a pair of files per task, ``NAME_train.jsonl`` and ``NAME_test.jsonl``. For each task, the script runs
``lengthwise couple``, and if it finds a coupling, ``lengthwise train --scheme discovered`` and ``lengthwise evaluate``
on the test file, with the seeds. Rows are appended to ``results/peers_tasks.jsonl``; what has rows is not run again.
``--seeds 0`` prints only the table.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from peers_data import rg_scores

import lengthwise as lw
from lengthwise.core.confidence_intervals import wilson_interval
from lengthwise.core.provenance import collect_provenance
from lengthwise.experiments.run_folder import append_rows, read_rows

RESULTS = Path(__file__).parent / "results" / "peers_tasks.jsonl"
LENGTHWISE = [sys.executable, "-m", "lengthwise"]


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command of lengthwise on one thread."""
    command = [*LENGTHWISE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def find_coupling(train: Path) -> dict[str, Any]:
    """Return the rule that ``couple`` finds in a file, or the reason of its refusal, and the time."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done = call("couple", train, "--method", "dependence", "--json", "--out", Path(folder) / "coupled.jsonl")
    row: dict[str, Any] = {"seconds": round(time.monotonic() - start)}
    if done.returncode == 0:
        return row | {"coupling": json.loads(done.stdout)}
    return row | {"refusal": done.stderr.strip().splitlines()[-1].removeprefix("error: ")}


def train_and_evaluate(train: Path, test: Path, seed: int) -> Iterator[dict[str, Any]]:
    """Train one seed and yield its result rows at the lengths of the test file."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        options = ("--threads", 1, "--seed", seed, "--out", run)
        trained = call("train", "--task", train, "--scheme", "discovered", *options)
        seconds = round(time.monotonic() - start)
        evaluated = call("evaluate", run, "--task", test)
        if evaluated.returncode:
            raise RuntimeError(f"{train.name}, seed {seed}: {trained.stderr[-500:]} {evaluated.stderr[-500:]}")
        rows = [json.loads(line) for line in (run / "results.jsonl").read_text(encoding="utf-8").splitlines()]
        verified = verified_share(run, test) if test.name.startswith("rg_") else {}
    for row in rows:
        yield {**row, **verified, "task": test.name, "fits": trained.returncode == 0, "train_seconds": seconds}


def verified_share(run: Path, test: Path) -> dict[str, float]:
    """Return the mean score that the verifier of reasoning-gym gives to generated answers, and their number."""
    loaded, answers = lw.load_run(run), {}
    for line in test.read_text(encoding="utf-8").splitlines():
        prompt = json.loads(line)["prompt"]
        tokens = lw.generate_from_prompt(loaded, " ".join(prompt)).tokens
        answers[tuple(prompt)] = tokens[: tokens.index("end")] if "end" in tokens else tokens
    scores = rg_scores(test.name.removeprefix("rg_").removesuffix("_test.jsonl"), answers)
    return {"verifier_score": sum(scores) / len(scores), "verified_answers": len(scores)}


def table_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table: a task and what ``couple`` said, or its exact match at the longest lengths."""
    yield "| task | what `couple` says | test length | exact match, worst seed first | its interval | wrong first |"
    yield "|---|---|---|---|---|---|"
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        verdict = next(row for row in own if "seconds" in row)
        if "refusal" in verdict:
            shares = re.findall(r"(?:predicts?|explains) ([\d.]+%)", verdict["refusal"])
            share = f" ({shares[0]} of the answers)" if shares else ""
            yield f"| {name} | refused: {re.split('[:;,]', verdict['refusal'])[0]}{share} | | | | |"
            continue
        rule = "; ".join(part.strip(" ;") for part in verdict["coupling"]["rule"])
        # The shortest length of a test file may be the longest one of training.
        measured = [row for row in own if row.get("length", 0) > row.get("train_lengths", (0, 0))[1]]
        by_seed = {row["seed"]: [each for each in measured if each["seed"] == row["seed"]] for row in measured}
        totals = sorted(
            (
                sum(row["exact_match"] * row["num_examples"] for row in own_rows),
                sum(row["num_examples"] for row in own_rows),
                seed,
            )
            for seed, own_rows in by_seed.items()
        )
        if not totals:
            continue
        exact, number, worst_seed = totals[0]
        low, high = wilson_interval(round(exact), number)
        lengths = sorted({row["length"] for row in measured})
        errors = [row["first_error"] for row in by_seed[worst_seed] if row["first_error"]]
        scores = " ".join(f"{count / size:.3f}" for count, size, _ in totals)
        wrong = ", ".join(
            f"{part} {count}" for part in ("token", "id", "end") if (count := sum(error[part] for error in errors))
        )
        length = " to ".join(str(length) for length in dict.fromkeys((lengths[0], lengths[-1])))
        yield f"| {name} | {rule} | {length} | {scores} | {low:.3f} to {high:.3f} | {wrong or '-'} |"


def main() -> None:
    """Measure the tasks that have no rows yet, append their rows, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="Names of tasks; the default is all of them.")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3, help="Number of seeds per task.")
    parser.add_argument("--part", type=int, default=0, help="Number of this process.")
    parser.add_argument("--parts", type=int, default=1, help="Number of processes that share the tasks.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    names = options.names or sorted(path.name.removesuffix("_train.jsonl") for path in options.folder.glob("*_train.*"))
    for name in names[options.part :: options.parts] if options.seeds else []:
        train, test = (options.folder / f"{name}_{split}.jsonl" for split in ("train", "test"))
        done = [row for row in read_rows(options.out) if row["name"] == name]
        verdict = next((row for row in done if "seconds" in row), None)
        if verdict is None:
            verdict = {"name": name, **find_coupling(train), "provenance": collect_provenance()}
            append_rows(options.out, [verdict])
            print(name, verdict.get("refusal") or verdict["coupling"]["rule"], flush=True)
        if "refusal" in verdict:
            continue
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            if seed not in {row["seed"] for row in done if "seed" in row}:
                rows = [{"name": name, **row} for row in train_and_evaluate(train, test, seed)]
                append_rows(options.out, rows)
                print(name, seed, {row["length"]: row["exact_match"] for row in rows}, flush=True)
    print(*table_lines(read_rows(options.out)), sep="\n")


if __name__ == "__main__":
    main()
