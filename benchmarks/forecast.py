"""Predictions of ``certify RUN`` from short passes, beside the accuracy measured later at the lengths themselves.

Every row and seed is trained on short lengths, asked by ``certify_run``, and then measured at 2, 4 and 16 times the
longest trained length: the share of right answer tokens (the end token left out) and exact match. Half of the rows are
meant to mislead: rare tokens, decoys that only long sequences have, predicted IDs, and IDs beyond those of training.
Results are appended to ``results/forecast.jsonl``; what is there is not done again.

Beside the prediction stand four baselines, all for nine cases of ten: no change from the longest trained length;
the same with a slack that was chosen on the runs that the forecast's own constants were chosen on; the straight line
through accuracies at trained lengths; and "anything", from 0 to 1. The interval score (Gneiting and Raftery 2007) is
the width, and 20 times what a miss is off.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lengthwise.core.intervals import t_critical_value, wilson_interval
from lengthwise.core.provenance import provenance
from lengthwise.core.randomness import stream
from lengthwise.encodings import KERPLELog, Rotary
from lengthwise.evaluation.forecast.certificate import run_verdict
from lengthwise.evaluation.forecast.prediction import Forecast
from lengthwise.evaluation.grading import first_errors, grade
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import COMPARISONS, recipe
from lengthwise.experiments.run import Run, train
from lengthwise.experiments.run_analysis import certify_run
from lengthwise.experiments.run_folder import append_rows, read_rows
from lengthwise.tasks import Planted
from lengthwise.tasks.planted.placement import Local, Placement
from lengthwise.training.batch import to_batch

RESULTS = Path(__file__).parent / "results" / "forecast.jsonl"
FIGURE = Path("docs/forecast.png")
TIMES = (2, 4, 16)
# Examples measured at each length: answers of one example are alike, so that their number counts.
EXAMPLES, FEW = 256, 4
LEVEL, Z, REACHED = 0.9, 1.644854, 0.9
# What "no change" has to allow for, chosen like the forecast's constants.
SLACK = 0.5
# Rows that the first version of this benchmark had; the others were added because the verb failed on their like.
FIRST = ("parity", "addition", "sparse parity", "recall")
HELD = 1 << 15
LABELS = tuple(tuple(float(row == label) for label in range(4)) for row in range(4))
MARKED = ((4,), (5,), (6,), (7,))
# Keys of a forecast in saved rows, if they differ from its fields.
SAVED_KEYS = {
    "every_piece": "every",
    "half_budget": "half",
    "num_pieces": "pieces",
    "coverage": "covered",
    "ids_only": "positions",
    "token_count_only": "crowd",
    "num_answers": "answers",
    "end_accuracy": "ends",
}


@dataclass(frozen=True, kw_only=True)
class Decoys(Planted):
    """One of four marked tokens decides the label; beyond 32 tokens a second one stands somewhere and decides nothing.

    Nobody can know which of the two decides, so that five of eight answers are right at best.
    """

    background: tuple[float, ...] = (0.25,) * 4 + (0.0,) * 4
    tuples: tuple[tuple[int, ...], ...] = MARKED
    probabilities: tuple[float, ...] = (0.25,) * 4
    labels: tuple[tuple[float, ...], ...] = LABELS
    placement: Placement = field(default_factory=lambda: Local(shapes=((0,),), weights=(1.0,)))

    def draw(
        self, length: int, size: int, rng: np.random.Generator
    ) -> tuple[Int[np.ndarray, "size length"], Int[np.ndarray, "size k"], Int[np.ndarray, " size"]]:
        """Draw as a planted law does, and put a decoy anywhere else."""
        tokens, sets, label = super().draw(length, size, rng)
        if length > 32:
            places = (sets[:, 0] + rng.integers(1, length, size)) % length
            tokens[np.arange(size), places] = rng.integers(4, 8, size)
        return tokens, sets, label


def _misleading() -> dict[str, Experiment]:
    """Rows on which subsampled sequences are easily more accurate than full ones."""
    planted, parity = recipe("planted"), recipe("parity")
    planted = replace(planted, train_lengths=(4, 32), training=replace(planted.training, steps=600))
    rare = replace(Decoys(), background=(0.2495,) * 4 + (0.0005,) * 4)
    law = Planted(**{part.name: getattr(rare, part.name) for part in fields(Planted)})
    return {
        "parity with PPC, IDs to 59": replace(parity, scheme=replace(parity.scheme, num_position_ids=60)),
        "parity with PPC, all IDs": parity,
        "rare tokens, nope": replace(planted, task=law),
        "rare tokens, rotary": replace(planted, task=law, encoding=Rotary()),
        "decoys, nope": replace(planted, task=Decoys()),
        "decoys, rotary": replace(planted, task=Decoys(), encoding=Rotary()),
    }


def rows() -> dict[str, Experiment]:
    """Seven tasks, two ways to read IDs each."""
    parity, addition = COMPARISONS["which_parity"](), recipe("addition_coupled")
    return {
        **{f"parity, {code}": parity[f"coupled/{code}"] for code in ("rotary", "t5")},
        "addition, rotary": addition,
        "addition, kerple_log": replace(addition, encoding=KERPLELog()),
        "sparse parity, nope": recipe("sparse_parity"),
        "sparse parity, rotary": replace(recipe("sparse_parity"), encoding=Rotary()),
        "recall, nope": recipe("recall"),
        "recall, rotary": replace(recipe("recall"), encoding=Rotary()),
        **_misleading(),
    }


def measured(run: Run, length: int, examples: int) -> tuple[float, float, int, float]:
    """The share of right answer tokens, its standard error over examples, their number, and exact match."""
    task, scheme, right, number, exact = run.experiment.task, run.experiment.scheme, [], [], 0
    end = task.vocabulary.index("end")
    tokens = task.sample(length=length, size=1, rng=stream(0)).tokens.shape[1]
    step = max(1, HELD // tokens)
    for first in range(0, examples, step):
        rng = stream(run.experiment.seed, "forecast measured", length, first)
        drawn = task.sample(length=length, size=min(step, examples - first), rng=rng)
        batch = to_batch(length, drawn, scheme.assign(drawn, rng, training=False))
        graded = grade(run.decoder, batch, end=end, decode="forced")
        start = int(batch.prompt_length.min())
        counted = graded.scored & (batch.tokens[:, start:] != end)
        right.append((graded.token_correct & (graded.id_correct | ~graded.id_scored) & counted).sum(dim=1))
        number.append(counted.sum(dim=1))
        exact += len(drawn) - len(first_errors(graded))
    sums, counts = torch.cat(right).double(), torch.cat(number).double()
    share = float(sums.sum() / counts.sum())
    spread = float((sums - share * counts).square().sum().sqrt() / counts.sum())
    return share, spread, int(counts.sum()), exact / examples


def straight_line(lengths: list[int], shares: list[float], length: int) -> tuple[float, float]:
    """The 90% interval of a line through accuracies at trained lengths, continued."""
    sizes, values = np.array(lengths, dtype=float), np.array(shares)
    design = np.stack([np.ones_like(sizes), sizes], axis=1)
    solution, *_ = np.linalg.lstsq(design, values)
    freedom = len(sizes) - 2
    residual = float(((values - design @ solution) ** 2).sum()) / freedom
    at = np.array([1.0, length])
    half = t_critical_value(freedom, LEVEL) * np.sqrt(residual * (1 + at @ np.linalg.inv(design.T @ design) @ at))
    middle = float(at @ solution)
    return float(np.clip(middle - half, 0, 1)), float(np.clip(middle + half, 0, 1))


def one(name: str, experiment: Experiment, folder: Path) -> Iterator[dict[str, Any]]:
    """A row per length."""
    run = train(experiment, folder, resume=folder.exists(), device="cpu")
    assert run is not None
    run.decoder.eval()
    longest = experiment.train_lengths[1]
    started = time.perf_counter()
    certificate = certify_run(run, [times * longest for times in TIMES], seed=experiment.seed)
    certify_seconds = time.perf_counter() - started
    known = np.linspace(max(experiment.train_lengths[0], longest // 2), longest, 5).round().astype(int).tolist()
    shares = [measured(run, length, EXAMPLES)[0] for length in known]
    for times in TIMES:
        length = times * longest
        answers = measured(run, longest, 1)[2]
        started = time.perf_counter()
        share, spread, number, exact = measured(run, length, EXAMPLES if answers <= FEW else max(32, EXAMPLES // times))
        yield {
            "row": name,
            "seed": experiment.seed,
            "times": times,
            "length": length,
            "measured": share,
            "standard_error": spread,
            "exact": exact,
            "answers": number,
            "predicted": next((saved(each) for each in certificate.forecasts if each.length == length), None),
            "refused": certificate.refusal or certificate.abstentions.get(length),
            "fidelity": asdict(certificate.fidelity),
            "horizon": None if certificate.horizon is None else asdict(certificate.horizon),
            "verdict": run_verdict(certificate),
            "no_change": wilson_interval(round(shares[-1] * EXAMPLES), EXAMPLES, Z),
            "straight_line": straight_line(known, shares, length),
            "fitted": run.facts["fitted"],
            "steps": run.facts["steps"],
            "certify_seconds": round(certify_seconds, 1),
            "measure_seconds": round(time.perf_counter() - started, 1),
        }


def saved(forecast: Forecast) -> dict[str, Any]:
    """Return a forecast with the keys of saved rows."""
    return {SAVED_KEYS.get(name, name): value for name, value in asdict(forecast).items()}


def score(low: float, high: float, value: float) -> float:
    """The interval score; small is good."""
    return high - low + 2 / (1 - LEVEL) * (max(low - value, 0.0) + max(value - high, 0.0))


def _told(row: dict[str, Any]) -> tuple[float, float]:
    return row["predicted"]["low"], row["predicted"]["high"]


BASELINES: dict[str, Callable[[dict[str, Any]], tuple[float, float]]] = {
    "certify": _told,
    "no change": lambda row: (row["no_change"][0], row["no_change"][1]),
    "no change, with slack": lambda row: (max(0.0, row["no_change"][0] - SLACK), min(1.0, row["no_change"][1] + SLACK)),
    "straight line": lambda row: (row["straight_line"][0], row["straight_line"][1]),
    "anything": lambda _: (0.0, 1.0),
}


def held(row: dict[str, Any]) -> bool:
    """Return whether the measured accuracy is within the interval, up to the rounding of a few examples."""
    low, high = _told(row)
    return bool(low <= row["measured"] <= high)


def held_exactly(row: dict[str, Any]) -> bool:
    """Return whether the measured exact match is within its range."""
    return bool(row["predicted"]["exact_low"] <= row["exact"] <= row["predicted"]["exact_high"])


def summary(found: list[dict[str, Any]], what: str) -> str:
    """A row of the table of summaries."""
    answered = [row for row in found if row["predicted"] is not None]
    share = f"| {what} | {len(found)} | {1 - len(answered) / len(found):.2f}"
    if not answered:
        return f"{share} | - | - | - | - |"
    by_seed: dict[int, list[bool]] = {}
    for row in answered:
        by_seed.setdefault(row["seed"], []).append(held(row))
    worst = min(float(np.mean(each)) for each in by_seed.values())
    width = np.median([high - low for low, high in map(_told, answered)])
    exact = np.mean([held_exactly(row) for row in answered])
    return f"{share} | {np.mean([held(row) for row in answered]):.3f} | {worst:.3f} | {width:.2f} | {exact:.3f} |"


def report(found: list[dict[str, Any]]) -> list[str]:
    """Summaries of all cells, of those of the first version and the others, of each task, and the baselines."""
    tasks = dict.fromkeys(row["row"].split(",")[0] for row in found)
    parts: dict[str, Callable[[dict[str, Any]], bool]] = {
        "all": lambda row: True,
        "rows of the first version": lambda row: row["row"].split(",")[0] in FIRST,
        "rows meant to mislead": lambda row: row["row"].split(",")[0] not in FIRST,
        "measured below 0.9": lambda row: row["measured"] < REACHED,
        **{task: lambda row, task=task: row["row"].split(",")[0] == task for task in tasks},
    }
    lines = [
        "| cells | number | cannot tell | coverage | worst seed | median width | exact match within its range |",
        "|---|---|---|---|---|---|---|",
    ]
    for what, within in parts.items():
        cells = [row for row in found if within(row)]
        lines += [summary(cells, what)] if cells else []
    answered = [row for row in found if row["predicted"] is not None]
    for name, interval in BASELINES.items():
        value = np.mean([score(*interval(row), row["measured"]) for row in answered])
        lines.append(f"\nMean interval score, {name}: {value:.3f}")
    return lines


def table(found: list[dict[str, Any]]) -> list[str]:
    """Every cell."""
    lines = [
        "| row | seed | length | predicted | interval | measured | exact match, predicted | measured | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        share, exact, told = f"{row['measured']:.3f}", f"{row['exact']:.3f}", row["predicted"]
        if told is None:
            parts = ["-", "-", share, "-", exact, str(row["refused"]).split(":")[0]]
        else:
            low, high = _told(row)
            parts = [f"{told['accuracy']:.3f}", f"{low:.2f} to {high:.2f}", share]
            parts += [f"{told['exact_low']:.2f} to {told['exact_high']:.2f}", exact]
            parts.append("" if held(row) else "**missed**")
        lines.append(f"| {row['row']} | {row['seed']} | {row['length']:,} | {' | '.join(parts)} |")
    return lines


MARKERS = {2: "o", 4: "s", 16: "^"}
COLORS = ("#2471a3", "#c0392b")


def draw(axes: Axes, task: str, found: list[dict[str, Any]]) -> None:
    """Draw one task: a point per run and length, its interval across; the diagonal is a right prediction."""
    axes.plot([0, 1], [0, 1], color="0.8", zorder=0)
    ways = sorted({row["row"].split(", ")[1] for row in found})
    for color, way in zip(COLORS, ways, strict=True):
        for times, marker in MARKERS.items():
            cells = [row for row in found if row["row"].endswith(way) and row["times"] == times and row["predicted"]]
            if not cells:
                continue
            middle = np.array([row["predicted"]["accuracy"] for row in cells])
            low, high = np.array([_told(row) for row in cells]).T
            share = [row["measured"] for row in cells]
            # Rounding may leave an end of the interval behind the value.
            off = np.maximum([middle - low, high - middle], 0)
            label = f"{way}, {times} times"
            axes.errorbar(
                middle, share, xerr=off, fmt=marker, color=color, alpha=0.7, elinewidth=0.8, markersize=4, label=label
            )
    axes.set(title=task, xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
    axes.legend(fontsize=7, loc="upper left")


def plot(found: list[dict[str, Any]], path: Path) -> None:
    """Draw predicted against measured accuracy, a panel per task."""
    by_task: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        by_task.setdefault(row["row"].split(", ")[0], []).append(row)
    figure = Figure(figsize=(13, 7), layout="constrained")
    grid = figure.subplots(2, 4, squeeze=False)
    for axes, (task, cells) in zip(grid.flat, by_task.items(), strict=False):
        draw(axes, task, cells)
    for axes in grid.flat[len(by_task) :]:
        axes.axis("off")
    figure.supxlabel("accuracy predicted from short passes, with its interval")
    figure.supylabel("accuracy measured at 2, 4 and 16 times the longest trained length")
    figure.savefig(path, dpi=110)
    print(f"wrote {path}")


def main() -> None:
    """Train, ask and measure what is missing, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="7200,7201,7202")
    parser.add_argument("--rows", default=None, help="Labels, separated by semicolons; all by default.")
    parser.add_argument("--out", type=Path, default=Path("runs/forecast"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="Print what is there and do nothing.")
    parser.add_argument("--figure", action="store_true", help=f"Draw what is there into {FIGURE} and do nothing.")
    asked = parser.parse_args()
    there = read_rows(asked.results) if asked.results.exists() else []
    if asked.figure:
        plot(there, FIGURE)
        return
    if asked.table:
        print("\n".join([*report(there), "", *table(there)]))
        return
    torch.set_num_threads(1)
    known = rows()
    done = {(row["row"], row["seed"]) for row in there}
    for seed in map(int, asked.seeds.split(",")):
        for name in known if asked.rows is None else asked.rows.split(";"):
            if (name, seed) not in done:
                folder = asked.out / name.replace(", ", "-").replace(" ", "-") / f"seed-{seed}"
                new = list(one(name, replace(known[name], seed=seed), folder))
                append_rows(asked.results, [{**row, **provenance()} for row in new])
                print(name, seed, [(row["measured"], row["predicted"] and row["predicted"]["accuracy"]) for row in new])


if __name__ == "__main__":
    main()
