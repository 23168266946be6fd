"""Reports of certificates: a JSON document, tables, and a figure by length."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lengthwise.core.files import write_atomically
from lengthwise.core.json_parsing import non_finite_to_null
from lengthwise.evaluation.forecast.certificate import RunCertificate, run_verdict
from lengthwise.theory.planted_law_certificate import PROBABILISTIC_BOUNDS, LawCertificate
from lengthwise.theory.task_certificate import TaskCertificate

CERTIFICATE_FILE = "certificate.json"
Table = tuple[str, list[str], list[list[str]]]
_HOLDS_TEXT = {True: "yes", False: "NO", None: "unknown"}
# Possible failure if an assumption does not hold, by the name of its counterexample in docs/theory.md.
_POSSIBLE_FAILURES = {
    "growing k": "short lengths do not determine longer ones",
    "growing gap": "scores of gaps outside training are arbitrary",
    "unbounded reach": "scores of sets outside short sequences are arbitrary",
    "rare shape": "shapes that are rare in training become frequent",
    "absolute positions": "scores of IDs beyond training are arbitrary",
    "new background token": "a token outside training attracts all attention",
    "canceling errors": "errors cancel at the training length",
    "heavy joints": "tokens across a cut mislead",
}
Certificate = LawCertificate | TaskCertificate | RunCertificate


def to_json(certificate: Certificate) -> dict[str, Any]:
    """Convert a certificate to JSON values, without the fitted predictor and without the set shapes of a task."""
    document = asdict(certificate)
    document.pop("predictor", None)
    for structure in document.get("structures", ()):
        structure.pop("shapes")
    document["verdict"] = verdict(certificate)
    return non_finite_to_null(document)


def verdict(certificate: Certificate) -> str:
    """Return the guarantee or prediction in words, or the reason why nothing is predicted."""
    return run_verdict(certificate) if isinstance(certificate, RunCertificate) else certificate.verdict


def tables(certificate: Certificate) -> list[Table]:
    """Return the table of assumptions, followed by the tables of risks and bounds, or of predictions."""
    assumptions = (
        "assumptions",
        ["assumption", "holds", "measurement", "failure without it (see counterexamples in docs/theory.md)"],
        [
            [each.name, _HOLDS_TEXT[each.holds], each.found, _POSSIBLE_FAILURES[each.counterexample]]
            for each in certificate.assumptions
        ],
    )
    if isinstance(certificate, TaskCertificate):
        return [assumptions]
    if isinstance(certificate, RunCertificate):
        return [assumptions, *([_forecast_table(certificate)] if certificate.refusal is None else [])]
    return [assumptions, _risk_table(certificate), _bound_table(certificate)]


def _forecast_table(certificate: RunCertificate) -> Table:
    header = ["length", "accuracy per token", "exact match", "with IDs only", "with token count only", "leakage"]
    body = []
    for each in certificate.forecasts:
        intervals = [f"{each.low:.2f} to {each.high:.2f}", f"{each.exact_low:.2f} to {each.exact_high:.2f}"]
        accuracies = ["-" if value is None else f"{value:.2f}" for value in (each.ids_only, each.token_count_only)]
        body.append([str(each.length), *intervals, *accuracies, f"{each.leakage:.2f}"])
    body += [[str(length), reason, "", "", "", ""] for length, reason in certificate.abstentions.items()]
    return f"predicted accuracy beyond length {certificate.train_lengths[1]}, with 90% intervals", header, body


def _risk_table(certificate: LawCertificate) -> Table:
    predictions = {prediction.length: prediction for prediction in certificate.predictions}
    body = []
    for risk in certificate.risks:
        prediction, found = predictions.get(risk.length), risk.found
        odds, secant = (None, None) if prediction is None else (prediction.odds, prediction.secant)
        predicted = [_format_number(value) for value in (risk.posterior.risk, odds, secant)]
        method = found.how if found.how == "exact" else f"{found.low:.4f} to {found.high:.4f}"
        valid_bounds = [
            (each.value, each.title)
            for each in certificate.bounds
            if each.length == risk.length and each.value is not None and each.bound not in PROBABILISTIC_BOUNDS
        ]
        tightest = min(valid_bounds, default=None)
        bound = "-" if tightest is None else f"{_format_number(tightest[0])} ({tightest[1]})"
        body.append([str(risk.length), _format_number(found.risk), method, *predicted, bound])
    header = ["length", "risk", "method", "true posterior", "predicted", "secant", "tightest bound"]
    return f"head fitted on lengths {certificate.trained[0]} to {certificate.trained[1]}", header, body


def _bound_table(certificate: LawCertificate) -> Table:
    lengths = sorted({bound.length for bound in certificate.bounds})
    by_name: dict[str, dict[int, str]] = {}
    for bound in certificate.bounds:
        bound_text = _format_number(bound.value) if bound.refused is None else bound.refused
        by_name.setdefault(f"{bound.title} ({bound.provenance})", {})[bound.length] = bound_text
    body = []
    for name, texts in by_name.items():
        # The reason for a missing bound appears only in the first column.
        is_same = len(set(texts.values())) == 1
        body.append([name, *("" if is_same and length != lengths[0] else texts[length] for length in lengths)])
    return "bounds", ["bound", *map(str, lengths)], body


def _format_number(number: float | None) -> str:
    return "-" if number is None else f"{number:.4g}"


def write_report(certificate: Certificate, folder: Path) -> Path:
    """Write certificate.json and figure.png to a folder, and return the path of the figure."""
    # Importing matplotlib takes a second, and most commands draw no figure.
    from matplotlib.figure import Figure  # noqa: PLC0415

    write_atomically(folder / CERTIFICATE_FILE, json.dumps(to_json(certificate), indent=2).encode())
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    _PLOTTERS[type(certificate)](certificate, axes)
    axes.set_xscale("log")
    axes.set_xlabel("length")
    axes.legend(fontsize=7)
    figure.savefig(folder / "figure.png", dpi=160)
    return folder / "figure.png"


def _draw_law(certificate: LawCertificate, axes: Any) -> None:
    lengths = [risk.length for risk in certificate.risks]
    axes.plot(lengths, [risk.found.risk for risk in certificate.risks], "ko-", label="risk of the fitted head")
    axes.plot(lengths, [risk.posterior.risk for risk in certificate.risks], "k:", label="true posterior")
    for name, quantity in (("predicted", "odds"), ("secant", "secant")):
        points = [(each.length, getattr(each, quantity)) for each in certificate.predictions if each.refused is None]
        axes.plot(*zip(*points, strict=True) if points else ([], []), "--", label=name)
    for name in dict.fromkeys(bound.title for bound in certificate.bounds):
        points = [
            (bound.length, bound.value)
            for bound in certificate.bounds
            if bound.title == name and bound.value is not None and 0 < bound.value < math.inf
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker=".", linewidth=0.8, label=name)
    axes.axhline(1, color="0.7", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_ylabel("risk (total variation); bounds above 1 are vacuous")


def _draw_task_reach(certificate: TaskCertificate, axes: Any) -> None:
    lengths = [structure.length for structure in certificate.structures]
    for line_label, quantities in (
        ("tokens per answer", [structure.k for structure in certificate.structures]),
        ("reach in tokens", [structure.reach for structure in certificate.structures]),
        ("reach in coupled IDs", [structure.id_reach for structure in certificate.structures]),
    ):
        if None not in quantities:
            axes.plot(lengths, quantities, "o-", label=line_label)
    axes.set_yscale("log")
    axes.set_ylabel("number of tokens or IDs")


def _draw_run(certificate: RunCertificate, axes: Any) -> None:
    forecasts = certificate.forecasts
    lengths = [forecast.length for forecast in forecasts]
    low, high = [forecast.low for forecast in forecasts], [forecast.high for forecast in forecasts]
    axes.fill_between(lengths, low, high, alpha=0.2, label="interval")
    axes.plot(lengths, [forecast.accuracy for forecast in forecasts], "o-", label="predicted")
    axes.plot(lengths, [forecast.ids_only for forecast in forecasts], ":", label="with IDs only")
    axes.plot(lengths, [forecast.token_count_only for forecast in forecasts], "--", label="with token count only")
    axes.plot([certificate.train_lengths[1]], [certificate.fidelity.whole], "ks", label="longest training length")
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("accuracy per answer token")


_PLOTTERS: dict[type, Any] = {LawCertificate: _draw_law, TaskCertificate: _draw_task_reach, RunCertificate: _draw_run}
