"""Summaries and figures: estimates of known values, coverage of intervals, reasons of missing estimates, drawings."""

import json
import math
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from lengthwise.core.errors import RunFolderError, SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.influence.report import bootstrap
from lengthwise.influence.report.figures import plot_model_sizes, plot_recovered_share, plot_token_distances
from lengthwise.influence.report.row_columns import StudyColumns
from lengthwise.influence.report.summary import summarize

KS = (1, 2, 4)


def selection(losses: Sequence[float], tokens: Sequence[tuple[int, float]] = (), **changes: Any) -> dict[str, Any]:
    """Return a selection of the headline group; its divergences are its losses minus 1, the loss with far context."""
    chosen = [{"distance": distance, "tokens": 1, "text": " x", "gain": gain} for distance, gain in tokens]
    group = {"mode": "strict", "knows": "target", "from": "own", "measure": "greedy"}
    divergences = {"divergences": [max(loss - 1, 0.0) for loss in losses]}
    num_tokens = list(range(1, len(losses) + 1))
    return {**group, "chosen": chosen, "tokens": num_tokens, "losses": list(losses), **divergences, **changes}


def row(
    short: float = 3.0, long: float = 1.0, losses: Sequence[float] = (2.5, 2.0, 1.2), **changes: Any
) -> dict[str, Any]:
    """Return a row with one selection; by default, the far tokens of another text have no effect."""
    other = changes.pop("other", short)
    return {
        "model": "tiny",
        "document": "a",
        "place": 100,
        "target": 5,
        "text": " x",
        "kinds": ["word_start"],
        "loss_short": short,
        "loss_long": long,
        "divergence_short": 2.0,
        "clear": True,
        "loses": short - long < -0.5,
        "controls": {"other": {"loss": other, "gains": short - other > 0.5, "loses": short - other < -0.5}},
        "weight": 1.0,
        "selections": [selection(losses)],
        **changes,
    }


def headline(rows: Sequence[dict[str, Any]], ks: Sequence[int] = KS, **options: Any) -> dict[str, Any]:
    """Return the results of the first group over clear targets."""
    return group_of(rows, ks, **options)["selected"]["own"]


def group_of(rows: Sequence[dict[str, Any]], ks: Sequence[int] = KS, **options: Any) -> dict[str, Any]:
    """Return the first group of a summary."""
    return summarize(rows, ks, **options)["groups"][0]


def over_all(rows: Sequence[dict[str, Any]], ks: Sequence[int] = KS, **options: Any) -> dict[str, Any]:
    """Return the results of the first group over all targets."""
    return group_of(rows, ks, **options)["all_targets"]


def values(estimates: Sequence[dict[str, Any]]) -> list[float | None]:
    """Return the values of the estimates."""
    return [each["value"] for each in estimates]


def sample_rows(
    rng: np.random.Generator, documents: int, per_document: int, measured_share: float = 1.0
) -> list[dict[str, Any]]:
    """Sample targets of documents with different gaps and shares recovered by one token.

    Half of the documents have mean gaps of 3 nats and recover 0.5 of them, the others 6 nats and 0.65, so that clear
    targets recover 0.6 of their gaps in total. The median share is that of the mixture.
    """
    rows = []
    for document in range(documents):
        rich, size = rng.random() < 0.5, 1 + rng.poisson(per_document)
        for _ in range(size):
            clear = bool(rng.random() < 0.3)
            gap = (6.0 if rich else 3.0) * rng.gamma(4) / 4 if clear else rng.normal(0.1, 0.3)
            share = (0.65 if rich else 0.5) + rng.normal(0, 0.1)
            gain = share * gap if clear else 0.5 * gap + 0.2 + rng.normal(0, 0.05)
            weight = 1.0 if clear else float(rng.random() < measured_share) / measured_share
            losses = [8 - gain]
            rows.append(
                row(8.0, 8.0 - gap, document=str(document), clear=clear, weight=weight)
                | {"selections": [selection(losses)] if weight else []}
            )
    return rows


def sampling(rng: np.random.Generator, share: float) -> dict[str, Any]:
    """Return the changes to a row of a target that is measured with this probability."""
    return {"weight": 1 / share} if rng.random() < share else {"weight": 0.0, "selections": []}


# Expected values: 0.3 of the targets are clear, with gaps of 4.5 nats; the others have gaps of 0.1 and gain 0.25.
CLEAR_TRUTH = (3 * 0.5 + 6 * 0.65) / 9
ALL_TRUTH = (0.3 * (1.5 * 0.5 + 3 * 0.65) + 0.7 * 0.25) / (0.3 * 4.5 + 0.7 * 0.1)
MEDIAN_TRUTH = 0.575


def test_share_of_sums_is_weighted_by_gap_and_median_is_not():
    rows = [
        row(3.0, 1.0, (2.5, 2.0, 1.0)),
        row(9.0, 1.0, (8.0, 7.0, 3.0), document="b"),
        row(2.0, 1.0, (1.5, 1.1, 1.0)),
    ]
    result = headline(rows)
    assert values(result["loss"]) == pytest.approx([2 / 11, 3.9 / 11, 9 / 11])
    assert values(result["median"]) == pytest.approx([0.25, 0.5, 1.0])
    assert (result["targets"], result["documents"]) == (3, 2)


def test_headline_covers_clear_targets_only():
    unclear = row(1.0, 0.99, (0.5, 0.5, 0.5), document="b", clear=False)
    assert headline([row(), unclear])["loss"] == headline([row()])["loss"]


