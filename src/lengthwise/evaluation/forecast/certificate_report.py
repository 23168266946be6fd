"""What a certificate looks like: one JSON document, tables, and a figure of bounds and risks against length."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lengthwise.core.files import write_atomically
from lengthwise.core.json_parsing import non_finite_to_null
from lengthwise.evaluation.forecast.certificate import RunCertificate, run_verdict
from lengthwise.theory.law_certificate import SAMPLED, LawCertificate
from lengthwise.theory.task_certificate import TaskCertificate

CERTIFICATE = "certificate.json"
Table = tuple[str, list[str], list[list[str]]]
_HOLDS = {True: "yes", False: "NO", None: "not checked"}
# What goes wrong without an assumption, by the counterexample of docs/theory.md that shows it.
_WITHOUT = {
    "C1": "short lengths say nothing about longer ones",
    "C2a": "gaps that training lacks are scored at will",
    "C2b": "sets that no short sequence has are scored at will",
    "C3": "what is rare in training is frequent later",
    "C4": "IDs beyond training are scored at will",
    "C5": "a token that training lacks draws all attention",
    "C6": "errors cancel at the trained length",
    "C8": "what lies across a cut misleads",
}
Certificate = LawCertificate | TaskCertificate | RunCertificate


def to_json(certificate: Certificate) -> dict[str, Any]:
    """Plain values; the tables of the fitted attention and the sets of a task are left out."""
    document = asdict(certificate)
    document.pop("predictor", None)
    for each in document.get("structures", ()):
        each.pop("shapes")
    document["verdict"] = verdict(certificate)
    return non_finite_to_null(document)


def verdict(certificate: Certificate) -> str:
    """Return one or two plain sentences: the promise and its conditions, or the condition that fails."""
    return run_verdict(certificate) if isinstance(certificate, RunCertificate) else certificate.verdict


def tables(certificate: Certificate) -> list[Table]:
    """For people: the assumptions first, then what follows from them."""
    assumed = (
        "assumptions",
        ["assumption", "holds", "found", "without it (counterexamples in docs/theory.md)"],
        [
            [each.name, _HOLDS[each.holds], each.found, _WITHOUT[each.counterexample]]
            for each in certificate.assumptions
        ],
    )
    if isinstance(certificate, TaskCertificate):
        return [assumed]
    if isinstance(certificate, RunCertificate):
        return [assumed, *([_forecasts(certificate)] if certificate.refused is None else [])]
    return [assumed, _risks(certificate), _bounds(certificate)]


def _forecasts(certificate: RunCertificate) -> Table:
    header = ["length", "answer tokens right", "exact match", "by IDs alone", "by number of tokens alone", "leakage"]
    body = [
        [
            str(each.length),
            f"{each.low:.2f} to {each.high:.2f}",
            f"{each.exact_low:.2f} to {each.exact_high:.2f}",
            *("-" if share is None else f"{share:.2f}" for share in (each.positions, each.crowd, each.leakage)),
        ]
        for each in certificate.forecasts
    ]
    body += [[str(length), why, "", "", "", ""] for length, why in certificate.beyond.items()]
    return f"predicted accuracy beyond {certificate.trained[1]}, with 90% intervals", header, body


def _risks(certificate: LawCertificate) -> Table:
    predicted = {each.length: each for each in certificate.predictions}
    body = []
    for risk in certificate.risks:
        there = predicted.get(risk.length)
        holding = [
            (each.value, each.title)
            for each in certificate.bounds
            if each.length == risk.length and each.value is not None and each.bound not in SAMPLED
        ]
        best = min(holding, default=None)
        body.append(
            [
                str(risk.length),
                _number(risk.found.risk),
                risk.found.how if risk.found.how == "exact" else f"{risk.found.low:.4f} to {risk.found.high:.4f}",
                _number(risk.posterior.risk),
                _number(None if there is None else there.odds),
                _number(None if there is None else there.secant),
                "-" if best is None else f"{_number(best[0])} ({best[1]})",
            ]
        )
    header = ["length", "risk", "how", "true posterior", "predicted", "secant", "least bound"]
    return f"a head fitted on lengths {certificate.trained[0]} to {certificate.trained[1]}", header, body


def _bounds(certificate: LawCertificate) -> Table:
    lengths = sorted({each.length for each in certificate.bounds})
    by_name: dict[str, dict[int, str]] = {}
    for each in certificate.bounds:
        told = _number(each.value) if each.refused is None else each.refused
        by_name.setdefault(f"{each.title} ({each.provenance})", {})[each.length] = told
    body = []
    for name, values in by_name.items():
        # A reason is given once.
        reason = len(set(values.values())) == 1
        body.append([name, *(values[length] if not reason or length == lengths[0] else "" for length in lengths)])
    return "bounds", ["bound", *map(str, lengths)], body


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def write(certificate: Certificate, folder: Path) -> Path:
    """certificate.json and figure.png in a folder; the path of the figure."""
    # Loading matplotlib takes a second.
    from matplotlib.figure import Figure  # noqa: PLC0415

    write_atomically(folder / CERTIFICATE, json.dumps(to_json(certificate), indent=2).encode())
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    _DRAW[type(certificate)](certificate, axes)
    axes.set_xscale("log")
    axes.set_xlabel("length")
    axes.legend(fontsize=7)
    figure.savefig(folder / "figure.png", dpi=160)
    return folder / "figure.png"


def _draw_law(certificate: LawCertificate, axes: Any) -> None:
    lengths = [each.length for each in certificate.risks]
    axes.plot(lengths, [each.found.risk for each in certificate.risks], "ko-", label="risk of the fitted head")
    axes.plot(lengths, [each.posterior.risk for each in certificate.risks], "k:", label="true posterior")
    for name, law in (("predicted", "odds"), ("secant", "secant")):
        points = [(each.length, getattr(each, law)) for each in certificate.predictions if each.refused is None]
        axes.plot(*zip(*points, strict=True) if points else ([], []), "--", label=name)
    for name in dict.fromkeys(each.title for each in certificate.bounds):
        points = [
            (each.length, each.value)
            for each in certificate.bounds
            if each.title == name and each.value is not None and 0 < each.value < math.inf
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker=".", linewidth=0.8, label=name)
    axes.axhline(1, color="0.7", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_ylabel("risk (total variation); bounds above 1 say nothing")


def _draw_task(certificate: TaskCertificate, axes: Any) -> None:
    lengths = [each.length for each in certificate.structures]
    for label, values in (
        ("tokens per answer", [each.k for each in certificate.structures]),
        ("reach in tokens", [each.reach for each in certificate.structures]),
        ("reach in coupled IDs", [each.id_reach for each in certificate.structures]),
    ):
        if None not in values:
            axes.plot(lengths, values, "o-", label=label)
    axes.set_yscale("log")
    axes.set_ylabel("tokens, or IDs")


def _draw_run(certificate: RunCertificate, axes: Any) -> None:
    lengths = [each.length for each in certificate.forecasts]
    low, high = [each.low for each in certificate.forecasts], [each.high for each in certificate.forecasts]
    axes.fill_between(lengths, low, high, alpha=0.2, label="interval")
    axes.plot(lengths, [each.accuracy for each in certificate.forecasts], "o-", label="predicted")
    axes.plot(lengths, [each.positions for each in certificate.forecasts], ":", label="by IDs alone")
    axes.plot(lengths, [each.crowd for each in certificate.forecasts], "--", label="by number of tokens alone")
    axes.plot([certificate.trained[1]], [certificate.fidelity.whole], "ks", label="longest trained")
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("answer tokens right")


_DRAW: dict[type, Callable[..., None]] = {
    LawCertificate: _draw_law,
    TaskCertificate: _draw_task,
    RunCertificate: _draw_run,
}
