"""The sentence that a study ends in: how many far tokens the model uses, as far as the control lets it be told."""

from collections.abc import Mapping
from typing import Any

Found = Mapping[str, Any]

LEVELS = (0.5, 0.8, 0.9)
# The share of the prediction that k tokens have to give to count as all that is used.
ENOUGH = 0.9
# Nats a target: a smaller difference is rounding, whatever its interval.
RESOLUTION = 1e-4


def answer(summary: Found) -> dict[str, Any]:
    """Whether use is ``shown``, the numbers of far tokens between which it lies (None: unknown), and the sentence."""
    model = summary["model"]
    against = {each["from"]: each["own_minus"] for each in summary["far"] if each["own_minus"] is not None}
    shown = _positive(against["other"])
    compared = f"own minus other text: {nats(against['other'])}"
    if not shown:
        sentence = f"No use of far tokens could be shown for {model} ({compared})"
        return {"shown": False, "at_least": None, "at_most": None, "sentence": sentence}
    at_least, at_most, text = _number(summary)
    elsewhere = against.get("elsewhere")
    if elsewhere is not None and elsewhere["value"] is not None and not _positive(elsewhere):
        compared += f"; no more than tokens from elsewhere in the same document: {nats(elsewhere)}"
    (gain,) = (each["gain"] for each in summary["far"] if each["from"] == "own")
    if gain["high"] is not None and gain["high"] < -RESOLUTION:
        compared += f"; yet it predicts worse with its far tokens than without: gain {nats(gain)}"
    return {
        "shown": True,
        "at_least": at_least,
        "at_most": at_most,
        "sentence": f"{model} uses {text} ({compared})",
    }


def _positive(estimate: Found) -> bool:
    return estimate["low"] is not None and estimate["low"] > RESOLUTION


def _number(summary: Found) -> tuple[int | None, int | None, str]:
    """Between which numbers of tokens that which is used lies, in words too."""
    found, corrected = _prediction(summary)
    if found is None:
        return None, None, "far tokens; how many is not measured"
    (level,) = (each for each in found["smallest_k"] if each["share"] == ENOUGH)
    basis = f"of what its far context changes in its prediction{corrected}"
    ks = summary["ks"]
    if level["beyond"]:
        share = f"{found['shares'][-1]['value']:.0%}"
        return ks[-1] + 1, None, f"more than {ks[-1]:,} far tokens: {ks[-1]:,} as chosen here give {share} {basis}"
    if level["k"] is None:
        return None, None, f"far tokens, how many cannot be told: {level['reason']}"
    place = ks.index(level["k"])
    least, most = (ks[place - 1] + 1 if place else 1), level["k"]
    number = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    noun = "token" if most == 1 else "tokens"
    share = f"{found['shares'][place]['value']:.0%}"
    return least, most, f"about {number} far {noun}: {most:,} as chosen here give {share} {basis}"


def _prediction(summary: Found) -> tuple[Found | None, str]:
    """The share of the prediction that k tokens give, beyond another text's where that was measured."""
    pairs = sorted((each for each in summary["paired"] if each["against"] == "other"), key=_rank)
    own = own_selections(summary)
    if pairs:
        return pairs[0]["prediction"], " that another text's cannot"
    if own:
        return own[0]["all_targets"]["prediction"], ", not corrected by another text's"
    return None, ""


def own_selections(summary: Found) -> list[Found]:
    """Selections of own far tokens by a measure, the one that is the most to the point first."""
    return sorted(
        (each for each in summary["groups"] if each["from"] == "own" and each["knows"] != "nothing"), key=_rank
    )


def _rank(group: Found) -> tuple[bool, bool]:
    """Strict before masked, chosen by the prediction before chosen by the target."""
    return group["mode"] != "strict", group["knows"] != "prediction"


def nats(found: Found) -> str:
    """A difference with its interval, in words."""
    if found["value"] is None:
        return f"unknown, {found['reason']}"
    value = f"{found['value']:.3f} nats a target"
    if found["low"] is None:
        return f"{value}, {found['reason']}"
    return f"{value}, 95% {found['low']:.3f} to {found['high']:.3f}"
