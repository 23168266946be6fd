"""A study of influence from texts to files: rows, resuming, refusals."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.causal_models import CONFIGS, POSITIONS, VOCABULARY, causal_model
from tests.support.planted_model import PlantedModel, additive

from lengthwise.core.errors import (
    LengthwiseError,
    ModelError,
    RunFolderError,
    SettingError,
    SkippedTextWarning,
    UnknownNameError,
    UntrainedDistanceWarning,
)
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.influence.duration_estimate import BACKWARD, Counting, estimated_seconds
from lengthwise.influence.measures import AttentionWeight, Gradient, Greedy, LeaveOneOut, RandomChoice, Screened
from lengthwise.influence.placebo import Placebo
from lengthwise.influence.report.study_report import report_study
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.short_context import short_context_losses
from lengthwise.influence.study import InfluenceStudy, measure_influence, without_copies
from lengthwise.influence.study_parts import check_parts, join_parts, part_folder, part_of
from lengthwise.influence.target_evaluator import TargetRows
from lengthwise.influence.targets import LONGPPL, Rule, choose_targets, cut
from lengthwise.influence.text_codec import tokenized
from lengthwise.tasks import TokenizedDocument
from lengthwise.tasks.text.documents import Document

WORDS = "abcdefghij"
SMALL = InfluenceSettings(
    near=4,
    far=10,
    ks=(1, 3),
    measure=Screened(share=0.5),
    modes=("strict", "masked"),
    objectives=("target", "prediction"),
    num_targets=20,
    rule=Rule(gap=0.05),
    background_fraction=0.5,
    block=6,
    controls=("random", "other", "elsewhere"),
)


class Letters:
    """A token per letter; every text begins with token 1."""

    name, start = "letters", (1,)

    def encode(self, text: str) -> list[int]:
        """By its place in the alphabet."""
        return [3 + ord(letter) - ord("a") for letter in text]

    def token_text(self, token: int) -> str:
        """The letter."""
        return chr(token - 3 + ord("a"))


def documents(number: int = 4, length: int = 40) -> list[TokenizedDocument]:
    rng = np.random.default_rng(0)
    texts = [Document(name=f"text {i}", text="".join(rng.choice(list(WORDS), length))) for i in range(number)]
    return list(tokenized(Letters(), texts, VOCABULARY))


@pytest.fixture(scope="module")
def model() -> CausalLM:
    return CausalLM(causal_model(CONFIGS["llama"]()), "tiny llama")


def study_of(model: CausalLM, settings: InfluenceSettings = SMALL, **changed) -> InfluenceStudy:
    return InfluenceStudy(model=model, codec=Letters(), texts=changed.pop("texts", documents()), settings=settings)


def rows_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "influence.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    assert measure_influence(study_of(model), folder / "whole")
    return folder / "whole"


@torch.no_grad()
def loss_of(model: CausalLM, tokens: list[int], ids: list[int], target: int) -> float:
    given = torch.tensor([tokens])
    made = model.model(input_ids=given, position_ids=torch.tensor([ids]), attention_mask=torch.ones_like(given))
    return float(-made.logits[0, -1].log_softmax(dim=-1)[target])


def test_every_strict_loss_of_a_row_is_that_of_one_run_on_its_tokens(model, whole):
    texts = {text.name: text.tokens for text in documents()}
    measured = 0
    for row in rows_of(whole):
        tokens = [1, *texts[row["document"]][row["place"] - 14 : row["place"]].tolist()]
        assert row["target"] == texts[row["document"]][row["place"]]
        assert row["text"] == Letters().token_text(row["target"])
        near = list(range(11, 15))
        assert row["loss_long"] == pytest.approx(loss_of(model, tokens, list(range(15)), row["target"]), abs=1e-4)
        short = [1, *(tokens[i] for i in near)]
        assert row["loss_short"] == pytest.approx(loss_of(model, short, [0, *near], row["target"]), abs=1e-4)
        for selection in row["selections"]:
            if (selection["mode"], selection["from"]) != ("strict", "own") or not selection["chosen"]:
                continue
            for k, loss in zip((1, 3), selection["losses"], strict=True):
                places = sorted(15 - token["distance"] for token in selection["chosen"][:k])
                assert [tokens[15 - token["distance"]] for token in selection["chosen"]] == [
                    Letters().encode(token["text"])[0] for token in selection["chosen"]
                ]
                ids = [0, *places, *near]
                expected = loss_of(model, [tokens[i] for i in ids], ids, row["target"])
                assert loss == pytest.approx(expected, abs=1e-4)
                measured += 1
    assert measured > 20


def test_first_tokens_that_are_never_hidden_stand_before_the_far_ones(model, tmp_path):
    settings = replace(SMALL, sink=3, num_targets=6, controls=("other",))
    assert measure_influence(study_of(model, settings), tmp_path / "sink")
    texts = {text.name: text.tokens for text in documents()}
    chosen = 0
    for row in rows_of(tmp_path / "sink"):
        tokens = [1, *texts[row["document"]][row["place"] - 17 : row["place"]].tolist()]
        kept, near = list(range(4)), list(range(14, 18))
        assert row["loss_long"] == pytest.approx(loss_of(model, tokens, list(range(18)), row["target"]), abs=1e-4)
        ids = kept + near
        expected = loss_of(model, [tokens[i] for i in ids], ids, row["target"])
        assert row["loss_short"] == pytest.approx(expected, abs=1e-4)
        for selection in row["selections"]:
            assert all(5 <= token["distance"] <= 14 for token in selection["chosen"])
            chosen += len(selection["chosen"])
    assert chosen > 0
    with pytest.raises(SettingError, match=r"^sink -1 is no number of tokens; use 0 or more$"):
        replace(SMALL, sink=-1)


@pytest.mark.parametrize("passes", [0, 1, 5, 30])
def test_a_study_stops_before_the_next_pass_and_goes_on_as_if_it_had_not(model, whole, passes, tmp_path):
    asked = []

    def stop() -> bool:
        asked.append(None)
        return len(asked) > passes

    # The check before the study asks the model itself.
    assert not measure_influence(study_of(model), tmp_path / "stopped", stop=stop)
    assert len(asked) == passes + 1
    assert not list((tmp_path / "stopped").glob("influence.jsonl")) or rows_of(tmp_path / "stopped")
    assert measure_influence(study_of(model), tmp_path / "stopped", resume=True)
    assert (tmp_path / "stopped" / "influence.jsonl").read_bytes() == (whole / "influence.jsonl").read_bytes()


@pytest.mark.parametrize("measure", [Greedy(), LeaveOneOut(), Screened(share=0.5), Gradient(), AttentionWeight()])
@pytest.mark.parametrize("mode", ["strict", "masked"])
def test_the_estimate_counts_the_tokens_that_the_model_reads(model, measure, mode, monkeypatch):
    # Every target is measured at every k, so the count of the first is that of all.
    settings = replace(
        SMALL, measure=measure, modes=(mode,), controls=("random", "other"), background_fraction=1.0, num_targets=4
    )
    study, read = study_of(model, settings), []
    for name, place in (("log_probs", 0), ("log_probs_with_prefix", 1), ("prefill", 0)):
        ask = getattr(model, name)
        monkeypatch.setattr(
            model, name, lambda *given, ask=ask, place=place: read.append(given[place].numel()) or ask(*given)
        )
    after = model.log_probs_with_mask
    monkeypatch.setattr(
        model, "log_probs_with_mask", lambda *given: read.append(len(given[1]) * len(given[3])) or after(*given)
    )
    measured = TargetRows(
        model=model, texts=study.texts, settings=settings, token_text=study.codec.token_text, start=study.codec.start
    )
    targets = choose_targets(study.texts, context=settings.context, number=4, seed=0)
    counting = Counting(model)
    counted = sum(replace(measured, model=counting).count(targets[0], lambda: counting.tokens))
    read.clear()
    measured.count(targets[0], lambda: 0)
    gradients = BACKWARD * 4 if isinstance(measure, Gradient | Screened) else 0
    gradients += 4 if isinstance(measure, AttentionWeight) else 0
    # Of the own text and of the other one.
    selections = 2 * len(settings.objectives)
    assert counted == sum(read) + selections * gradients
    least, most = estimated_seconds(measured, targets)
    assert 0 < least <= most


def test_a_row_has_every_selection_and_control_that_was_asked_for(whole):
    for row in rows_of(whole):
        found = {(each["mode"], each["knows"], each["from"], each["measure"]) for each in row["selections"]}
        expected = {
            (mode, knows, source, "screened")
            for mode in ("strict", "masked")
            for knows in ("target", "prediction")
            for source in ("own", *row["controls"])
        } | {(mode, "nothing", "own", "random") for mode in ("strict", "masked")}
        assert found == (expected if row["weight"] else set())
        assert row["clear"] == (row["loss_short"] - row["loss_long"] > 0.05)
        certain = row["clear"] or row["controls"]["other"]["gains"]
        assert row["weight"] in ((1.0,) if certain else (0.0, 2.0))


@pytest.mark.parametrize("stops", [(1,), (0, 2), (1, 1, 1)])
def test_a_study_stopped_and_resumed_writes_the_same_file(model, whole, stops, tmp_path):
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


@pytest.mark.parametrize("kept", [1, 300, 5000, 9999])
def test_what_a_killed_study_wrote_of_a_block_is_written_again(model, whole, kept, tmp_path):
    study, folder = study_of(model), tmp_path / "killed"
    measure_influence(study, folder, stop=lambda: True)
    (folder / "influence.jsonl").write_bytes((whole / "influence.jsonl").read_bytes()[:kept])
    assert measure_influence(study, folder, resume=True)
    assert (folder / "influence.jsonl").read_bytes() == (whole / "influence.jsonl").read_bytes()


@pytest.mark.parametrize("number", [2, 3, 7])
def test_parts_of_a_study_make_the_same_file_as_one_process(model, whole, number, tmp_path):
    study = study_of(model)
    for place in range(1, number + 1):
        part = replace(study, part=(place, number))
        # There are four blocks: parts beyond these have none.
        assert join_parts(part, tmp_path) == list(range(place, min(4, number) + 1))
        folder, stops = part_folder(tmp_path, part.part), iter([False, False, True])
        if not measure_influence(part, folder, stop=lambda stops=stops: next(stops, True)):
            assert measure_influence(part, folder, resume=True)
    assert join_parts(part, tmp_path) == []
    assert (tmp_path / "influence.jsonl").read_bytes() == (whole / "influence.jsonl").read_bytes()
    assert join_parts(part, tmp_path) == []
    summary = report_study(study, tmp_path)
    assert summary["measured"] > 0
    other = replace(study_of(model, replace(SMALL, seed=1)), part=(1, number))
    with pytest.raises(RunFolderError, match=r"holds another study than the one asked for: settings.seed differ"):
        join_parts(other, tmp_path)
    # Its own folder is left to itself, and any other one speaks for the study.
    for place in range(2, number + 1):
        shutil.rmtree(part_folder(tmp_path, (place, number)))
    (tmp_path / "influence.json").unlink()
    check_parts(other, tmp_path)
    with pytest.raises(RunFolderError, match=r"part-1-of-\d holds another study .*: settings.seed differ"):
        check_parts(replace(other, part=(2, number)), tmp_path)


@pytest.mark.parametrize("part", ["0/2", "3/2", "0/0"])
def test_a_part_that_does_not_exist_is_refused(model, part):
    with pytest.raises(SettingError, match=rf"^part {part} does not exist; use 1/\d and on$"):
        replace(study_of(model), part=part_of(part))


@pytest.mark.parametrize("text", ["1", "a/2", "1/", "/2", "-1/2", "²/3"])
def test_a_part_is_two_numbers(text):
    with pytest.raises(SettingError, match=r"is no part; write 2/4 for the second of four$"):
        part_of(text)


def test_resuming_a_whole_study_changes_nothing(model, whole):
    before = (whole / "influence.jsonl").read_bytes()
    assert measure_influence(study_of(model), whole, resume=True)
    assert (whole / "influence.jsonl").read_bytes() == before


def test_a_report_has_its_summary_figures_and_page(model, whole):
    summary = report_study(study_of(model), whole)
    assert json.loads((whole / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert summary["targets"] == 20
    assert summary["parameters"] == model.num_parameters
    assert {"summary.json", "recovery.png", "distances.png", "influence.html"} <= {p.name for p in whole.iterdir()}
    assert "text 0" in (whole / "influence.html").read_text()


def test_targets_have_their_context_and_no_place_is_taken_twice():
    texts = [TokenizedDocument(name=str(n), tokens=np.arange(n)) for n in (3, 14, 15, 30)]
    every = choose_targets(texts, context=14, number=None, seed=0)
    assert [(target.text.name, target.place) for target in every] == [("15", 14), *(("30", i) for i in range(14, 30))]
    some = choose_targets(texts, context=14, number=5, seed=0)
    places = [(target.text.name, target.place) for target in some]
    assert len(set(places)) == 5
    assert set(places) <= {(target.text.name, target.place) for target in every}
    window = every[-1].window(near=4, far=10, start=(1,))
    assert (window.far.tolist(), window.near.tolist(), window.target) == (list(range(15, 25)), [25, 26, 27, 28], 29)
    assert window.tokens.tolist() == [1, *range(15, 29)]


def test_far_tokens_of_other_texts_come_from_each_of_their_places_equally_often(rng):
    # Tokens of 100 and more are those of the first text, in pieces; of 200 and more those of the second.
    first = list(cut([TokenizedDocument(name="a", tokens=np.arange(100, 130))], 20))
    texts = [
        *first,
        TokenizedDocument(name="b", tokens=np.arange(200, 216)),
        TokenizedDocument(name="c", tokens=np.arange(9)),
    ]
    placebo = Placebo(texts, near=4, far=10)
    (target, *_) = choose_targets(texts[2:3], context=14, number=None, seed=0)
    drawn = [placebo.other(target, rng) for _ in range(600)]
    assert all((np.diff(far) == 1).all() and len(far) == 10 for far in drawn)
    firsts, counts = np.unique([int(far[0]) for far in drawn], return_counts=True)
    # Eleven places in the first piece, one in the second; the third text is too short.
    assert firsts.tolist() == [*range(100, 111), 120]
    assert counts.min() > 25
    (target, *_) = choose_targets(texts, context=14, number=None, seed=0)
    assert {int(placebo.other(target, rng)[0]) for _ in range(200)} == set(range(200, 207))


def test_far_tokens_from_elsewhere_in_the_document_never_overlap_the_context(rng):
    texts = [
        TokenizedDocument(name="b", tokens=np.arange(200, 220)),
        *cut([TokenizedDocument(name="a", tokens=np.arange(100))], 60),
    ]
    placebo = Placebo(texts, near=4, far=10)
    target = next(
        each
        for each in choose_targets(texts, context=14, number=None, seed=0)
        if (each.text.name, each.place) == ("a", 35)
    )
    # The context begins at 21, the target is 35; the second piece begins at 60.
    firsts = {int(placebo.elsewhere(target, rng)[0]) for _ in range(2000)}
    assert firsts == {*range(12), *range(36, 51), *range(60, 91)}
    short = choose_targets(texts[:1], context=14, number=None, seed=0)
    assert all(placebo.elsewhere(each, rng) is None for each in short)


def test_pieces_are_the_text_in_order():
    text = TokenizedDocument(name="a", tokens=np.arange(25))
    pieces = list(cut([text], 10))
    assert [(piece.name, piece.first) for piece in pieces] == [("a", 0), ("a", 10), ("a", 20)]
    assert np.concatenate([piece.tokens for piece in pieces]).tolist() == list(range(25))


def test_the_rule_of_longppl_asks_for_a_gap_and_for_a_small_loss():
    assert LONGPPL.clear(4.1, 1.9)
    assert not LONGPPL.clear(3.8, 1.9)
    assert not LONGPPL.clear(5.0, 2.1)


@pytest.mark.parametrize(("near", "stride"), [(4, 1), (4, 3), (7, 5), (4, 36), (39, 10)])
def test_losses_with_short_context_are_those_of_windows_run_one_by_one(model, near, stride):
    tokens = documents()[0].tokens
    losses = short_context_losses(model, tokens, near=near, stride=stride)
    assert len(losses) == len(tokens) - near
    for place, loss in enumerate(losses, start=near):
        first = place - near - (place - near) % stride
        context = tokens[first:place].tolist()
        assert near <= len(context) < near + stride
        expected = loss_of(model, context, list(range(len(context))), int(tokens[place]))
        assert loss == pytest.approx(expected, abs=1e-4)


class Far(Letters):
    """Makes a token that no model has."""

    def encode(self, text: str) -> list[int]:
        """Too large."""
        return [VOCABULARY + 3 for _ in text]


REFUSED = {
    "k larger than far": (lambda: replace(SMALL, ks=(1, 11)), "k 11 is more than the 10 far tokens"),
    "no k": (lambda: replace(SMALL, ks=()), "no numbers of far tokens"),
    "falling k": (lambda: replace(SMALL, ks=(3, 1)), "k 3,1 are no numbers of far tokens; give rising ones"),
    "near of nothing": (lambda: replace(SMALL, near=0), "near 0 measures nothing; use at least 1"),
    "rest beyond one": (
        lambda: replace(SMALL, background_fraction=1.5),
        "background_fraction 1.5 is not a fraction; use 0 to 1",
    ),
    "unknown mode": (lambda: replace(SMALL, modes=("stric",)), "unknown mode 'stric'; did you mean 'strict'"),
    "unknown selection": (lambda: replace(SMALL, objectives=("all",)), "unknown objective 'all'"),
    "no mode": (lambda: replace(SMALL, modes=()), "no mode is named; choose among strict, masked"),
    "gap below nothing": (lambda: Rule(gap=-1.0), "a gap of -1.0 nats tells no target from others; use 0 or more"),
    "no gap": (lambda: Rule(gap=float("nan")), "a gap of nan nats"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_measure_nothing_are_refused_in_one_line(case):
    build, message = REFUSED[case]
    with pytest.raises((SettingError, UnknownNameError), match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


def refused(study: InfluenceStudy, folder: Path) -> str:
    with pytest.raises(LengthwiseError) as caught:
        measure_influence(study, folder)
    assert not folder.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_texts_that_are_too_short_are_refused(model, tmp_path):
    message = refused(study_of(model, texts=documents(length=14)), tmp_path / "out")
    assert "the longest has 14 tokens, and a target needs 14 before it; give longer texts" in message


def test_a_context_beyond_the_models_positions_is_refused(model):
    with pytest.raises(
        SettingError, match=rf"need 105 positions and tiny llama has {POSITIONS}; use a far of at most 91"
    ):
        study_of(model, replace(SMALL, far=100))


def test_a_single_text_has_no_other_to_compare_with(model, tmp_path):
    message = refused(study_of(model, texts=documents(number=1)), tmp_path / "out")
    assert (
        "no text beside text 0 has 10 tokens, and a study compares with another text's far tokens; give two" in message
    )
    # Another piece of it is no other text.
    pieces = study_of(model, replace(SMALL, max_document_tokens=20), texts=documents(number=1))
    assert "no text beside text 0 has 10 tokens" in refused(pieces, tmp_path / "pieces")


def test_places_of_pieces_are_those_of_the_whole_text(model, tmp_path):
    quick = replace(SMALL, measure=RandomChoice(), modes=("strict",), objectives=("target",), controls=())
    study = study_of(model, replace(quick, max_document_tokens=20, num_targets=None), texts=documents())
    measure_influence(study, tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    texts = {text.name: text.tokens for text in study.texts}
    assert {row["document"] for row in rows} == set(texts)
    assert all(row["target"] == texts[row["document"]][row["place"]] for row in rows)
    # Each piece of 20 tokens has six that stand behind a whole context.
    assert sorted({row["place"] for row in rows}) == [*range(14, 20), *range(34, 40)]
    report_study(study, tmp_path / "out")


def test_a_text_that_is_named_twice_is_refused(model):
    with pytest.raises(SettingError, match=r"text text 1 is there twice; name each once"):
        study_of(model, texts=[*documents(), documents()[1]])


def test_copies_of_texts_are_refused_and_can_be_left_out(model):
    first, second, *_ = documents()
    copy = replace(first, name="copied")
    with pytest.raises(SettingError, match=r"text copied is a copy of text 0, which makes intervals .* too narrow; le"):
        study_of(model, texts=[first, second, copy])
    with pytest.warns(
        SkippedTextWarning, match=r"^1 text\(s\) are copies of others and were left out, such as copied of text 0$"
    ):
        assert without_copies([first, second, copy]) == [first, second]


def test_contexts_beyond_the_ids_of_training_are_warned_of():
    planted = PlantedModel(additive({2: 1.5}), 10)
    planted.trained_distance = 14
    codec = type("Plain", (Letters,), {"start": ()})()
    InfluenceStudy(model=planted, codec=codec, texts=documents(), settings=replace(SMALL, far=11))
    with pytest.warns(UntrainedDistanceWarning, match=r"length 16 .* distances up to 15, training of planted .* 14"):
        InfluenceStudy(model=planted, codec=codec, texts=documents(), settings=replace(SMALL, far=12))


def test_a_tokenizer_that_does_not_fit_the_model_is_refused():
    with pytest.raises(ModelError, match=r"tokenizer letters makes token 100 and the model has 97"):
        list(tokenized(Far(), [Document(name="a", text="abc")], VOCABULARY))


def test_a_threshold_that_no_target_passes_leaves_the_results_over_all_targets(model, tmp_path):
    study = study_of(model, replace(SMALL, rule=Rule(gap=50.0)))
    measure_influence(study, tmp_path / "out")
    summary = report_study(study, tmp_path / "out")
    own, other, _ = summary["far"]
    assert (own["gains"]["value"], own["loses"]["value"], other["gains"]["value"]) == (0.0, 0.0, 0.0)
    assert other["own_minus"]["value"] is not None
    assert summary["groups"][0]["all_targets"]["prediction"]["shares"][0]["value"] is not None


def test_a_study_of_an_older_version_is_not_resumed(model, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "old")
    facts = json.loads((whole / "influence.json").read_text())
    del facts["study"]["version"]
    (tmp_path / "old" / "influence.json").write_text(json.dumps(facts))
    with pytest.raises(
        RunFolderError, match=r"old holds a study with rows of version 1, and these are of version 2; cho"
    ):
        measure_influence(study_of(model), tmp_path / "old", resume=True)


def test_a_folder_with_a_study_is_not_written_over(model, whole, tmp_path):
    with pytest.raises(RunFolderError, match=r"holds a study already; add --resume to go on"):
        measure_influence(study_of(model), whole)
    with pytest.raises(RunFolderError, match=r"holds another study than the one asked for: settings.seed differ"):
        measure_influence(study_of(model, replace(SMALL, seed=1)), whole, resume=True)
    try:
        model.dtype = "bfloat16"
        with pytest.raises(RunFolderError, match=r"model.dtype differ"):
            measure_influence(study_of(model), whole, resume=True)
    finally:
        model.dtype = "float32"
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"is a file, a study needs a folder"):
        measure_influence(study_of(model), tmp_path / "file")


def test_a_damaged_row_is_named(model, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "out")
    rows = (tmp_path / "out" / "influence.jsonl").read_text().splitlines()
    rows[4] = rows[4][:50]
    (tmp_path / "out" / "influence.jsonl").write_text("\n".join(rows) + "\n")
    with pytest.raises(RunFolderError, match=r"line 5 of .*influence.jsonl is no JSON; measure into another --out"):
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
def test_rows_that_are_not_what_was_measured_are_refused(change, model, whole, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    (out / "influence.jsonl").write_bytes(change((out / "influence.jsonl").read_bytes()))
    before = (out / "influence.jsonl").read_bytes()
    with pytest.raises(RunFolderError, match=r"is not what was measured \(block \d of its rows differs from influence"):
        measure_influence(study_of(model), out, resume=True)
    assert (out / "influence.jsonl").read_bytes() == before


def test_a_study_goes_on_with_the_same_weights_alone(model, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "out")
    digest = model.weights_digest
    try:
        model.weights_digest = "another"
        with pytest.raises(RunFolderError, match=r"holds another study than the one asked for: model.weights differ"):
            measure_influence(study_of(model), tmp_path / "out", resume=True)
    finally:
        model.weights_digest = digest


def test_a_planted_dependence_is_found_in_texts(tmp_path):
    far, near = 10, 4
    # The model knows far tokens by their IDs; without a start token these are their places.
    planted = PlantedModel(additive({2: 1.5, 6: 0.8}), far)
    codec = type("Plain", (Letters,), {"start": ()})()
    texts = [TokenizedDocument(name=str(n), tokens=np.full(30 + n, 7)) for n in range(3)]
    settings = replace(
        SMALL,
        near=near,
        far=far,
        measure=LeaveOneOut(),
        modes=("strict",),
        controls=(),
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


def test_random_choices_alone_ask_no_measure(model, tmp_path):
    settings = replace(SMALL, measure=RandomChoice(), modes=("strict",), objectives=("target",), controls=())
    measure_influence(study_of(model, settings), tmp_path / "out")
    for row in rows_of(tmp_path / "out"):
        assert all(len(each["chosen"]) == 3 for each in row["selections"])
