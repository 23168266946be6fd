"""Measure the page of a report: bytes, and seconds until Chromium has drawn it, for many runs or many targets.

The rows of the runs and the targets of the study are generated; the study has the summary of a measured one. Its page
has all targets, more than ``lengthwise influence`` writes. Usage: python benchmarks/report_size.py [--runs 1000]
[--targets 100000] [--out FOLDER]
"""

import argparse
import json
import shutil
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

from lengthwise.core.confidence_intervals import wilson_interval
from lengthwise.experiments.run_folder import STUDY_FOLDER, write_rows_with_digest
from lengthwise.influence.report.study_report import PAGE_FILE, render_page
from lengthwise.influence.study import SUMMARY_FILE
from lengthwise.report.page import write_report

LENGTHS = (10, 20, 40, 80, 160)
SUMMARY = Path("benchmarks/results/influence_text/influence_prose/summary.json")
NUM_DOCUMENTS, NUM_CHOSEN = 10, 16


def write_comparison(folder: Path, num_runs: int, num_seeds: int = 5) -> Path:
    """Write a comparison of ``num_runs`` runs, with a description, a log of 100 rows and 5 result rows per run."""
    rng = np.random.default_rng(0)
    rows = []
    folder.mkdir(parents=True)
    for number in range(num_runs):
        label, seed, run_rows = f"configuration {number // num_seeds}", number % num_seeds, []
        rate = rng.uniform(1e-4, 0.05)
        for length in LENGTHS:
            exact = int(rng.binomial(512, (1 - rate) ** length))
            low, high = wilson_interval(exact, 512)
            facts = {"task": "parity", "variant": None, "num_examples": 512, "train_lengths": [1, 10]}
            facts |= {"id_range": [0, 999], "steps": 1000, "fitted": 1.0, "time": str(number)}
            values = {"seed": seed, "length": length, "exact_match": exact / 512, "low": low, "high": high}
            run_rows.append({**facts, **values})
        rows += [{"row": label, **row} for row in run_rows]
        run_folder = folder / f"configuration-{number // num_seeds}" / f"seed-{seed}"
        run_folder.mkdir(parents=True)
        experiment = {"task": {"name": "parity"}, "training": {"learning_rate": rate, "steps": 1000}, "seed": seed}
        (run_folder / "experiment.json").write_text(json.dumps({"experiment": experiment}), encoding="utf-8")
        log = [{"step": 10 * step, "loss": float(np.exp(-step / 20))} for step in range(1, 101)]
        write_lines(run_folder / "metrics.jsonl", log)
        write_rows_with_digest(run_folder / "compared.jsonl", run_rows)
    (folder / "comparison.json").write_text(json.dumps({"comparison": {}}), encoding="utf-8")
    write_lines(folder / "results.jsonl", rows)
    return folder


def write_study(folder: Path, num_targets: int) -> Path:
    """Write a study of ``num_targets`` targets with 16 selected tokens each, in ten texts."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    num_tokens = num_targets // NUM_DOCUMENTS
    tokens = [f"{word} " for word in rng.choice(["the", "model", "writes", "a", "longer", "answer"], num_tokens)]
    excerpts = {f"text {number}": (0, tokens) for number in range(NUM_DOCUMENTS)}
    rows = (target_row(name, place, rng) for name in excerpts for place in range(num_tokens))
    page = render_page(rows, excerpts, ks=(1, 2, 4, 8, 16), near=32, max_targets=num_targets)
    (folder / PAGE_FILE).write_text(page, encoding="utf-8")
    shutil.copy(SUMMARY, folder / SUMMARY_FILE)
    (folder / STUDY_FOLDER.file).write_text("{}", encoding="utf-8")
    return folder


def target_row(document: str, place: int, rng: np.random.Generator) -> dict[str, object]:
    """Return the row of a target with random losses and distances."""
    losses = np.sort(rng.exponential(size=6))[::-1].round(4).tolist()
    distances = rng.integers(32, 1024, NUM_CHOSEN).tolist()
    chosen = [{"distance": distance, "gain": 0.1234, "text": "model ", "tokens": 1} for distance in distances]
    selection = {"mode": "strict", "objective": "prediction", "from": "own", "knows": "answer", "measure": "greedy"}
    selection |= {"losses": losses[1:], "divergences": losses[1:], "chosen": chosen}
    values = {"loss_short": losses[0], "loss_long": losses[-1], "divergence_short": losses[0], "clear": True}
    row = {"model": "generated", "document": document, "place": place, "kinds": ["other"], "selections": [selection]}
    return {**row, **values, "controls": {"other": {"loss": losses[0]}}}


def write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    """Write rows to a JSON-lines file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def seconds_to_draw(page_file: Path) -> float:
    """Return the seconds from the start of loading until all charts are drawn in headless Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        start = time.perf_counter()
        page.goto(page_file.absolute().as_uri())
        page.wait_for_selector("body[data-ready]")
        seconds = time.perf_counter() - start
        browser.close()
    return seconds


def main() -> None:
    """Write a page about runs and a page about a study, and print their size and time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--targets", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=Path("runs/report-size"))
    arguments = parser.parse_args()
    measure(write_comparison(arguments.out / "comparison", arguments.runs), arguments.out / "runs.html")
    measure(write_study(arguments.out / "study", arguments.targets), arguments.out / "study.html")


def measure(folder: Path, page: Path) -> None:
    """Write the page about a folder and print its size, and the seconds to write and to draw it."""
    start = time.perf_counter()
    counts = write_report([folder], page, diagnose=False)
    write_s = time.perf_counter() - start
    draw_s = sorted(seconds_to_draw(page) for _ in range(3))[1]
    print(json.dumps({"page": page.name, **counts, "write_s": round(write_s, 2), "draw_s": round(draw_s, 2)}))


if __name__ == "__main__":
    main()
