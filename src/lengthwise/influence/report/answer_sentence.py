"""Answer of a study in a few sentences: the number of far tokens that the model uses."""

from collections.abc import Mapping
from typing import Any

Estimate = Mapping[str, Any]
Summary = Mapping[str, Any]

SHARE_LEVELS = (0.5, 0.8, 0.9)
# A model uses about k far tokens if k tokens recover this share, which is one of SHARE_LEVELS.
SUFFICIENT_SHARE = 0.9
# Smaller differences (nats per target) may be rounding errors, even if their intervals do not contain 0.
MIN_DIFFERENCE = 1e-4
# A smaller effect of far tokens (nats per target) is irrelevant: it changes the perplexity by less than 1%.
RELEVANT_DIFFERENCE = 0.01
# If one tenth of all documents use far tokens, a sample of this size has no such document in fewer than 5% of cases.
MIN_DOCUMENTS_FOR_ABSENCE = 30


def compose_answer(summary: Summary) -> dict[str, Any]:
    """Return the answer to the question of how many far tokens the model uses.

    ``uses_far_tokens`` is True if the interval of the difference in loss between another text and the original text is
    above 0. It is False if the interval, over enough documents, excludes a relevant difference. It is None if the study
    cannot tell. ``at_least`` and ``at_most`` are bounds on the number of far tokens that the model uses (None:
    unknown). ``sentence`` is the answer as text.
    """
    model = summary["model"]
    sources = {source["from"]: source for source in summary["far"]}
    gain, other = sources["own"]["gain"], sources["other"]["own_minus"]
    evidence = f"The difference in loss between another text and the original text is {format_nats(other)}."
    if not _is_positive(other):
        missing = _missing_evidence(other, sources["other"]["documents"])
        if missing is None:
            sentence = (
                f"{model} does not use far tokens: an effect of {RELEVANT_DIFFERENCE} nats per target is excluded."
            )
        else:
            sentence = f"Cannot tell whether {model} uses far tokens: {missing}."
        uses = False if missing is None else None
        return {"uses_far_tokens": uses, "at_least": None, "at_most": None, "sentence": f"{sentence} {evidence}"}
    at_least, at_most, number_phrase = _number_of_tokens(summary)
    elsewhere = sources["elsewhere"]["own_minus"] if "elsewhere" in sources else None
    if elsewhere is not None and elsewhere["value"] is not None and not _is_positive(elsewhere):
        evidence += f" The difference from elsewhere in the same document is not clear: {format_nats(elsewhere)}."
    if gain["high"] is not None and gain["high"] < -MIN_DIFFERENCE:
        evidence += f" However, far tokens increase the loss: the gain is {format_nats(gain)}."
    sentence = f"{model} uses {number_phrase}. {evidence}"
    return {"uses_far_tokens": True, "at_least": at_least, "at_most": at_most, "sentence": sentence}


def _is_positive(estimate: Estimate) -> bool:
    return estimate["low"] is not None and estimate["low"] > MIN_DIFFERENCE


def _missing_evidence(difference: Estimate, num_documents: int) -> str | None:
    """Return the reason why a difference that is not positive does not show absence, or None if it does."""
    if difference["high"] is None:
        return "the difference has no interval"
    if difference["high"] >= RELEVANT_DIFFERENCE:
        return f"no effect and an effect of {RELEVANT_DIFFERENCE} nats per target are possible; measure more documents"
    if num_documents < MIN_DOCUMENTS_FOR_ABSENCE:
        return f"{num_documents} documents do not show absence; measure at least {MIN_DOCUMENTS_FOR_ABSENCE}"
    return None


def _number_of_tokens(summary: Summary) -> tuple[int | None, int | None, str]:
    """Return bounds on the number of far tokens in use (None: unknown), and a phrase for the answer."""
    prediction, correction_phrase = _recovered_prediction(summary)
    if prediction is None:
        return None, None, "far tokens, but their number was not measured"
    (sufficient,) = (level for level in prediction["smallest_k"] if level["share"] == SUFFICIENT_SHARE)
    ks = summary["ks"]
    if sufficient["k"] is None and not sufficient["beyond"]:
        return None, None, f"far tokens, but their number is unknown: {sufficient['reason']}"
    k_index = len(ks) - 1 if sufficient["beyond"] else ks.index(sufficient["k"])
    noun, verb = ("token", "recovers") if ks[k_index] == 1 else ("tokens", "recover")
    share_text = f"{prediction['shares'][k_index]['value']:.0%}"
    selected = f"{ks[k_index]:,} selected {noun} {verb}"
    recovery = f"{selected} {share_text} of the effect of far context on its predictions{correction_phrase}"
    if sufficient["beyond"]:
        return ks[-1] + 1, None, f"more than {ks[-1]:,} far {noun}: {recovery}"
    at_least, at_most = (ks[k_index - 1] + 1 if k_index else 1), sufficient["k"]
    number_text = f"{at_most:,}" if at_least == at_most else f"{at_least:,} to {at_most:,}"
    return at_least, at_most, f"about {number_text} far {noun}: {recovery}"


def _recovered_prediction(summary: Summary) -> tuple[Estimate | None, str]:
    """Return the shares of the prediction that k tokens recover, and a phrase about the correction of the shares."""
    pairs = sorted((pair for pair in summary["paired"] if pair["against"] == "other"), key=_sort_key)
    own_groups = own_selections(summary)
    if pairs:
        return pairs[0]["prediction"], ", after subtracting the effect of far tokens from another text"
    if not own_groups:
        return None, ""
    prediction = own_groups[0]["all_targets"]["prediction"]
    return prediction, ", not corrected for the effect of far tokens from another text"


def own_selections(summary: Summary) -> list[Estimate]:
    """Return the groups with own far tokens, except random tokens; strict mode and the prediction objective first."""
    own_groups = (group for group in summary["groups"] if group["from"] == "own" and group["knows"] != "nothing")
    return sorted(own_groups, key=_sort_key)


def _sort_key(group: Estimate) -> tuple[bool, bool]:
    return group["mode"] != "strict", group["knows"] != "prediction"


def format_nats(estimate: Estimate) -> str:
    """Format an estimate in nats per target, with its interval or the reason for a missing number."""
    if estimate["value"] is None:
        return f"unknown ({estimate['reason']})"
    value = f"{estimate['value']:.3f} nats per target"
    if estimate["low"] is None:
        return f"{value} ({estimate['reason']})"
    return f"{value} (95% interval {estimate['low']:.3f} to {estimate['high']:.3f})"