@pytest.mark.parametrize(("documents", "critical_value"), [(6, 2.5706), (12, 2.2010)])
def test_intervals_equal_plain_loops_over_resamples_and_left_out_documents(documents, critical_value, rng):
    rows = sample_rows(rng, documents, 9)
    result = headline(rows, [1], seed=5, num_resamples=200)
    by_document = [
        [each for each in rows if each["clear"] and each["document"] == str(name)] for name in range(documents)
    ]
    by_document = [each for each in by_document if each]
    picks = random_stream(5, "influence documents", len(by_document)).integers(
        0, len(by_document), (200, len(by_document))
    )

    def looped(statistic: Callable[[np.ndarray, np.ndarray], float], picks: Sequence[Sequence[int]]) -> list[float]:
        values = []
        for pick in picks:
            targets = [each for place in pick for each in by_document[place]]
            gained = np.array([each["loss_short"] - each["selections"][0]["losses"][0] for each in targets])
            values.append(statistic(gained, np.array([each["loss_short"] - each["loss_long"] for each in targets])))
        return sorted(values)

    def share(gained: np.ndarray, gap: np.ndarray) -> float:
        return gained.sum() / gap.sum()

    others = [[one for one in range(len(by_document)) if one != place] for place in range(len(by_document))]
    error = (len(by_document) - 1) / len(by_document) ** 0.5 * np.std(looped(share, others), ddof=1)
    # For few documents, Student's t makes the tails smaller than 2.5%.
    outside = {6: 0, 12: 2}[documents]
    # A median is not smooth, so its interval comes from resamples alone.
    for name, statistic, margin in (
        ("loss", share, critical_value * error),
        ("median", lambda gained, gap: float(np.median(gained / gap)), 0.0),
    ):
        (estimate,), resampled = result[name], looped(statistic, picks)
        low, high = estimate["value"] - margin, estimate["value"] + margin
        assert estimate["low"] == pytest.approx(min(low, resampled[outside]), abs=1e-4)
        assert estimate["high"] == pytest.approx(max(high, resampled[-1 - outside]), abs=1e-4)
        assert estimate["reason"] is None


@pytest.mark.slow
def test_intervals_cover_the_true_value_in_nine_of_ten_repetitions(rng):
    covered = {"loss": 0, "median": 0, "all_targets": 0, "gains": 0}
    for repetition in range(200):
        summary = summarize(sample_rows(rng, 14, 10, measured_share=0.3), [1], seed=repetition, num_resamples=300)
        (group,) = summary["groups"]
        for name, estimate, truth in (
            ("loss", group["selected"]["own"]["loss"][0], CLEAR_TRUTH),
            ("median", group["selected"]["own"]["median"][0], MEDIAN_TRUTH),
            ("all_targets", group["all_targets"]["loss"][0], ALL_TRUTH),
            ("gains", summary["far"][0]["gains"], 0.3),
        ):
            covered[name] += estimate["low"] <= truth <= estimate["high"]
    # Intervals that are too wide would always cover the value.
    assert all(180 <= count < 200 for count in covered.values()), covered


def test_intervals_depend_on_the_seed_only(rng):
    rows = sample_rows(rng, 20, 9)
    assert headline(rows, [1], seed=1) == headline(rows, [1], seed=1)
    assert headline(rows, [1], seed=1)["median"] != headline(rows, [1], seed=2)["median"]


def test_block_size_of_resamples_has_no_effect(rng, monkeypatch):
    rows = sample_rows(rng, 6, 9)
    whole = headline(rows, [1])
    monkeypatch.setattr(bootstrap, "MAX_BLOCK_VALUES", 1000)
    assert headline(rows, [1]) == whole


def test_one_document_gives_a_value_and_a_reason_for_the_missing_interval():
    result, every = headline([row(), row()]), over_all([row(), row()])
    for estimate in (*result["loss"], *result["median"], *every["loss"], *every["prediction"]["shares"]):
        assert estimate["value"] is not None
        assert (estimate["low"], estimate["high"]) == (None, None)
        assert estimate["reason"] == "fewer than 5 documents, too few for an interval; measure more documents"
    assert every["prediction"]["smallest_k"][0]["k"] == 2
    assert every["prediction"]["smallest_k"][0]["reason"] == result["median"][0]["reason"]


def test_no_gain_in_total_gives_a_reason_instead_of_a_share():
    rows = [row(1.0, 2.0, document="a"), row(1.0, 1.0, document="b"), row(1.0, 0.5, document="c")]
    result = headline(rows)
    for estimate in (*result["loss"], *over_all(rows)["loss"]):
        reason = "far context does not lower the total loss, so there is nothing to recover"
        assert estimate == {"value": None, "low": None, "high": None, "reason": reason}
    unchanged = over_all([{**each, "divergence_short": 0.0} for each in rows])["prediction"]
    reason = "far context does not change the predictions, so there is nothing to recover"
    nothing_reached = {"share": 0.5, "k": None, "beyond": False, "low": None, "high": None, "reason": reason}
    assert unchanged["smallest_k"][0] == nothing_reached
    assert values(unchanged["shares"]) == [None] * 3
    # Only the target with a gap has a share.
    assert result["without_gap"] == 2
    assert result["median"][0]["value"] == pytest.approx((1.0 - 2.5) / 0.5)


