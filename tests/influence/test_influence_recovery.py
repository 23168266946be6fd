"""Recovered shares: known truths, intervals that cover them, what cannot be estimated said, and all of it drawn."""

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
from matplotlib.text import Text

from lengthwise.core.errors import RunFolderError, SettingError
from lengthwise.core.randomness import stream
from lengthwise.influence.report import bootstrap
from lengthwise.influence.report.row_columns import Columns
from lengthwise.influence.report.scale_figure import draw_scale
from lengthwise.influence.report.study_figures import draw_distances, draw_recovery
from lengthwise.influence.report.summary import summarize

KS = (1, 2, 4)


def selection(losses: Sequence[float], chosen: Sequence[tuple[int, float]] = (), **changes: Any) -> dict[str, Any]:
    """A selection of the headline group; divergences fall with the losses of a target with losses of 3 and 1."""
    tokens = [{"distance": distance, "text": " x", "gain": gain} for distance, gain in chosen]
    group = {"mode": "strict", "knows": "target", "from": "own", "measure": "greedy"}
    fallen = {"divergences": [max(loss - 1, 0.0) for loss in losses]}
    return {**group, "chosen": tokens, "losses": list(losses), **fallen, **changes}


def row(
    short: float = 3.0, long: float = 1.0, losses: Sequence[float] = (2.5, 2.0, 1.2), **changes: Any
) -> dict[str, Any]:
    """A row with one selection; another text's far tokens change nothing."""
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


def headline(rows: Sequence[dict[str, Any]], ks: Sequence[int] = KS, **how: Any) -> dict[str, Any]:
    """The first group of a summary: what it says of clear targets."""
    return group_of(rows, ks, **how)["selected"]["own"]


def group_of(rows: Sequence[dict[str, Any]], ks: Sequence[int] = KS, **how: Any) -> dict[str, Any]:
    """The first group of a summary."""
    return summarize(rows, ks, **how)["groups"][0]


def over_all(rows: Sequence[dict[str, Any]], ks: Sequence[int] = KS, **how: Any) -> dict[str, Any]:
    """What the first group of a summary says of all targets."""
    return group_of(rows, ks, **how)["all_targets"]


def values(estimates: Sequence[dict[str, Any]]) -> list[float | None]:
    """The estimates without their intervals."""
    return [each["value"] for each in estimates]


