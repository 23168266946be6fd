"""Measure the page of a report: bytes, and seconds until Chromium has drawn it, for many runs.

The rows are generated. Usage: python benchmarks/report_size.py [--runs 1000] [--out FOLDER]
"""

import argparse
import json
import shutil
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

from lengthwise.core.intervals import wilson_interval
from lengthwise.experiments.run_folder import write_rows_with_digest
from lengthwise.report.page import write_report

LENGTHS = (10, 20, 40, 80, 160)


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
    """Write the page and print its size and time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("runs/report-size"))
    arguments = parser.parse_args()
    folder = write_comparison(arguments.out / "comparison", arguments.runs)
    start = time.perf_counter()
    counts = write_report([folder], arguments.out / "report.html", diagnose=False)
    write_s = time.perf_counter() - start
    draw_s = min(seconds_to_draw(arguments.out / "report.html") for _ in range(3))
    print(json.dumps({**counts, "write_s": round(write_s, 2), "draw_s": round(draw_s, 2)}))


if __name__ == "__main__":
    main()