def test_undefined_resamples_are_counted_in_the_reason():
    # Five gaps of -1 and one of 5.5: the sum is negative in resamples without the latter.
    rows = [row(1.0, 2.0, document=name) for name in "abcde"]
    result = headline([*rows, row(6.5, 1.0, document="f")], num_resamples=400)
    (estimate, *_) = result["loss"]
    assert estimate["value"] is not None
    assert (estimate["low"], estimate["high"]) == (None, None)
    number = int(estimate["reason"].split()[1])
    assert 90 < number < 190
    assert (
        estimate["reason"]
        == f"in {number} of 400 resamples, far context does not lower the total loss, so there is nothing to recover"
    )


def test_group_without_clear_targets_has_a_reason():
    rows = [row(clear=False, document=name) for name in "ab"]
    result = headline(rows)
    assert (result["targets"], result["documents"]) == (0, 0)
    reason = "no target with a clear gain has this selection"
    assert {each["reason"] for each in (*result["loss"], *result["median"])} == {reason}
    assert over_all(rows)["loss"][0]["value"] is not None


def test_smallest_k_is_the_first_that_reaches_the_level():
    # Shares of 0.4, 0.7 and 1.0 in half of the documents, 0.6, 0.7 and 0.75 in the others.
    rows = [
        row(document=f"{left}{i}", divergence_short=1.0, selections=[selection((1.0, 1.0, 1.0), divergences=left)])
        for left in ([0.6, 0.3, 0.0], [0.4, 0.3, 0.25])
        for i in range(4)
    ]
    half, most, nearly_all = over_all(rows)["prediction"]["smallest_k"]
    assert half == {"share": 0.5, "k": 1, "beyond": False, "low": 1, "high": 2, "reason": None}
    assert most == {"share": 0.8, "k": 4, "beyond": False, "low": 4, "high": None, "reason": None}
    # A k beyond the largest is a result, so it has no reason.
    assert nearly_all == {"share": 0.9, "k": None, "beyond": True, "low": 4, "high": None, "reason": None}


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_shares_of_the_prediction_never_exceed_one(share, rng):
    rows = []
    for place in range(60):
        short = float(rng.exponential())
        left = short * rng.random(3)
        each = row(clear=place % 5 == 0, divergence_short=short, document=str(place % 7))
        each["selections"] = [selection((1.0, 1.0, 1.0), divergences=left.tolist())]
        rows.append(each if each["clear"] else each | sampling(rng, share))
    result = over_all(rows)["prediction"]["shares"]
    assert all(0 <= each["low"] <= each["value"] <= each["high"] <= 1 for each in result)
    if share == 1:
        total = sum(each["divergence_short"] for each in rows)
        for place, each in enumerate(result):
            remaining = sum(one["selections"][0]["divergences"][place] for one in rows)
            assert each["value"] == pytest.approx(1 - remaining / total)


def test_estimate_equals_the_ratio_of_sums_if_all_targets_are_measured(rng):
    rows = sample_rows(rng, 5, 9)
    gained = sum(each["loss_short"] - each["selections"][0]["losses"][0] for each in rows)
    gap = sum(each["loss_short"] - each["loss_long"] for each in rows)
    result = over_all(rows, [1])
    assert result["loss"][0]["value"] == pytest.approx(gained / gap)
    assert (result["targets"], result["measured"]) == (len(rows), len(rows))


def test_linear_gains_are_estimated_exactly_from_any_sample(rng):
    every = [
        row(3.0, 3.0 - gap, [3.0 - (0.3 + 0.6 * gap)], clear=bool(gap > 1), document=str(n % 5))
        for n, gap in enumerate(rng.normal(0.3, 0.6, 90))
    ]
    truth = over_all(every, [1])["loss"][0]["value"]
    for share in (0.1, 0.3):
        rows = [each if each["clear"] else each | sampling(rng, share) for each in every]
        assert over_all(rows, [1])["loss"][0]["value"] == pytest.approx(truth)


def test_regression_estimate_is_unbiased_and_better_than_weighted_sums(rng):
    every = sample_rows(rng, 12, 10)
    truth = over_all(every, [1], num_resamples=2)["loss"][0]["value"]
    errors = []
    for _ in range(60):
        rows = [each | sampling(rng, 0.2) if not each["clear"] else each for each in every]
        result = over_all(rows, [1], num_resamples=2)["loss"][0]["value"]
        measured = [each for each in rows if each["weight"]]
        gained = sum(each["weight"] * (each["loss_short"] - each["selections"][0]["losses"][0]) for each in measured)
        gap = sum(each["weight"] * (each["loss_short"] - each["loss_long"]) for each in measured)
        errors.append([result - truth, gained / gap - truth])
    regressed, weighted = np.array(errors).T
    assert abs(regressed.mean()) < 3 * regressed.std() / 60**0.5
    assert regressed.std() < 0.5 * weighted.std()


def test_equal_gaps_in_the_sample_use_the_mean():
    clear = row(4.0, 2.0, [3.0], document="a")
    rest = [
        row(2.0, 1.5, [2.0 - gain], clear=False, weight=2.0, document=name) for gain, name in ((0.1, "a"), (0.3, "b"))
    ]
    left = [row(2.0, 1.5, clear=False, weight=0.0, selections=[], document=name) for name in "ab"]
    result = over_all([clear, *rest, *left], [1])
    assert result["loss"][0]["value"] == pytest.approx((1.0 + 4 * 0.2) / (2.0 + 4 * 0.5))
    assert (result["targets"], result["measured"]) == (5, 3)


def test_missing_sample_gives_a_reason_instead_of_a_share():
    result = over_all([row(), row(clear=False, weight=0.0, selections=[], document="b")])
    reason = "the study searched too few targets; use a larger --searched"
    assert {each["reason"] for each in result["loss"]} == {reason}
    assert values(result["loss"]) == [None] * 3


