"""How well ``certify`` foretells trained transformers: what it says from short passes beside what is measured later.

Every row and seed is trained on short lengths, asked by ``certify_run``, and then measured at 2, 4 and 16 times the
longest trained length: the share of right answers, token by token. Rows are appended to ``results/forecast.jsonl``;
what is there is not done again. Beside the forecast stand two baselines, made of the accuracies at trained lengths: the
last of them (no change), and the straight line through them.
"""

import argparse
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lengthwise.encodings import KERPLELog
from lengthwise.errors import UntrainedDistanceWarning
from lengthwise.evaluation import EvaluationSettings, evaluate_by_length
from lengthwise.experiment import Experiment
from lengthwise.folder import append_rows, provenance, read_rows
from lengthwise.intervals import student, wilson_interval
from lengthwise.recipes import COMPARISONS, recipe
from lengthwise.run import Run, certify_run, train

RESULTS = Path(__file__).parent / "results" / "forecast.jsonl"
TIMES = (2, 4, 16)
# Examples measured at each length; long ones have more answers each.
EXAMPLES = 256
LEVEL = 0.9


def rows() -> dict[str, Experiment]:
    """Two tasks, two ways to read IDs each."""
    parity, addition = COMPARISONS["which_parity"](), recipe("addition_coupled")
    return {
        **{f"parity, {code}": parity[f"coupled/{code}"] for code in ("rotary", "t5")},
        "addition, rotary": addition,
        "addition, kerple_log": replace(addition, encoding=KERPLELog()),
    }


def measured(run: Run, length: int, examples: int, seed: int = 1) -> tuple[float, int]:
    """The share of right answers, token by token, an ID that is due included; and how many answers there were."""
    experiment = run.experiment
    settings = EvaluationSettings(lengths=(length,), num_examples=(examples,), seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedDistanceWarning)
        (found,) = evaluate_by_length(run.decoder, experiment.task, experiment.scheme, settings)
    answers = int(experiment.task.sample(length=length, size=1, rng=np.random.default_rng(0)).is_answer.sum())
    return found.token_accuracy, answers * examples


def straight_line(lengths: list[int], shares: list[float], length: int) -> tuple[float, float]:
    """The 90% interval of a line through accuracies at trained lengths, continued."""
    sizes, values = np.array(lengths, dtype=float), np.array(shares)
    design = np.stack([np.ones_like(sizes), sizes], axis=1)
    solution, *_ = np.linalg.lstsq(design, values)
    residual = float(((values - design @ solution) ** 2).sum()) / (len(sizes) - 2)
    at = np.array([1.0, length])
    spread = np.sqrt(residual * (1 + at @ np.linalg.inv(design.T @ design) @ at))
    # Student's t for 95%: no narrower than that for 90%.
    half = student(len(sizes) - 2) * spread
    middle = float(at @ solution)
    return float(np.clip(middle - half, 0, 1)), float(np.clip(middle + half, 0, 1))


