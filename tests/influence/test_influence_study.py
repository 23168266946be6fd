"""Influence studies from texts to files: rows, resuming, parts, errors."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from short_context import short_context_losses
from tests.support.causal_models import CONFIGS, MAX_POSITIONS, VOCABULARY_SIZE, causal_model
from tests.support.planted_model import PlantedModel, additive_log_prob

from lengthwise.core.errors import (
    LengthwiseError,
    ModelError,
    RunFolderError,
    SettingError,
    SkippedTextWarning,
    UnknownNameError,
    UntrainedDistanceWarning,
)
from lengthwise.evaluation.language_model import tokenize_documents
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.influence import study as study_module
from lengthwise.influence.measures import (
    LeaveOneOut,
    PrefilteredMeasure,
    ProposedGreedy,
    RandomSelection,
)
from lengthwise.influence.report.study_report import report_study
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.study import (
    InfluenceStudy,
    check_study_parts,
    drop_duplicate_texts,
    join_study_parts,
    measure_influence,
    parse_study_part,
    part_folder,
)
from lengthwise.influence.target_evaluator import SearchProbability, TargetEvaluator
from lengthwise.influence.targets import LONGPPL_RULE, ClearGainSelection, PlaceboSampler, sample_targets, split_texts
from lengthwise.tasks import TokenizedDocument
from lengthwise.tasks.text.documents import Document

WORDS = "abcdefghij"
SMALL = InfluenceSettings(
    sink=0,
    unit="token",
    near=4,
    far=10,
    ks=(1, 3),
    measure=PrefilteredMeasure(share=0.5),
    modes=("strict", "masked"),
    objectives=("target", "prediction"),
    num_targets=20,
    rule=ClearGainSelection(gap=0.05),
    searched=12,
    block=6,
    controls=("random", "other", "elsewhere"),
)


class Letters:
    """One token per letter, and start token 1."""

    name, start = "letters", (1,)

    def encode(self, text: str) -> list[int]:
        """Return the places of the letters in the alphabet, plus 3."""
        return [3 + ord(letter) - ord("a") for letter in text]

    def token_text(self, token: int) -> str:
        """Return the letter."""
        return chr(token - 3 + ord("a"))


def documents(number: int = 4, length: int = 40) -> list[TokenizedDocument]:
    rng = np.random.default_rng(0)
    texts = [Document(name=f"text {i}", text="".join(rng.choice(list(WORDS), length))) for i in range(number)]
    return list(tokenize_documents(Letters(), texts, VOCABULARY_SIZE))


@pytest.fixture(scope="module")
def model() -> CausalLM:
    return CausalLM(causal_model(CONFIGS["llama"]()), "tiny llama")


def study_of(model: CausalLM, settings: InfluenceSettings = SMALL, **options) -> InfluenceStudy:
    return InfluenceStudy(model=model, codec=Letters(), texts=options.pop("texts", documents()), settings=settings)


def rows_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "influence.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    assert measure_influence(study_of(model), folder / "whole")
    return folder / "whole"


@torch.no_grad()
def loss_of(model: CausalLM, tokens: list[int], ids: list[int], target: int) -> float:
    batch = torch.tensor([tokens])
    output = model.model(input_ids=batch, position_ids=torch.tensor([ids]), attention_mask=torch.ones_like(batch))
    return float(-output.logits[0, -1].log_softmax(dim=-1)[target])


def test_strict_losses_equal_runs_on_the_visible_tokens(model, whole):
    texts = {text.name: text.tokens for text in documents()}
    measured = 0
    for row in rows_of(whole):
        seq = row["near"] + 11
        tokens = [1, *texts[row["document"]][row["place"] - seq + 1 : row["place"]].tolist()]
        assert row["target"] == texts[row["document"]][row["place"]]
        assert row["text"] == Letters().token_text(row["target"])
        near = list(range(11, seq))
        assert row["loss_long"] == pytest.approx(loss_of(model, tokens, list(range(seq)), row["target"]), abs=1e-4)
        short = [1, *(tokens[i] for i in near)]
        assert row["loss_short"] == pytest.approx(loss_of(model, short, [0, *near], row["target"]), abs=1e-4)
        for selection in row["selections"]:
            if (selection["mode"], selection["from"]) != ("strict", "own") or not selection["chosen"]:
                continue
            for k, loss in zip((1, 3), selection["losses"], strict=True):
                places = sorted(seq - token["distance"] for token in selection["chosen"][:k])
                assert [tokens[seq - token["distance"]] for token in selection["chosen"]] == [
                    Letters().encode(token["text"])[0] for token in selection["chosen"]
                ]
                ids = [0, *places, *near]
                expected = loss_of(model, [tokens[i] for i in ids], ids, row["target"])
                assert loss == pytest.approx(expected, abs=1e-4)
                measured += 1
    assert measured > 20


def test_sink_tokens_precede_the_far_tokens_and_are_always_visible(model, tmp_path):
    settings = replace(SMALL, sink=3, num_targets=6, controls=("other",))
    assert measure_influence(study_of(model, settings), tmp_path / "sink")
    texts = {text.name: text.tokens for text in documents()}
    num_tokens = 0
    for row in rows_of(tmp_path / "sink"):
        seq = row["near"] + 14
        tokens = [1, *texts[row["document"]][row["place"] - seq + 1 : row["place"]].tolist()]
        sink, near = list(range(4)), list(range(14, seq))
        assert row["loss_long"] == pytest.approx(loss_of(model, tokens, list(range(seq)), row["target"]), abs=1e-4)
        ids = sink + near
        expected = loss_of(model, [tokens[i] for i in ids], ids, row["target"])
        assert row["loss_short"] == pytest.approx(expected, abs=1e-4)
        for selection in row["selections"]:
            assert all(1 <= token["distance"] - row["near"] <= 10 for token in selection["chosen"])
            num_tokens += len(selection["chosen"])
    assert num_tokens > 0
    with pytest.raises(SettingError, match=r"^sink -1 is too small; use at least 0$"):
        replace(SMALL, sink=-1)


def test_the_report_of_a_study_without_rows_raises_an_error(model, tmp_path):
    with pytest.raises(RunFolderError):
        report_study(study_of(model), tmp_path)


def test_a_study_stops_before_the_first_pass_of_its_checks(model, tmp_path, monkeypatch):
    monkeypatch.setattr(model, "log_probs_without_cache", lambda *inputs: pytest.fail("a pass after the interruption"))
    assert not measure_influence(study_of(model), tmp_path / "stopped", stop=lambda: True)
    assert not (tmp_path / "stopped").exists()


@pytest.mark.slow
@pytest.mark.parametrize("passes", [5, 0, 1, 30, 60])
def test_study_stops_before_the_next_pass_and_resumes_exactly(model, whole, passes, tmp_path):
    calls = []

    def stop() -> bool:
        calls.append(None)
        return len(calls) > passes

    assert not measure_influence(study_of(model), tmp_path / "stopped", stop=stop)
    assert len(calls) == passes + 1
    assert not list((tmp_path / "stopped").glob("influence.jsonl")) or rows_of(tmp_path / "stopped")
    assert measure_influence(study_of(model), tmp_path / "stopped", resume=True)
    assert (tmp_path / "stopped" / "influence.jsonl").read_bytes() == (whole / "influence.jsonl").read_bytes()


def evaluator_of(model, settings: InfluenceSettings) -> TargetEvaluator:
    """Return the evaluator of a study."""
    study = study_of(model, settings)
    texts, text, start = study.texts, study.codec.token_text, study.codec.start
    return TargetEvaluator(model=model, texts=texts, settings=settings, token_text=text, start=start)


@pytest.mark.slow
def test_the_losses_of_a_block_equal_those_of_its_single_targets(model, monkeypatch):
    evaluator = evaluator_of(model, replace(SMALL, searched=None))
    targets = sample_targets(evaluator.texts, context=SMALL.context, num_targets=12, seed=0, block=6)
    assert [target.index_in_block for target in targets] == [*range(6), *range(6)]
    passes, last = [], model.last_log_probs
    monkeypatch.setattr(model, "last_log_probs", lambda *inputs: passes.append(inputs) or last(*inputs))
    in_blocks = evaluator.rows(targets, 0)
    # Two checks, and four passes per block: near tokens alone, and three sources of far tokens.
    assert len(passes) == 2 + 2 * 4
    single = replace(evaluator)
    vars(single)["_has_stable_ids"] = False
    for row, expected in zip(in_blocks, single.rows(targets, 0), strict=True):
        assert row["near"] == expected["near"]
        for name in ("loss_short", "loss_long", "divergence_short"):
            assert row[name] == pytest.approx(expected[name], abs=1e-4)
        losses = [[each["losses"] for each in found["selections"]] for found in (row, expected)]
        assert np.array(losses[0]) == pytest.approx(np.array(losses[1]), abs=1e-4)


@pytest.mark.slow
def test_the_targets_of_a_block_share_the_states_of_their_far_tokens(model, monkeypatch):
    settings = replace(SMALL, measure=ProposedGreedy(), modes=("strict",), objectives=("target",), searched=None)
    evaluator = evaluator_of(model, settings)
    targets = sample_targets(evaluator.texts, context=SMALL.context, num_targets=4, seed=0, block=4)
    expected = [evaluator.rows([target], index)[0] for index, target in enumerate(targets)]
    passes, prefill = [], model.prefill
    monkeypatch.setattr(model, "prefill", lambda *inputs: passes.append(inputs) or prefill(*inputs))
    rows = evaluator.rows(targets, 0)
    sources = {selection["from"] for selection in rows[0]["selections"] if selection["measure"] == "proposed"}
    assert len([inputs for inputs in passes if inputs[3] is not None]) == len(sources)
    for row, single in zip(rows, expected, strict=True):
        for found, alone in zip(row["selections"], single["selections"], strict=True):
            if found["from"] == "own":
                assert found["divergences"] == pytest.approx(alone["divergences"], abs=1e-5)


def test_a_model_whose_ids_depend_on_the_length_measures_single_targets(model, monkeypatch):
    evaluator, assign = evaluator_of(model, SMALL), model.assign_position_ids
    monkeypatch.setattr(model, "assign_position_ids", lambda tokens: assign(tokens) + len(tokens) % 2)
    assert not evaluator._has_stable_ids


def test_weighted_sums_over_searched_targets_are_unbiased(rng):
    divergences = rng.exponential(size=200) ** 3
    # An error of the pilot changes only the number of searched targets.
    probability = SearchProbability(searched=40, num_targets=200, mean_divergence=0.7 * divergences.mean())
    probabilities = np.array([probability(float(divergence)) for divergence in divergences])
    assert 0.2 * 40 / 200 <= probabilities.min() < probabilities.max() == 1
    values = divergences * rng.random(200) + 0.1
    is_searched = rng.random((20_000, 200)) < probabilities
    totals = (is_searched * values / probabilities).sum(axis=1)
    assert totals.mean() == pytest.approx(values.sum(), abs=4 * totals.std() / np.sqrt(len(totals)))


def test_a_study_with_as_many_searches_as_targets_searches_all_with_equal_weights(model, tmp_path):
    settings = replace(SMALL, measure=RandomSelection(), modes=("strict",), searched=30, num_targets=20)
    measure_influence(study_of(model, settings), tmp_path / "out")
    assert {row["weight"] for row in rows_of(tmp_path / "out")} == {1.0}


@pytest.mark.slow
def test_a_time_limit_reduces_the_number_of_searched_targets(model, tmp_path, monkeypatch):
    pilot = study_module._Pilot(num_targets=40, mean_divergence=0.1, dense_seconds=1.0, search_seconds=10.0)
    monkeypatch.setattr(study_module._Pilot, "measure", lambda evaluator, targets: pilot)
    quick = replace(SMALL, measure=RandomSelection(), modes=("strict",), objectives=("target",), num_targets=40)
    study, seconds = study_of(model, replace(quick, searched=None)), list[float]()
    assert measure_influence(study, tmp_path / "out", minutes=3.0, estimate=seconds.append)
    # 40 seconds for the losses, and 14 searches of 10 seconds.
    assert seconds == [180.0]
    weights = [row["weight"] for row in rows_of(tmp_path / "out")]
    assert 0 < sum(weight > 0 for weight in weights) < 40
    with pytest.raises(SettingError, match=r"1 minutes are too few.*use 2 minutes"):
        measure_influence(study, tmp_path / "few", minutes=1.0)
    with pytest.raises(SettingError, match=r"0.5 minutes are too few for 22 targets; use 2 minutes"):
        measure_influence(replace(study, part=(1, 2)), tmp_path / "few", minutes=0.5)
    # Nothing is left that the corrected command would have to resume.
    assert measure_influence(study, tmp_path / "few", minutes=3.0)
    limited = study_of(model, replace(quick, searched=9))
    assert measure_influence(limited, tmp_path / "limited", minutes=30.0, estimate=seconds.append)
    assert seconds[-1] == 40 + 9 * 10


def test_the_weight_of_a_target_is_one_by_its_probability(model):
    evaluator = evaluator_of(model, SMALL)
    weights = np.array([evaluator._weight(index, 0.25) for index in range(4000)])
    assert set(weights) == {0.0, 4.0}
    assert (weights > 0).mean() == pytest.approx(0.25, abs=0.03)
    assert evaluator._weight(0, 1.0) == 1.0


def test_rows_have_all_selections_and_controls_of_the_settings(whole):
    for row in rows_of(whole):
        groups = {(each["mode"], each["knows"], each["from"], each["measure"]) for each in row["selections"]}
        expected = {
            (mode, knows, source, "screened")
            for mode in ("strict", "masked")
            for knows in ("target", "prediction")
            for source in ("own", *row["controls"])
        } | {(mode, "nothing", "own", "random") for mode in ("strict", "masked")}
        assert groups == (expected if row["weight"] else set())
        assert row["clear"] == (row["loss_short"] - row["loss_long"] > 0.05)
        assert row["weight"] == 0 or row["weight"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("stops", [(0, 2), (1,), (1, 1, 1)])
def test_interrupted_study_writes_the_same_file(model, whole, stops, tmp_path):
    study, folder = study_of(model), tmp_path / "stopped"
    for attempt, blocks in enumerate(stops):
        done = []
        finished = measure_influence(
            study,
            folder,
            resume=attempt > 0,
            report=lambda measured, total, done=done: done.append(measured),
            stop=lambda done=done, blocks=blocks: len(done) >= blocks,
        )
        assert not finished
    assert measure_influence(study, folder, resume=True)
    assert (folder / "influence.jsonl").read_bytes() == (whole / "influence.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("size", [300, 1, 5000, 9999])
def test_incomplete_block_of_a_killed_study_is_written_again(model, whole, size, tmp_path):
    study, folder = study_of(model), tmp_path / "killed"
    study.write_or_check_description(folder, resume=False)
    (folder / "influence.jsonl").write_bytes((whole / "influence.jsonl").read_bytes()[:size])
    assert measure_influence(study, folder, resume=True)
    assert (folder / "influence.jsonl").read_bytes() == (whole / "influence.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3, 7])
def test_parts_join_to_the_file_of_one_process(model, whole, number, tmp_path):
    study = study_of(model)
    for place in range(1, number + 1):
        part = replace(study, part=(place, number))
        # There are four blocks, so further parts are empty.
        assert join_study_parts(part, tmp_path) == list(range(place, min(4, number) + 1))
        folder, stops = part_folder(tmp_path, part.part), iter([False, False, True])
        if not measure_influence(part, folder, stop=lambda stops=stops: next(stops, True)):
            assert measure_influence(part, folder, resume=True)
    assert join_study_parts(part, tmp_path) == []
    assert (tmp_path / "influence.jsonl").read_bytes() == (whole / "influence.jsonl").read_bytes()
    assert join_study_parts(part, tmp_path) == []
    summary = report_study(study, tmp_path)
    assert summary["measured"] > 0
    other = replace(study_of(model, replace(SMALL, seed=1)), part=(1, number))
    with pytest.raises(RunFolderError, match=r"contains another study \(different values: settings.seed"):
        join_study_parts(other, tmp_path)
    # The folder of the part itself is not compared; any other part is.
    for place in range(2, number + 1):
        shutil.rmtree(part_folder(tmp_path, (place, number)))
    (tmp_path / "influence.json").unlink()
    check_study_parts(other, tmp_path)
    with pytest.raises(RunFolderError, match=r"part-1-of-\d contains another study \(different values: settings.seed"):
        check_study_parts(replace(other, part=(2, number)), tmp_path)


@pytest.mark.parametrize("part", ["0/2", "3/2", "0/0"])
def test_part_out_of_range_raises(model, part):
    with pytest.raises(SettingError, match=rf"^invalid part {part}; use 1/(\d) to \1/\1$"):
        replace(study_of(model), part=parse_study_part(part))


@pytest.mark.parametrize("text", ["1", "a/2", "1/", "/2", "-1/2", "²/3"])
def test_part_that_is_not_two_numbers_raises(text):
    with pytest.raises(SettingError, match=r"^invalid --part .*; write, .*, 2/4 for the second of four parts$"):
        parse_study_part(text)


def test_resuming_a_complete_study_changes_nothing(model, whole):
    before = (whole / "influence.jsonl").read_bytes()
    assert measure_influence(study_of(model), whole, resume=True)
    assert (whole / "influence.jsonl").read_bytes() == before


def test_report_writes_summary_figures_and_page(model, whole):
    summary = report_study(study_of(model), whole)
    assert json.loads((whole / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert summary["targets"] == 20
    assert summary["parameters"] == model.num_parameters
    assert {"summary.json", "recovery.png", "distances.png", "influence.html"} <= {p.name for p in whole.iterdir()}
    assert "text 0" in (whole / "influence.html").read_text()


def test_targets_have_a_full_context_and_are_distinct():
    texts = [TokenizedDocument(name=str(n), tokens=np.arange(n)) for n in (3, 14, 15, 30)]
    every = sample_targets(texts, context=14, num_targets=None, seed=0)
    assert [(target.text.name, target.place) for target in every] == [("15", 14), *(("30", i) for i in range(14, 30))]
    some = sample_targets(texts, context=14, num_targets=5, seed=0)
    places = [(target.text.name, target.place) for target in some]
    assert len(set(places)) == 5
    assert set(places) <= {(target.text.name, target.place) for target in every}
    window = every[-1].window(near=4, far=10, start=(1,))
    assert (window.far.tolist(), window.near.tolist(), window.target) == (list(range(15, 25)), [25, 26, 27, 28], 29)
    assert window.tokens.tolist() == [1, *range(15, 29)]


def test_far_tokens_of_other_texts_are_sampled_uniformly(rng):
    # Tokens from 100 on are in the pieces of the first text, tokens from 200 on in the second text.
    first = list(split_texts([TokenizedDocument(name="a", tokens=np.arange(100, 130))], 20))
    texts = [
        *first,
        TokenizedDocument(name="b", tokens=np.arange(200, 216)),
        TokenizedDocument(name="c", tokens=np.arange(9)),
    ]
    placebo = PlaceboSampler(texts, near=4, far=10)
    (target, *_) = sample_targets(texts[2:3], context=14, num_targets=None, seed=0)
    samples = [placebo.sample("other", target, rng) for _ in range(600)]
    assert all((np.diff(far) == 1).all() and len(far) == 10 for far in samples)
    firsts, counts = np.unique([int(far[0]) for far in samples], return_counts=True)
    # Eleven start indexes in the first piece, one in the second; the third text is too short.
    assert firsts.tolist() == [*range(100, 111), 120]
    assert counts.min() > 25
    (target, *_) = sample_targets(texts, context=14, num_targets=None, seed=0)
    assert {int(placebo.sample("other", target, rng)[0]) for _ in range(200)} == set(range(200, 207))


def test_far_tokens_from_elsewhere_never_overlap_the_context(rng):
    texts = [
        TokenizedDocument(name="b", tokens=np.arange(200, 220)),
        *split_texts([TokenizedDocument(name="a", tokens=np.arange(100))], 60),
    ]
    placebo = PlaceboSampler(texts, near=4, far=10)
    target = next(
        each
        for each in sample_targets(texts, context=14, num_targets=None, seed=0)
        if (each.text.name, each.place) == ("a", 35)
    )
    # The context begins at 21, the target is 35; the second piece begins at 60.
    firsts = {int(placebo.sample("elsewhere", target, rng)[0]) for _ in range(2000)}
    assert firsts == {*range(12), *range(36, 51), *range(60, 91)}
    short = sample_targets(texts[:1], context=14, num_targets=None, seed=0)
    assert all(placebo.sample("elsewhere", each, rng) is None for each in short)


def test_pieces_concatenate_to_the_text():
    text = TokenizedDocument(name="a", tokens=np.arange(25))
    pieces = list(split_texts([text], 10))
    assert [(piece.name, piece.start_index) for piece in pieces] == [("a", 0), ("a", 10), ("a", 20)]
    assert np.concatenate([piece.tokens for piece in pieces]).tolist() == list(range(25))


def test_longppl_rule_requires_a_gap_and_a_small_loss():
    assert LONGPPL_RULE.is_clear(4.1, 1.9)
    assert not LONGPPL_RULE.is_clear(3.8, 1.9)
    assert not LONGPPL_RULE.is_clear(5.0, 2.1)


@pytest.mark.parametrize(("near", "stride"), [(4, 1), (4, 3), (7, 5), (4, 36), (39, 10)])
def test_short_context_losses_equal_runs_of_single_windows(model, near, stride):
    tokens = documents()[0].tokens
    losses = short_context_losses(model, tokens, near=near, stride=stride)
    assert len(losses) == len(tokens) - near
    for place, loss in enumerate(losses, start=near):
        first = place - near - (place - near) % stride
        context = tokens[first:place].tolist()
        assert near <= len(context) < near + stride
        expected = loss_of(model, context, list(range(len(context))), int(tokens[place]))
        assert loss == pytest.approx(expected, abs=1e-4)


class OutOfVocabulary(Letters):
    """Tokenizer whose tokens exceed the vocabulary."""

    def encode(self, text: str) -> list[int]:
        """Return tokens outside the vocabulary."""
        return [VOCABULARY_SIZE + 3 for _ in text]


INVALID = {
    "k larger than far": (lambda: replace(SMALL, ks=(1, 11)), "k 11 exceeds the 10 far tokens; use a smaller k"),
    "no k": (lambda: replace(SMALL, ks=()), "^invalid k ; use increasing numbers"),
    "decreasing k": (lambda: replace(SMALL, ks=(3, 1)), "invalid k 3,1; use increasing numbers of far tokens"),
    "no near tokens": (lambda: replace(SMALL, near=0), "near 0 is too small; use at least 1"),
    "fraction above one": (
        lambda: replace(SMALL, searched=0),
        "searched 0 is too small; use at least 1",
    ),
    "unknown mode": (lambda: replace(SMALL, modes=("stric",)), "unknown mode 'stric'; did you mean 'strict'"),
    "unknown objective": (lambda: replace(SMALL, objectives=("all",)), "unknown objective 'all'"),
    "no mode": (lambda: replace(SMALL, modes=()), "missing mode; use one or more of strict, masked"),
    "negative gap": (lambda: ClearGainSelection(gap=-1.0), "invalid gap of -1.0 nats; use 0 or more"),
    "gap is NaN": (lambda: ClearGainSelection(gap=float("nan")), "invalid gap of nan nats"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_settings_raise_a_one_line_error(case):
    build, message = INVALID[case]
    with pytest.raises((SettingError, UnknownNameError), match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


def error_of(study: InfluenceStudy, folder: Path) -> str:
    with pytest.raises(LengthwiseError) as caught:
        measure_influence(study, folder)
    assert not folder.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_texts_that_are_too_short_raise(model, tmp_path):
    message = error_of(study_of(model, texts=documents(length=14)), tmp_path / "out")
    assert "the longest text has 14 tokens, but a target needs 14 tokens before it; use longer texts" in message


def test_context_longer_than_the_positions_of_the_model_raises(model):
    with pytest.raises(
        SettingError, match=rf"need 105 positions, but tiny llama has {MAX_POSITIONS}; use at most 91 far tokens"
    ):
        study_of(model, replace(SMALL, far=100))


def test_single_text_raises_for_lack_of_another_text(model, tmp_path):
    message = error_of(study_of(model, texts=documents(number=1)), tmp_path / "out")
    assert "no text except text 0 has at least 10 tokens, but a study needs far tokens of another text" in message
    # Another piece of the text does not count.
    pieces = study_of(model, replace(SMALL, max_document_tokens=20), texts=documents(number=1))
    assert "no text except text 0 has at least 10 tokens" in error_of(pieces, tmp_path / "pieces")


def test_token_indexes_of_pieces_count_from_the_start_of_the_text(model, tmp_path):
    quick = replace(SMALL, measure=RandomSelection(), modes=("strict",), objectives=("target",), controls=())
    study = study_of(model, replace(quick, max_document_tokens=20, num_targets=None), texts=documents())
    measure_influence(study, tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    texts = {text.name: text.tokens for text in study.texts}
    assert {row["document"] for row in rows} == set(texts)
    assert all(row["target"] == texts[row["document"]][row["place"]] for row in rows)
    # Each piece of 20 tokens has six with a full context.
    assert sorted({row["place"] for row in rows}) == [*range(14, 20), *range(34, 40)]
    report_study(study, tmp_path / "out")


def test_duplicate_text_names_raise(model):
    with pytest.raises(SettingError, match=r"^duplicate text name text 1; use a different name for each text$"):
        study_of(model, texts=[*documents(), documents()[1]])


def test_copies_of_texts_raise_and_can_be_removed(model):
    first, second, *_ = documents()
    copy = replace(first, name="copied")
    with pytest.raises(
        SettingError, match=r"text copied is a copy of text 0, and copies make intervals .* too narrow; remove"
    ):
        study_of(model, texts=[first, second, copy])
    with pytest.warns(
        SkippedTextWarning,
        match=r"^removed 1 text\(s\) that are copies of other texts; for example, copied is a copy of text 0$",
    ):
        assert drop_duplicate_texts([first, second, copy]) == [first, second]


def test_contexts_beyond_the_training_distances_warn():
    planted = PlantedModel(additive_log_prob({2: 1.5}), 10)
    planted.trained_distance = 14
    codec = type("Plain", (Letters,), {"start": ()})()
    InfluenceStudy(model=planted, codec=codec, texts=documents(), settings=replace(SMALL, far=11))
    with pytest.warns(
        UntrainedDistanceWarning, match=r"length 16 .* distances up to 15, but the training of planted .* 14;"
    ):
        InfluenceStudy(model=planted, codec=codec, texts=documents(), settings=replace(SMALL, far=12))


def test_tokenizer_with_a_larger_vocabulary_raises():
    with pytest.raises(ModelError, match=r"tokenizer letters produces token ID 100, but the model has 97 tokens; use"):
        list(tokenize_documents(OutOfVocabulary(), [Document(name="a", text="abc")], VOCABULARY_SIZE))


@pytest.mark.slow
def test_gap_above_all_gains_keeps_the_results_over_all_targets(model, tmp_path):
    study = study_of(model, replace(SMALL, rule=ClearGainSelection(gap=50.0)))
    measure_influence(study, tmp_path / "out")
    summary = report_study(study, tmp_path / "out")
    own, other, _ = summary["far"]
    assert (own["gains"]["value"], own["loses"]["value"], other["gains"]["value"]) == (0.0, 0.0, 0.0)
    assert other["own_minus"]["value"] is not None
    assert summary["groups"][0]["all_targets"]["prediction"]["shares"][0]["value"] is not None


def test_study_of_an_older_version_is_not_resumed(model, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "old")
    facts = json.loads((whole / "influence.json").read_text())
    del facts["study"]["version"]
    (tmp_path / "old" / "influence.json").write_text(json.dumps(facts))
    with pytest.raises(RunFolderError, match=r"version"):
        measure_influence(study_of(model), tmp_path / "old", resume=True)


def test_folder_with_a_study_is_not_overwritten(model, whole, tmp_path):
    with pytest.raises(RunFolderError, match=r"already contains a study; add --resume to continue"):
        measure_influence(study_of(model), whole)
    with pytest.raises(RunFolderError, match=r"contains another study \(different values: settings.seed"):
        measure_influence(study_of(model, replace(SMALL, seed=1)), whole, resume=True)
    try:
        model.dtype = "bfloat16"
        with pytest.raises(RunFolderError, match=r"contains another study \(different values: model.dtype"):
            measure_influence(study_of(model), whole, resume=True)
    finally:
        model.dtype = "float32"
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"is a file, but a study needs a folder"):
        measure_influence(study_of(model), tmp_path / "file")


def test_damaged_row_is_reported_by_its_line(model, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "out")
    rows = (tmp_path / "out" / "influence.jsonl").read_text().splitlines()
    rows[4] = rows[4][:50]
    (tmp_path / "out" / "influence.jsonl").write_text("\n".join(rows) + "\n")
    with pytest.raises(RunFolderError, match=r"line 5 of .*influence.jsonl is not valid JSON; choose another --out"):
        report_study(study_of(model), tmp_path / "out")


def flipped(content: bytes) -> bytes:
    place = content.index(b"loss_long") + 13
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    "change",
    [
        flipped,
        lambda content: content[:-30],
        lambda content: b"".join(content.splitlines(keepends=True)[4:]),
        lambda content: content * 2,
        lambda content: b"".join(content.splitlines(keepends=True)[::-1]),
        lambda content: b"",
    ],
    ids=["a number", "cut", "a block lost", "doubled", "reversed", "emptied"],
)
def test_changed_rows_raise_on_resume(change, model, whole, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    (out / "influence.jsonl").write_bytes(change((out / "influence.jsonl").read_bytes()))
    before = (out / "influence.jsonl").read_bytes()
    with pytest.raises(RunFolderError, match=r"was changed after it was written \(block \d does not match influence"):
        measure_influence(study_of(model), out, resume=True)
    assert (out / "influence.jsonl").read_bytes() == before


def test_study_resumes_with_the_same_weights_only(model, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "out")
    digest = model.weights_digest
    try:
        model.weights_digest = "another"
        with pytest.raises(RunFolderError, match=r"contains another study \(different values: model.weights"):
            measure_influence(study_of(model), tmp_path / "out", resume=True)
    finally:
        model.weights_digest = digest


def test_study_recovers_a_planted_dependence(tmp_path):
    far, near = 10, 4
    # The model identifies far tokens by their IDs, which count from 0 without a start token.
    planted = PlantedModel(additive_log_prob({2: 1.5, 6: 0.8}), far)
    codec = type("Plain", (Letters,), {"start": ()})()
    texts = [TokenizedDocument(name=str(n), tokens=np.full(30 + n, 7)) for n in range(3)]
    settings = replace(
        SMALL,
        near=near,
        far=far,
        measure=LeaveOneOut(),
        modes=("strict",),
        controls=(),
        searched=None,
        ks=(1, 2),
        objectives=("target",),
    )
    study = InfluenceStudy(model=planted, codec=codec, texts=texts, settings=settings)
    measure_influence(study, tmp_path / "out")
    summary = report_study(study, tmp_path / "out")
    for row in rows_of(tmp_path / "out"):
        assert [token["distance"] for token in row["selections"][0]["chosen"]] == [12, 8]
    shares = [share["value"] for share in summary["groups"][0]["all_targets"]["loss"]]
    assert shares == pytest.approx([1.5 / 2.3, 1.0], abs=1e-4)


def test_random_measure_needs_no_other_measure(model, tmp_path):
    settings = replace(SMALL, measure=RandomSelection(), modes=("strict",), objectives=("target",), controls=())
    measure_influence(study_of(model, settings), tmp_path / "out")
    for row in rows_of(tmp_path / "out"):
        assert all(len(each["chosen"]) == 3 for each in row["selections"])