def test_missing_selections_give_a_reason_instead_of_a_share():
    rows = [row(), row(document="b", selections=[selection((2.0, 2.0, 2.0), knows="prediction")])]
    result = over_all(rows)
    reasons = {each["reason"] for each in (*result["loss"], *result["prediction"]["shares"])}
    assert reasons == {"this selection is missing for 1 of the measured targets"}
    assert result["measured"] == 1


def test_groups_are_separate_and_share_resamples(rng):
    rows = sample_rows(rng, 6, 9)
    for each in rows:
        each["selections"] += [{**each["selections"][0], "knows": "nothing", "measure": "random"}]
    first, second = summarize(rows, [1])["groups"]
    assert (first.pop("knows"), second.pop("knows")) == ("target", "nothing")
    assert (first.pop("measure"), second.pop("measure")) == ("greedy", "random")
    assert first == second


def test_shares_have_intervals_unless_all_targets_agree():
    rows = [row(document=name, clear=clear) for name in "abcdef" for clear in (True, False, name > "c")]
    result = summarize(rows, KS)
    own, other, elsewhere = result["far"]
    assert own["gains"]["value"] == pytest.approx(0.5)
    assert 0 < own["gains"]["low"] < 0.5 < own["gains"]["high"] < 1
    assert (result["targets"], result["documents"], result["measured"]) == (18, 6, 18)
    constant = {"value": 0.0, "low": None, "high": None, "reason": "all targets agree"}
    assert other["gains"] == other["loses"] == own["loses"] == constant
    assert (elsewhere["targets"], elsewhere["gains"]["value"]) == (0, None)


def test_sources_are_compared_with_own_tokens_target_by_target():
    elsewhere = {"loss": 2.5, "gains": False, "loses": False}
    rows = [row(3.0, 1.0, other=3.5 + 0.1 * place, document=name) for place, name in enumerate("abcdef")]
    rows[0]["controls"]["elsewhere"] = rows[1]["controls"]["elsewhere"] = elsewhere
    own, other, near_by = summarize(rows, KS)["far"]
    assert (own["own_minus"], own["gain"]["value"]) == (None, pytest.approx(2.0))
    assert other["own_minus"]["value"] == pytest.approx(2.75)
    assert 2.5 < other["own_minus"]["low"] < 2.75 < other["own_minus"]["high"] < 3.0
    assert (other["gain"]["value"], other["loses"]["value"]) == (pytest.approx(-0.75), pytest.approx(5 / 6))
    assert (near_by["targets"], near_by["documents"], near_by["own_minus"]["value"]) == (2, 2, 1.5)


def paired(rows: Sequence[dict[str, Any]], ks: Sequence[int] = KS) -> dict[str, Any]:
    """Return the only pair of a summary."""
    (pair,) = summarize(rows, ks)["paired"]
    return pair


def random_rows(rng: np.random.Generator, targets: int, use: float = 0.0) -> list[dict[str, Any]]:
    """Return rows in which any far tokens change the loss at random, and own tokens lower it by ``use`` nats more."""
    rows = []
    for place in range(targets):
        own, other = rng.normal(use, 1), rng.normal(0, 1)
        losses = {"own": 5 - own, "other": 5 - other}
        each = row(5.0, losses["own"], other=losses["other"], document=str(place % 20), clear=bool(own > 0.5))
        each["selections"] = [selection([loss + 0.1], **{"from": name}) for name, loss in losses.items()]
        rows.append(each if own > 0.5 or other > 0.5 else each | sampling(rng, 0.3))
    return rows


def test_paired_difference_over_all_targets_has_no_selection_bias(rng):
    pair = paired(random_rows(rng, 2000), [1])
    (result,) = pair["difference"]
    assert result["low"] < 0 < result["high"]
    assert result["high"] - result["low"] < 0.3
    # Selecting the same rows by a gap biases the difference.
    assert pair["selected"]["own"]["difference"][0]["low"] > 0.8
    assert pair["selected"]["other"]["difference"][0]["high"] < -0.8
    (result,) = paired(random_rows(rng, 2000, use=0.4), [1])["difference"]
    assert 0.2 < result["low"] < 0.4 < result["high"] < 0.6


def test_effect_of_another_text_is_removed_from_the_share():
    own, other = [1.0, 0.5, 0.0], [1.5, 1.0, 1.0]
    rows = [
        row(
            document=name,
            selections=[selection(KS, divergences=own), selection(KS, divergences=other, **{"from": "other"})],
        )
        for name in "abcdef"
    ]
    assert values(paired(rows)["prediction"]["shares"]) == pytest.approx([1 / 3, 0.5, 1.0])


def answer_of(rows: Sequence[dict[str, Any]], ks: Sequence[int] = KS) -> tuple[str, int | None]:
    """Return the sentence of a summary, and the number of far tokens that is enough."""
    result = summarize(rows, ks)["answer"]
    return result["sentence"], result["at_most"]


