"""Claim on sparsity in text: targets that need few far tokens keep their loss in contexts longer than in training."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

from claims.sparsity_in_text.paired_contexts import ContextSettings, measure_paired_targets
from claims.sparsity_in_text.relation import correlate_columns, summarize_relation

from lengthwise.encodings import ALiBi, KERPLELog, NoPE
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.figure_layout import FIGURE_WIDTH, FONT_SIZE, LINE_COLORS, LINE_HEIGHT, save_figure
from lengthwise.evaluation.language_model import BytePairTokenizerAdapter
from lengthwise.evaluation.result_rows import Rows
from lengthwise.experiments.decoder_model import wrap_run_as_model
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.reproduction import Claim, SizePreset, Table
from lengthwise.experiments.run import Run
from lengthwise.influence.report.bootstrap import DocumentBootstrap, JSONObject
from lengthwise.influence.report.summary import format_estimate
from lengthwise.positions import MultiLevel, Skipwise
from lengthwise.tasks import Text

# Context length of training, and test lengths as multiples of it.
TRAIN_LENGTH, LENGTH_FACTORS = 128, (1, 2, 4, 8)
# The last eighth of the training context is near. Numbers of selected far tokens; the largest is the main one.
NEAR_FRACTION, KS = 8, (1, 2, 4)
# Number of targets per run; all runs measure the same ones.
NUM_TARGETS = 400
BOOTSTRAP = DocumentBootstrap(seed=0, num_resamples=1000)
# If the intervals of all seeds lie within this distance of 0, a relation is negligible.
NEGLIGIBLE = 0.1


def _build_experiments() -> dict[str, Experiment]:
    """Return small language models with six ways to encode positions, trained on the same text."""
    base, lengths = recipe("language_model_small"), tuple(factor * TRAIN_LENGTH for factor in LENGTH_FACTORS)
    rotary = replace(
        base,
        training=replace(base.training, steps=3000),
        train_lengths=(TRAIN_LENGTH, TRAIN_LENGTH),
        evaluation=EvaluationSettings(lengths=lengths, num_examples=(64,)),
    )
    return {
        "rotary": rotary,
        # One gap gives two chunks, as in the paper. The token after the longest window needs the additional ID.
        "rotary + PoSE": replace(rotary, scheme=Skipwise(num_position_ids=max(lengths) + 1, max_gaps=1)),
        # The IDs are the place of each token in its line and the number of its line, also with one gap in training.
        "coupled by structure": replace(
            rotary, task=Text(structure=True), scheme=MultiLevel(num_position_ids=max(lengths) + 1, max_gaps=1)
        ),
        "ALiBi": replace(rotary, encoding=ALiBi()),
        "KERPLE": replace(rotary, encoding=KERPLELog()),
        "NoPE": replace(rotary, encoding=NoPE()),
    }


def _measure_run(run: Run, rows: Rows) -> Mapping[str, Any]:
    """Measure the same targets in every run, and return the correlations of the run."""
    return measure_run(run)


def measure_run(run: Run, kind: str | None = None) -> JSONObject:
    """Return the correlations of a run of the claim, over all targets or over as many targets of one kind."""
    experiment, task = run.experiment, run.experiment.task
    assert isinstance(task, Text)
    train_length = experiment.train_lengths[1]
    near = max(1, train_length // NEAR_FRACTION)
    settings = ContextSettings(
        lengths=(train_length, *(length for length in experiment.evaluation.lengths if length > train_length)),
        near=near,
        ks=tuple(k for k in KS if k <= train_length - near),
        num_targets=NUM_TARGETS,
        kind=kind,
    )
    codec = BytePairTokenizerAdapter(task.tokenizer)
    targets = measure_paired_targets(wrap_run_as_model(run, str(run.folder)), codec, task.held_out(), settings)
    return summarize_relation(targets, settings, BOOTSTRAP)


def _build_tables(rows: Rows, measurements: Rows) -> list[Table]:
    if not measurements:
        return []
    by_row = {
        label: [measurement for measurement in measurements if measurement["row"] == label]
        for label in _labels(measurements)
    }
    return [
        _seed_table(measurements),
        _control_table(measurements),
        _label_table(by_row),
        _other_seed_table(by_row),
        _kind_table(by_row),
        _change_table(by_row),
    ]


def _labels(measurements: Rows) -> list[str]:
    return list(dict.fromkeys(measurement["row"] for measurement in measurements))


def _seed_table(measurements: Rows) -> Table:
    lengths, largest_k = measurements[0]["lengths"][1:], measurements[0]["ks"][-1]
    title = (
        f"rank correlation of the share of the prediction that {largest_k} far tokens recover with the change of the "
        f"loss from context {measurements[0]['lengths'][0]:,}; 95% intervals over texts"
    )
    header = ["row", "seed", "targets", "texts", f"change at {lengths[-1]:,}, nats"]
    body = [
        [
            measurement["row"],
            str(measurement["seed"]),
            f"{measurement['used']:,} of {measurement['measured']:,}",
            str(measurement["documents"]),
            format_estimate(measurement["mean_change"][-1]),
            *map(format_estimate, measurement["change"]),
        ]
        for measurement in measurements
    ]
    return title, [*header, *(f"{length:,}" for length in lengths)], body


def _control_table(measurements: Rows) -> Table:
    columns = {
        f"k={measurements[0]['ks'][0]}": "first_k",
        "given the effect of all far tokens": "partial",
        "change of the prediction": "drift",
        "share of the gain": "gain",
        "permuted shares": "permuted",
    }
    body = [
        [
            measurement["row"],
            str(measurement["seed"]),
            *(format_estimate(measurement[name]) for name in columns.values()),
        ]
        for measurement in measurements
    ]
    return f"variants and control, at context {measurements[0]['lengths'][-1]:,}", ["row", "seed", *columns], body


def _label_table(by_row: Mapping[str, Rows]) -> Table:
    body = []
    for label, measurements in by_row.items():
        estimates = [measurement["change"][-1] for measurement in measurements]
        body.append([label, str(len(measurements)), *_middle_and_worst(estimates), judge(estimates)])
    title = "answer by row: are targets that need few far tokens those that keep their loss?"
    return title, ["row", "seeds", "median seed", "worst seed", "answer"], body


def judge(estimates: list[JSONObject]) -> str:
    """Return the answer that the rank correlations of all seeds support together."""
    bounds = [(estimate["low"], estimate["high"]) for estimate in estimates]
    if any(low is None or high is None for low, high in bounds):
        return "cannot be told: no interval"
    if all(high < 0 for _, high in bounds):
        return "yes, in all seeds"
    if all(low > 0 for low, _ in bounds):
        return "no: the opposite, in all seeds"
    if all(low > -NEGLIGIBLE and high < NEGLIGIBLE for low, high in bounds):
        return f"no: weaker than {NEGLIGIBLE} in all seeds"
    return "cannot be told"


def _other_seed_table(by_row: Mapping[str, Rows]) -> Table:
    """Build the table of correlations between runs, in which no noise of a run is in both variables."""
    body = []
    for label, measurements in by_row.items():
        cells = [label]
        for first, second in (("share", "change"), ("share", "share"), ("change", "change")):
            estimates = [
                correlate_columns(
                    one["columns"]["document"], one["columns"][first], other["columns"][second], BOOTSTRAP
                )
                for one, other in permutations(measurements, 2)
            ]
            cells += _middle_and_worst(estimates)
        body.append(cells)
    names = ("share and change", "shares", "changes")
    header = ["row", *(f"{name}, {place}" for name in names for place in ("median", "largest"))]
    return "rank correlation of two values of the same target in two seeds", header, body


def _kind_table(by_row: Mapping[str, Rows]) -> Table:
    return "by kind of target: median / worst seed", *_tabulate_kinds(by_row, "targets", "change")


def _change_table(by_row: Mapping[str, Rows]) -> Table:
    """Build the table of mean changes, over all targets of a kind."""
    measurement = next(iter(by_row.values()))[0]
    title = (
        f"change of the loss from context {measurement['lengths'][0]:,} to {measurement['lengths'][-1]:,} "
        "by kind of target, nats: median / worst seed"
    )
    return title, *_tabulate_kinds(by_row, "all_targets", "mean_change")


def _tabulate_kinds(by_row: Mapping[str, Rows], count: str, estimate: str) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines of a table with one estimate per kind and row label."""
    found = [
        {kind["kind"]: kind for kind in measurement["kinds"]}
        for measurements in by_row.values()
        for measurement in measurements
    ]
    body = []
    for name in dict.fromkeys(name for kinds in found for name in kinds):
        counts = [kinds[name][count] for kinds in found if name in kinds]
        cells = [name, f"{min(counts):,} to {max(counts):,}"]
        for measurements in by_row.values():
            kinds = [kind for measurement in measurements for kind in measurement["kinds"] if kind["kind"] == name]
            middle, worst = _middle_and_worst([kind[estimate] for kind in kinds])
            cells.append(f"{middle} / {worst}")
        body.append(cells)
    return ["kind", "targets", *by_row], body


