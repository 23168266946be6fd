"""How far above the exact risk every bound is, on random laws and heads: a table per regime.

An instance is a random planted law, a few random heads, and the one of them whose average risk over the lengths from
L/2 to L is smallest. Its exact risk at N and all bounds are one row of ``results/theory_bounds.jsonl``; instances that
are there are not computed again, so a run that was stopped goes on. Ratios leave out instances without any risk.
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

from lengthwise.core.provenance import provenance
from lengthwise.experiments.run_folder import read_rows
from lengthwise.theory.bounds import BOUNDS
from lengthwise.theory.bounds.conditions import BoundError
from lengthwise.theory.bounds.extrapolation import Extrapolation
from lengthwise.theory.bounds.linear_loss import pushed_by
from lengthwise.theory.bounds.sequence_cover import GridCover
from lengthwise.theory.risk.exact_risk import TotalVariation
from lengthwise.theory.risk.laplace_risk import laplace_risk
from support.random_instances import Sizes, random_instance

RESULTS = Path(__file__).parent / "results" / "theory_bounds.jsonl"
# Tokens, k, span, trained, tested.
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
NO_RISK = 1e-12
INSTANCES = {"clean": 300, "mixed": 400}


def without_kappa(case: Extrapolation) -> float:
    """The cover's sum with every kappa set to 1: no bound (C8)."""
    cover = GridCover(tested=case.tested, trained=case.trained, span=case.span)
    ones = {joints: np.ones_like(kappa) for joints, kappa in case.joint_weight.by_joints().items()}
    return float((pushed_by(case, cover, ones) * case.table(case.trained, case.loss)).sum())


def in_proportion(case: Extrapolation) -> float:
    """``N / L R_L``: no bound."""
    return case.tested / case.trained * case.mean(case.trained)


def secant(case: Extrapolation) -> float:
    """The line through the risks at the two longest trained lengths: a bound for single tokens, and not for all."""
    last, before = case.mean(case.trained), case.mean(case.trained - 1)
    return last + (case.tested - case.trained) * (last - before)


NOT_BOUNDS: dict[str, Callable[[Extrapolation], float]] = {
    "B, kappa = 1": without_kappa,
    "secant": secant,
    "(N / L) R_L": in_proportion,
}


def row_of(regime: str, index: int) -> dict[str, Any]:
    """One instance: its sizes, its exact risk at N, the risk at L, and the value of every bound that applies."""
    started = time.perf_counter()
    numbers = SIZES[regime][index % len(SIZES[regime])]
    sizes = Sizes(**dict(zip(("num_tokens", "k", "span", "trained", "tested"), numbers, strict=True)))
    instance = random_instance(regime, sizes, seed=index)
    loss = TotalVariation()
    head = instance.fitted(loss)
    case = Extrapolation(law=instance.law, predictor=head, trained=sizes.trained, tested=sizes.tested, loss=loss)
    values: dict[str, float] = {}
    for name in BOUNDS:
        try:
            values[name] = BOUNDS[name]().value(case)
        except BoundError:
            continue
    values |= {name: rule(case) for name, rule in NOT_BOUNDS.items()}
    risk = laplace_risk(case.law, head, sizes.tested, loss)
    seconds = time.perf_counter() - started
    found = {"regime": regime, "index": index, "sizes": numbers, "risk": risk, "trained": case.mean(sizes.trained)}
    return {**found, "values": values, "seconds": round(seconds, 3)}


def table(regime: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """A line per bound: how often below the exact risk, how often below 1, and quantiles of bound over risk."""
    rows = [row for row in rows if row["risk"] > NO_RISK]
    lines = [
        f"### {regime}: {len(rows)} instances with a risk",
        "",
        f"Medians: {np.median([row['trained'] for row in rows]):.2g} at L, "
        f"{np.median([row['risk'] for row in rows]):.2g} at N.",
        "",
        "| bound | instances | below the risk | below 1 | min | median | p90 | max |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in (*BOUNDS, *NOT_BOUNDS):
        pairs = np.array([(row["values"][name], row["risk"]) for row in rows if name in row["values"]])
        if not len(pairs):
            continue
        ratio = pairs[:, 0] / pairs[:, 1]
        low = int((pairs[:, 0] < pairs[:, 1] * (1 - 1e-9)).sum())
        shown = " | ".join(f"{value:.3g}" for value in (*np.quantile(ratio, [0, 0.5, 0.9]), ratio.max()))
        lines.append(f"| {name} | {len(pairs)} | {low} | {(pairs[:, 0] < 1).mean():.0%} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    """Fill up the results and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, help="per regime; without it, 300 clean and 400 mixed ones")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    rows = read_rows(arguments.out) if arguments.out.exists() else []
    known = {(row["regime"], row["index"]) for row in rows}
    facts = provenance()
    with arguments.out.open("a") as file:
        for regime, number in INSTANCES.items():
            for index in range(number if arguments.instances is None else arguments.instances):
                if (regime, index) not in known:
                    rows.append({**row_of(regime, index), **facts})
                    file.write(json.dumps(rows[-1]) + "\n")
                    file.flush()
    for regime in INSTANCES:
        print(table(regime, [row for row in rows if row["regime"] == regime]), end="\n\n")


if __name__ == "__main__":
    main()
