"""Measure the ratio of every bound to the exact risk on random laws and heads, with one table per regime.

An instance consists of a random planted law and a head. The head has the smallest average risk over the lengths L/2 to
L among several random heads. A row of ``results/theory_bounds.jsonl`` contains the exact risk at N and all bounds of an
instance. Existing rows are not computed again, so an interrupted run continues. Ratios omit instances with risk 0.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from lengthwise.core.provenance import collect_provenance
from lengthwise.experiments.run_folder import read_rows
from lengthwise.theory.bounds import BOUNDS, expected_training_piece_counts
from lengthwise.theory.bounds.bound_inputs import BoundError, BoundInputs
from lengthwise.theory.bounds.training_window_covers import GridWindowCover
from lengthwise.theory.risk.exact_risk import TotalVariationLoss
from lengthwise.theory.risk.laplace_transform import laplace_risk
from support.random_instances import Sizes, random_instance

RESULTS = Path(__file__).parent / "results" / "theory_bounds.jsonl"
# Names of the bounds in older rows.
OLD_NAMES = {
    "F0": "Theorem 4.3, factor L N^2",
    "F1": "Theorem 4.3, factor L (N / w)^2",
    "F2": "Theorem 4.3 for minimax training, factor (N / w)^2",
    "F3": "Theorem 4.3 for uniform starts, factor (N / L)^2",
    "F4": "linear in N / L, several training lengths",
    "A": "Theorem 4.3, summed over windows",
    "B": "window cover",
    "B_transfer": "window cover, worst risks",
    "B_push": "window cover, largest ratio",
    "B0": "window cover, known scores",
    "B0_sampled": "window cover, known scores, 95% by sampling",
    "B1": "single tokens",
    "B1_power": "single tokens, independent groups",
    "B2": "linear in N / L",
    "B3": "linear in N / L, mean over training lengths",
    "B4": "proportional cover",
    "B5": "window cover, label noise counted once",
    "B6": "no locality",
    "C": "shortened gaps",
    "B, kappa = 1": "window cover, kappa = 1",
}
# Tokens, k, span, training length, test length.
SIZES = {
    "clean": ((3, 1, 1, 4, 12), (4, 1, 1, 4, 40), (3, 2, 2, 8, 16), (3, 2, 2, 8, 32), (4, 2, 2, 8, 24)),
    "mixed": (
        (2, 1, 1, 4, 12),
        (3, 1, 1, 8, 40),
        (2, 2, 2, 8, 16),
        (3, 2, 2, 8, 16),
        (3, 2, 2, 8, 32),
        (2, 2, 3, 12, 24),
        (2, 3, 3, 12, 24),
        (2, 2, 2, 10, 60),
    ),
}
MIN_RISK = 1e-12
INSTANCES = {"clean": 300, "mixed": 400}


def unit_kappa_cover(case: BoundInputs) -> float:
    """Return the sum of the window cover with every kappa set to 1, which is not a bound ('heavy cuts')."""
    cover = GridWindowCover(test_length=case.test_length, train_length=case.train_length, span=case.span)
    ones = {cuts: np.ones_like(kappa) for cuts, kappa in case.cross_cut_scores.kappa_by_cuts().items()}
    return float(
        (
            expected_training_piece_counts(case, cover, ones)
            * case.conditional_risk_table(case.train_length, case.loss)
        ).sum()
    )


def proportional_risk(case: BoundInputs) -> float:
    """Return ``N / L R_L``, which is not a bound."""
    return case.test_length / case.train_length * case.risk_at(case.train_length)


def secant(case: BoundInputs) -> float:
    """Extrapolate the line through the two longest training lengths, which is a bound for single tokens only."""
    last, previous = case.risk_at(case.train_length), case.risk_at(case.train_length - 1)
    return last + (case.test_length - case.train_length) * (last - previous)


NOT_BOUNDS: dict[str, Callable[[BoundInputs], float]] = {
    "window cover, kappa = 1": unit_kappa_cover,
    "secant": secant,
    "(N / L) R_L": proportional_risk,
}


def measure_instance(regime: str, index: int) -> dict[str, Any]:
    """Return the row of one instance: sizes, exact risks at N and L, and the value of every applicable bound."""
    started = time.perf_counter()
    size_values = SIZES[regime][index % len(SIZES[regime])]
    sizes = Sizes(**dict(zip(("num_tokens", "k", "span", "train_length", "test_length"), size_values, strict=True)))
    instance = random_instance(regime, sizes, seed=index)
    loss = TotalVariationLoss()
    head = instance.best_head(loss)
    case = BoundInputs(
        law=instance.law,
        predictor=head,
        train_length=sizes.train_length,
        test_length=sizes.test_length,
        loss=loss,
    )
    values: dict[str, float] = {}
    for name in BOUNDS:
        try:
            values[name] = BOUNDS[name].value(case)
        except BoundError:
            continue
    values |= {name: rule(case) for name, rule in NOT_BOUNDS.items()}
    risk = laplace_risk(case.law, head, sizes.test_length, loss)
    seconds = time.perf_counter() - started
    risks = {"risk": risk, "trained": case.risk_at(sizes.train_length)}
    return {
        "regime": regime,
        "index": index,
        "sizes": size_values,
        **risks,
        "values": values,
        "seconds": round(seconds, 3),
    }


def format_table(regime: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table with one line per bound: counts below the exact risk and below 1, and quantiles of the ratio."""
    rows = [row for row in rows if row["risk"] > MIN_RISK]
    bound_values = [{OLD_NAMES.get(name, name): value for name, value in row["values"].items()} for row in rows]
    lines = [
        f"## {regime}: {len(rows)} instances with a risk",
        "",
        f"The median risk is {np.median([row['trained'] for row in rows]):.2g} at L "
        f"and {np.median([row['risk'] for row in rows]):.2g} at N.",
        "",
        "| bound | instances | below the risk | below 1 | min | median | p90 | max |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in (*BOUNDS, *NOT_BOUNDS):
        pairs = np.array(
            [(values[name], row["risk"]) for values, row in zip(bound_values, rows, strict=True) if name in values]
        )
        if not len(pairs):
            continue
        ratio = pairs[:, 0] / pairs[:, 1]
        num_violations = int((pairs[:, 0] < pairs[:, 1] * (1 - 1e-9)).sum())
        cells = " | ".join(f"{value:.3g}" for value in (*np.quantile(ratio, [0, 0.5, 0.9]), ratio.max()))
        lines.append(f"| {name} | {len(pairs)} | {num_violations} | {(pairs[:, 0] < 1).mean():.0%} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Append missing rows to the results and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, help="number per regime (default: 300 clean, 400 mixed)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    rows = read_rows(arguments.out) if arguments.out.exists() else []
    existing = {(row["regime"], row["index"]) for row in rows}
    facts = collect_provenance()
    with arguments.out.open("a") as file:
        for regime, number in INSTANCES.items():
            for index in range(number if arguments.instances is None else arguments.instances):
                if (regime, index) not in existing:
                    rows.append({**measure_instance(regime, index), **facts})
                    file.write(json.dumps(rows[-1]) + "\n")
                    file.flush()
    for regime in INSTANCES:
        print(format_table(regime, [row for row in rows if row["regime"] == regime]), end="\n\n")


if __name__ == "__main__":
    main()
