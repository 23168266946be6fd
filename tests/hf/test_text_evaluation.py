"""Tests of exact match by length of any causal language model in plain text."""

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
from lengthwise.hf import text_evaluation
from lengthwise.hf.loading import load_text_model
from lengthwise.hf.text_evaluation import PlainTextModel, QuestionBuilder, evaluate_in_plain_text
from lengthwise.hf.tokenization import HFTokenizerAdapter
from lengthwise.positions import Sequential
from lengthwise.tasks import Addition, Copy, Parity
from lengthwise.tasks.text_format import PromptFormat, format_examples

LENGTH, NUMBER = 4, 12
SETTINGS = EvaluationSettings(lengths=(LENGTH,), num_examples=(NUMBER,))


def questions(model, task, *, shots=0, settings=SETTINGS):
    """Return the questions of evaluation at its first length."""
    writer = QuestionBuilder(model, task, PromptFormat(shots=shots), settings.seed)
    blocks = writer.questions(settings.lengths[0], settings.num_examples[0])
    return [question for block in blocks for question in block]


@pytest.fixture(scope="module")
def half_memorized():
    """Train a model on every other evaluation example."""
    return memorize(questions(byte_text_model(), Copy())[::2])


@pytest.mark.slow
@pytest.mark.parametrize("decode", ["forced", "free"])
def test_a_model_with_all_answers_has_exact_match_one(decode):
    model = byte_text_model(memorize(questions(byte_text_model(), Copy(), shots=1)))
    (row,) = evaluate_in_plain_text(model, Copy(), replace(SETTINGS, decode=decode), prompts=PromptFormat(shots=1))
    assert (row["exact_match"], row["token_accuracy"], row["first_error"]) == (1.0, 1.0, None)
    assert (row["length"], row["num_examples"], row["decode"], row["shots"]) == (LENGTH, NUMBER, decode, 1)


@pytest.mark.parametrize("decode", ["forced", "free"])
def test_nan_predictions_raise_an_error(decode):
    model = byte_text_model()
    with torch.no_grad():
        model.model.get_output_embeddings().weight[7] = torch.nan
    with pytest.raises(ModelError, match=r"predicts NaN, perhaps from an overflow of half precision; use another"):
        list(evaluate_in_plain_text(model, Copy(), replace(SETTINGS, decode=decode), prompts=PromptFormat(shots=0)))


def test_forced_and_free_decoding_have_the_same_exact_match(half_memorized):
    model = byte_text_model(half_memorized)
    forced, free = (
        next(evaluate_in_plain_text(model, Copy(), replace(SETTINGS, decode=decode), prompts=PromptFormat(shots=0)))
        for decode in ("forced", "free")
    )
    assert 0.5 <= forced["exact_match"] < 1
    assert free["exact_match"] == forced["exact_match"]
    assert free["first_error"] == forced["first_error"]


def test_a_length_after_an_exact_match_of_zero_has_a_marked_row():
    settings = replace(SETTINGS, lengths=(LENGTH, 2 * LENGTH), stop_at_zero=True)
    measured, skipped = evaluate_in_plain_text(byte_text_model(), Copy(), settings, prompts=PromptFormat(shots=0))
    assert measured.keys() == skipped.keys()
    assert (measured["exact_match"], measured["skipped"]) == (0.0, False)
    assert (skipped["length"], skipped["num_examples"], skipped["skipped"]) == (2 * LENGTH, 0, True)
    assert (skipped["exact_match"], skipped["token_accuracy"], skipped["text_tokens"]) == (0.0, None, None)


def test_padding_and_batching_do_not_change_grades(half_memorized, monkeypatch):
    # With numbers of unequal length, prompts and answers have several lengths.
    model = byte_text_model(half_memorized)
    task = Addition(unequal=True, zero_padding=False)
    batch = questions(model, task, shots=1)
    assert len({len(each.context_tokens) for each in batch}) > 1
    (whole,) = model.grade(batch, decode="forced")
    monkeypatch.setattr(text_evaluation, "MAX_FORWARD_TOKENS", 1)
    alone = list(model.grade(batch, decode="forced"))
    assert len(alone) == len(batch)
    for row, one in enumerate(alone):
        scored = whole.scored[row]
        assert torch.equal(whole.token_correct[row, scored], one.token_correct[0])
        assert torch.equal(whole.end[row, scored], one.end[0])
        assert int(scored.nonzero()[0]) == int(whole.prompt_offset[row])


def test_logits_are_computed_at_answers_only(monkeypatch):
    model = byte_text_model()
    batch = questions(model, Copy())
    outputs, forward = [], model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda **inputs: outputs.append(out := forward(**inputs)) or out)
    list(model.grade(batch, decode="forced"))
    assert [output.logits.shape[1] for output in outputs] == [len(batch[0].answer_tokens)]


