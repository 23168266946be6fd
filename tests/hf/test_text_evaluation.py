"""Exact match by length of any causal language model, asked in plain text."""

import json
from dataclasses import replace

import pytest
import torch
import transformers
from tests.cli.test_cli import error_of, output_of
from tests.hf.test_hf_loading import folders  # noqa: F401  (a fixture)
from tests.support.causal_models import UNSUPPORTED, causal_model
from tests.support.text_models import byte_text_model, byte_tokenizer, memorize, tiny_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from lengthwise.core.errors import ModelError, SettingError
from lengthwise.evaluation.exact_match import EvaluationSettings, iter_examples
from lengthwise.hf import text_evaluation, text_model
from lengthwise.hf.loading import load_text_model
from lengthwise.hf.text_evaluation import evaluate_texts
from lengthwise.hf.text_model import TextModel
from lengthwise.hf.tokenization import HFCodec
from lengthwise.positions import Sequential
from lengthwise.tasks import Addition, Copy, Parity
from lengthwise.tasks.text_format import format_examples

LENGTH, NUMBER = 4, 12
SETTINGS = EvaluationSettings(lengths=(LENGTH,), num_examples=(NUMBER,))


def questions(model, task, *, shots=0, settings=SETTINGS):
    """What evaluation asks at its first length."""
    blocks = text_evaluation._questions(
        model, task, settings.lengths[0], settings.num_examples[0], settings.seed, shots
    )
    return [question for block in blocks for question in block]


@pytest.fixture(scope="module")
def some_by_heart():
    """A model that knows every other of the tested examples."""
    return memorize(questions(byte_text_model(), Copy())[::2])


@pytest.mark.parametrize("decode", ["forced", "free"])
def test_a_model_that_is_right_has_exact_match_one(decode):
    model = byte_text_model(memorize(questions(byte_text_model(), Copy(), shots=1)))
    (row,) = evaluate_texts(model, Copy(), replace(SETTINGS, decode=decode), shots=1)
    assert (row["exact_match"], row["token_accuracy"], row["first_error"]) == (1.0, 1.0, None)
    assert (row["length"], row["num_examples"], row["decode"], row["shots"]) == (LENGTH, NUMBER, decode, 1)


@pytest.mark.parametrize("decode", ["forced", "free"])
def test_predictions_that_are_no_numbers_are_refused(decode):
    model = byte_text_model()
    with torch.no_grad():
        model.model.get_output_embeddings().weight[7] = torch.nan
    with pytest.raises(
        ModelError, match=r"predicts what is no number, as half precision .* use another --dtype, such as f"
    ):
        evaluate_texts(model, Copy(), replace(SETTINGS, decode=decode), shots=0)


def test_both_decodes_find_the_same_examples_right(some_by_heart):
    model = byte_text_model(some_by_heart)
    forced, free = (
        evaluate_texts(model, Copy(), replace(SETTINGS, decode=decode), shots=0)[0] for decode in ("forced", "free")
    )
    assert 0.5 <= forced["exact_match"] < 1
    assert free["exact_match"] == forced["exact_match"]
    assert free["first_error"] == forced["first_error"]


def test_padding_and_batches_change_nothing(some_by_heart, monkeypatch):
    # Sums have numbers of unequal length: rows are of several widths, prompts and answers alike.
    model = byte_text_model(some_by_heart)
    task = Addition(unequal=True, zero_padding=False)
    found = questions(model, task, shots=1)
    assert len({len(each.given) for each in found}) > 1
    (whole,) = model.graded(found, decode="forced")
    monkeypatch.setattr(text_model, "FORWARD_TOKENS", 1)
    alone = list(model.graded(found, decode="forced"))
    assert len(alone) == len(found)
    for row, one in enumerate(alone):
        scored = whole.scored[row]
        assert torch.equal(whole.token_correct[row, scored], one.token_correct[0])
        assert torch.equal(whole.end[row, scored], one.end[0])
        assert int(scored.nonzero()[0]) == int(whole.prompt_offset[row])


def test_logits_are_asked_for_at_answers_alone(monkeypatch):
    model = byte_text_model()
    found = questions(model, Copy())
    seen, forward = [], model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda **given: seen.append(made := forward(**given)) or made)
    list(model.graded(found, decode="forced"))
    assert [made.logits.shape[1] for made in seen] == [len(found[0].answer)]


