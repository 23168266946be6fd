"""Result rows become a table and a figure: exact match by length, or perplexity by context length."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lengthwise.core.errors import RunFolderError
from lengthwise.core.intervals import interval_over_models

Rows = Sequence[Mapping[str, Any]]
FITTED = 0.99
# From so many on, panels of a figure stand in two columns.
MANY_PANELS = 5


def cells(rows: Rows) -> dict[str, dict[int, Rows]]:
    """Result rows by label (``row``, in order of appearance) and length, one entry per seed."""
    labels = list(dict.fromkeys(str(row["row"]) for row in rows))
    lengths = sorted({int(row["length"]) for row in rows})
    return {
        label: {length: [row for row in rows if row["row"] == label and row["length"] == length] for length in lengths}
        for label in labels
    }


def by_loss(rows: Rows) -> bool:
    """Whether rows are graded by loss and not by exact match; those of one table all are or all are not."""
    return "loss" in rows[0]


def pooled(rows: Rows) -> tuple[float, float | None, float | None]:
    """Exact match over all examples of all seeds, which are asked the same ones, with its 95% interval.

    Graded by loss, the perplexity of the seeds' mean loss. Its bounds are the means of theirs: the seeds are measured
    on the same documents.
    """
    if by_loss(rows):
        value, low, high = (_mean_exponential([row[name] for row in rows]) for name in ("loss", "low", "high"))
        assert value is not None
        return value, low, high
    trials = [int(row["num_examples"]) for row in rows]
    exact = [round(float(row["exact_match"]) * number) for row, number in zip(rows, trials, strict=True)]
    return (sum(exact) / sum(trials), *interval_over_models(exact, trials))


def _mean_exponential(losses: Sequence[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    return math.exp(sum(known) / len(known)) if known else None


def heading(rows: Rows) -> str:
    """What a table of these rows shows."""
    seeds = max(len(runs) for by_length in cells(rows).values() for runs in by_length.values())
    # An interval over what is asked says nothing of what other seeds would have learned.
    of = "; of one seed each, and others may differ" if seeds == 1 else ""
    if by_loss(rows):
        return f"perplexity by context length, below it the 95% interval over documents{of}"
    return f"exact match by length, below it the 95% interval over examples{of or ' and seeds'}"


def outcome(rows: Rows) -> str:
    """How a run turned out: whether it fitted or, graded by loss, what it lost at the longest context."""
    last = rows[-1]
    if by_loss(rows):
        return f"loss {last['loss']:.3f} at context length {last['length']}"
    return f"exact match {last['fitted']:.2f} at length {last['train_lengths'][1]}"


def table(rows: Rows, diverged: Sequence[str] = ()) -> tuple[list[str], list[list[str]]]:
    """Header and body: a row per label, a column per length, the interval below each value.

    ``fits`` tells what did not extrapolate from what did not fit: whether exact match at the longest training length
    reached 0.99, and for how many seeds. ``diverged`` has a row's label for each seed without results.
    """
    by_label = cells(rows)
    lengths = list(next(iter(by_label.values())))
    header = ["row", "trained on", "IDs met", "steps", "fits"]
    header += [f"{length:,}\nn={examples_at(rows, length)}" for length in lengths]
    body = []
    for label, by_length in by_label.items():
        runs = next(runs for runs in by_length.values() if runs)
        first, last = runs[0]["train_lengths"]
        smallest, largest = min(row["id_range"][0] for row in runs), max(row["id_range"][1] for row in runs)
        steps = sorted({int(row["steps"]) for row in runs})
        facts = [
            f"{first}-{last}",
            f"{smallest:,}-{largest:,}",
            "-".join(f"{step:,}" for step in (steps[:1] + steps[1:][-1:])),
        ]
        failed = f", {diverged.count(label)} diverged" if label in diverged else ""
        body.append([label, *facts, fit_verdict(runs) + failed, *(value(by_length[length]) for length in lengths)])
    for label in dict.fromkeys(label for label in diverged if label not in by_label):
        body.append([label, "-", "-", "-", f"{diverged.count(label)} diverged", *("-" for _ in lengths)])
    return header, body


def length_table(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """Header and body for one run: a row per length."""
    if by_loss(rows):
        return _loss_table(rows)
    # Which distribution, where there are several.
    named = any(row["variant"] is not None for row in rows)
    # A model that is asked in text has no IDs of a scheme.
    with_ids = "id_accuracy" in rows[0]
    header = [*(["variant"] if named else []), "length", "n", "exact match", "95% interval", "tokens"]
    return [*header, *(["IDs"] if with_ids else []), "first errors"], [
        [
            *([str(row["variant"])] if named else []),
            f"{row['length']:,}",
            str(row["num_examples"]) + (f" of {row['num_rows']}" if row.get("num_rows") else ""),
            f"{row['exact_match']:.3f}",
            f"{row['low']:.3f}-{row['high']:.3f}",
            f"{row['token_accuracy']:.4f}",
            *([f"{row['id_accuracy']:.4f}"] if with_ids else []),
            _first_errors(row["first_error"]),
        ]
        for row in rows
    ]


def _loss_table(rows: Rows) -> tuple[list[str], list[list[str]]]:
    named = any(row["variant"] is not None for row in rows)
    header = [*(["kind"] if named else []), "context", "windows", "documents", "loss", "95% interval", "perplexity"]
    return [*header, "bits per byte", "tokens"], [
        [
            *([str(row["variant"])] if named else []),
            f"{row['shortest_context']:,}-{row['length']:,}",
            str(row["num_examples"]),
            str(row["num_documents"]),
            f"{row['loss']:.4f}",
            "-" if row["low"] is None else f"{row['low']:.4f}-{row['high']:.4f}",
            f"{row['perplexity']:.2f}",
            "-" if row["bits_per_byte"] is None else f"{row['bits_per_byte']:.3f}",
            f"{row['token_accuracy']:.4f}",
        ]
        for row in rows
    ]


def _first_errors(errors: Mapping[str, Any] | None) -> str:
    if errors is None:
        return "none"
    kinds = ", ".join(f"{errors[kind]} {kind}" for kind in ("token", "id", "end") if errors[kind])
    return f"{kinds}; median at {errors['median_index']:g}"


def fit_verdict(runs: Rows) -> str:
    """How many seeds fitted the longest training length; nothing fits where there is no right answer."""
    if by_loss(runs):
        return "-"
    fitted = sum(row["fitted"] >= FITTED for row in runs)
    if not fitted:
        return f"did not fit ({max(row['fitted'] for row in runs):.2f})"
    return "yes" if len(runs) == 1 else f"{fitted} of {len(runs)} seeds"


def value(rows: Rows) -> str:
    """A share or a perplexity, and below it its interval."""
    if not rows:
        return "-"
    found, low, high = pooled(rows)
    between = "-" if low is None or high is None else f"{low:.2f}-{high:.2f}"
    return f"{found:.2f}\n{between}" if by_loss(rows) else f"{found:.3f}\n{between}"


def examples_at(rows: Rows, length: int) -> str:
    """How many examples a seed is asked at a length: a number or, where rows differ, the least and the most."""
    known = sorted({int(row["num_examples"]) for row in rows if row["length"] == length})
    return "-".join(str(number) for number in dict.fromkeys((known[0], known[-1])))


def label_of(row: Mapping[str, Any]) -> str:
    """What a row is called without its variant."""
    label, variant = str(row["row"]), row.get("variant")
    return label if variant is None else label.removesuffix(f", {variant}")


def draw(rows: Rows, folder: Path, title: str) -> Path:
    """Exact match or perplexity against length as ``figure.png`` and ``figure.svg``; the path of the first.

    A panel per task and variant. Bands reach from the lowest to the highest seed; of one seed, bars are the 95%
    intervals.
    """
    # Imported here: it takes a second, and most commands draw nothing.
    from matplotlib.figure import Figure  # noqa: PLC0415

    tasks = list(dict.fromkeys(str(row["task"]) for row in rows))
    panels: dict[tuple[str, str | None], list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: tasks.index(str(row["task"]))):
        panels.setdefault((str(row["task"]), row.get("variant")), []).append({**row, "row": label_of(row)})
    # As high as the longest list of what is drawn, a line each.
    height = max(4.8 if len(panels) == 1 else 3.6, *(1.2 + 0.2 * len(cells(own)) for own in panels.values()))
    columns = 1 if len(panels) < MANY_PANELS else 2
    lines = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(9 * columns, height * lines), layout="constrained")
    for place, ((task, variant), own) in enumerate(panels.items()):
        parts = [title, *([task.replace("_", " ")] if len(tasks) > 1 else []), *([variant] if variant else [])]
        _draw_panel(figure.add_subplot(lines, columns, place + 1), own, ": ".join(parts))
    figure.supxlabel("bands: from the lowest to the highest seed; bars: 95% interval of a single one", fontsize=8)
    return save_figure(figure, folder)


def _draw_panel(axes: Any, rows: Rows, title: str) -> None:
    first, last = rows[0]["train_lengths"]
    axes.axvspan(first, last, color="0.9", label=f"trained on {first}-{last}")
    by_label = cells(rows)
    axes.set_prop_cycle(color=_colors(len(by_label)))
    for place, (label, by_length) in enumerate(by_label.items()):
        seen = {length: runs for length, runs in by_length.items() if runs}
        middle = [pooled(runs)[0] for runs in seen.values()]
        fits = _any_fit(seen)
        style, marker = "-" if fits else ":", "osD^vPX"[place % 7]
        name = label if fits else f"{label} (did not fit)"
        # The first row lies on top: where rows agree, it is the one that is asked about.
        (line,) = axes.plot(list(seen), middle, style, marker=marker, markersize=4, label=name, zorder=10 - place)
        _draw_spread(axes, seen, line.get_color())
    if by_loss(rows):
        axes.set(xscale="log", xlabel="context length, tokens (log scale)", yscale="log", title=title)
        axes.set_ylabel("perplexity of held-out tokens (log scale)")
    else:
        axes.set(xscale="log", xlabel="length (log scale)", ylabel="exact match", ylim=(-0.03, 1.03), title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8, frameon=False)


def _draw_spread(axes: Any, by_length: Mapping[int, Rows], color: Any) -> None:
    """From the lowest to the highest seed or, of one seed, the interval."""
    several = {length: _band(runs) for length, runs in by_length.items() if len(runs) > 1}
    single = {length: _band(runs) for length, runs in by_length.items() if len(runs) == 1}
    if several:
        axes.fill_between(list(several), *zip(*several.values(), strict=True), color=color, alpha=0.15, linewidth=0)
    if single:
        axes.vlines(list(single), *zip(*single.values(), strict=True), color=color, alpha=0.5, linewidth=1)


def _colors(number: int) -> list[Any]:
    """Of twenty where ten are too few; no grey, which shows the range of training."""
    from matplotlib import colormaps  # noqa: PLC0415

    size = 10 if number < 10 else 20
    known = [colormaps[f"tab{size}"](place) for place in range(size)]
    return [color for color in known if max(color[:3]) - min(color[:3]) > 0.1]


def save_figure(figure: Any, folder: Path) -> Path:
    """As ``figure.svg`` and ``figure.png``; the path of the latter."""
    try:
        for ending in ("svg", "png"):
            figure.savefig(folder / f"figure.{ending}", dpi=160)
    except OSError as error:
        raise RunFolderError(f"cannot draw into {folder} ({error.strerror}); choose a folder to write in") from None
    return folder / "figure.png"


def _band(runs: Rows) -> tuple[float, float]:
    if len(runs) == 1:
        value, low, high = pooled(runs)
        return (value, value) if low is None or high is None else (low, high)
    values = [pooled([row])[0] for row in runs]
    return min(values), max(values)


def _any_fit(by_length: Mapping[int, Rows]) -> bool:
    return any(by_loss(runs) or row["fitted"] >= FITTED for runs in by_length.values() for row in runs)
