"""Reports of certificates: a JSON document, tables, and a figure by length."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from lengthwise.core.files import check_report_folder, write_atomically
from lengthwise.core.json_parsing import non_finite_to_null
from lengthwise.evaluation.figure_layout import (
    LINE_COLORS,
    MAX_LINES,
    LineLabel,
    label_lines,
    make_panels,
    set_length_axis,
)
from lengthwise.evaluation.forecast.certificate import RunCertificate, describe_run_certificate
from lengthwise.theory.counterexamples import CounterexampleCertificate
from lengthwise.theory.planted_task_certificate import PlantedTaskCertificate, tightest_bound
from lengthwise.theory.task_certificate import TaskCertificate

CERTIFICATE_FILE = "certificate.json"
# Smaller risks are rounding errors of an exact 0 and would flatten all other curves of a figure.
MIN_DRAWN_RISK = 1e-9
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
    "heavy cuts": "tokens across a cut mislead",
}
Certificate = PlantedTaskCertificate | TaskCertificate | RunCertificate | CounterexampleCertificate


def certificate_to_json(certificate: Certificate) -> dict[str, Any]:
    """Convert a certificate to JSON values, without the fitted predictor and without the set shapes of a task."""
    document = asdict(certificate)
    document.pop("predictor", None)
    for structure in document.get("structures", ()):
        structure.pop("shapes")
    document["verdict"] = certificate_verdict(certificate)
    return non_finite_to_null(document)


def certificate_verdict(certificate: Certificate) -> str:
    """Return the guarantee or prediction in words, or the reason why nothing is predicted."""
    return describe_run_certificate(certificate) if isinstance(certificate, RunCertificate) else certificate.verdict


def certificate_tables(certificate: Certificate) -> list[Table]:
    """Return the table of assumptions, followed by the tables of risks and bounds, or of predictions.

    A counterexample has one table of risks.
    """
    if isinstance(certificate, CounterexampleCertificate):
        return [_counterexample_table(certificate)]
    assumptions = (
        "assumptions",
        ["assumption", "holds", "measurement", "failure without it (see counterexamples in docs/theory.md)"],
        [
            [assumed.name, _HOLDS_TEXT[assumed.holds], assumed.found, _POSSIBLE_FAILURES[assumed.counterexample]]
            for assumed in certificate.assumptions
        ],
    )
    if isinstance(certificate, TaskCertificate):
        return [assumptions]
    if isinstance(certificate, RunCertificate):
        return [assumptions, *([_forecast_table(certificate)] if certificate.refusal is None else [])]
    realizability = certificate.realizability
    failure = "delta is not 0; bounds use the measured risk"
    assumptions[2].append(["realizability", _HOLDS_TEXT[realizability.holds], realizability.found, failure])
    return [assumptions, _risk_table(certificate), _bound_table(certificate)]


def _counterexample_table(certificate: CounterexampleCertificate) -> Table:
    objectives = [f"{value:.3g}" for value in (certificate.learned_objective, certificate.witness_objective)]
    body = [
        [str(risks.length), "yes" if risks.in_training else "no", f"{risks.learned:.3g}", f"{risks.witness:.3g}"]
        for risks in certificate.risks
    ]
    title = f"counterexample '{certificate.counterexample}', violated assumption: {certificate.assumption}"
    header = ["length", "in training", "risk of the learned head", "risk of the witness"]
    return title, header, [*body, ["training objective", "", *objectives]]


def _forecast_table(certificate: RunCertificate) -> Table:
    header = ["length", "accuracy per token", "exact match", "with IDs only", "with token count only", "leakage"]
    body = []
    for row in certificate.forecasts:
        intervals = [f"{row.low:.2f} to {row.high:.2f}", f"{row.exact_low:.2f} to {row.exact_high:.2f}"]
        accuracies = ["-" if value is None else f"{value:.2f}" for value in (row.ids_only, row.token_count_only)]
        body.append([str(row.length), *intervals, *accuracies, f"{row.leakage:.2f}"])
    body += [[str(length), reason, "", "", "", ""] for length, reason in certificate.abstentions.items()]
    return f"predicted accuracy beyond length {certificate.train_lengths[1]}, with 90% intervals", header, body


def _risk_table(certificate: PlantedTaskCertificate) -> Table:
    predictions = {prediction.length: prediction for prediction in certificate.predictions}
    body = []
    for risk in certificate.risks:
        prediction, found = predictions.get(risk.length), risk.found
        odds, secant = (None, None) if prediction is None else (prediction.odds, prediction.secant)
        predicted = [_format_number(value) for value in (risk.posterior.risk, odds, secant)]
        method = found.how if found.how == "exact" else f"{found.low:.4f} to {found.high:.4f}"
        tightest = tightest_bound(certificate.bounds, risk.length)
        bound = "-" if tightest is None else f"{_format_number(tightest[0])} ({tightest[1]})"
        body.append([str(risk.length), _format_number(found.risk), method, *predicted, bound])
    header = ["length", "risk", "method", "true posterior", "predicted", "secant", "tightest bound"]
    return f"head fitted on lengths {certificate.trained[0]} to {certificate.trained[1]}", header, body


def _bound_table(certificate: PlantedTaskCertificate) -> Table:
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
    check_report_folder(folder, CERTIFICATE_FILE)
    write_atomically(folder / CERTIFICATE_FILE, json.dumps(certificate_to_json(certificate), indent=2).encode())
    plot = _PLOTS[type(certificate)](certificate)
    curves = [curve for curve in plot.curves if curve.points]
    figure, (axes,) = make_panels([plot.title], [[curve.name for curve in curves]], plot.caption)
    colors = dict(zip((curve.name for curve in curves), LINE_COLORS, strict=False))
    for curve in curves:
        axes.plot(*zip(*curve.points, strict=True), curve.style, color=colors[curve.name], markersize=4)
    axes.set(xlabel="length (log scale)", ylabel=plot.quantity)
    if isinstance(certificate, RunCertificate):
        axes.set_ylim(-0.03, 1.03)
        if forecasts := certificate.forecasts:
            lengths, low, high = ([getattr(row, name) for row in forecasts] for name in ("length", "low", "high"))
            axes.fill_between(lengths, low, high, color=LINE_COLORS[0], alpha=0.2, linewidth=0)
    else:
        axes.set_yscale("log")
        axes.set_ylim(bottom=max(axes.get_ylim()[0], MIN_DRAWN_RISK))
    if curves:
        set_length_axis(axes, {length for curve in curves for length, _ in curve.points}, plot.train_lengths)
    label_lines(axes, [LineLabel(name, colors[name], float(points[-1][1])) for name, points, _ in curves])
    figure.savefig(folder / "figure.png", dpi=160)
    return folder / "figure.png"


class _Curve(NamedTuple):
    """Curve of a figure: its name, its points (length and value), and its style."""

    name: str
    points: list[tuple[int, int | float]]
    style: str = "o-"


def _curve(name: str, rows: Iterable[Any], quantity: str, style: str = "o-") -> _Curve:
    """Return the curve of an attribute of ``rows``, which have a ``length``, without missing and infinite values."""
    points = [(row.length, attrgetter(quantity)(row)) for row in rows]
    return _Curve(name, [(length, value) for length, value in points if value is not None and value < math.inf], style)


class _Plot(NamedTuple):
    """Content of the figure of a certificate; ``quantity`` names the vertical axis."""

    title: str
    quantity: str
    curves: list[_Curve]
    train_lengths: tuple[int, int] | None
    caption: str


def _plot_law(certificate: PlantedTaskCertificate) -> _Plot:
    curves = [
        _curve("risk of the fitted head", certificate.risks, "found.risk"),
        _curve("true posterior", certificate.risks, "posterior.risk", ":"),
        _curve("predicted", certificate.predictions, "odds", "--"),
        _curve("secant", certificate.predictions, "secant", "--"),
    ]
    curves = [curve for curve in curves if curve.points]
    # A value of 0 has no place on a log scale.
    positive = [bound for bound in certificate.bounds if bound.value != 0]
    names = dict.fromkeys(bound.title for bound in positive)
    bounds = [_curve(name, [bound for bound in positive if bound.title == name], "value", ".-") for name in names]
    bounds = sorted((bound for bound in bounds if bound.points), key=lambda bound: bound.points[-1][1])
    num_omitted = max(0, len(bounds) - (MAX_LINES - len(curves)))
    omitted = f" Only in the table: {num_omitted} more bounds." if num_omitted else ""
    return _Plot(
        title="risk by length",
        quantity="risk (total variation, log scale)",
        curves=curves + bounds[: MAX_LINES - len(curves)],
        train_lengths=certificate.trained,
        caption=f"Small points: the tightest bounds at the longest length; bounds above 1 are vacuous.{omitted}",
    )


def _plot_task(certificate: TaskCertificate) -> _Plot:
    quantities = {"tokens per answer": "k", "reach in tokens": "reach", "reach in IDs": "id_reach"}
    return _Plot(
        title="needed tokens by length",
        quantity="number of tokens or IDs (log scale)",
        curves=[_curve(name, certificate.structures, quantity) for name, quantity in quantities.items()],
        train_lengths=None,
        caption="Reach: largest distance between an answer and a token that it depends on, in tokens or in coupled "
        "IDs.",
    )


def _plot_run(certificate: RunCertificate) -> _Plot:
    forecasts = certificate.forecasts
    return _Plot(
        title="predicted accuracy by length",
        quantity="accuracy per answer token",
        curves=[
            _curve("predicted", forecasts, "accuracy"),
            _curve("with IDs only", forecasts, "ids_only", ":"),
            _curve("with token count only", forecasts, "token_count_only", "--"),
        ],
        train_lengths=certificate.train_lengths,
        caption="Band: 90% interval of the prediction. "
        f"Accuracy at length {certificate.train_lengths[1]:,}: {certificate.fidelity.whole:.2f}.",
    )


def _plot_counterexample(certificate: CounterexampleCertificate) -> _Plot:
    return _Plot(
        title=f"counterexample: {certificate.counterexample}",
        quantity="exact risk (log scale)",
        curves=[
            _Curve(head, [(risks.length, max(getattr(risks, head), MIN_DRAWN_RISK)) for risks in certificate.risks])
            for head in ("learned", "witness")
        ],
        train_lengths=(min(certificate.train_lengths), max(certificate.train_lengths)),
        caption=f"Risks below {MIN_DRAWN_RISK:g} are drawn at {MIN_DRAWN_RISK:g}.",
    )


_PLOTS: dict[type, Callable[[Any], _Plot]] = {
    PlantedTaskCertificate: _plot_law,
    TaskCertificate: _plot_task,
    RunCertificate: _plot_run,
    CounterexampleCertificate: _plot_counterexample,
}