def _middle_and_worst(estimates: list[JSONObject]) -> tuple[str, str]:
    """Return the lower median and the largest estimate (the worst for the claim); dashes if all are undefined."""
    known = sorted(
        (estimate for estimate in estimates if estimate["value"] is not None),
        key=lambda estimate: float(estimate["value"]),
    )
    return (format_estimate(known[(len(known) - 1) // 2]), format_estimate(known[-1])) if known else ("-", "-")


def _draw_figure(rows: Rows, measurements: Rows, folder: Path, title: str) -> Path:
    """Draw the rank correlation and its interval at the longest context, one line per row label and seed."""
    # Importing matplotlib takes a second, and most commands draw no figure.
    from matplotlib.figure import Figure  # noqa: PLC0415

    labels = _labels(measurements)
    figure = Figure(figsize=(FIGURE_WIDTH, 1.2 + LINE_HEIGHT * (1 + len(measurements))), layout="constrained")
    axes = figure.subplots()
    for index, measurement in enumerate(measurements):
        estimate, color = measurement["change"][-1], LINE_COLORS[labels.index(measurement["row"])]
        if estimate["value"] is not None:
            axes.plot(estimate["value"], index, "o", color=color, markersize=4)
        if estimate["low"] is not None:
            axes.plot([estimate["low"], estimate["high"]], [index, index], color=color)
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.set_yticks(
        range(len(measurements)), [f"{measurement['row']}, seed {measurement['seed']}" for measurement in measurements]
    )
    axes.set_ylim(len(measurements) - 0.4, -0.6)
    axes.tick_params(labelsize=FONT_SIZE)
    axes.set_xlabel("rank correlation of recovered share and change of the loss", fontsize=FONT_SIZE)
    figure.suptitle(title, fontsize=FONT_SIZE + 1)
    return save_figure(figure, folder)


CLAIM = Claim(
    summary="language models: the share that few far tokens recover, and the change of the loss in longer contexts",
    paper="Golowich et al. 2025 (arXiv 2502.16792), experiments on natural language",
    experiments=_build_experiments,
    laptop=SizePreset(num_seeds=1, max_steps=400),
    full=SizePreset(num_seeds=3),
    measure=_measure_run,
    tables=_build_tables,
    draw=_draw_figure,
)
