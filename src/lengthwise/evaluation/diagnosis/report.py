"""What a diagnosis looks like: one JSON document, tables and a sentence, and a figure."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lengthwise.core.files import write_atomically
from lengthwise.evaluation.diagnosis.diagnosis import Diagnosis
from lengthwise.evaluation.diagnosis.failures import Failures

DIAGNOSIS = "diagnosis.json"
Table = tuple[str, list[str], list[list[str]]]


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain values."""
    return {"fits": diagnosis.fits, **asdict(diagnosis)}


def tables(diagnosis: Diagnosis) -> Iterator[Table]:
    """For people: how exact match and attention fall, how and where examples fail, and what repairs it."""
    yield _by_length(diagnosis)
    if diagnosis.failures is None:
        return
    yield _failures(diagnosis.failures, diagnosis.length)
    yield (
        "what the failed examples use, beside what training showed",
        ["largest", "trained", "failed", "share beyond"],
        [[each.what, f"{each.trained:g}", f"{each.tested:g}", f"{each.beyond:.2f}"] for each in diagnosis.shown],
    )
    yield (
        "what repairs them",
        ["cause", "what is changed", "first errors right", "right answers wrong", "whole examples right", "n"],
        [
            [
                each.name,
                each.change,
                f"{each.repaired:.2f}",
                "-" if each.broken is None else f"{each.broken:.2f}",
                "-" if each.whole is None else f"{each.whole:.2f}",
                str(each.asked),
            ]
            for each in diagnosis.causes
        ],
    )


def sentences(diagnosis: Diagnosis) -> Iterator[str]:
    """What limits the run comes last."""
    if diagnosis.failures is not None:
        yield f"by tenths of the response: {' '.join(map(str, diagnosis.failures.by_tenth))}"
    if diagnosis.unasked is not None:
        yield f"no first error was asked again: {diagnosis.unasked}"
    if diagnosis.thinning is not None:
        yield (
            f"what leaving tokens out does by itself: {diagnosis.thinning.unchanged:.2f} of the first errors become "
            f"right; at {diagnosis.trained[1]}, with half of it left out, {diagnosis.thinning.kept:.2f} of the right "
            f"answers stay right; {diagnosis.thinning.short:.2f} of the first errors are asked again in no "
            "more than a trained sequence"
        )
    yield diagnosis.limited_by


def _names(diagnosis: Diagnosis) -> list[str]:
    return [f"layer {layer} head {head}" for layer, head in diagnosis.heads]


def _by_length(diagnosis: Diagnosis) -> Table:
    body = [
        [
            f"{each.length:,}",
            str(each.num_examples),
            f"{each.exact_match:.3f}",
            f"{each.low:.3f}-{each.high:.3f}",
            *(f"{mass:.3f}" for mass in each.mass),
        ]
        for each in diagnosis.by_length
    ]
    if diagnosis.failures is not None and diagnosis.heads:
        body.append(["first errors", "", "", "", *(f"{mass:.3f}" for mass in diagnosis.mass_at_errors)])
    title = "exact match, and attention on what answers need" if diagnosis.heads else "exact match"
    return title, ["length", "n", "exact match", "95% interval", *_names(diagnosis)], body


def _failures(failures: Failures, length: int) -> Table:
    header = ["failed", "token", "ID", "end too early", "end too late", "median index"]
    spoiled = "" if failures.spoiled is None else f" ({failures.spoiled:.2f} go on to a wrong token)"
    row = [
        str(failures.number),
        str(failures.token),
        f"{failures.id}{spoiled}",
        str(failures.end_too_early),
        str(failures.end_too_late),
        f"{failures.median_index:g}",
    ]
    return f"first errors at {length}", header, [row]


def write(diagnosis: Diagnosis, folder: Path) -> Path:
    """diagnosis.json and figure.png in a folder; the path of the figure."""
    # Loading matplotlib takes a second.
    from matplotlib.figure import Figure  # noqa: PLC0415

    write_atomically(folder / DIAGNOSIS, json.dumps(to_json(diagnosis), indent=2).encode())
    figure = Figure(figsize=(9, 4), layout="constrained")
    mass, where = figure.subplots(1, 2)
    _draw_mass(diagnosis, mass)
    _draw_first_errors(diagnosis.failures, where)
    figure.savefig(folder / "figure.png", dpi=160)
    return folder / "figure.png"


def _draw_mass(diagnosis: Diagnosis, axes: Any) -> None:
    lengths = [each.length for each in diagnosis.by_length]
    axes.plot(lengths, [each.exact_match for each in diagnosis.by_length], "ko-", label="exact match")
    for place, name in enumerate(_names(diagnosis)):
        axes.plot(lengths, [each.mass[place] for each in diagnosis.by_length], "s--", label=f"attention, {name}")
    axes.axvspan(*diagnosis.trained, color="0.9", label=f"trained on {diagnosis.trained[0]}-{diagnosis.trained[1]}")
    axes.set(xscale="log", xlabel="length (log scale)", ylabel="share", ylim=(-0.03, 1.03))
    axes.set_title("exact match, attention on what answers need", fontsize=9)
    axes.legend(fontsize=7)


def _draw_first_errors(failures: Failures | None, axes: Any) -> None:
    axes.set(xlabel="place in the response", xlim=(0, 1))
    if failures is None:
        axes.set_title("nothing fails", fontsize=9)
        return
    axes.bar([(place + 0.5) / 10 for place in range(10)], failures.by_tenth, width=0.09)
    axes.set(ylabel="examples")
    axes.set_title(f"first errors of {failures.number} examples", fontsize=9)