def test_answer_sentence_gives_the_number_of_far_tokens():
    def rows(own: list[float], other: list[float], documents: str = "abcdef") -> list[dict[str, Any]]:
        pair = [selection(KS, divergences=own), selection(KS, divergences=other, **{"from": "other"})]
        return [row(document=name, other=2.0, selections=pair) for name in documents]

    sentence, most = answer_of(rows([1.0, 0.5, 0.1], [2.0, 2.0, 2.0]))
    assert sentence == (
        "tiny uses far tokens, and 4 far tokens are enough for 90%: "
        "4 selected tokens recover 95% of the effect of far context on its "
        "predictions, after subtracting the effect of far tokens from another text (mode strict). The difference in "
        "loss between another text and the original text is 1.000 nats per target (95% interval 1.000 to 1.000)."
    )
    assert most == 4
    # The effect of another text is subtracted.
    sentence, most = answer_of(rows([1.0, 0.5, 0.1], [1.0, 0.5, 0.2]))
    assert sentence.startswith(
        "tiny uses far tokens, and the search found no 4 far tokens that recover 90%: 4 selected"
    )
    assert most is None
    sentence, most = answer_of(rows([0.1, 0.0, 0.0], [2.0, 2.0, 2.0]))
    assert sentence.startswith("tiny uses far tokens, and 1 far token is enough for 90%: 1 selected token recovers")
    alone = [{**each, "selections": each["selections"][:1]} for each in rows([0.1, 0.0, 0.0], [2.0, 2.0, 2.0])]
    assert (
        "on its predictions, not corrected for the effect of far tokens from another text (mode strict). The diff"
        in answer_of(alone)[0]
    )
    without = [{**each, "selections": []} for each in alone]
    assert answer_of(without)[0].startswith("tiny uses far tokens, but their number was not measured. The diff")


def test_answer_reports_no_difference_to_elsewhere_in_the_document():
    rows = [row(document=name, other=2.0) for name in "abcdef"]
    for each in rows:
        each["controls"]["elsewhere"] = {"loss": 1.0, "gains": True, "loses": False}
    assert (
        " The difference from elsewhere in the same document is not clear: 0.000 nats per target" in answer_of(rows)[0]
    )


def uses_far_tokens(differences: Sequence[float]) -> bool | None:
    """Return the answer for one document per difference between another text and the original text (nats)."""
    rows = [row(3.0, 1.0, other=1.0 + each, document=str(index)) for index, each in enumerate(differences)]
    result = summarize(rows, KS)["answer"]
    if result["uses_far_tokens"] is not True:
        assert result["at_most"] is None
    return result["uses_far_tokens"]


NOISE = np.random.default_rng(0).normal(size=400)


@pytest.mark.parametrize(
    ("differences", "answer"),
    [
        # Few documents: no interval, whatever the difference is.
        ([1.39] * 3, None),
        ([0.0] * 3, None),
        # An interval that contains 0 and a relevant difference.
        (1.0 * NOISE[:20], None),
        (0.2 * NOISE, None),
        # Too few documents to notice the few that have an effect.
        ([0.0] * 10, None),
        ([0.0] * 40, False),
        (0.01 * NOISE, False),
        (0.01 * NOISE - 1.0, False),
        ([1.39] * 6, True),
        (0.1 * NOISE[:40] + 1.0, True),
    ],
)
def test_answer_needs_enough_documents_and_a_narrow_interval(differences, answer):
    assert uses_far_tokens(differences) is answer


@pytest.mark.parametrize("seed", range(3))
def test_cannot_tell_from_noise_with_the_same_mean(seed):
    result = summarize(random_rows(np.random.default_rng(seed), 1000), [1])["answer"]
    assert (result["uses_far_tokens"], result["at_most"]) == (None, None)


def test_kinds_have_shares_and_a_paired_difference():
    rows = [
        row(3.0, 1.0, kinds=["digit", "word_start"]),
        row(3.0, 1.0, other=2.0, kinds=["word_start"], document="b"),
        row(3.0, 2.9, kinds=["digit"], clear=False, document="b"),
    ]
    digit, word = summarize(rows, KS)["kinds"]
    assert (digit["kind"], digit["targets"], digit["gains"]["value"]) == ("digit", 2, 0.5)
    assert (digit["own_minus_other"]["value"], digit["gains_other"]["value"]) == (pytest.approx(1.05), 0.0)
    assert (word["kind"], word["targets"]) == ("word_start", 2)
    assert (word["own_minus_other"]["value"], word["gains_other"]["value"]) == (1.5, 0.5)


def test_distances_cover_tokens_of_clear_targets_weighted_by_gain():
    clear = row(selections=[selection((1.0, 1.0, 1.0), tokens=[(20, 0.5), (300, 1.5), (40, -0.2)])])
    other = row(clear=False, selections=[selection((1.0, 1.0, 1.0), tokens=[(900, 5.0)])])
    result = group_of([clear, other])["distances"]
    assert (result["chosen"], result["gain"]) == (3, 2.0)
    assert [each["distance"] for each in result["quantiles"]] == [20, 20, 300, 300, 300]
    assert sum(each["gain_share"] for each in result["bins"]) == pytest.approx(1)


def test_summary_is_valid_json(rng):
    summary = summarize(sample_rows(rng, 3, 5), [1])
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


@pytest.mark.slow
def test_memory_grows_by_a_few_numbers_per_row():
    def rows(number: int) -> Any:
        for place in range(number):
            tokens = [(17 + place % 64, 0.5)] * 4
            yield row(document=str(place % 50), place=place, selections=[selection((2.5, 2.0, 1.2), tokens=tokens)])

    def peak(number: int) -> int:
        tracemalloc.start()
        StudyColumns(rows(number), KS)
        result = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return result

    # A row takes more than 2,000 bytes as a dictionary.
    assert peak(6000) - peak(1000) < 5000 * 500


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "the study has no rows; measure at least one target"),
        (
            [row(), row(model="big")],
            r"the rows belong to several models \(big, tiny\); summarize each model separately",
        ),
        (
            [row(), row(losses=(1.0,))],
            "row 2 has 1 losses, but k has 3 values; use the same k as the study that wrote the rows",
        ),
        ([row(), row(long=float("nan"))], "row 2 has a loss that is not finite; repeat the study in float32"),
        ([row(losses=(1.0, float("inf"), 1.0))], "row 1 has a loss that is not finite"),
    ],
    ids=["no rows", "two models", "other k", "short", "selection"],
)
def test_invalid_rows_raise(rows, message):
    with pytest.raises(SettingError, match=message):
        summarize(rows, KS)