def test_a_models_own_settings_do_not_make_its_greedy_choice(some_by_heart):
    some_by_heart.generation_config.repetition_penalty = 9.0
    model = byte_text_model(some_by_heart)
    (row,) = evaluate_texts(model, Copy(), replace(SETTINGS, decode="free"), shots=0)
    assert row["exact_match"] >= 0.5


def test_the_examples_are_those_that_a_run_is_tested_on_and_none_is_shown_before_itself():
    model, task = byte_text_model(), Parity()
    settings = replace(SETTINGS, lengths=(2,), num_examples=(20,))
    tested = [
        text for examples, _ in iter_examples(task, Sequential(), 2, 20, 0) for text in format_examples(task, examples)
    ]
    for question, text in zip(questions(model, task, shots=3, settings=settings), tested, strict=True):
        *shown, prompt = model.codec.decode(question.given[1:]).split("\n")
        assert prompt + model.codec.decode(question.answer) == text.prompt + text.response
        assert len(shown) == 3
        assert not [line for line in shown if line.startswith(text.prompt)]


def by_merges(merges, pre_tokenizer, decoder):
    """A tokenizer of bytes, spaces among them, that merges some pairs."""
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "▁"]
    names = [*alphabet, *(one + other for one, other in merges)]
    tokenizer = Tokenizer(models.BPE({name: place for place, name in enumerate(names)}, merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoder
    return HFCodec(transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer), "merging")


TOKENIZERS = {
    # As GPT-2: a space goes with what follows.
    "space before": by_merges([("Ġ", "1")], pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()),
    # As a tokenizer whose tokens reach over spaces: one of them over the border.
    "space behind": by_merges(
        [("0", "Ġ")], pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), decoders.ByteLevel()
    ),
    # As SentencePiece: a space before every text.
    "space first": by_merges([("▁", "1")], pre_tokenizers.Metaspace(split=False), decoders.Metaspace()),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_token_ends_where_the_prompt_does(kind):
    codec = TOKENIZERS[kind]
    if kind == "space first":
        # It has no newline of its own.
        codec.tokenizer.backend_tokenizer.add_tokens(["\n"])
    model = TextModel(tiny_model(), codec, "tiny")
    question = model.question("1 0 = 0", " 1 1\n")
    assert codec.decode(question.given).strip() == "1 0 = 0"
    assert codec.decode(question.given + question.answer).strip(" ") == "1 0 = 0 1 1\n"
    assert list(question.given) == codec.encode("1 0 = 0")


def test_text_that_is_right_counts_as_right_however_it_is_cut_into_tokens(monkeypatch):
    codec = TOKENIZERS["space before"]
    model = TextModel(tiny_model(), codec, "tiny")
    question = model.question("0 = 0", " 1\n")
    spelled, wrong = [codec.encode(part)[0] for part in (" ", "1", "\n")], codec.encode(" 0\n")
    assert spelled != list(question.answer)
    monkeypatch.setattr(model, "_write", lambda batch: [spelled, wrong, spelled[:-1], list(question.answer)])
    (graded,) = model.graded([question] * 4, decode="free")
    assert graded.token_correct.all(dim=1).tolist() == [True, False, False, True]


def test_a_tokenizer_without_a_newline_is_refused():
    tokenizer = Tokenizer(models.WordLevel({"0": 0, "1": 1, "=": 2, "?": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    codec = HFCodec(transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer), "words")
    model = TextModel(tiny_model(), codec, "tiny")
    with pytest.raises(
        ModelError, match=r"^the tokenizer of tiny does not keep the text: ' 0 1\\n' comes back as ' 0 1'; "
    ):
        model.question("0 = 0", " 1\n")
    with pytest.raises(ModelError, match=r"the text: 'v = 0 1\\n' comes back as '\? = 0 1'; give a model whose"):
        model.question("v = 0", " 1\n")


def test_a_length_beyond_the_models_positions_is_refused_before_anything_is_measured():
    seen = []
    with pytest.raises(ModelError, match=r"^length 199 with 0 shots is a text of 801 tokens, more than the 600 posit"):
        evaluate_texts(
            byte_text_model(),
            Copy(),
            replace(SETTINGS, lengths=(2, 199)),
            shots=0,
            report=lambda *progress: seen.append(progress),
        )
    assert seen == []
    with pytest.raises(SettingError, match=r"^-1 shots are none; use 0 or more$"):
        evaluate_texts(byte_text_model(), Copy(), SETTINGS, shots=-1)


@pytest.mark.parametrize("kind", UNSUPPORTED)
@pytest.mark.parametrize("decode", ["forced", "free"])
def test_models_without_keys_to_hide_are_measured_too(kind, decode):
    config = UNSUPPORTED[kind]()
    config.vocab_size = 257
    model = byte_text_model(causal_model(config))
    assert model.num_positions is None
    rows = evaluate_texts(model, Parity(), replace(SETTINGS, num_examples=(3,), decode=decode), shots=1)
    assert [row["num_examples"] for row in rows] == [3]


def test_a_model_that_sees_ahead_is_refused(folders, tmp_path):  # noqa: F811
    model = transformers.AutoModelForCausalLM.from_pretrained(folders / "bert")
    with pytest.raises(ModelError, match=r"^bert is no causal model: a token changes what is predicted before it"):
        TextModel(model, HFCodec(byte_tokenizer(), "tiny"), "bert")
    with pytest.raises(ModelError, match=r"headless lacks its language-modelling head"):
        load_text_model(str(folders / "headless"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a model."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    tiny_model().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def here(saved, monkeypatch):
    monkeypatch.chdir(saved.parent)
    return saved.parent


FLAGS = ["--lengths", "2,3", "--num-examples", "5,6", "--device", "cpu"]


def test_evaluate_measures_a_models_folder_and_writes_only_where_it_is_told_to(here, capsys):
    ask = ["evaluate", "model", "--task", "addition", "--variants", "uniform,carry", *FLAGS, "--json"]
    before = sorted(here.rglob("*"))
    rows = json.loads(output_of(ask, capsys)[0])["results"]
    assert sorted(here.rglob("*")) == before
    cells = [(row["task"], row["model"], row["variant"], row["length"], row["num_examples"]) for row in rows]
    assert cells == [
        ("addition", "model", variant, *cell) for variant in ("uniform", "carry") for cell in ((2, 5), (3, 6))
    ]
    again = json.loads(
        output_of([*ask, "--out", "new", "--dtype", "bfloat16", "--shots", "1", "--seed", "3"], capsys)[0]
    )
    assert {(row["shots"], row["seed"]) for row in again["results"]} == {(1, 3)}
    written = [json.loads(line) for line in (here / "new" / "results.jsonl").read_text().splitlines()]
    assert written == again["results"]


def test_evaluate_shows_a_row_per_length_of_a_model_without_ids(here, capsys):
    shown = output_of(["evaluate", "model", "--task", "parity", *FLAGS], capsys)[0]
    assert "exact match" in shown
    assert "IDs" not in shown


ASKED = ["evaluate", "model", "--task", "parity"]
WRONG = [
    (
        ["evaluate", "model"],
        "model is not a run folder (it has no experiment.json), and a model needs a task",
    ),
    ([*ASKED, "--scheme", "coupled"], "--scheme coupled needs a run, not a model; leave it out"),
    ([*ASKED, "--corpus", "x"], "--corpus x is of a run"),
    ([*ASKED, "--shots", "-1"], "-1 shots are none; use 0 or more"),
    ([*ASKED, "--lengths", "0"], "invalid length 0"),
    (
        [*ASKED, "--lengths", "400"],
        "tokens, more than the 600 positions of model; use shorter lengths or fewer --shots",
    ),
    ([*ASKED, "--dtype", "float8"], "unknown dtype 'float8'"),
    ([*ASKED, "--variants", "carry"], "variant 'carry' was asked for but parity has none"),
    (["evaluate", "model", "--task", "party"], "unknown task 'party'; did you mean 'parity'?"),
    (["evaluate", "model", "--task", "text"], "task text is graded by loss and asks no question"),
    (["evaluate", "./nowhere", "--task", "parity"], "./nowhere does not exist; give a folder that save_pretrained"),
]


@pytest.mark.parametrize(("arguments", "text"), WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG])
def test_what_a_model_cannot_be_asked_is_answered_in_one_line(arguments, text, here, capsys):
    assert text in error_of(arguments, capsys)
