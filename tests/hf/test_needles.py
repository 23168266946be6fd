"""Tests of recall in language models: lengths in tokens, short shots, and models that find needles."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from tests.cli.test_cli import error_of, output_of
from tests.hf.test_text_evaluation import TOKENIZERS
from tests.support.causal_models import CONFIGS, causal_model
from tests.support.text_models import byte_text_model, byte_tokenizer, tiny_model

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.hf import PromptingConfig, build_symbol_tokenizer
from lengthwise.hf.language_models import evaluate_language_model
from lengthwise.hf.text_evaluation import PlainTextModel, QuestionBuilder, evaluate_in_plain_text
from lengthwise.hf.tokenization import HFTokenizerAdapter
from lengthwise.tasks import Addition, PlantedCorrelations, Recall
from lengthwise.tasks.text_format import PromptFormat, format_examples

NEEDLE = Recall(num_pairs=1)
# Texts of the trained models, in items.
LONGEST = 8


def writer(task=NEEDLE, model=None, **prompts) -> QuestionBuilder:
    model = byte_text_model() if model is None else model
    return QuestionBuilder(model, task, PromptFormat(**prompts), 0)


def sizes(questions) -> list[int]:
    return [question.seq for block in questions for question in block]


@pytest.mark.parametrize("limit", [60, 133, 400, 5_000])
@pytest.mark.parametrize(
    ("task", "prompts"),
    [
        (NEEDLE, {"shots": 0}),
        (Recall(), {"shots": 2}),
        (NEEDLE, {"shots": 1, "shot_length": 2}),
        (PlantedCorrelations(), {}),
    ],
)
def test_a_length_in_tokens_is_an_upper_bound_of_every_text(task, prompts, limit):
    model = byte_text_model()
    model.num_positions = None
    asked = writer(task, model, **prompts)
    length = asked.find_length_for_tokens(limit, 9)
    assert max(sizes(asked.questions(length, 9))) <= limit
    # It is nearly the longest: one tenth more items do not fit.
    assert max(sizes(asked.questions(1 + round(1.1 * length), 9))) > limit


def test_a_length_in_tokens_depends_on_the_tokenizer():
    codecs = {
        "bytes": HFTokenizerAdapter(byte_tokenizer(), "bytes"),
        "symbols": HFTokenizerAdapter(build_symbol_tokenizer(NEEDLE.vocabulary), "s"),
    }
    found = {
        name: writer(model=PlainTextModel(tiny_model(), codec, name), shots=0).find_length_for_tokens(106, 5)
        for name, codec in codecs.items()
    }
    # A text of L items has L + 6 symbols with its answer and end.
    assert found["symbols"] == 100
    assert found["bytes"] < 40


def test_rows_have_the_largest_number_of_tokens():
    settings = EvaluationSettings(lengths=(90, 200), num_examples=(5,))
    rows = list(
        evaluate_in_plain_text(byte_text_model(), NEEDLE, settings, prompts=PromptFormat(shots=0, in_tokens=True))
    )
    for limit, row in zip((90, 200), rows, strict=True):
        assert row["requested_tokens"] == limit
        assert row["text_tokens"] == max(sizes(writer(shots=0).questions(row["length"], 5)))
        assert limit - 12 < row["text_tokens"] <= limit


def test_rows_of_lengths_in_items_request_no_number_of_tokens():
    settings = EvaluationSettings(lengths=(9,), num_examples=(5,))
    (row,) = evaluate_in_plain_text(byte_text_model(), NEEDLE, settings, prompts=PromptFormat(shots=0))
    assert (row["length"], row["requested_tokens"]) == (9, None)


def test_shots_have_their_own_length():
    (block,) = writer(shots=3, shot_length=2).questions(30, 4)
    for question in block:
        *shots, prompt = byte_text_model().codec.decode(question.context_tokens[1:]).split("\n")
        assert [line.index("=") < 15 for line in shots] == [True] * 3
        assert len(prompt.split("=")[0].split()) == 31


def test_impossible_prompts_raise_an_error():
    with pytest.raises(SettingError, match=r"^length 9 in tokens is too short, because the shortest text of recall "):
        writer(shots=0).find_length_for_tokens(9, 1)


def test_a_limit_that_only_some_of_the_shortest_texts_fit_is_too_short():
    # Some sums of two digits have one digit, and others two.
    asked = writer(Addition(zero_padding=False), shots=0)
    texts = sizes(asked.questions(1, 64))
    most = max(texts)
    assert min(texts) < most
    with pytest.raises(SettingError, match=rf"has up to {most} tokens; use at least {most}"):
        asked.find_length_for_tokens(most - 1, 64)
    assert asked.find_length_for_tokens(most, 64) == 1
    with pytest.raises(SettingError, match=r"^invalid shot length 0; use at least 1$"):
        PromptFormat(shot_length=0)


def test_the_needle_of_recall_has_one_pair():
    needle = Recall().variants()["needle"]
    assert needle == NEEDLE
    assert needle.vocabulary == Recall().vocabulary


def tokens_of(tokenizer, examples) -> list[list[int]]:
    return [tokenizer(text.prompt + text.response)["input_ids"] for text in format_examples(NEEDLE, examples)]


@pytest.fixture(scope="module", params=["llama", pytest.param("gpt_neox", marks=pytest.mark.slow)])
def trained(request, tmp_path_factory):
    """Train a tiny model to find the needle, as in the tutorial: one token per symbol, loss on answers."""
    tokenizer = build_symbol_tokenizer(NEEDLE.vocabulary)
    config = CONFIGS[request.param]()
    config.vocab_size, config.max_position_embeddings = len(tokenizer), 256
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    optimizer, rng = torch.optim.Adam(model.parameters(), lr=5e-3), np.random.default_rng(0)
    for _ in range(150):
        examples = NEEDLE.sample(length=int(rng.integers(2, LONGEST + 1)), size=64, rng=rng)
        tokens = torch.tensor(tokens_of(tokenizer, examples))
        logits = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits[:, -3:-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, -2:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp(request.param) / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


SETTINGS = EvaluationSettings(lengths=(LONGEST + 6,), num_examples=(64,))


def test_each_length_is_reported_before_the_next_one_is_measured(trained):
    settings, events = EvaluationSettings(lengths=(9, 14), num_examples=(20,)), []
    evaluate_language_model(
        str(trained),
        NEEDLE,
        settings,
        prompting=PromptingConfig(shots=0, in_tokens=True, device="cpu"),
        report=lambda length, num_done, num_total: events.append((length, num_done == num_total)),
        report_row=lambda row: events.append((row["requested_tokens"], "row")),
    )
    assert [event for event in events if event[1]] == [(9, True), (9, "row"), (14, True), (14, "row")]


@pytest.mark.first(1)
@pytest.mark.parametrize("decode", ["forced", "free"])
def test_a_trained_model_finds_needles(trained, decode):
    prompting = PromptingConfig(shots=0, in_tokens=True, device="cpu")
    (row,) = evaluate_language_model(str(trained), NEEDLE, replace(SETTINGS, decode=decode), prompting=prompting)
    assert row["exact_match"] >= 0.95
    assert (row["length"], row["text_tokens"]) == (LONGEST, LONGEST + 6)
    assert row["low"] < row["exact_match"] <= row["high"] + 1e-9


def test_a_random_model_finds_no_needle(trained):
    config = transformers.AutoConfig.from_pretrained(trained)
    model = PlainTextModel(
        causal_model(config), HFTokenizerAdapter(transformers.AutoTokenizer.from_pretrained(trained), "m"), "m"
    )
    (row,) = evaluate_in_plain_text(model, NEEDLE, SETTINGS, prompts=PromptFormat(shots=0, in_tokens=True))
    assert row["exact_match"] <= 0.1


def test_the_answer_follows_the_value_in_the_text(trained):
    # With an explicit mask, the first item reaches the answer; the model copies a value that was changed there.
    model = PlainTextModel(
        transformers.AutoModelForCausalLM.from_pretrained(trained),
        HFTokenizerAdapter(transformers.AutoTokenizer.from_pretrained(trained), "m"),
        "m",
    )
    values = [f"v{number}" for number in range(8)]
    questions = [model.tokenize_question(f"k3 {v} f1 f2 f0 f5 f1 = k3 >", f" {v}\n") for v in values]
    (grades,) = model.grade(questions, decode="forced")
    assert grades.token_correct.float().mean() >= 0.9


@pytest.mark.parametrize("kind", [kind for kind in TOKENIZERS if kind != "space first"])
def test_recall_keeps_its_text_in_merging_tokenizers(kind):
    model = PlainTextModel(tiny_model(), TOKENIZERS[kind], "tiny")
    (block,) = writer(model=model, shots=1).questions(6, 5)
    for question, text in zip(block, format_examples(NEEDLE, NEEDLE.sample(**sample_of(6))), strict=False):
        decoded = model.codec.decode(question.context_tokens + question.answer_tokens)
        assert decoded.split("\n")[1] + "\n" == text.prompt + text.response


def sample_of(length):
    return {"length": length, "size": 16, "rng": random_stream(0, "evaluation examples", length, 0)}


def test_needles_from_the_command_line(trained, capsys):
    command = ["evaluate", str(trained), "--task", "recall", "--variants", "needle", "--shots", "0", "--in-tokens"]
    command += ["--lengths", "14", "--num-examples", "20", "--device", "cpu"]
    (row,) = json.loads(output_of([*command, "--json"], capsys)[0])["results"]
    assert (row["variant"], row["text_tokens"]) == ("needle", 14)
    assert row["exact_match"] >= 0.9
    table, progress = output_of(command, capsys)
    assert table.split().count("requested") == table.split().count("text") == 1
    # One plain line for the length, with the tokens and the exact match.
    (line,) = [line for line in progress.splitlines() if "exact match" in line]
    assert {"8", "14"} <= {word.strip(",:") for word in line.split()}
    assert "length 5 in tokens is too short" in error_of([*command, "--lengths", "5"], capsys)
    assert "invalid shot length 0; use at least 1" in error_of([*command, "--shot-length", "0"], capsys)
