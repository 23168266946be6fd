"""Reports of a diagnosis: a JSON document, tables, sentences and a figure."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lengthwise.core.files import check_report_folder, write_atomically
from lengthwise.evaluation.diagnosis.diagnosis import Diagnosis
from lengthwise.evaluation.diagnosis.failures import FailureCounts
from lengthwise.evaluation.figure_layout import (
    LINE_COLORS,
    MAX_LINES,
    LineLabel,
    label_lines,
    make_panels,
    set_length_axis,
)

DIAGNOSIS_FILE = "diagnosis.json"
# With fewer first errors, other examples often give another cause.
MIN_ERRORS = 20
Table = tuple[str, list[str], list[list[str]]]


def diagnosis_to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Convert a diagnosis to JSON values, including the property ``fits``."""
    return {"fits": diagnosis.fits, **asdict(diagnosis)}


def diagnosis_tables(diagnosis: Diagnosis) -> Iterator[Table]:
    """Yield tables of exact match by length, first errors, range shifts and causes."""
    yield _length_table(diagnosis)
    if diagnosis.failures is None:
        return
    yield _first_error_table(diagnosis.failures, diagnosis.length)
    shift_rows = []
    for shift in diagnosis.range_shifts:
        limits = [f"{shift.train_max:g}", f"{shift.test_max:g}"]
        shift_rows.append([shift.quantity, *limits, f"{shift.fraction_beyond:.2f}"])
    header = ["maximum", "training", "failed examples", "fraction beyond"]
    yield "IDs and distances of failed examples", header, shift_rows
    cause_rows = []
    for cause in diagnosis.causes:
        fractions = (cause.repair_rate, cause.break_rate, cause.exact_match)
        fraction_texts = ["-" if value is None else f"{value:.2f}" for value in fractions]
        cause_rows.append([cause.name, cause.intervention, *fraction_texts, str(cause.num_errors)])
    yield "causes", ["cause", "intervention", "errors repaired", "right answers broken", "exact match", "n"], cause_rows


def describe_diagnosis(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield sentences about the locations of first errors, the subsampling control and, last, the limiting cause."""
    if diagnosis.failures is not None:
        yield f"first errors by tenths of the response: {' '.join(map(str, diagnosis.failures.by_tenth))}"
    if diagnosis.skip_reason is not None:
        yield f"no interventions: {diagnosis.skip_reason}"
    if (control := diagnosis.subsampling_control) is not None:
        yield (
            f"subsampling alone repairs {control.repair_rate:.2f} of the first errors; at length "
            f"{diagnosis.train_lengths[1]}, {control.retention:.2f} of the right answers stay right on half of the "
            f"tokens; {control.short_fraction:.2f} of the first errors fit into a training sequence"
        )
    if diagnosis.causes and (num_errors := diagnosis.causes[0].num_errors) < MIN_ERRORS:
        yield f"the fractions are rough, because only {num_errors} examples failed; increase --num-examples"
    yield diagnosis.limited_by


def _head_names(diagnosis: Diagnosis) -> list[str]:
    return [f"layer {layer} head {head}" for layer, head in diagnosis.heads]


def _length_table(diagnosis: Diagnosis) -> Table:
    body = []
    for result in diagnosis.by_length:
        interval = f"{result.low:.3f}-{result.high:.3f}"
        masses = [f"{mass:.3f}" for mass in result.needed_mass]
        body.append([f"{result.length:,}", str(result.num_examples), f"{result.exact_match:.3f}", interval, *masses])
    if diagnosis.failures is not None and diagnosis.heads:
        body.append(["first errors", "", "", "", *(f"{mass:.3f}" for mass in diagnosis.needed_mass_at_errors)])
    title = "exact match, and attention on the needed tokens" if diagnosis.heads else "exact match"
    return title, ["length", "n", "exact match", "95% interval", *_head_names(diagnosis)], body


def _first_error_table(failures: FailureCounts, length: int) -> Table:
    header = ["failed", "token", "ID", "end too early", "end too late", "median index"]
    propagation = failures.error_propagation
    note = "" if propagation is None else f" ({propagation:.2f} lead to a wrong token)"
    ends = [str(failures.end_too_early), str(failures.end_too_late)]
    cells = [str(failures.num_failures), str(failures.token), f"{failures.id}{note}", *ends]
    return f"first errors at length {length}", header, [[*cells, f"{failures.median_index:g}"]]


def write_report(diagnosis: Diagnosis, folder: Path) -> Path:
    """Write diagnosis.json and figure.png to a folder, and return the path of the figure."""
    check_report_folder(folder, DIAGNOSIS_FILE)
    write_atomically(folder / DIAGNOSIS_FILE, json.dumps(diagnosis_to_json(diagnosis), indent=2).encode())
    # The heads with the most attention on the needed tokens at the shortest length.
    mass = diagnosis.by_length[0].needed_mass
    heads = sorted(sorted(range(len(mass)), key=mass.__getitem__, reverse=True)[: MAX_LINES - 1])
    names = [f"attention, {_head_names(diagnosis)[head]}" for head in heads]
    num_omitted = len(diagnosis.heads) - len(heads)
    caption = "Circles: exact match; squares: attention on the needed tokens."
    caption += f" Only in the table: {num_omitted} more heads." if num_omitted else ""
    failures = diagnosis.failures
    titles = ["exact match, and attention on the needed tokens"]
    titles += [] if failures is None else [f"first errors of {failures.num_failures} examples"]
    figure, panels = make_panels(titles, [["exact match", *names], []][: len(titles)], caption)
    _draw_support_mass(diagnosis, panels[0], dict(zip(heads, names, strict=True)))
    if failures is not None:
        panels[1].set(xlabel="relative index in the response", xlim=(0, 1), ylabel="examples")
        tenths = [(tenth + 0.5) / 10 for tenth in range(10)]
        panels[1].bar(tenths, failures.by_tenth, width=0.09, color=LINE_COLORS[0])
    figure.savefig(folder / "figure.png", dpi=160)
    return folder / "figure.png"


def _draw_support_mass(diagnosis: Diagnosis, axes: Any, head_names: Mapping[int, str]) -> None:
    lengths = [result.length for result in diagnosis.by_length]
    exact_match = [result.exact_match for result in diagnosis.by_length]
    lines = [("exact match", exact_match, "o-", "black")]
    for (head_index, name), color in zip(head_names.items(), LINE_COLORS, strict=False):
        lines.append((name, [result.needed_mass[head_index] for result in diagnosis.by_length], "s--", color))
    for name, values, style, color in lines:
        axes.plot(lengths, values, style, color=color, label=name, markersize=4)
    axes.set(xlabel="length (log scale)", ylabel="fraction", ylim=(-0.03, 1.03))
    set_length_axis(axes, lengths, diagnosis.train_lengths)
    label_lines(axes, [LineLabel(name, color, values[-1]) for name, values, _, color in lines])
