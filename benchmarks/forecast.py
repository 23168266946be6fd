"""Compare the predictions of ``certify RUN`` with the accuracy measured at longer lengths.

The script trains every row and seed on short lengths and predicts its accuracy with ``certify_run``. It then measures
token accuracy (without the end token) and exact match at 2, 4 and 16 times the longest training length. Some rows are
difficult to predict: rare tokens, decoys that only long sequences contain, and copying by context. A task file is
measured on records that ``certify_run`` has not read. The results are appended to ``results/forecast.jsonl``. Existing
rows are not measured again.

Four baselines give 90% intervals: no change from the longest training length; no change with slack, which was chosen
on the same runs as the constants of the forecast; a straight line through the accuracies at training lengths; and
"anything", the interval from 0 to 1. The interval score (Gneiting and Raftery 2007) is the width of an interval plus
20 times the distance of a missed value.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from matplotlib.axes import Axes

import lengthwise as lw
from lengthwise.core.confidence_intervals import t_critical_value, wilson_interval
from lengthwise.core.provenance import collect_provenance
from lengthwise.core.randomness import random_stream
from lengthwise.encodings import ALiBi, EncodingSettings, KERPLELog, NoPE, Rotary, T5Bias
from lengthwise.evaluation.figure_layout import FONT_SIZE, LINE_COLORS, count_seeds, make_panels
from lengthwise.evaluation.forecast.certificate import describe_run_certificate
from lengthwise.evaluation.grading import first_errors, grade
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import COMPARISONS, recipe
from lengthwise.experiments.recipes.tuned_encodings import PARITY_ENCODINGS, compare_ppc_with_encodings
from lengthwise.experiments.run import Run, train
from lengthwise.experiments.run_evaluation import certify_run
from lengthwise.experiments.run_folder import append_rows, read_rows
from lengthwise.tasks import JSONLTask, PlantedCorrelations, Task
from lengthwise.tasks.planted.placement import LocalPlacement, Placement
from lengthwise.training.batch import to_batch

RESULTS = Path(__file__).parent / "results" / "forecast.jsonl"
FIGURE = Path("docs/forecast.png")
FACTORS = (2, 4, 16)
# Examples per length. Longer lengths use fewer examples if an example has more than FEW_ANSWERS answer tokens.
NUM_EXAMPLES, FEW_ANSWERS = 256, 4
# Level of all intervals and its normal quantile; measured accuracy below which a run counts as degraded.
LEVEL, Z, DEGRADED = 0.9, 1.644854, 0.9
# Slack of the second baseline.
SLACK = 0.5
# Distance of seeds in the figure; columns of lengths have distance 1.
SEED_DISTANCE = 0.23
MAX_TOKENS_IN_MEMORY = 1 << 15
# Rows with the recipes of the comparison ``demo``, whose runs stop when they fit.
DEMO = ("copy, found rule", "copy, rotary", "copy, ALiBi", "copy, NoPE")
# Longest training length of the task files, and their number of records per length.
FILE_LENGTH, FILE_RECORDS = 10, 512
LABELS = tuple(tuple(float(row == label) for label in range(4)) for row in range(4))
MARKED = ((4,), (5,), (6,), (7,))
# Largest number of configurations in a panel of the figure.
CONFIGURATIONS_PER_PANEL = 3


@dataclass(frozen=True, kw_only=True)
class PlantedWithDecoys(PlantedCorrelations):
    """Planted law in which a marked token determines the label; sequences above length 32 also contain a decoy.

    The decoy is a second marked token without effect. The best possible accuracy with a decoy is 5/8.
    """

    background: tuple[float, ...] = (0.25,) * 4 + (0.0,) * 4
    tuples: tuple[tuple[int, ...], ...] = MARKED
    probabilities: tuple[float, ...] = (0.25,) * 4
    labels: tuple[tuple[float, ...], ...] = LABELS
    placement: Placement = field(default_factory=lambda: LocalPlacement(shapes=((0,),), weights=(1.0,)))

    def sample_arrays(
        self, length: int, size: int, rng: np.random.Generator
    ) -> tuple[Int[np.ndarray, "size length"], Int[np.ndarray, "size k"], Int[np.ndarray, " size"]]:
        """Sample from the planted law, and add a decoy at a random other index to long sequences."""
        tokens, sets, label = super().sample_arrays(length, size, rng)
        if length > 32:
            decoys = (sets[:, 0] + rng.integers(1, length, size)) % length
            tokens[np.arange(size), decoys] = rng.integers(4, 8, size)
        return tokens, sets, label


def write_task_file(name: str, seed: int, folder: Path) -> Path:
    """Write a task file with records of the training lengths and of all tested lengths, unless it exists."""
    path = folder / "tasks" / f"{name}-{seed}.jsonl"
    if not path.exists():
        rng, answer, symbols = random_stream(seed, "forecast records", name), *TASK_FILES[name]
        lines = []
        for length in (*range(1, FILE_LENGTH + 1), *(times * FILE_LENGTH for times in FACTORS)):
            for tokens in rng.integers(0, len(symbols), size=(FILE_RECORDS, length)).tolist():
                record = {"prompt": [symbols[token] for token in tokens]}
                record["response"] = [symbols[token] for token in answer(tokens)]
                lines.append(json.dumps(record))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    return path


# Answers of the task files, as functions of the prompt, and the symbols of the prompt.
TASK_FILES: dict[str, tuple[Callable[[list[int]], list[int]], str]] = {
    "reverse": (lambda tokens: tokens[::-1], "abcdefgh"),
    "running parity": (lambda tokens: (np.cumsum(tokens) % 2).tolist(), "01"),
    "sums of neighbors": (
        lambda tokens: [(token + before) % 10 for token, before in zip(tokens, [0, *tokens], strict=False)],
        "0123456789",
    ),
}


def experiments(folder: Path) -> dict[str, Callable[[], Experiment]]:
    """Return a function that builds each experiment, by label; task files are written to ``folder``."""
    parity_grid, copy_grid, demo = COMPARISONS["which_parity"], COMPARISONS["which_copy"], COMPARISONS["demo"]
    by_label: dict[str, Callable[[], Experiment]] = {
        "two marked tokens, rotary": lambda: replace(recipe("planted"), encoding=Rotary()),
        "two marked tokens, ALiBi": lambda: replace(recipe("planted"), encoding=ALiBi()),
        "rare tokens, rotary": lambda: _planted(Rotary(), _rare_tokens()),
        "rare tokens, NoPE": lambda: _planted(NoPE(), _rare_tokens()),
        "decoys, NoPE": lambda: _planted(NoPE(), PlantedWithDecoys()),
        "decoys, rotary": lambda: _planted(Rotary(), PlantedWithDecoys()),
        "decoys, ALiBi": lambda: _planted(ALiBi(), PlantedWithDecoys()),
        "one marked token, NoPE": lambda: _planted(NoPE(), _one_marked_token()),
        "one marked token, rotary": lambda: _planted(Rotary(), _one_marked_token()),
        "one marked token, ALiBi": lambda: _planted(ALiBi(), _one_marked_token()),
        "one marked token, T5": lambda: _planted(T5Bias(), _one_marked_token()),
        "copy, found rule": lambda: demo()["discovered (PPC)"],
        "copy, rotary": lambda: demo()["rotary"],
        "copy, ALiBi": lambda: demo()["ALiBi"],
        "copy, NoPE": lambda: demo()["NoPE"],
        "copy, coupled FIRE": lambda: copy_grid()["coupled/fire"],
        "copy, coupled T5": lambda: copy_grid()["coupled/t5"],
        "parity, PPC": lambda: recipe("parity"),
        "parity, IDs to 59": lambda: replace(
            recipe("parity"), scheme=replace(recipe("parity").scheme, num_position_ids=60)
        ),
        "parity, coupled KERPLE": lambda: parity_grid()["coupled/kerple_log"],
        "parity, coupled T5": lambda: parity_grid()["coupled/t5"],
        "addition, found rule": lambda: recipe("addition"),
        "addition, coupled rotary": lambda: recipe("addition_coupled"),
        "addition, coupled KERPLE": lambda: replace(recipe("addition_coupled"), encoding=KERPLELog()),
        "recall, NoPE": lambda: _recall(NoPE()),
        "recall, rotary": lambda: _recall(Rotary()),
        "parity, rotary": lambda: compare_ppc_with_encodings(
            replace(recipe("parity"), train_lengths=(1, 10)), PARITY_ENCODINGS
        )["rotary"],
    }
    for name in TASK_FILES:
        by_label[f"task file, {name.split()[-1]}"] = lambda name=name: lw.experiment(
            str(write_task_file(name, 0, folder)), "discovered", train_lengths=(1, FILE_LENGTH)
        )
    return {label: lambda build=build: _stop_when_fitted(build()) for label, build in by_label.items()}


def _stop_when_fitted(experiment: Experiment) -> Experiment:
    return replace(experiment, training=replace(experiment.training, fit_every=50, cooldown_steps=100))


def _recall(encoding: EncodingSettings) -> Experiment:
    """Return the recipe for recall with one length per step, which fits earlier."""
    recall = recipe("recall")
    return replace(recall, encoding=encoding, training=replace(recall.training, lengths_per_batch=1))


def _planted(encoding: EncodingSettings, task: Task) -> Experiment:
    planted = recipe("planted")
    training = replace(planted.training, steps=600)
    return replace(planted, task=task, encoding=encoding, train_lengths=(4, 32), training=training)


def _one_marked_token() -> PlantedCorrelations:
    """Return the law of ``PlantedWithDecoys`` without decoys."""
    return PlantedCorrelations(
        **{each.name: getattr(PlantedWithDecoys(), each.name) for each in fields(PlantedCorrelations)}
    )


def _rare_tokens() -> PlantedCorrelations:
    """Return the same law with a background that seldom contains other marked tokens."""
    return replace(_one_marked_token(), background=(0.2495,) * 4 + (0.0005,) * 4)


def measure_accuracy(run: Run, task: Task, length: int, num_examples: int) -> tuple[float, float, int, float]:
    """Return token accuracy, its standard error over examples, the number of answer tokens, and exact match."""
    scheme, correct, number, exact = run.experiment.scheme, [], [], 0
    end = task.vocabulary.index("end")
    tokens = task.sample(length=length, size=1, rng=random_stream(0)).tokens.shape[1]
    step = max(1, MAX_TOKENS_IN_MEMORY // tokens)
    for first in range(0, num_examples, step):
        rng = random_stream(run.experiment.seed, "forecast measured", length, first)
        examples = task.sample(length=length, size=min(step, num_examples - first), rng=rng)
        batch = to_batch(length, examples, scheme.assign(examples, rng, training=False))
        graded = grade(run.decoder, batch, end=end, decode="forced")
        start = int(batch.prompt_length.min())
        counted = graded.scored & (batch.tokens[:, start:] != end)
        correct.append((graded.token_correct & (graded.id_correct | ~graded.id_scored) & counted).sum(dim=1))
        number.append(counted.sum(dim=1))
        exact += len(examples) - len(first_errors(graded))
    sums, counts = torch.cat(correct).double(), torch.cat(number).double()
    share = float(sums.sum() / counts.sum())
    spread = float((sums - share * counts).square().sum().sqrt() / counts.sum())
    return share, spread, int(counts.sum()), exact / num_examples


def straight_line(lengths: list[int], shares: list[float], length: int) -> tuple[float, float]:
    """Return the 90% prediction interval of a line through the accuracies at training lengths."""
    sizes, values = np.array(lengths, dtype=float), np.array(shares)
    design = np.stack([np.ones_like(sizes), sizes], axis=1)
    solution, *_ = np.linalg.lstsq(design, values)
    degrees = len(sizes) - 2
    residual = float(((values - design @ solution) ** 2).sum()) / degrees
    point = np.array([1.0, length])
    half = t_critical_value(degrees, LEVEL) * np.sqrt(residual * (1 + point @ np.linalg.inv(design.T @ design) @ point))
    middle = float(point @ solution)
    return float(np.clip(middle - half, 0, 1)), float(np.clip(middle + half, 0, 1))


def new_records_task(task: Task, run_folder: Path) -> Task:
    """Return the task that measures a run; the records of a task file are new."""
    if not isinstance(task, JSONLTask):
        return task
    assert task.file is not None
    name, _, _ = Path(task.file).stem.rpartition("-")
    new_records = write_task_file(name, 1, run_folder.parents[1])
    return JSONLTask(file=str(new_records)).from_run_folder(run_folder)


def train_and_measure(name: str, experiment: Experiment, folder: Path) -> Iterator[dict[str, Any]]:
    """Train and certify an experiment, and yield one row per length."""
    run = train(experiment, folder, resume=folder.exists(), device="cpu")
    assert run is not None
    run.decoder.eval()
    task, longest = new_records_task(experiment.task, folder), experiment.train_lengths[1]
    started = time.perf_counter()
    certificate = certify_run(run, [times * longest for times in FACTORS], seed=experiment.seed)
    certify_seconds = time.perf_counter() - started
    train_lengths = np.linspace(max(experiment.train_lengths[0], longest // 2), longest, 5).round().astype(int).tolist()
    shares = [measure_accuracy(run, task, length, NUM_EXAMPLES)[0] for length in train_lengths]
    for times in FACTORS:
        length = times * longest
        answers = measure_accuracy(run, task, longest, 1)[2]
        started = time.perf_counter()
        num_examples = NUM_EXAMPLES if answers <= FEW_ANSWERS else max(64, NUM_EXAMPLES // times)
        share, spread, number, exact = measure_accuracy(run, task, length, num_examples)
        yield {
            "row": name,
            "seed": experiment.seed,
            "times": times,
            "length": length,
            "measured": share,
            "standard_error": spread,
            "exact": exact,
            "answers": number,
            "predicted": next((asdict(each) for each in certificate.forecasts if each.length == length), None),
            "refused": certificate.refusal or certificate.abstentions.get(length),
            "fidelity": asdict(certificate.fidelity),
            "horizon": None if certificate.horizon is None else asdict(certificate.horizon),
            "verdict": describe_run_certificate(certificate),
            "no_change": wilson_interval(round(shares[-1] * NUM_EXAMPLES), NUM_EXAMPLES, Z),
            "straight_line": straight_line(train_lengths, shares, length),
            "fitted": run.facts["fitted"],
            "steps": run.facts["steps"],
            "certify_seconds": round(certify_seconds, 1),
            "measure_seconds": round(time.perf_counter() - started, 1),
        }


def interval_score(low: float, high: float, value: float) -> float:
    """Return the interval score; smaller is better."""
    return high - low + 2 / (1 - LEVEL) * (max(low - value, 0.0) + max(value - high, 0.0))


def _predicted_interval(row: dict[str, Any]) -> tuple[float, float]:
    return row["predicted"]["low"], row["predicted"]["high"]


BASELINES: dict[str, Callable[[dict[str, Any]], tuple[float, float]]] = {
    "certify": _predicted_interval,
    "no change": lambda row: (row["no_change"][0], row["no_change"][1]),
    "no change, with slack": lambda row: (max(0.0, row["no_change"][0] - SLACK), min(1.0, row["no_change"][1] + SLACK)),
    "straight line": lambda row: (row["straight_line"][0], row["straight_line"][1]),
    "anything": lambda _: (0.0, 1.0),
}


def covers_accuracy(row: dict[str, Any]) -> bool:
    """Return True if the measured accuracy is within the predicted interval."""
    low, high = _predicted_interval(row)
    return bool(low <= row["measured"] <= high)


def covers_exact_match(row: dict[str, Any]) -> bool:
    """Return True if the measured exact match is within its predicted range."""
    return bool(row["predicted"]["exact_low"] <= row["exact"] <= row["predicted"]["exact_high"])


def summary_line(rows: list[dict[str, Any]], label: str) -> str:
    """Return a line of the summary table."""
    predictions = [row for row in rows if row["predicted"] is not None]
    share = f"| {label} | {len(rows)} | {1 - len(predictions) / len(rows):.2f}"
    if not predictions:
        return f"{share} | - | - | - | - | - |"
    by_seed: dict[int, list[bool]] = {}
    for row in predictions:
        by_seed.setdefault(row["seed"], []).append(covers_accuracy(row))
    worst = min(float(np.mean(each)) for each in by_seed.values())
    width = np.median([high - low for low, high in map(_predicted_interval, predictions)])
    exact = np.mean([covers_exact_match(row) for row in predictions])
    exact_width = np.median([row["predicted"]["exact_high"] - row["predicted"]["exact_low"] for row in predictions])
    hits = sum(covers_accuracy(row) for row in predictions)
    low, high = wilson_interval(hits, len(predictions))
    coverage = f"{hits / len(predictions):.3f} [{low:.2f}, {high:.2f}]"
    return f"{share} | {coverage} | {worst:.3f} | {width:.2f} | {exact:.3f} | {exact_width:.2f} |"


def report(rows: list[dict[str, Any]]) -> list[str]:
    """Return a summary table over groups of rows, and the mean interval score of each baseline."""
    labels = dict.fromkeys(row["row"] for row in rows)
    groups: dict[str, Callable[[dict[str, Any]], bool]] = {
        "all": lambda row: True,
        "measured below 0.9": lambda row: row["measured"] < DEGRADED,
        "the demo": lambda row: row["row"] in DEMO,
        **{f"{times} times the training length": lambda row, times=times: row["times"] == times for times in FACTORS},
        **{label: lambda row, label=label: row["row"] == label for label in labels},
    }
    lines = [
        "| cells | number | cannot tell | coverage | worst seed | median width | exact match within its range | "
        "median width |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for label, is_member in groups.items():
        cells = [row for row in rows if is_member(row)]
        lines += [summary_line(cells, label)] if cells else []
    predictions = [row for row in rows if row["predicted"] is not None]
    for name, interval in BASELINES.items():
        value = np.mean([interval_score(*interval(row), row["measured"]) for row in predictions])
        lines.append(f"\nMean interval score, {name}: {value:.3f}")
    return lines


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table of all rows."""
    lines = [
        "| row | seed | length | predicted | interval | measured | exact match, predicted | measured | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        share, exact, forecast = f"{row['measured']:.3f}", f"{row['exact']:.3f}", row["predicted"]
        if forecast is None:
            parts = ["-", "-", share, "-", exact, str(row["refused"]).split(":")[0]]
        else:
            low, high = _predicted_interval(row)
            parts = [f"{forecast['accuracy']:.3f}", f"{low:.2f} to {high:.2f}", share]
            parts += [f"{forecast['exact_low']:.2f} to {forecast['exact_high']:.2f}", exact]
            parts.append("" if covers_accuracy(row) else "**missed**")
        lines.append(f"| {row['row']} | {row['seed']} | {row['length']:,} | {' | '.join(parts)} |")
    return lines


def _seeds(rows: list[dict[str, Any]], label: str) -> set[int]:
    return {row["seed"] for row in rows if row["row"] == label}


def draw(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """Draw the rows of one task: a group of columns per configuration, a column per length, and a bar per seed."""
    configurations = list(dict.fromkeys(row["row"].partition(", ")[2] for row in rows))
    seeds, places = sorted({row["seed"] for row in rows}), []
    for index, (color, configuration) in enumerate(zip(LINE_COLORS, configurations, strict=False)):
        runs = [row for row in rows if row["row"].partition(", ")[2] == configuration]
        # The first column has the accuracy at the longest trained length.
        first = index * (len(FACTORS) + 1.5)
        axes.axvspan(first - 0.5, first + 0.5, facecolor="0.9", zorder=0)
        for row in runs:
            shift = (seeds.index(row["seed"]) - (len(seeds) - 1) / 2) * SEED_DISTANCE
            place = first + 1 + FACTORS.index(row["times"]) + shift
            axes.plot(first + shift, row["fidelity"]["whole"], "o", color=color, markersize=3)
            fill = color if row["predicted"] else "white"
            axes.plot(place, row["measured"], "o", color=color, markerfacecolor=fill, markersize=3)
            if row["predicted"]:
                axes.vlines(place, *_predicted_interval(row), color=color, alpha=0.35, linewidth=3)
        middle = first + len(FACTORS) / 2
        name_style = {"color": color, "fontsize": FONT_SIZE - 1, "ha": "center", "va": "bottom"}
        axes.text(middle, 1.04, configuration, transform=axes.get_xaxis_transform(), **name_style)
        places += [first + column for column in range(len(FACTORS) + 1)]
    axes.set_xticks(places, ["1", *map(str, FACTORS)] * len(configurations))
    axes.grid(visible=False, axis="x")
    axes.set(ylim=(-0.03, 1.03), ylabel="accuracy", xlabel="length / longest trained length")


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Plot predicted intervals and measured accuracy, with one panel per task."""
    labels_by_task: dict[str, list[str]] = {}
    for label in dict.fromkeys(row["row"] for row in rows):
        labels_by_task.setdefault(label.split(", ")[0], []).append(label)
    panel_labels = [
        labels[start : start + CONFIGURATIONS_PER_PANEL]
        for labels in labels_by_task.values()
        for start in range(0, len(labels), CONFIGURATIONS_PER_PANEL)
    ]
    panel_rows = [[row for row in rows if row["row"] in labels] for labels in panel_labels]
    titles = [
        f"{labels[0].split(', ')[0]}, {count_seeds([len(_seeds(cells, each)) for each in labels])}"
        for labels, cells in zip(panel_labels, panel_rows, strict=True)
    ]
    predictions = [row for row in rows if row["predicted"] is not None]
    caption = (
        "Points: measured accuracy per answer token, one per seed; bars: 90% interval, predicted from passes no longer "
        "than those of training; hollow points: no prediction. Shaded: longest trained length. Points outside their "
        f"bar: {sum(not covers_accuracy(row) for row in predictions)} of {len(predictions)}."
    )
    figure, panels = make_panels(titles, [[]] * len(titles), caption, num_columns=2)
    for axes, cells in zip(panels, panel_rows, strict=True):
        draw(axes, cells)
    figure.savefig(path, dpi=160)
    print(f"wrote {path}")


def main() -> None:
    """Train, certify and measure missing rows, or print or plot the existing rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="8301,8302,8303")
    parser.add_argument("--rows", default=None, help="Labels separated by semicolons (default: all).")
    parser.add_argument("--out", type=Path, default=Path("runs/forecast"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="Print the existing rows without measuring.")
    parser.add_argument("--figure", action="store_true", help=f"Plot the existing rows to {FIGURE} without measuring.")
    options = parser.parse_args()
    rows = read_rows(options.results) if options.results.exists() else []
    if options.figure:
        plot(rows, FIGURE)
        return
    if options.table:
        print("\n".join([*report(rows), "", *table(rows)]))
        return
    torch.set_num_threads(1)
    by_label = experiments(options.out)
    existing = {(row["row"], row["seed"]) for row in rows}
    for seed in map(int, options.seeds.split(",")):
        for name in by_label if options.rows is None else options.rows.split(";"):
            if (name, seed) not in existing:
                folder = options.out / name.replace(", ", "-").replace(" ", "-") / f"seed-{seed}"
                new_rows = list(train_and_measure(name, replace(by_label[name](), seed=seed), folder))
                append_rows(options.results, [{**row, **collect_provenance()} for row in new_rows])
                accuracies = [(row["measured"], row["predicted"] and row["predicted"]["accuracy"]) for row in new_rows]
                print(name, seed, accuracies)


if __name__ == "__main__":
    main()