class RecordedFigure:
    """Arguments of matplotlib calls: lines and steps by label, bands and bars in order, and the last figure."""

    figure: Figure

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: dict[str, tuple[list[float], list[float], str]] = {}
        self.steps: dict[str, tuple[list[float], list[float]]] = {}
        self.spans: list[tuple[list[float], list[float], list[float]]] = []
        plot, stairs, fill_between, vlines = Axes.plot, Axes.stairs, Axes.fill_between, Axes.vlines

        def record_plot(axes: Axes, x: Any, y: Any, *style: str, **options: Any) -> Any:
            self.lines[options["label"]] = (list(x), list(y), "".join(style))
            return plot(axes, x, y, *style, **options)

        def record_stairs(axes: Axes, values: Any, edges: Any, **options: Any) -> Any:
            self.steps[options["label"]] = (list(edges), list(values))
            return stairs(axes, values, edges, **options)

        def record_fill(axes: Axes, x: Any, low: Any, high: Any, **options: Any) -> Any:
            self.spans.append((list(x), list(low), list(high)))
            return fill_between(axes, x, low, high, **options)

        def record_vlines(axes: Axes, x: Any, low: Any, high: Any, **options: Any) -> Any:
            self.spans.append((list(x), list(low), list(high)))
            return vlines(axes, x, low, high, **options)

        save = Figure.savefig

        def record_figure(figure: Figure, *path: Any, **options: Any) -> None:
            self.figure = figure
            save(figure, *path, **options)

        monkeypatch.setattr(Figure, "savefig", record_figure)
        for name, drawing in (
            ("plot", record_plot),
            ("stairs", record_stairs),
            ("fill_between", record_fill),
            ("vlines", record_vlines),
        ):
            monkeypatch.setattr(Axes, name, drawing)

    def laid_out(self) -> Figure:
        """Lay out and return the last figure, at its own resolution instead of that of the file."""
        self.figure.draw_without_rendering()
        return self.figure

    def title(self) -> str:
        """Return the title above or the caption below all panels, without line breaks."""
        (heading,) = self.figure.texts
        return heading.get_text().replace("\n", " ")

    def notes(self, panel: int = 0) -> list[str]:
        """Return the annotations of a panel."""
        return [each.get_text() for each in self.figure.axes[panel].texts if isinstance(each, Annotation)]

    def labels(self, panel: int = 0) -> list[str]:
        """Return the labels beside a panel without line breaks."""
        texts = [each for each in self.figure.axes[panel].texts if not isinstance(each, Annotation)]
        return [each.get_text().replace("\n", " ") for each in texts]


def summary_of(*shares: float, model: str = "tiny", tokens: Sequence[tuple[int, float]] = ()) -> dict[str, Any]:
    """Summarize five equal documents: own tokens recover the given shares, other and random tokens nothing."""
    left = [2.0 - 2 * share for share in shares]
    none = {"divergences": [2.0] * len(left)}
    selections = [
        selection([2.0 - share for share in shares], tokens, divergences=left, knows="prediction"),
        selection([2.5] * len(left), knows="prediction", **{"from": "other"}, **none),
        selection([2.0 - share for share in shares], tokens, mode="masked", divergences=left, knows="prediction"),
        selection([2.0] * len(left), knows="nothing", measure="random", **none),
    ]
    return summarize(
        [row(2.0, 1.0, other=2.25, document=name, model=model, selections=selections) for name in "abcde"], KS
    )


def test_recovery_figure_has_bands_and_dashed_controls(tmp_path, monkeypatch):
    figure = RecordedFigure(monkeypatch)
    path = plot_recovered_share(summary_of(0.4, 0.6, 0.9), tmp_path)
    assert path == tmp_path / "recovery.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (tmp_path / "recovery.svg").read_text()
    x, y, style = figure.lines["own text, by prediction"]
    assert (x, style) == ([1, 2, 4], "-")
    assert y == pytest.approx([0.4, 0.6, 0.9])
    assert figure.lines["random, own text"] == ([1, 2, 4], [0.0, 0.0, 0.0], "--")
    # The line of the second panel, which replaces the line of the first panel with the same label.
    x, y, style = figure.lines["other text, by prediction"]
    assert (x, style) == ([1, 2, 4], "--")
    assert y == pytest.approx([0.9, 1.1, 1.4])
    # Equal documents have intervals of zero width.
    low, high = figure.spans[0][1:]
    assert low == high == pytest.approx([0.4, 0.6, 0.9])
    assert sorted(figure.labels()) == [
        "other text, by prediction",
        "own text, by prediction",
        "random, own text",
    ]
    assert sorted(figure.labels(1)) == ["other text, all far tokens", "other text, by prediction"]
    assert [axes.get_legend() for axes in figure.figure.axes] == [None] * 4
    assert "objective of the selection, with the measure greedy." in figure.title()