def one(name: str, experiment: Experiment, folder: Path) -> Iterator[dict[str, Any]]:
    """A row per length."""
    run = train(experiment, folder, resume=True)
    assert run is not None
    longest = experiment.train_lengths[1]
    started = time.perf_counter()
    certificate = certify_run(run, [times * longest for times in TIMES])
    seconds = time.perf_counter() - started
    known = sorted({max(experiment.train_lengths[0], longest * part // 4) for part in (2, 3, 4)})
    shares = [measured(run, length, EXAMPLES)[0] for length in known]
    for times in TIMES:
        length = times * longest
        share, answers = measured(run, length, max(16, EXAMPLES // times))
        foretold = next((asdict(each) for each in certificate.forecasts if each.length == length), None)
        yield {
            "row": name,
            "seed": experiment.seed,
            "times": times,
            "length": length,
            "measured": share,
            "answers": answers,
            "foretold": foretold,
            "refused": certificate.refused,
            "fidelity": asdict(certificate.fidelity),
            "needs": asdict(certificate.needs),
            "horizon": certificate.horizon,
            "limited_by": certificate.limited_by,
            "no_change": wilson_interval(round(shares[-1] * EXAMPLES), EXAMPLES),
            "straight_line": straight_line(known, shares, length),
            "fitted": run.facts["fitted"],
            "steps": run.facts["steps"],
            "certify_seconds": round(seconds, 1),
        }


def score(low: float, high: float, value: float) -> float:
    """The interval score (Gneiting and Raftery 2007): the width, and what it costs to miss; small is good."""
    return high - low + 2 / (1 - LEVEL) * (max(low - value, 0.0) + max(value - high, 0.0))


def summary(found: list[dict[str, Any]]) -> list[str]:
    """Lines of Markdown; the unit is a run, with its three lengths."""
    answered = [row for row in found if row["foretold"] is not None]
    lines = [f"answered: {len(answered)} of {len(found)} cells"]
    widths = [row["foretold"]["high"] - row["foretold"]["low"] for row in answered]
    lines.append(f"median width of an interval: {np.median(widths):.2f}")
    by_run: dict[tuple[str, int], list[bool]] = {}
    for row in answered:
        held = row["foretold"]["low"] <= row["measured"] <= row["foretold"]["high"]
        by_run.setdefault((row["row"], row["seed"]), []).append(held)
    shares = [float(np.mean(held)) for held in by_run.values()]
    lines.append(f"intervals that hold: {np.mean(shares):.3f} (mean over {len(shares)} runs)")
    scores = {
        "certify": [score(row["foretold"]["low"], row["foretold"]["high"], row["measured"]) for row in answered],
        "no change": [score(*row["no_change"], row["measured"]) for row in answered],
        "straight line": [score(*row["straight_line"], row["measured"]) for row in answered],
    }
    lines += [f"interval score, {name}: {np.mean(values):.3f}" for name, values in scores.items()]
    return lines


def table(found: list[dict[str, Any]]) -> list[str]:
    """Every cell."""
    lines = ["| row | seed | length | foretold | interval | measured | |", "|---|---|---|---|---|---|---|"]
    for row in found:
        told = row["foretold"]
        if told is None:
            parts = ["-", "-", f"{row['measured']:.3f}", "not foretold"]
        else:
            held = told["low"] <= row["measured"] <= told["high"]
            interval = f"{told['low']:.2f} to {told['high']:.2f}"
            parts = [f"{told['accuracy']:.3f}", interval, f"{row['measured']:.3f}", "" if held else "**missed**"]
        lines.append(f"| {row['row']} | {row['seed']} | {row['length']:,} | {' | '.join(parts)} |")
    return lines


def main() -> None:
    """Train, ask and measure what is missing, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="7100,7101,7102,7103,7104")
    parser.add_argument("--rows", default=None, help="Labels, separated by semicolons; all by default.")
    parser.add_argument("--out", type=Path, default=Path("runs/forecast"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="Print what is there and do nothing.")
    asked = parser.parse_args()
    there = read_rows(asked.results) if asked.results.exists() else []
    if asked.table:
        print("\n".join([*summary(there), "", *table(there)]))
        return
    torch.set_num_threads(1)
    known = rows()
    done = {(row["row"], row["seed"]) for row in there}
    for name in known if asked.rows is None else asked.rows.split(";"):
        for seed in map(int, asked.seeds.split(",")):
            if (name, seed) not in done:
                folder = asked.out / name.replace(", ", "-").replace(" ", "-") / f"seed-{seed}"
                new = list(one(name, replace(known[name], seed=seed), folder))
                append_rows(asked.results, [{**row, **provenance()} for row in new])
                print(name, seed, [(row["measured"], row["foretold"] and row["foretold"]["accuracy"]) for row in new])


if __name__ == "__main__":
    main()