def drawn(
    rng: np.random.Generator, documents: int, per_document: int, measured_share: float = 1.0
) -> list[dict[str, Any]]:
    """Targets of documents that differ: in how many are clear, in their gaps, and in the share that one token recovers.

    Over all documents the clear targets recover 0.6 of their gaps, which are 3 nats on average where they recover 0.5,
    and 6 where they recover 0.65; the median share is that of a mixture with as many of both.
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


def sampled(rng: np.random.Generator, share: float) -> dict[str, Any]:
    """What becomes of a target that is measured with this probability."""
    return {"weight": 1 / share} if rng.random() < share else {"weight": 0.0, "selections": []}


# Of drawn documents, in expectation: 0.3 of targets are clear, with 4.5 nats each; the others have 0.1 and gain 0.25.
CLEAR_TRUTH = (3 * 0.5 + 6 * 0.65) / 9
ALL_TRUTH = (0.3 * (1.5 * 0.5 + 3 * 0.65) + 0.7 * 0.25) / (0.3 * 4.5 + 0.7 * 0.1)
MEDIAN_TRUTH = 0.575


def test_the_share_of_sums_weighs_targets_by_their_gap_and_the_median_does_not():
    rows = [
        row(3.0, 1.0, (2.5, 2.0, 1.0)),
        row(9.0, 1.0, (8.0, 7.0, 3.0), document="b"),
        row(2.0, 1.0, (1.5, 1.1, 1.0)),
    ]
    found = headline(rows)
    assert values(found["loss"]) == pytest.approx([2 / 11, 3.9 / 11, 9 / 11])
    assert values(found["median"]) == pytest.approx([0.25, 0.5, 1.0])
    assert (found["targets"], found["documents"]) == (3, 2)


def test_only_clear_targets_count_in_the_headline():
    unclear = row(1.0, 0.99, (0.5, 0.5, 0.5), document="b", clear=False)
    assert headline([row(), unclear])["loss"] == headline([row()])["loss"]


@pytest.mark.parametrize("documents", [6, 12])
def test_intervals_are_those_of_documents_drawn_with_replacement_in_a_plain_loop(documents, rng):
    rows = drawn(rng, documents, 9)
    found = headline(rows, [1], seed=5, resamples=200)
    by_document = [
        [each for each in rows if each["clear"] and each["document"] == str(name)] for name in range(documents)
    ]
    by_document = [each for each in by_document if each]
    picks = stream(5, "influence documents", len(by_document)).integers(0, len(by_document), (200, len(by_document)))

    def looped(statistic: Callable[[np.ndarray, np.ndarray], float]) -> list[float]:
        resampled = []
        for pick in picks:
            targets = [each for place in pick for each in by_document[place]]
            gained = np.array([each["loss_short"] - each["selections"][0]["losses"][0] for each in targets])
            resampled.append(statistic(gained, np.array([each["loss_short"] - each["loss_long"] for each in targets])))
        return sorted(resampled)

    for name, resampled in (
        ("loss", looped(lambda gained, gap: gained.sum() / gap.sum())),
        ("median", looped(lambda gained, gap: float(np.median(gained / gap)))),
    ):
        (estimate,) = found[name]
        # Few documents: the tails are smaller than 2.5%, by Student's t.
        outside = {6: 0, 12: 2}[documents]
        assert estimate["low"] == pytest.approx(resampled[outside])
        assert estimate["high"] == pytest.approx(resampled[-1 - outside])
        assert estimate["reason"] is None


def test_intervals_cover_the_truth_of_clustered_targets_in_nine_of_ten_repetitions(rng):
    covered = {"loss": 0, "median": 0, "all_targets": 0, "gains": 0}
    for repetition in range(200):
        summary = summarize(drawn(rng, 14, 10, measured_share=0.3), [1], seed=repetition, resamples=300)
        (group,) = summary["groups"]
        for name, estimate, truth in (
            ("loss", group["selected"]["own"]["loss"][0], CLEAR_TRUTH),
            ("median", group["selected"]["own"]["median"][0], MEDIAN_TRUTH),
            ("all_targets", group["all_targets"]["loss"][0], ALL_TRUTH),
            ("gains", summary["far"][0]["gains"], 0.3),
        ):
            covered[name] += estimate["low"] <= truth <= estimate["high"]
    # And they are not so wide that they would always do.
    assert all(180 <= count < 200 for count in covered.values()), covered


def test_the_same_seed_gives_the_same_intervals_and_another_seed_others(rng):
    rows = drawn(rng, 6, 9)
    assert headline(rows, [1], seed=1) == headline(rows, [1], seed=1)
    assert headline(rows, [1], seed=1)["loss"] != headline(rows, [1], seed=2)["loss"]


def test_the_size_of_a_block_of_resamples_changes_nothing(rng, monkeypatch):
    rows = drawn(rng, 6, 9)
    whole = headline(rows, [1])
    monkeypatch.setattr(bootstrap, "BLOCK", 1000)
    assert headline(rows, [1]) == whole


def test_one_document_gives_a_value_and_the_reason_why_it_has_no_interval():
    found, every = headline([row(), row()]), over_all([row(), row()])
    for estimate in (*found["loss"], *found["median"], *every["loss"], *every["prediction"]["shares"]):
        assert estimate["value"] is not None
        assert (estimate["low"], estimate["high"]) == (None, None)
        assert estimate["reason"] == "fewer than 5 documents: too few to resample; measure more documents"
    assert every["prediction"]["smallest_k"][0]["k"] == 2
    assert every["prediction"]["smallest_k"][0]["reason"] == found["median"][0]["reason"]


def test_far_context_that_helps_nothing_in_sum_gives_no_share_but_the_reason():
    rows = [row(1.0, 2.0, document="a"), row(1.0, 1.0, document="b"), row(1.0, 0.5, document="c")]
    found = headline(rows)
    for estimate in (*found["loss"], *over_all(rows)["loss"]):
        reason = "the far context lowers no loss in sum: there is nothing to recover"
        assert estimate == {"value": None, "low": None, "high": None, "reason": reason}
    unchanged = over_all([{**each, "divergence_short": 0.0} for each in rows])["prediction"]
    reason = "the far context changes no prediction: there is nothing to recover"
    nothing_reached = {"share": 0.5, "k": None, "beyond": False, "low": None, "high": None, "reason": reason}
    assert unchanged["smallest_k"][0] == nothing_reached
    assert values(unchanged["shares"]) == [None] * 3
    # The one target with a gap has a share; the others are counted as left out.
    assert found["without_gap"] == 2
    assert found["median"][0]["value"] == pytest.approx((1.0 - 2.5) / 0.5)


def test_gaps_that_vanish_in_some_resamples_give_no_interval_but_their_number():
    # Gaps of -1 five times, and one of 5.5: where that is not drawn, nothing is there to recover.
    rows = [row(1.0, 2.0, document=name) for name in "abcde"]
    found = headline([*rows, row(6.5, 1.0, document="f")], resamples=400)
    (estimate, *_) = found["loss"]
    assert estimate["value"] is not None
    assert (estimate["low"], estimate["high"]) == (None, None)
    lost = int(estimate["reason"].split()[1])
    assert 90 < lost < 190
    assert (
        estimate["reason"]
        == f"in {lost} of 400 resamples the far context lowers no loss in sum: there is nothing to recover"
    )


def test_a_group_without_clear_targets_says_so():
    rows = [row(clear=False, document=name) for name in "ab"]
    found = headline(rows)
    assert (found["targets"], found["documents"]) == (0, 0)
    reason = "no target with a clear gap has this selection"
    assert {each["reason"] for each in (*found["loss"], *found["median"])} == {reason}
    assert over_all(rows)["loss"][0]["value"] is not None


def test_the_smallest_k_is_the_first_that_reaches_a_share_with_bounds_that_are_ks():
    # Of the prediction 0.4, 0.7 and 1.0 in half of the documents, 0.6, 0.7 and 0.75 in the others.
    rows = [
        row(document=f"{left}{i}", divergence_short=1.0, selections=[selection((1.0, 1.0, 1.0), divergences=left)])
        for left in ([0.6, 0.3, 0.0], [0.4, 0.3, 0.25])
        for i in range(4)
    ]
    half, most, nearly_all = over_all(rows)["prediction"]["smallest_k"]
    assert half == {"share": 0.5, "k": 1, "beyond": False, "low": 1, "high": 2, "reason": None}
    assert most == {"share": 0.8, "k": 4, "beyond": False, "low": 4, "high": None, "reason": None}
    # None is more than the largest k: a result, so there is no reason.
    assert nearly_all == {"share": 0.9, "k": None, "beyond": True, "low": 4, "high": None, "reason": None}


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_no_share_of_the_prediction_exceeds_one_whatever_is_sampled(share, rng):
    rows = []
    for place in range(60):
        short = float(rng.exponential())
        left = short * rng.random(3)
        each = row(clear=place % 5 == 0, divergence_short=short, document=str(place % 7))
        each["selections"] = [selection((1.0, 1.0, 1.0), divergences=left.tolist())]
        rows.append(each if each["clear"] else each | sampled(rng, share))
    found = over_all(rows)["prediction"]["shares"]
    assert all(0 <= each["low"] <= each["value"] <= each["high"] <= 1 for each in found)
    if share == 1:
        total = sum(each["divergence_short"] for each in rows)
        for place, each in enumerate(found):
            kept = sum(one["selections"][0]["divergences"][place] for one in rows)
            assert each["value"] == pytest.approx(1 - kept / total)


def test_all_targets_measured_give_the_plain_ratio_of_sums(rng):
    rows = drawn(rng, 5, 9)
    gained = sum(each["loss_short"] - each["selections"][0]["losses"][0] for each in rows)
    gap = sum(each["loss_short"] - each["loss_long"] for each in rows)
    found = over_all(rows, [1])
    assert found["loss"][0]["value"] == pytest.approx(gained / gap)
    assert (found["targets"], found["measured"]) == (len(rows), len(rows))


def test_gains_on_a_line_are_recovered_exactly_from_any_sample(rng):
    every = [
        row(3.0, 3.0 - gap, [3.0 - (0.3 + 0.6 * gap)], clear=bool(gap > 1), document=str(n % 5))
        for n, gap in enumerate(rng.normal(0.3, 0.6, 90))
    ]
    truth = over_all(every, [1])["loss"][0]["value"]
    for share in (0.1, 0.3):
        rows = [each if each["clear"] else each | sampled(rng, share) for each in every]
        assert over_all(rows, [1])["loss"][0]["value"] == pytest.approx(truth)


def test_the_estimate_over_all_targets_is_unbiased_and_nearer_than_weighted_sums(rng):
    every = drawn(rng, 12, 10)
    truth = over_all(every, [1], resamples=2)["loss"][0]["value"]
    errors = []
    for _ in range(60):
        rows = [each | sampled(rng, 0.2) if not each["clear"] else each for each in every]
        found = over_all(rows, [1], resamples=2)["loss"][0]["value"]
        measured = [each for each in rows if each["weight"]]
        gained = sum(each["weight"] * (each["loss_short"] - each["selections"][0]["losses"][0]) for each in measured)
        gap = sum(each["weight"] * (each["loss_short"] - each["loss_long"]) for each in measured)
        errors.append([found - truth, gained / gap - truth])
    regressed, weighted = np.array(errors).T
    assert abs(regressed.mean()) < 3 * regressed.std() / 60**0.5
    assert regressed.std() < 0.5 * weighted.std()


def test_sampled_gaps_that_are_all_alike_stand_for_the_rest_by_their_mean():
    clear = row(4.0, 2.0, [3.0], document="a")
    rest = [
        row(2.0, 1.5, [2.0 - gain], clear=False, weight=2.0, document=name) for gain, name in ((0.1, "a"), (0.3, "b"))
    ]
    left = [row(2.0, 1.5, clear=False, weight=0.0, selections=[], document=name) for name in "ab"]
    found = over_all([clear, *rest, *left], [1])
    assert found["loss"][0]["value"] == pytest.approx((1.0 + 4 * 0.2) / (2.0 + 4 * 0.5))
    assert (found["targets"], found["measured"]) == (5, 3)


def test_no_sample_of_the_other_targets_gives_no_share_of_all_but_the_reason():
    found = over_all([row(), row(clear=False, weight=0.0, selections=[], document="b")])
    reason = "of the targets that are not clear none is measured; measure a random share of them"
    assert {each["reason"] for each in found["loss"]} == {reason}
    assert values(found["loss"]) == [None] * 3


def test_measured_targets_without_a_selection_give_no_share_of_all_but_the_reason():
    rows = [row(), row(document="b", selections=[selection((2.0, 2.0, 2.0), knows="prediction")])]
    found = over_all(rows)
    reasons = {each["reason"] for each in (*found["loss"], *found["prediction"]["shares"])}
    assert reasons == {"1 of the measured targets lack this selection"}
    assert found["measured"] == 1


def test_groups_stand_apart_and_are_resampled_alike(rng):
    rows = drawn(rng, 6, 9)
    for each in rows:
        each["selections"] += [{**each["selections"][0], "knows": "nothing", "measure": "random"}]
    first, second = summarize(rows, [1])["groups"]
    assert (first.pop("knows"), second.pop("knows")) == ("target", "nothing")
    assert (first.pop("measure"), second.pop("measure")) == ("greedy", "random")
    assert first == second


def test_shares_that_gain_and_lose_have_intervals_unless_all_targets_are_alike():
    rows = [row(document=name, clear=clear) for name in "abcdef" for clear in (True, False, name > "c")]
    found = summarize(rows, KS)
    own, other, elsewhere = found["far"]
    assert own["gains"]["value"] == pytest.approx(0.5)
    assert 0 < own["gains"]["low"] < 0.5 < own["gains"]["high"] < 1
    assert (found["targets"], found["documents"], found["measured"]) == (18, 6, 18)
    alike = {"value": 0.0, "low": None, "high": None, "reason": "all targets are alike"}
    assert other["gains"] == other["loses"] == own["loses"] == alike
    assert (elsewhere["targets"], elsewhere["gains"]["value"]) == (0, None)


def test_each_source_of_far_tokens_is_compared_with_the_own_ones_target_by_target():
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
    """The one pair of a summary."""
    (pair,) = summarize(rows, ks)["paired"]
    return pair


def chance(rng: np.random.Generator, targets: int, use: float = 0.0) -> list[dict[str, Any]]:
    """Rows in which any far tokens change the loss at random, and own ones lower it by ``use`` nats besides."""
    rows = []
    for place in range(targets):
        own, other = rng.normal(use, 1), rng.normal(0, 1)
        losses = {"own": 5 - own, "other": 5 - other}
        each = row(5.0, losses["own"], other=losses["other"], document=str(place % 20), clear=bool(own > 0.5))
        each["selections"] = [selection([loss + 0.1], **{"from": name}) for name, loss in losses.items()]
        rows.append(each if own > 0.5 or other > 0.5 else each | sampled(rng, 0.3))
    return rows


def test_the_paired_difference_over_all_targets_is_free_of_selection(rng):
    pair = paired(chance(rng, 2000), [1])
    (found,) = pair["difference"]
    assert found["low"] < 0 < found["high"]
    assert found["high"] - found["low"] < 0.3
    # The same rows, chosen by a gap, say what the choice made of them.
    assert pair["selected"]["own"]["difference"][0]["low"] > 0.8
    assert pair["selected"]["other"]["difference"][0]["high"] < -0.8
    (found,) = paired(chance(rng, 2000, use=0.4), [1])["difference"]
    assert 0.2 < found["low"] < 0.4 < found["high"] < 0.6


def test_what_another_text_gives_too_is_taken_out_of_the_share_of_the_prediction():
    own, other = [1.0, 0.5, 0.0], [1.5, 1.0, 1.0]
    rows = [
        row(
            document=name,
            selections=[selection(KS, divergences=own), selection(KS, divergences=other, **{"from": "other"})],
        )
        for name in "abcdef"
    ]
    assert values(paired(rows)["prediction"]["shares"]) == pytest.approx([1 / 3, 0.5, 1.0])


def answer_of(rows: Sequence[dict[str, Any]], ks: Sequence[int] = KS) -> tuple[str, int | None, int | None]:
    """The sentence of a summary, and the numbers between which the tokens that are used lie."""
    found = summarize(rows, ks)["answer"]
    return found["sentence"], found["at_least"], found["at_most"]


def test_a_study_ends_in_a_sentence_that_says_how_many_far_tokens_are_used():
    def rows(own: list[float], other: list[float], documents: str = "abcdef") -> list[dict[str, Any]]:
        pair = [selection(KS, divergences=own), selection(KS, divergences=other, **{"from": "other"})]
        return [row(document=name, other=2.0, selections=pair) for name in documents]

    sentence, least, most = answer_of(rows([1.0, 0.5, 0.1], [2.0, 2.0, 2.0]))
    assert sentence == (
        "tiny uses about 3 to 4 far tokens: 4 as chosen here give 95% of what its far context changes in its "
        "prediction that another text's cannot (own minus other text: 1.000 nats a target, 95% 1.000 to 1.000)"
    )
    assert (least, most) == (3, 4)
    # What another text gives as well is no use of far tokens.
    sentence, least, most = answer_of(rows([1.0, 0.5, 0.1], [1.0, 0.5, 0.2]))
    assert sentence.startswith("tiny uses more than 4 far tokens: 4 as chosen here give 50% of what")
    assert (least, most) == (5, None)
    sentence, least, most = answer_of(rows([0.1, 0.0, 0.0], [2.0, 2.0, 2.0]))
    assert sentence.startswith("tiny uses about 1 far token: 1 as chosen here give")
    few, least, most = answer_of(rows([0.1, 0.0, 0.0], [2.0, 2.0, 2.0], documents="abc"))
    assert few.startswith(
        "No use of far tokens could be shown for tiny (own minus other text: 1.000 nats a target, fewer"
    )
    alone = [{**each, "selections": each["selections"][:1]} for each in rows([0.1, 0.0, 0.0], [2.0, 2.0, 2.0])]
    assert "in its prediction, not corrected by another text's (own" in answer_of(alone)[0]
    without = [{**each, "selections": []} for each in alone]
    assert answer_of(without)[0].startswith("tiny uses far tokens; how many is not measured (own")


def test_far_tokens_that_any_place_of_the_document_replaces_are_told():
    rows = [row(document=name, other=2.0) for name in "abcdef"]
    for each in rows:
        each["controls"]["elsewhere"] = {"loss": 1.0, "gains": True, "loses": False}
    assert "; no more than tokens from elsewhere in the same document: 0.000 nats a target" in answer_of(rows)[0]


@pytest.mark.parametrize("seed", range(3))
def test_no_use_is_shown_where_own_far_tokens_gain_as_much_as_others(seed):
    sentence, least, most = answer_of(chance(np.random.default_rng(seed), 1000), [1])
    assert sentence.startswith("No use of far tokens could be shown for tiny (own minus other text: ")
    assert (least, most) == (None, None)


def test_each_kind_has_its_shares_and_its_paired_difference():
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


def test_distances_are_those_of_tokens_chosen_for_clear_targets_by_gain():
    clear = row(selections=[selection((1.0, 1.0, 1.0), chosen=[(20, 0.5), (300, 1.5), (40, -0.2)])])
    other = row(clear=False, selections=[selection((1.0, 1.0, 1.0), chosen=[(900, 5.0)])])
    found = group_of([clear, other])["distances"]
    assert (found["chosen"], found["gain"]) == (3, 2.0)
    assert [each["distance"] for each in found["quantiles"]] == [20, 20, 300, 300, 300]
    assert sum(each["gain_share"] for each in found["bins"]) == pytest.approx(1)


def test_a_summary_is_plain_json(rng):
    summary = summarize(drawn(rng, 3, 5), [1])
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_memory_grows_by_a_few_numbers_a_row():
    def rows(number: int) -> Any:
        for place in range(number):
            chosen = [(17 + place % 64, 0.5)] * 4
            yield row(document=str(place % 50), place=place, selections=[selection((2.5, 2.0, 1.2), chosen=chosen)])

    def peak(number: int) -> int:
        tracemalloc.start()
        Columns(rows(number), KS)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    # A row as a dictionary takes more than 2,000 bytes.
    assert peak(6000) - peak(1000) < 5000 * 450


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no rows to summarize; measure at least one target"),
        ([row(), row(model="big")], r"rows of several models \(big, tiny\); summarize each alone"),
        (
            [row(), row(losses=(1.0,))],
            "row 2 has 1 losses but k takes 3 values; give the k of the run that wrote the rows",
        ),
        ([row(), row(long=float("nan"))], "row 2 has a loss that is not finite; measure it in float32"),
        ([row(losses=(1.0, float("inf"), 1.0))], "row 1 has a loss that is not finite"),
    ],
    ids=["no rows", "two models", "other k", "short", "selection"],
)
def test_rows_that_cannot_be_summarized_are_refused(rows, message):
    with pytest.raises(SettingError, match=message):
        summarize(rows, KS)


class Drawn:
    """What was handed to matplotlib: lines and steps by their label, bands and bars in order, the last figure."""

    figure: Figure

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: dict[str, tuple[list[float], list[float], str]] = {}
        self.steps: dict[str, tuple[list[float], list[float]]] = {}
        self.spans: list[tuple[list[float], list[float], list[float]]] = []
        plot, stairs, fill_between, vlines = Axes.plot, Axes.stairs, Axes.fill_between, Axes.vlines

        def plotted(axes: Axes, x: Any, y: Any, *style: str, **how: Any) -> Any:
            self.lines[how["label"]] = (list(x), list(y), "".join(style))
            return plot(axes, x, y, *style, **how)

        def stepped(axes: Axes, values: Any, edges: Any, **how: Any) -> Any:
            self.steps[how["label"]] = (list(edges), list(values))
            return stairs(axes, values, edges, **how)

        def filled(axes: Axes, x: Any, low: Any, high: Any, **how: Any) -> Any:
            self.spans.append((list(x), list(low), list(high)))
            return fill_between(axes, x, low, high, **how)

        def barred(axes: Axes, x: Any, low: Any, high: Any, **how: Any) -> Any:
            self.spans.append((list(x), list(low), list(high)))
            return vlines(axes, x, low, high, **how)

        save = Figure.savefig

        def saved(figure: Figure, *path: Any, **how: Any) -> None:
            self.figure = figure
            save(figure, *path, **how)

        monkeypatch.setattr(Figure, "savefig", saved)
        for name, drawing in (("plot", plotted), ("stairs", stepped), ("fill_between", filled), ("vlines", barred)):
            monkeypatch.setattr(Axes, name, drawing)

    def laid_out(self) -> Figure:
        """The last figure, its texts where they are at its own resolution, which is not that of the file."""
        self.figure.draw_without_rendering()
        return self.figure

    def title(self) -> str:
        """What the figure says above its panels, without line breaks."""
        (heading,) = self.figure.texts
        return heading.get_text().replace("\n", " ")

    def notes(self, panel: int = 0) -> list[str]:
        """What is written beside points of a panel."""
        return [each.get_text() for each in self.figure.axes[panel].texts]


def summary_of(*shares: float, model: str = "tiny", chosen: Sequence[tuple[int, float]] = ()) -> dict[str, Any]:
    """Five documents alike: shares of the prediction, strict and masked, an other text's and random tokens' none."""
    left = [2.0 - 2 * share for share in shares]
    none = {"divergences": [2.0] * len(left)}
    selections = [
        selection([2.0 - share for share in shares], chosen, divergences=left, knows="prediction"),
        selection([2.5] * len(left), knows="prediction", **{"from": "other"}, **none),
        selection([2.0 - share for share in shares], chosen, mode="masked", divergences=left, knows="prediction"),
        selection([2.0] * len(left), knows="nothing", measure="random", **none),
    ]
    return summarize(
        [row(2.0, 1.0, other=2.25, document=name, model=model, selections=selections) for name in "abcde"], KS
    )


def test_shares_and_paired_differences_are_drawn_with_bands_and_controls_dashed(tmp_path, monkeypatch):
    drawn = Drawn(monkeypatch)
    path = draw_recovery(summary_of(0.4, 0.6, 0.9), tmp_path)
    assert path == tmp_path / "recovery.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (tmp_path / "recovery.svg").read_text()
    x, y, style = drawn.lines["own text, knows the prediction (greedy)"]
    assert (x, style) == ([1, 2, 4], "-")
    assert y == pytest.approx([0.4, 0.6, 0.9])
    assert drawn.lines["control: random tokens (random)"] == ([1, 2, 4], [0.0, 0.0, 0.0], "--")
    x, y, style = drawn.lines["control: other text, knows the prediction (greedy, paired)"]
    assert (x, style) == ([1, 2, 4], "--")
    assert y == pytest.approx([0.9, 1.1, 1.4])
    # Documents alike have intervals of no width.
    low, high = drawn.spans[0][1:]
    assert low == high == pytest.approx([0.4, 0.6, 0.9])
    labels = [text.get_text() for text in drawn.figure.axes[1].get_legend().get_texts()]
    assert "all far tokens, minus other (n=5)" in labels


def test_a_share_that_is_undefined_has_no_line_but_its_name(tmp_path, monkeypatch):
    drawn = Drawn(monkeypatch)
    draw_recovery(summarize([row(document=name, divergence_short=0.0) for name in "ab"], KS), tmp_path)
    assert drawn.lines == {"own text, knows the target (undefined)": ([], [], "")}


def test_intervals_that_are_missing_leave_a_gap_and_the_title_names_none(tmp_path, monkeypatch):
    drawn = Drawn(monkeypatch)
    draw_recovery(summarize([row()], KS), tmp_path)
    assert all(map(math.isnan, drawn.spans[0][1] + drawn.spans[0][2]))
    assert drawn.title() == "tiny: all 1 target (1 measured) in 1 document no intervals: too few documents"


def test_distances_are_drawn_by_gain_beside_what_even_choices_would_give(tmp_path, monkeypatch):
    drawn = Drawn(monkeypatch)
    summary = summary_of(0.4, 0.6, 0.9, chosen=[(17, 3.0), (30, 1.0), (80, 0.0)])
    assert draw_distances(summary, tmp_path, near=16, far=64) == tmp_path / "distances.png"
    edges, shares = drawn.steps["strict, knows the prediction: 15 tokens chosen for 5 clear targets in 5 documents"]
    assert edges == [15.5, 22.5, 31.5, 45.5, 63.5, 90.5]
    assert shares == [0.75, 0.25, 0.0, 0.0, 0.0]
    masked = "masked, knows the prediction: 15 tokens chosen for 5 clear targets in 5 documents"
    assert drawn.steps[masked] == (edges, shares)
    assert drawn.steps["drawn evenly from the far tokens"][1] == [each / 64 for each in (6, 9, 14, 18, 17)]


@pytest.mark.parametrize("rows", [[row()], [row(clear=False, weight=0.0, selections=[])]], ids=["no gain", "no group"])
def test_a_study_with_nothing_to_draw_has_its_figures_all_the_same(rows, tmp_path):
    summary = summarize(rows, KS)
    assert draw_distances(summary, tmp_path, near=16, far=64).exists()
    assert draw_recovery(summary, tmp_path).exists()


def test_models_are_drawn_by_their_size_with_what_own_far_tokens_gain(tmp_path, monkeypatch):
    drawn = Drawn(monkeypatch)
    summaries = [summary_of(0.6, 0.7, 0.9, model="big"), summary_of(0.1, 0.2, 0.5, model="small")]
    assert draw_scale(summaries, [8_000_000, 1_000_000], tmp_path) == tmp_path / "scale.png"
    sizes, shares, _ = drawn.lines["k = 1"]
    assert sizes == [1_000_000, 8_000_000]
    assert shares == pytest.approx([0.1, 0.6])
    assert drawn.lines["minus another text"][:2] == (sizes, [1.25, 1.25])
    assert "minus elsewhere in the document" not in drawn.lines


def test_one_model_or_other_ks_show_no_scale(tmp_path):
    with pytest.raises(SettingError, match="1 summaries with k 1,2,4 show no scale; give two or more"):
        draw_scale([summary_of(0.4, 0.6, 0.9)], [10], tmp_path)
    other = summarize([row(losses=(1.0,))], [3])
    with pytest.raises(SettingError, match="2 summaries with k 1,2,4; 3 show no scale"):
        draw_scale([summary_of(0.4, 0.6, 0.9), other], [10, 20], tmp_path)
    nothing = summarize([row(selections=[selection((1.0, 1.0, 1.0), knows="nothing", measure="random")])], KS)
    with pytest.raises(SettingError, match="tiny has no selection of its own far tokens; measure one"):
        draw_scale([nothing, nothing], [10, 20], tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    missing = Path(tmp_path / "missing")
    with pytest.raises(RunFolderError, match=rf"cannot draw into {missing} \(.*\); choose a folder to write in"):
        draw_recovery(summary_of(0.4, 0.6, 0.9), missing)


# What is no formula must not be read as one, which matplotlib does between two $.
LONG = "/home/me/runs/" + "a_model_with_a_long_name_" * 5 + r"$\no$$\formula$"


@pytest.mark.parametrize("path", [LONG, "/home/me/runs/small"], ids=["long", "short"])
def test_all_that_is_written_lies_within_its_figure(path, tmp_path, monkeypatch):
    drawn = Drawn(monkeypatch)
    summary = summary_of(0.4, -7.0, -5.0, model=path, chosen=[(17, 3.0), (30, 1.0)])
    alone = {**summary, "groups": summary["groups"][:1]}
    drawings: list[Callable[[], Path]] = [
        lambda: draw_recovery(summary, tmp_path),
        lambda: draw_recovery(alone, tmp_path),
        lambda: draw_distances(summary, tmp_path, near=16, far=64),
        lambda: draw_scale([summary, summary_of(0.1, 0.2, 0.5, model="other")], [10_000, 12_000], tmp_path),
    ]
    for draw in drawings:
        draw()
        figure, page = drawn.laid_out(), drawn.figure.bbox
        inner = [each for axes in figure.axes for each in (*axes.texts, axes.get_legend())]
        for each in (*figure.texts, *inner):
            box = each.get_window_extent()
            assert page.x0 <= box.x0 <= box.x1 <= page.x1, each
            assert page.y0 <= box.y0 <= box.y1 <= page.y1, each


def test_titles_name_the_last_part_of_the_models_path(tmp_path, monkeypatch):
    drawn = Drawn(monkeypatch)
    summary = summary_of(0.4, 0.6, 0.9, model="/home/me/runs/small")
    draw_recovery(summary, tmp_path)
    assert drawn.title() == "small: all 5 targets (5 measured) in 5 documents 95% intervals over documents"
    draw_distances(summary, tmp_path, near=16, far=64)
    assert drawn.title() == "small: distances of the chosen tokens, near 16, far 64"


def test_points_beyond_the_edge_are_told_there_by_their_share(tmp_path, monkeypatch):
    drawn = Drawn(monkeypatch)
    draw_recovery(summary_of(0.5, -2.25, -7.5), tmp_path)
    assert drawn.notes() == ["▼ -2.25", "▼ -7.5"]
    assert drawn.notes(2) == drawn.notes()
    low, high = drawn.figure.axes[0].get_ylim()
    assert (low, high) == pytest.approx((-0.1, 1.1))


def test_one_k_shows_its_interval_as_a_bar(tmp_path, monkeypatch):
    drawn = Drawn(monkeypatch)
    draw_recovery(summarize([row(losses=(2.0,), document=name) for name in "abcde"], [4]), tmp_path)
    assert drawn.spans == [([4], [0.5], [0.5])] * 2
    assert drawn.notes() == []


def test_models_are_named_above_their_points_without_overlap(tmp_path, monkeypatch):
    drawn = Drawn(monkeypatch)
    models = ["hub/large", "mine/small", "runs/base", "runs/small"]
    summaries = [summary_of(0.4, 0.6, 0.9, model=model) for model in models]
    draw_scale(summaries, [9_000_000, 1_010_000, 1_000_000, 1_000_000], tmp_path)
    named = [text for text in drawn.laid_out().axes[0].texts if "(" in text.get_text()]
    # As many parts as tell the two small ones apart; numbers tell the points of one size apart.
    assert [text.get_text() for text in named] == [
        "1: runs/base (1,000,000)",
        "2: runs/small (1,000,000)",
        "mine/small (1,010,000)",
        "hub/large (9,000,000)",
    ]
    assert [text.xy[0] for text in named] == [1_000_000, 1_000_000, 1_010_000, 9_000_000]
    # Without the line that leads to its point.
    boxes = [Text.get_window_extent(text) for text in named]
    assert not any(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])
    assert drawn.notes(1).count("1") == drawn.notes(1).count("2") == len(KS)
    assert "runs/base 5 in 5" in drawn.title()


def test_legends_lie_below_the_data(tmp_path, monkeypatch):
    drawn = Drawn(monkeypatch)
    summaries = [summary_of(0.4, 0.6, 0.9, model=model, chosen=[(17, 3.0)]) for model in ("one", "other")]
    drawings: list[Callable[[], Path]] = [
        lambda: draw_recovery(summaries[0], tmp_path),
        lambda: draw_distances(summaries[0], tmp_path, near=16, far=64),
        lambda: draw_scale(summaries, [10, 20], tmp_path),
    ]
    for draw in drawings:
        draw()
        for axes in drawn.laid_out().axes:
            assert axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0