def test_generation_settings_of_the_model_are_ignored(half_memorized):
    half_memorized.generation_config.repetition_penalty = 9.0
    model = byte_text_model(half_memorized)
    (row,) = evaluate_in_plain_text(model, Copy(), replace(SETTINGS, decode="free"), prompts=PromptFormat(shots=0))
    assert row["exact_match"] >= 0.5


def test_examples_equal_those_of_runs_and_shots_differ_from_them():
    model, task = byte_text_model(), Parity()
    settings = replace(SETTINGS, lengths=(2,), num_examples=(20,))
    tested = [
        text for examples, _ in iter_examples(task, Sequential(), 2, 20, 0) for text in format_examples(task, examples)
    ]
    for question, text in zip(questions(model, task, shots=3, settings=settings), tested, strict=True):
        *shots, prompt = model.codec.decode(question.context_tokens[1:]).split("\n")
        assert prompt + model.codec.decode(question.answer_tokens) == text.prompt + text.response
        assert len(shots) == 3
        assert not [line for line in shots if line.startswith(text.prompt)]


def by_merges(merges, pre_tokenizer, decoder):
    """Return a codec of bytes, including spaces, that merges some pairs."""
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "▁"]
    names = [*alphabet, *(one + other for one, other in merges)]
    tokenizer = Tokenizer(models.BPE({name: place for place, name in enumerate(names)}, merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoder
    return HFTokenizerAdapter(transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer), "merging")


TOKENIZERS = {
    # As in GPT-2, a space belongs to the next token.
    "space before": by_merges([("Ġ", "1")], pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()),
    # Tokens include spaces, also across the border of prompt and answer.
    "space after": by_merges(
        [("0", "Ġ")], pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), decoders.ByteLevel()
    ),
    # As in SentencePiece, a space starts every text.
    "space first": by_merges([("▁", "1")], pre_tokenizers.Metaspace(split=False), decoders.Metaspace()),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_token_ends_at_the_end_of_the_prompt(kind):
    codec = TOKENIZERS[kind]
    if kind == "space first":
        # This tokenizer has no newline.
        codec.tokenizer.backend_tokenizer.add_tokens(["\n"])
    model = PlainTextModel(tiny_model(), codec, "tiny")
    question = model.tokenize_question("1 0 = 0", " 1 1\n")
    assert codec.decode(question.context_tokens).strip() == "1 0 = 0"
    assert codec.decode(question.context_tokens + question.answer_tokens).strip(" ") == "1 0 = 0 1 1\n"
    assert list(question.context_tokens) == codec.encode("1 0 = 0")


def test_correct_text_is_correct_in_any_tokenization(monkeypatch):
    codec = TOKENIZERS["space before"]
    model = PlainTextModel(tiny_model(), codec, "tiny")
    # The model never reads the tokens, because its decoding is replaced.
    model.vocabulary_size = 1000
    question = model.tokenize_question("0 = 0", " 1\n")
    spelled, wrong = [codec.encode(part)[0] for part in (" ", "1", "\n")], codec.encode(" 0\n")
    assert spelled != list(question.answer_tokens)
    monkeypatch.setattr(model, "_generate", lambda batch: [spelled, wrong, spelled[:-1], list(question.answer_tokens)])
    (graded,) = model.grade([question] * 4, decode="free")
    assert graded.token_correct.all(dim=1).tolist() == [True, False, False, True]


def test_a_tokenizer_that_loses_text_raises_an_error():
    tokenizer = Tokenizer(models.WordLevel({"0": 0, "1": 1, "=": 2, "?": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    codec = HFTokenizerAdapter(transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer), "words")
    model = PlainTextModel(tiny_model(), codec, "tiny")
    with pytest.raises(ModelError, match=r"^the tokenizer of tiny changes the text: ' 0 1\\n' becomes ' 0 1'; "):
        model.tokenize_question("0 = 0", " 1\n")
    with pytest.raises(
        ModelError, match=r"the text: 'v = 0 1\\n' becomes '\? = 0 1'; use a model with a tokenizer that"
    ):
        model.tokenize_question("v = 0", " 1\n")


def test_a_token_outside_the_vocabulary_raises_an_error():
    model = byte_text_model()
    model.vocabulary_size = 40
    question = model.tokenize_question("0 = 0", " 1\n")
    with pytest.raises(ModelError, match=r"produces token ID \d+, but the model has 40 tokens; use the tokenizer that"):
        next(model.grade([question], decode="forced"))


def test_a_length_beyond_the_positions_raises_an_error_before_measuring():
    settings = replace(SETTINGS, lengths=(2, 199))
    with pytest.raises(ModelError, match=r"^length 199 with 0 shots gives a text of 801 tokens, but tiny has 600 p"):
        next(evaluate_in_plain_text(byte_text_model(), Copy(), settings, prompts=PromptFormat(shots=0)))
    with pytest.raises(SettingError, match=r"^invalid number of shots -1; use 0 or more$"):
        next(evaluate_in_plain_text(byte_text_model(), Copy(), SETTINGS, prompts=PromptFormat(shots=-1)))


@pytest.mark.parametrize("kind", UNSUPPORTED)
@pytest.mark.parametrize("decode", ["forced", "free"])
def test_models_without_hidden_keys_are_measured(kind, decode):
    config = UNSUPPORTED[kind]()
    config.vocab_size = 257
    model = byte_text_model(causal_model(config))
    assert model.num_positions is None
    rows = evaluate_in_plain_text(
        model, Parity(), replace(SETTINGS, num_examples=(3,), decode=decode), prompts=PromptFormat(shots=1)
    )
    assert [row["num_examples"] for row in rows] == [3]


def test_a_model_that_is_not_causal_raises_an_error(folders, tmp_path):  # noqa: F811
    model = transformers.AutoModelForCausalLM.from_pretrained(folders / "bert")
    with pytest.raises(ModelError, match=r"^bert is not causal: a token changes earlier predictions"):
        PlainTextModel(model, HFTokenizerAdapter(byte_tokenizer(), "tiny"), "bert")
    with pytest.raises(ModelError, match=r"headless was saved without a language-modelling head"):
        load_text_model(str(folders / "headless"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Save a model and its tokenizer."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    tiny_model().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def here(saved, monkeypatch):
    monkeypatch.chdir(saved.parent)
    return saved.parent


FLAGS = ["--lengths", "2,3", "--num-examples", "5,6", "--device", "cpu"]


def test_evaluate_measures_a_model_and_writes_only_to_out(here, capsys):
    command = ["evaluate", "model", "--task", "addition", "--variants", "uniform,carry", *FLAGS, "--json"]
    before = sorted(here.rglob("*"))
    rows = json.loads(output_of(command, capsys)[0])["results"]
    assert sorted(here.rglob("*")) == before
    cells = [(row["task"], row["model"], row["variant"], row["length"], row["num_examples"]) for row in rows]
    assert cells == [
        ("addition", "model", variant, *cell) for variant in ("uniform", "carry") for cell in ((2, 5), (3, 6))
    ]
    again = json.loads(
        output_of([*command, "--out", "new", "--dtype", "bfloat16", "--shots", "1", "--seed", "3"], capsys)[0]
    )
    assert {(row["shots"], row["seed"]) for row in again["results"]} == {(1, 3)}
    written = [json.loads(line) for line in (here / "new" / "results.jsonl").read_text().splitlines()]
    assert written == again["results"]


def test_evaluate_prints_a_table_without_ids(here, capsys):
    printed = output_of(["evaluate", "model", "--task", "parity", *FLAGS], capsys)[0]
    assert "exact match" in printed
    assert "IDs" not in printed


COMMAND = ["evaluate", "model", "--task", "parity"]
INVALID = [
    (["evaluate", "model"], "model is not a run folder (it has no experiment.json), and a model needs a task"),
    ([*COMMAND, "--scheme", "coupled"], "--scheme coupled needs a run, not a model; leave out --scheme"),
    ([*COMMAND, "--corpus", "x"], "--corpus x needs a run, not a model"),
    ([*COMMAND, "--shots", "-1"], "invalid number of shots -1; use 0 or more"),
    ([*COMMAND, "--lengths", "0"], "invalid length 0"),
    ([*COMMAND, "--lengths", "400"], "tokens, but model has 600 positions; use shorter lengths, fewer --shots or a"),
    ([*COMMAND, "--dtype", "float8"], "unknown dtype 'float8'"),
    ([*COMMAND, "--variants", "carry"], "unknown variant 'carry': task parity has no variants"),
    (["evaluate", "model", "--task", "party"], "unknown task 'party'; did you mean 'parity'?"),
    (["evaluate", "model", "--task", "text"], "not supported; measure its loss with and without distant tokens"),
    (["evaluate", "./nowhere", "--task", "parity"], "./nowhere does not exist; use a folder written by"),
]


@pytest.mark.parametrize(("arguments", "text"), INVALID, ids=[" ".join(arguments) for arguments, _ in INVALID])
def test_invalid_arguments_print_a_one_line_error(arguments, text, here, capsys):
    assert text in error_of(arguments, capsys)