def test_undefined_share_appears_in_the_caption_only(tmp_path, monkeypatch):
    figure = RecordedFigure(monkeypatch)
    plot_recovered_share(summarize([row(document=name, divergence_short=0.0) for name in "ab"], KS), tmp_path)
    assert figure.lines == {}
    assert figure.labels() == []
    assert figure.title().endswith("Undefined: own text, by target.")


def test_missing_intervals_leave_a_gap_and_a_note_in_the_title(tmp_path, monkeypatch):
    figure = RecordedFigure(monkeypatch)
    plot_recovered_share(summarize([row()], KS), tmp_path)
    assert all(map(math.isnan, figure.spans[0][1] + figure.spans[0][2]))
    assert figure.title().startswith("All 1 target (1 measured); no intervals: too few documents.")


def test_distance_figure_shows_gain_and_the_uniform_distribution(tmp_path, monkeypatch):
    figure = RecordedFigure(monkeypatch)
    summary = summary_of(0.4, 0.6, 0.9, tokens=[(17, 3.0), (30, 1.0), (80, 0.0)])
    assert plot_token_distances(summary, tmp_path, near=16, far=64) == tmp_path / "distances.png"
    count = "15 units selected for 5 targets with a clear gain in 5 documents"
    edges, shares = figure.steps[f"strict, prediction objective: {count}"]
    assert edges == [15.5, 22.5, 31.5, 45.5, 63.5, 90.5]
    assert shares == [0.75, 0.25, 0.0, 0.0, 0.0]
    assert figure.steps[f"masked, prediction objective: {count}"] == (edges, shares)
    assert figure.steps["uniform over the far tokens"][1] == [each / 64 for each in (6, 9, 14, 18, 17)]


@pytest.mark.parametrize("rows", [[row()], [row(clear=False, weight=0.0, selections=[])]], ids=["no gain", "no group"])
def test_figures_are_written_without_any_gain_or_group(rows, tmp_path):
    summary = summarize(rows, KS)
    assert plot_token_distances(summary, tmp_path, near=16, far=64).exists()
    assert plot_recovered_share(summary, tmp_path).exists()


def test_scale_figure_orders_models_by_size(tmp_path, monkeypatch):
    figure = RecordedFigure(monkeypatch)
    summaries = [summary_of(0.6, 0.7, 0.9, model="big"), summary_of(0.1, 0.2, 0.5, model="small")]
    assert plot_model_sizes(summaries, [8_000_000, 1_000_000], tmp_path) == tmp_path / "scale.png"
    sizes, shares, _ = figure.lines["k = 1"]
    assert sizes == [1_000_000, 8_000_000]
    assert shares == pytest.approx([0.1, 0.6])
    assert figure.lines["minus another text"][:2] == (sizes, [1.25, 1.25])
    assert "minus elsewhere in the document" not in figure.lines


def test_scale_figure_rejects_one_model_or_different_ks(tmp_path):
    with pytest.raises(SettingError, match="cannot compare 1 summaries with k 1,2,4; use two or more"):
        plot_model_sizes([summary_of(0.4, 0.6, 0.9)], [10], tmp_path)
    other = summarize([row(losses=(1.0,))], [3])
    with pytest.raises(SettingError, match="cannot compare 2 summaries with k 1,2,4; 3; use two or more"):
        plot_model_sizes([summary_of(0.4, 0.6, 0.9), other], [10, 20], tmp_path)
    nothing = summarize([row(selections=[selection((1.0, 1.0, 1.0), knows="nothing", measure="random")])], KS)
    with pytest.raises(SettingError, match="tiny has no results for far tokens of the same text, except random"):
        plot_model_sizes([nothing, nothing], [10, 20], tmp_path)


def test_missing_folder_raises(tmp_path):
    missing = Path(tmp_path / "missing")
    with pytest.raises(RunFolderError, match=rf"cannot save figures in {missing} \(.*\); choose a writable folder"):
        plot_recovered_share(summary_of(0.4, 0.6, 0.9), missing)


# Matplotlib must not interpret text between two $ as a formula.
LONG = "/home/me/runs/" + "a_model_with_a_long_name_" * 5 + r"$\no$$\formula$"


@pytest.mark.slow
@pytest.mark.parametrize("path", [LONG, "/home/me/runs/small"], ids=["long", "short"])
def test_all_text_lies_inside_the_figure(path, tmp_path, monkeypatch):
    recorded = RecordedFigure(monkeypatch)
    summary = summary_of(0.4, -7.0, -5.0, model=path, tokens=[(17, 3.0), (30, 1.0)])
    alone = {**summary, "groups": summary["groups"][:1]}
    drawings: list[Callable[[], Path]] = [
        lambda: plot_recovered_share(summary, tmp_path),
        lambda: plot_recovered_share(alone, tmp_path),
        lambda: plot_token_distances(summary, tmp_path, near=16, far=64),
        lambda: plot_model_sizes([summary, summary_of(0.1, 0.2, 0.5, model="other")], [10_000, 12_000], tmp_path),
    ]
    for draw in drawings:
        draw()
        figure, page = recorded.laid_out(), recorded.figure.bbox
        inner = [each for axes in figure.axes for each in (*axes.texts, axes._left_title, axes.get_legend())]
        for each in filter(None, (*figure.texts, *inner)):
            box = each.get_window_extent()
            assert page.x0 <= box.x0 <= box.x1 <= page.x1, each
            assert page.y0 <= box.y0 <= box.y1 <= page.y1, each


