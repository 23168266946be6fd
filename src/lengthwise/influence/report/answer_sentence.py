"""Answer of a study in one sentence: the number of far tokens that the model uses."""

from collections.abc import Mapping
from typing import Any

Estimate = Mapping[str, Any]
Summary = Mapping[str, Any]

LEVELS = (0.5, 0.8, 0.9)
# One of LEVELS: if k tokens recover this share, the model uses about k far tokens.
SUFFICIENT = 0.9
# Smaller differences (nats per target) are rounding errors, whatever their intervals.
RESOLUTION = 1e-4


def answer(summary: Summary) -> dict[str, Any]:
    """Return the evidence (``shown``), bounds on the number of far tokens in use (None: unknown), and the sentence."""
    model = summary["model"]
    differences = {each["from"]: each["own_minus"] for each in summary["far"] if each["own_minus"] is not None}
    evidence = f"difference between own and other text: {in_nats(differences['other'])}"
    if not _is_positive(differences["other"]):
        sentence = f"No evidence that {model} uses far tokens ({evidence})"
        return {"shown": False, "at_least": None, "at_most": None, "sentence": sentence}
    at_least, at_most, text = _number_of_tokens(summary)
    elsewhere = differences.get("elsewhere")
    if elsewhere is not None and elsewhere["value"] is not None and not _is_positive(elsewhere):
        evidence += f"; no clear difference from text elsewhere in the same document: {in_nats(elsewhere)}"
    (gain,) = (each["gain"] for each in summary["far"] if each["from"] == "own")
    if gain["high"] is not None and gain["high"] < -RESOLUTION:
        evidence += f"; but far tokens increase the loss: gain {in_nats(gain)}"
    return {
        "shown": True,
        "at_least": at_least,
        "at_most": at_most,
        "sentence": f"{model} uses {text} ({evidence})",
    }


def _is_positive(estimate: Estimate) -> bool:
    return estimate["low"] is not None and estimate["low"] > RESOLUTION


def _number_of_tokens(summary: Summary) -> tuple[int | None, int | None, str]:
    """Return the smallest and largest number of far tokens in use, and a phrase that states both."""
    prediction, reference = _prediction(summary)
    if prediction is None:
        return None, None, "far tokens; their number was not measured"
    (level,) = (each for each in prediction["smallest_k"] if each["share"] == SUFFICIENT)
    ks = summary["ks"]
    if level["k"] is None and not level["beyond"]:
        return None, None, f"far tokens; their number is unknown: {level['reason']}"
    index = len(ks) - 1 if level["beyond"] else ks.index(level["k"])
    noun = "token" if ks[index] == 1 else "tokens"
    share = f"{prediction['shares'][index]['value']:.0%}"
    recovered = f"{ks[index]:,} selected {noun} recover {share} of the effect of far context on its predictions"
    if level["beyond"]:
        return ks[-1] + 1, None, f"more than {ks[-1]:,} far {noun}: {recovered}{reference}"
    least, most = (ks[index - 1] + 1 if index else 1), level["k"]
    number = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return least, most, f"about {number} far {noun}: {recovered}{reference}"


def _prediction(summary: Summary) -> tuple[Estimate | None, str]:
    """Return the share of the prediction that k tokens recover, and a phrase on the correction by another text."""
    pairs = sorted((each for each in summary["paired"] if each["against"] == "other"), key=_rank)
    own = own_selections(summary)
    if pairs:
        return pairs[0]["prediction"], ", beyond the effect of another text"
    if own:
        return own[0]["all_targets"]["prediction"], ", not corrected for the effect of another text"
    return None, ""


def own_selections(summary: Summary) -> list[Estimate]:
    """Return the selections of own far tokens by a measure; strict mode and the prediction objective come first."""
    return sorted(
        (each for each in summary["groups"] if each["from"] == "own" and each["knows"] != "nothing"), key=_rank
    )


def _rank(group: Estimate) -> tuple[bool, bool]:
    return group["mode"] != "strict", group["knows"] != "prediction"


def in_nats(estimate: Estimate) -> str:
    """Format an estimate with its interval."""
    if estimate["value"] is None:
        return f"unknown, {estimate['reason']}"
    value = f"{estimate['value']:.3f} nats per target"
    if estimate["low"] is None:
        return f"{value}, {estimate['reason']}"
    return f"{value}, 95% interval {estimate['low']:.3f} to {estimate['high']:.3f}"
