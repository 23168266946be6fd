"""An examination from model and texts to page: measured losses, families, time, and continuation after a stop."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.cli.test_cli import error_of
from tests.support.planted_model import PlantedModel
from tests.support.text_models import byte_tokenizer, tiny_model
from transformers import AutoModelForCausalLM

import lengthwise as lw
from lengthwise.cli import app as cli
from lengthwise.core.errors import RunFolderError, SettingError
from lengthwise.doctor.cache_budget import EXACT, NEAREST, RANDOM, measure_cache_budget
from lengthwise.doctor.measurements import LOSS, PUBLISHED, Measurer, Subject
from lengthwise.doctor.needles import DEPTHS, _answer, ask_needles
from lengthwise.doctor.plan import Group, Speed, make_plan
from lengthwise.doctor.windows import sample_blocks
from lengthwise.evaluation.language_model import BytePairTokenizerAdapter
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.hf.language_models import LanguageModel
from lengthwise.hf.predictive_model import PredictivePositionModel
from lengthwise.hf.tokenization import HFTokenizerAdapter
from lengthwise.tasks import TokenizedDocument
from lengthwise.tasks.text.tokenizer import ByteTokenizer

RNG = np.random.default_rng(0)
TEXTS = [TokenizedDocument(name=f"text {number}", tokens=RNG.integers(1, 257, 700)) for number in range(6)]
LENGTHS = (64, 160)
SETTINGS = lw.DoctorSettings(trained=128, lengths=LENGTHS, minutes=5.0, documents=5)


def language_model(kind="llama", name="tiny"):
    return LanguageModel(model=CausalLM(tiny_model(kind), name), codec=HFTokenizerAdapter(byte_tokenizer(), "tiny"))


def measured(folder):
    rows = [json.loads(line) for line in (folder / "doctor.jsonl").read_text().splitlines()[1:]]
    return {tuple(row["key"]): row["value"] for row in rows}


@pytest.mark.first(3)
@pytest.mark.parametrize("kind", ["llama", "gemma3", "gpt2", "gpt_neox", "qwen3", "olmo2", "mistral"])
def test_every_family_has_a_page_with_five_boxes(kind, tmp_path):
    result = lw.examine_model(language_model(kind, "<b>x"), TEXTS, tmp_path / "doctor.html", settings=SETTINGS)
    assert list(result["boxes"]) == ["works", "needs", "why", "keep", "change"]
    page = (tmp_path / "doctor.html").read_text()
    assert all(result["boxes"][name]["title"] in page for name in result["boxes"])
    assert "&lt;b&gt;x" in page
    assert "<b>" not in page
    assert "http" not in page.replace("http-equiv", "")
    values = measured(tmp_path)
    assert {key[2] for key in values if key[0] == LOSS and key[3] == PUBLISHED} == set(SETTINGS.lengths)
    assert json.loads((tmp_path / "doctor.json").read_text()) == json.loads(json.dumps(result))


def test_a_loss_is_that_of_one_call_on_the_context(tmp_path):
    loaded = language_model()
    lw.examine_model(loaded, TEXTS, tmp_path / "doctor.html", settings=SETTINGS)
    num_targets = SETTINGS.num_targets(128)
    blocks = sample_blocks(TEXTS, length=LENGTHS[-1], num_targets=num_targets, number=5, seed=0)
    for (kind, index, length, *change), value in measured(tmp_path).items():
        if kind != LOSS or change != [PUBLISHED]:
            continue
        text = next(text for text in TEXTS if text.name == blocks[index].text.name)
        end, start = blocks[index].place, list(loaded.codec.start)
        tokens = torch.tensor([start + text.tokens[end - (length - len(start)) - 1 : end].tolist()])
        assert tokens.shape[1] == length + 1
        with torch.no_grad():
            log_probs = loaded.model.model(input_ids=tokens[:, :-1], use_cache=False).logits[0].log_softmax(dim=-1)
        expected = -log_probs.gather(1, tokens[0, 1:, None])[-num_targets:].mean()
        assert value == pytest.approx(float(expected), abs=1e-3)


def test_the_lines_of_a_change_give_the_measured_loss_in_plain_transformers(tmp_path):
    loaded = language_model()
    subject = Subject.of(loaded, SETTINGS)
    blocks = sample_blocks(TEXTS, length=256, num_targets=4, number=1, seed=0)
    measurer = Measurer(subject=subject, blocks=blocks, texts=TEXTS, seed=0)
    change = next(change for change in subject.changes if change.name == "YaRN 2x")
    gain = measurer.measure((LOSS, 0, 256, PUBLISHED)) - measurer.measure((LOSS, 0, 256, change.name))
    loaded.model.model.save_pretrained(tmp_path)
    tokens = torch.cat([torch.tensor(loaded.codec.start), blocks[0].window(256, len(loaded.codec.start))])
    losses = []
    for lines in ({}, json.loads("{" + ", ".join(change.lines()) + "}")):
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | lines))
        with torch.no_grad():
            logits = AutoModelForCausalLM.from_pretrained(tmp_path)(input_ids=tokens[None, :-1]).logits[0, -4:]
        losses.append(float(torch.nn.functional.cross_entropy(logits, tokens[-4:])))
    assert abs(gain) > 1e-3
    assert losses[0] - losses[1] == pytest.approx(gain, abs=1e-3)


def test_a_start_token_is_put_first_if_the_tokenizer_omits_it():
    loaded = replace(language_model(), codec=BytePairTokenizerAdapter(ByteTokenizer()))
    loaded.model.model.config.bos_token_id = 7
    subject = Subject.of(loaded, SETTINGS)
    change = next(change for change in subject.changes if change.first_token is not None)
    blocks = sample_blocks(TEXTS, length=64, num_targets=4, number=1, seed=0)
    measurer = Measurer(subject=subject, blocks=blocks, texts=TEXTS, seed=0)
    tokens = blocks[0].window(64, 0).clone()
    tokens[0] = 7
    with torch.no_grad():
        logits = loaded.model.model(input_ids=tokens[None, :-1]).logits[0, -4:]
    expected = float(torch.nn.functional.cross_entropy(logits, tokens[-4:]))
    assert measurer.measure((LOSS, 0, 64, change.name)) == pytest.approx(expected, abs=1e-4)
    assert all(change.first_token is None for change in Subject.of(language_model(), SETTINGS).changes)


def test_a_stopped_examination_continues_with_the_same_values(tmp_path):
    loaded, calls, last_call = language_model(), 0, 10**9

    def stop():
        nonlocal calls
        calls += 1
        return calls > last_call

    lw.examine_model(loaded, TEXTS, tmp_path / "whole/doctor.html", settings=SETTINGS, stop=stop)
    calls, last_call = 0, calls // 2

    out = tmp_path / "stopped/doctor.html"
    assert lw.examine_model(loaded, TEXTS, out, settings=SETTINGS, stop=stop) is None
    assert not out.exists()
    stored = measured(out.parent)
    with (out.parent / "doctor.jsonl").open("a") as file:
        file.write('{"key": ["lo')
    with pytest.raises(RunFolderError, match="add --resume"):
        lw.examine_model(loaded, TEXTS, out, settings=SETTINGS)
    other = lw.DoctorSettings(trained=128, lengths=LENGTHS, minutes=5.0, documents=5, seed=1)
    with pytest.raises(RunFolderError, match="another settings"):
        lw.examine_model(loaded, TEXTS, out, settings=other, resume=True)
    lw.examine_model(loaded, TEXTS, out, settings=SETTINGS, resume=True)
    assert 0 < len(stored) < len(measured(out.parent))
    assert measured(out.parent) == measured(tmp_path / "whole")


def test_a_plan_fits_its_time_or_says_how_much_it_needs():
    loaded = language_model()
    settings = lw.DoctorSettings(minutes=10.0)
    subject = Subject.of(loaded, settings)
    slow = Speed(linear=0.05, quadratic=0.0)
    plans = [make_plan(lw.DoctorSettings(minutes=minutes), subject, slow, 12, 5000) for minutes in (10.0, 30.0, 300.0)]
    for plan, minutes in zip(plans, (10, 30, 300), strict=True):
        assert sum(slow.seconds(length) for length in plan.lengths) * plan.documents <= 60 * minutes
    assert [plan.lengths[-1] for plan in plans] == sorted(plan.lengths[-1] for plan in plans)
    assert plans[0].omitted
    assert (plans[0].documents, plans[-1].documents) == (5, 12)
    with pytest.raises(SettingError, match=r"0.01 minutes are too few .* use --minutes"):
        make_plan(lw.DoctorSettings(minutes=0.01), subject, Speed(linear=1.0, quadratic=0.0), 12, 5000)


def test_a_length_beyond_the_trained_context_leaves_time_for_one_change():
    subject, speed = Subject.of(language_model(), lw.DoctorSettings()), Speed(linear=0.05, quadratic=1e-4)
    longest = set()
    for minutes in np.geomspace(3, 400, 60):
        plan = make_plan(lw.DoctorSettings(minutes=float(minutes)), subject, speed, 5, 5000)
        if plan.lengths[-1] > subject.trained:
            needed = 5 * sum(map(speed.seconds, [*plan.lengths, plan.lengths[-1]]))
            assert needed <= 0.95 * 60 * minutes
            longest.add(plan.lengths[-1] / subject.trained)
    assert longest == {1.25, 1.5, 2.0, 4.0}


def test_speed_is_fitted_to_two_lengths():
    expected = Speed(linear=2e-3, quadratic=3e-6)
    found = Speed.fit({length: expected.seconds(length) for length in (100, 400)})
    assert found.seconds(1000) == pytest.approx(expected.seconds(1000))
    assert Group(label="", keys=[("loss", 0, 1000, "")], passes=2.0).seconds(found) == pytest.approx(10.0)


class Finder(PlantedModel):
    """Model that repeats the token after the last copy of the question, among the last ``reach`` tokens."""

    def __init__(self, reach):
        self.reach = reach

    def prefill(self, tokens, position_ids, num_prefix, mask=None):
        """Return the tokens within reach."""
        return tokens[:num_prefix][-self.reach :].tolist()

    def log_probs(self, tokens, position_ids, states=None):
        """Return the prediction of the repeated token."""
        question, result = tokens[0].tolist(), torch.full((1, 257), -9.0)
        for begin in range(len(states) - len(question)):
            if states[begin : begin + len(question)] == question:
                result[0, states[begin + len(question)]] = 0.0
        return result


@pytest.mark.parametrize(("reach", "found"), [(2000, 4), (1000, 2)])
def test_needles_are_found_within_the_reach_of_a_model(reach, found):
    codec = BytePairTokenizerAdapter(ByteTokenizer())
    subject = LanguageModel(model=Finder(reach), codec=codec)
    text = torch.full((2500,), 100)
    answers = ask_needles(subject, text, 2000, np.random.default_rng(0))
    assert len(answers) == len(DEPTHS)
    assert answers[len(answers) - found :] == [True] * found
    # Without a hit, all passwords are equally likely.
    assert sum(answers[: len(answers) - found]) <= 1


def test_answers_are_those_of_passes_without_a_cache():
    model, context = language_model().model, torch.from_numpy(TEXTS[0].tokens[:300].astype(np.int64))
    questions, candidates = [torch.arange(10, 20), torch.arange(30, 35)], [100, 101]
    passes = [model.log_probs_without_cache(torch.cat([context, question])) for question in questions]
    expected = [int(log_probs[candidates].argmax()) == index for index, log_probs in enumerate(passes)]
    assert _answer(model, context, questions, candidates) == expected


def test_the_exact_search_keeps_at_least_as_much_as_other_selections():
    tokens = torch.from_numpy(TEXTS[0].tokens[:260].astype(np.int64))
    result = measure_cache_budget(language_model(), tokens, 4, np.random.default_rng(0))
    divergences = {name: np.array(values) for name, values in result["divergences"].items()}
    assert result["nothing"] > 0.01
    for name in (NEAREST, RANDOM, "attention", "key norm"):
        assert (divergences[EXACT] <= divergences[name] + 0.01 * result["nothing"]).all(), name


@pytest.mark.slow
def test_a_model_that_is_a_run_is_examined(tmp_path):
    setup = ["train", "--task", "text", "--scheme", "sequential", "--encoding", "rotary", "--quick"]
    cli.main([*setup, "--out", str(tmp_path / "run")])
    cli.main(["doctor", str(tmp_path / "run"), "--minutes", "1", "--out", str(tmp_path / "doctor.html")])
    result = json.loads((tmp_path / "doctor.json").read_text())
    assert result["model"]["name"] == str(tmp_path / "run")


def test_a_model_that_predicts_its_ids_is_refused(tmp_path, capsys):
    model = PredictivePositionModel.wrap(tiny_model("llama"), head="increment")
    model.save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    error = error_of(["doctor", str(tmp_path / "model"), "--out", str(tmp_path / "doctor.html")], capsys)
    assert "predicts its position IDs" in error
    assert not (tmp_path / "doctor.html").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"minutes": 0.0}, "invalid minutes 0; use"),
        ({"documents": 3}, "3 documents are too few .* at least 5"),
        ({"trained": 10}, "invalid trained context 10; use at least 64"),
        ({"lengths": (128,)}, "use two or more"),
        ({"lengths": (16, 32)}, "invalid length 16; use lengths of at least 64"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        lw.DoctorSettings(**settings)


def test_texts_and_positions_that_are_too_few_are_refused(tmp_path):
    settings = lw.DoctorSettings(trained=128, lengths=(64, 8192))
    with pytest.raises(SettingError, match=r"the texts have 4,200 tokens, .* but 8,193 tokens .* are needed"):
        lw.examine_model(language_model(), TEXTS, tmp_path / "doctor.html", settings=settings)
    with pytest.raises(
        SettingError, match="length 8192 exceeds the 600 positions of tiny; use --lengths of at most 600"
    ):
        lw.examine_model(language_model("gpt2"), TEXTS, tmp_path / "doctor.html", settings=settings)
    with pytest.raises(SettingError, match=r"does not end in \.html"):
        lw.examine_model(language_model(), TEXTS, tmp_path / "doctor", settings=SETTINGS)
    (tmp_path / "other.html").write_text("mine")
    with pytest.raises(RunFolderError, match="not a result of this command"):
        lw.examine_model(language_model(), TEXTS, tmp_path / "other.html", settings=SETTINGS)
    (tmp_path / "bad.jsonl").write_text("[]\n")
    with pytest.raises(RunFolderError, match="damaged"):
        lw.examine_model(language_model(), TEXTS, tmp_path / "bad.html", settings=SETTINGS, resume=True)