def test_titles_use_the_last_part_of_the_model_path(tmp_path, monkeypatch):
    figure = RecordedFigure(monkeypatch)
    summary = summary_of(0.4, 0.6, 0.9, model="/home/me/runs/small")
    plot_recovered_share(summary, tmp_path)
    assert [axes.get_title(loc="left").replace("\n", " ") for axes in figure.figure.axes] == [
        "small: prediction recovered by k far tokens (strict), 5 documents",
        "small: loss with control minus own text (strict), 5 documents",
        "small: prediction recovered by k far tokens (masked), 5 documents",
        "small: loss with control minus own text (masked), 5 documents",
    ]
    assert figure.title().startswith("All 5 targets (5 measured); 95% intervals over documents.")
    plot_token_distances(summary, tmp_path, near=16, far=64)
    assert figure.title() == "small: distances of selected tokens, near 16, far 64"


def test_points_outside_the_axis_are_annotated_at_the_edge(tmp_path, monkeypatch):
    figure = RecordedFigure(monkeypatch)
    plot_recovered_share(summary_of(0.5, -2.25, -7.5), tmp_path)
    assert figure.notes() == ["▼ -2.25", "▼ -7.5"]
    assert figure.notes(2) == figure.notes()
    low, high = figure.figure.axes[0].get_ylim()
    assert (low, high) == pytest.approx((-0.1, 1.1))


def test_interval_of_a_single_k_is_a_bar(tmp_path, monkeypatch):
    figure = RecordedFigure(monkeypatch)
    plot_recovered_share(summarize([row(losses=(2.0,), document=name) for name in "abcde"], [4]), tmp_path)
    assert figure.spans == [([4], [0.5], [0.5])] * 2
    assert figure.notes() == []


@pytest.mark.slow
def test_model_names_do_not_overlap(tmp_path, monkeypatch):
    figure = RecordedFigure(monkeypatch)
    models = ["hub/large", "mine/small", "runs/base", "runs/small"]
    summaries = [summary_of(0.4, 0.6, 0.9, model=model) for model in models]
    plot_model_sizes(summaries, [9_000_000, 1_010_000, 1_000_000, 1_000_000], tmp_path)
    named = [text for text in figure.laid_out().axes[0].texts if "(" in text.get_text()]
    # Parts of the path distinguish the two small models, and numbers distinguish points of one size.
    assert [text.get_text() for text in named] == [
        "1: runs/base (1,000,000)",
        "2: runs/small (1,000,000)",
        "mine/small (1,010,000)",
        "hub/large (9,000,000)",
    ]
    assert [text.xy[0] for text in named] == [1_000_000, 1_000_000, 1_010_000, 9_000_000]
    # The extent without the line to the point.
    boxes = [Text.get_window_extent(text) for text in named]
    assert not any(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])
    assert figure.notes(1).count("1") == figure.notes(1).count("2") == len(KS)
    assert "runs/base 5 in 5" in figure.title()


def test_recovery_figure_has_six_lines_and_names_the_number_of_omitted_lines(tmp_path, monkeypatch):
    figure = RecordedFigure(monkeypatch)
    names = [(objective, source) for source in ("own", "other", "elsewhere") for objective in ("prediction", "target")]
    selections = [selection((2.5, 2.0, 1.2), knows=knows, **{"from": source}) for knows, source in names]
    selections.append(selection((2.5, 2.0, 1.2), knows="nothing", measure="random"))
    controls = {name: {"loss": 2.9, "gains": False, "loses": False} for name in ("other", "elsewhere")}
    rows = [row(document=name, selections=selections, controls=controls) for name in "abcde"]
    rows.append(row(document="f", selections=[*selections[:4], selections[-1]]))
    plot_recovered_share(summarize(rows, KS), tmp_path)
    assert len(figure.labels()) == len(figure.labels(1)) == 6
    assert "elsewhere in the document, by target" not in figure.labels()
    assert "elsewhere in the document, all far tokens (n=5)" in figure.labels(1)
    assert figure.title().endswith("Only in the table: 1 more line.")


@pytest.mark.slow
def test_legends_lie_below_the_data(tmp_path, monkeypatch):
    figure = RecordedFigure(monkeypatch)
    summaries = [summary_of(0.4, 0.6, 0.9, model=model, tokens=[(17, 3.0)]) for model in ("one", "other")]
    drawings: list[Callable[[], Path]] = [
        lambda: plot_token_distances(summaries[0], tmp_path, near=16, far=64),
        lambda: plot_model_sizes(summaries, [10, 20], tmp_path),
    ]
    for draw in drawings:
        draw()
        for axes in figure.laid_out().axes:
            assert axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0


def test_a_searched_target_counts_by_its_weight_in_results_over_clear_targets():
    def rows(weight: float, copies: int) -> list[dict[str, Any]]:
        heavy = row(losses=(2.0, 1.5, 1.0), document="a", weight=weight)
        heavy["selections"] = [selection((2.0, 1.5, 1.0), tokens=[(17, 0.5)])]
        light = row(losses=(2.9, 2.8, 2.7), document="b")
        light["selections"] = [selection((2.9, 2.8, 2.7), tokens=[(80, 0.1)])]
        return [heavy] * copies + [light]

    one, two = group_of(rows(2.0, 1), KS), group_of(rows(1.0, 2), KS)
    for name in ("loss", "median"):
        found, expected = (values(group["selected"]["own"][name]) for group in (one, two))
        assert found == pytest.approx(expected)
    assert one["distances"]["bins"] == two["distances"]["bins"]
    assert one["distances"]["quantiles"] == two["distances"]["quantiles"]
