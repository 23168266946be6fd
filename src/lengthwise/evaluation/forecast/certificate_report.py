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
            [
                assumption.name,
                _HOLDS_TEXT[assumption.holds],
                assumption.found,
                _POSSIBLE_FAILURES[assumption.counterexample],
            ]
            for assumption in certificate.assumptions
        ],
    )
    if isinstance(certificate, TaskCertificate):
        return [assumptions]
    if isinstance(certificate, RunCertificate):
        return [assumptions, *([_forecast_table(certificate)] if certificate.refusal is None else [])]
    return [assumptions, _risk_table(certificate), _bound_table(certificate)]


def _forecast_table(certificate: RunCertificate) -> Table:
    header = ["length", "accuracy per token", "exact match", "with IDs only", "with token count only", "leakage"]
    body = [
        [
            str(forecast.length),
            f"{forecast.low:.2f} to {forecast.high:.2f}",
            f"{forecast.exact_low:.2f} to {forecast.exact_high:.2f}",
            *(
                "-" if accuracy is None else f"{accuracy:.2f}"
                for accuracy in (forecast.ids_only, forecast.token_count_only)
            ),
            f"{forecast.leakage:.2f}",
        ]
        for forecast in certificate.forecasts
    ]
    body += [[str(length), reason, "", "", "", ""] for length, reason in certificate.abstentions.items()]
    return f"predicted accuracy beyond length {certificate.train_lengths[1]}, with 90% intervals", header, body


def _risk_table(certificate: LawCertificate) -> Table:
    predictions = {prediction.length: prediction for prediction in certificate.predictions}
    body = []
    for risk in certificate.risks:
        prediction = predictions.get(risk.length)
        valid_bounds = [
            (bound.value, bound.title)
            for bound in certificate.bounds
            if bound.length == risk.length and bound.value is not None and bound.bound not in PROBABILISTIC_BOUNDS
        ]
        tightest_bound = min(valid_bounds, default=None)
        body.append(
            [
                str(risk.length),
                _format_number(risk.found.risk),
                risk.found.how if risk.found.how == "exact" else f"{risk.found.low:.4f} to {risk.found.high:.4f}",
                _format_number(risk.posterior.risk),
                _format_number(None if prediction is None else prediction.odds),
                _format_number(None if prediction is None else prediction.secant),
                "-" if tightest_bound is None else f"{_format_number(tightest_bound[0])} ({tightest_bound[1]})",
            ]
        )
    header = ["length", "risk", "method", "true posterior", "predicted", "secant", "tightest bound"]
    return f"head fitted on lengths {certificate.trained[0]} to {certificate.trained[1]}", header, body


def _bound_table(certificate: LawCertificate) -> Table:
    lengths = sorted({bound.length for bound in certificate.bounds})
    by_name: dict[str, dict[int, str]] = {}
    for bound in certificate.bounds:
        bound_text = _format_number(bound.value) if bound.refused is None else bound.refused
        by_name.setdefault(f"{bound.title} ({bound.provenance})", {})[bound.length] = bound_text
    body = []
    for bound_name, texts_by_length in by_name.items():
        # The reason for a missing bound appears only in the first column.
        is_same_text = len(set(texts_by_length.values())) == 1
        body.append(
            [
                bound_name,
                *(texts_by_length[length] if not is_same_text or length == lengths[0] else "" for length in lengths),
            ]
        )
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
        points = [
            (prediction.length, getattr(prediction, quantity))
            for prediction in certificate.predictions
            if prediction.refused is None
        ]
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
    lengths = [forecast.length for forecast in certificate.forecasts]
    low_accuracies, high_accuracies = (
        [forecast.low for forecast in certificate.forecasts],
        [forecast.high for forecast in certificate.forecasts],
    )
    axes.fill_between(lengths, low_accuracies, high_accuracies, alpha=0.2, label="interval")
    axes.plot(lengths, [forecast.accuracy for forecast in certificate.forecasts], "o-", label="predicted")
    axes.plot(lengths, [forecast.ids_only for forecast in certificate.forecasts], ":", label="with IDs only")
    axes.plot(
        lengths, [forecast.token_count_only for forecast in certificate.forecasts], "--", label="with token count only"
    )
    axes.plot([certificate.train_lengths[1]], [certificate.fidelity.whole], "ks", label="longest training length")
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("accuracy per answer token")


_PLOTTERS: dict[type, Any] = {LawCertificate: _draw_law, TaskCertificate: _draw_task_reach, RunCertificate: _draw_run}
