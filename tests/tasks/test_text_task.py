"""Text task: windows of a corpus, its kinds, and runs that store their tokenizer."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.support.small_runs import equal_tensors, folder_contents, run_weights, stop_after, training_facts
from tests.support.text_runs import small_corpus, text_experiment

from lengthwise.core.errors import PromptError, SettingError, TextSourceError, UnknownNameError
from lengthwise.core.randomness import random_stream
from lengthwise.experiments.experiment import Experiment, from_dict, to_dict
from lengthwise.experiments.run import load_run, train
from lengthwise.experiments.run_evaluation import evaluate, generate_from_prompt
from lengthwise.experiments.run_folder import acquire_run_folder, read_experiment
from lengthwise.tasks import GradedByLoss, HasFilesToSave, Parity, Task, Text, task_result_fields
from lengthwise.tasks.text.corpus import HELD_OUT, TRAIN, built_in_texts, open_corpus
from lengthwise.tasks.text.tokenizer import END


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a corpus of two kinds."""
    folder = tmp_path_factory.mktemp("corpora")
    small_corpus(folder)
    return folder


@pytest.fixture
def text(corpora: Path) -> Text:
    """Task with the training split of the corpus."""
    return Text(corpus=str(corpora / "corpus"))


def test_text_satisfies_the_protocols_for_loss_and_run_files_and_parity_does_not():
    assert isinstance(Text(), Task)
    assert isinstance(Text(), GradedByLoss)
    assert isinstance(Text(), HasFilesToSave)
    assert not isinstance(Parity(), GradedByLoss | HasFilesToSave)


def test_a_result_row_names_the_corpus_and_the_digest_of_its_facts(text, corpora):
    digest = hashlib.sha256((corpora / "corpus" / "corpus.json").read_bytes()).hexdigest()
    assert task_result_fields(text) == {"task": "text", "corpus": str(corpora / "corpus"), "corpus_sha256": digest}
    assert task_result_fields(Text()) == {"task": "text"}
    assert task_result_fields(Parity()) == {"task": "parity"}


def test_a_sequence_is_a_window_of_the_split_and_all_its_tokens_but_the_first_are_answers(text, rng):
    examples = text.sample(length=30, size=40, rng=rng)
    whole = open_corpus(Path(text.corpus)).token_stream(TRAIN)
    windows = np.lib.stride_tricks.sliding_window_view(whole, 31)
    for tokens in examples.tokens:
        assert (windows == tokens).all(axis=1).any()
    assert examples.tokens.shape == (40, 31)
    assert examples.is_answer[:, 1:].all()
    assert not examples.is_answer[:, 0].any()
    assert (examples.prompt_length == 1).all()
    assert examples.coupling is examples.step_index is examples.depends_on is None


def test_sequences_start_at_every_token_that_leaves_room(text, rng):
    whole = open_corpus(Path(text.corpus)).token_stream(TRAIN).astype(np.int64)
    length = len(whole) - 3
    windows = {tuple(tokens) for tokens in text.sample(length=length, size=60, rng=rng).tokens.tolist()}
    assert windows == {tuple(whole[start : start + length + 1].tolist()) for start in range(3)}
    with pytest.raises(
        SettingError,
        match=rf"length {len(whole)} needs {len(whole) + 1} tokens, but .* use a length of at most {len(whole) - 1}",
    ):
        text.sample(length=len(whole), size=1, rng=rng)


def test_sequences_come_from_the_selected_split_and_kind(text, rng):
    corpus = open_corpus(Path(text.corpus))
    assert list(text.variants()) == ["tales", "notes"]
    for split in (TRAIN, HELD_OUT):
        for kind, task in replace(text, split=split).variants().items():
            source = corpus.token_stream(split, kind)
            (tokens,) = task.sample(length=len(source) - 1, size=1, rng=rng).tokens
            assert np.array_equal(tokens, source)
            assert task.variants() == {}


def test_held_out_documents_do_not_depend_on_the_split_of_the_task(text):
    expected = {name: tokens.tolist() for name, tokens in open_corpus(Path(text.corpus)).document_tokens(HELD_OUT)}
    for task in (text, replace(text, split=HELD_OUT)):
        assert {document.name: document.tokens.tolist() for document in task.held_out()} == expected
    of_kind = replace(text, kind="notes").held_out()
    assert {document.name for document in of_kind} == {name for name in expected if "notes" in name}
    assert all(END not in document.tokens for document in of_kind)


def test_without_a_corpus_the_task_has_the_built_in_texts_with_one_token_per_byte(rng):
    train_texts, held_out_texts = built_in_texts()[TRAIN], built_in_texts()[HELD_OUT]
    task = Text()
    (tokens,) = task.sample(
        length=len("".join(train_texts.values()).encode()) + len(train_texts) - 1, size=1, rng=rng
    ).tokens
    assert bytes(token - 1 for token in tokens if token != END).decode() == "".join(train_texts.values())
    assert {document.name for document in task.held_out()} == set(held_out_texts)
    assert set(train_texts).isdisjoint(held_out_texts)
    assert (len(task.vocabulary), task.vocabulary[0], task.vocabulary[ord("a") + 1]) == (257, "end", "'a'")
    assert task.variants() == task.files_to_save() == {}


def test_the_token_bytes_of_a_text_add_up_to_its_size(text):
    tokens = text.tokenizer.encode("a bird, a house: 東京")
    assert text.count_token_bytes()[tokens].sum() == len("a bird, a house: 東京".encode())
    assert text.count_token_bytes()[END] == 0


def test_an_unknown_kind_or_split_raises_an_error(text, rng):
    with pytest.raises(
        UnknownNameError, match=r"unknown kind of text 'tails'; did you mean 'tales'\? known: notes, tales"
    ):
        replace(text, kind="tails").sample(length=2, size=1, rng=rng)
    with pytest.raises(SettingError, match=r"unknown split 'test' of text; use one of train, held_out"):
        Text(split="test")


def test_the_run_folder_of_the_tokenizer_is_not_saved(text):
    loaded_task = text.from_run_folder(Path(text.corpus))
    assert loaded_task.run_folder == text.corpus
    assert loaded_task == text
    assert (
        to_dict(loaded_task)
        == to_dict(text)
        == {"name": "text", "corpus": text.corpus, "split": "train", "kind": None, "structure": False}
    )
    assert from_dict(to_dict(Experiment(task=loaded_task))).task == text


def test_a_run_loads_without_its_corpus_and_evaluates_with_a_moved_one(corpora, tmp_path):
    lost = tmp_path / "lost"
    shutil.copytree(corpora / "corpus", lost)
    experiment = text_experiment(Text(corpus=str(lost)))
    run = train(experiment, tmp_path / "run", device="cpu")
    assert run is not None
    rows = evaluate(load_run(tmp_path / "run", device="cpu"), experiment.evaluation)
    shutil.rmtree(lost)
    loaded = load_run(tmp_path / "run", device="cpu")
    assert equal_tensors(loaded.decoder.state_dict(), run.decoder.state_dict())
    assert loaded.experiment == experiment
    assert isinstance(loaded.experiment.task, Text)
    assert loaded.experiment.task.vocabulary == Text(corpus=str(corpora / "corpus")).vocabulary
    with pytest.raises(
        TextSourceError, match=r"lost is not a corpus \(it has no corpus.json\); run lengthwise prepare"
    ):
        evaluate(loaded, experiment.evaluation)
    # The same corpus at its new path gives the same results.
    moved = replace(loaded.experiment, task=replace(loaded.experiment.task, corpus=str(corpora / "corpus")))
    again = evaluate(replace(loaded, experiment=moved), experiment.evaluation)
    assert [row["loss"] for row in again] == [row["loss"] for row in rows]


def test_evaluating_on_another_corpus_raises_an_error(corpora, tmp_path):
    other = small_corpus(tmp_path, documents=6)
    run = train(text_experiment(Text(corpus=str(corpora / "corpus")), steps=1), tmp_path / "run", device="cpu")
    assert run is not None
    task = replace(load_run(tmp_path / "run", device="cpu").experiment.task, corpus=str(other))
    with pytest.raises(TextSourceError, match=r"corpus .* is not the corpus of .*run \(its corpus.json differs\)"):
        task.held_out()


def test_a_run_on_the_built_in_texts_stores_no_task_files(tmp_path):
    acquire_run_folder(tmp_path / "run", text_experiment(Text()), resume=False)
    assert set(folder_contents(tmp_path / "run")) == {"experiment.json"}
    assert read_experiment(tmp_path / "run").task == Text()


def test_a_stopped_language_model_resumes_to_the_same_weights(text, tmp_path):
    experiment = text_experiment(text)
    train(experiment, tmp_path / "whole", device="cpu")
    assert train(experiment, tmp_path / "stopped", device="cpu", stop=stop_after(6)) is None
    train(read_experiment(tmp_path / "stopped"), tmp_path / "stopped", device="cpu", resume=True)
    assert equal_tensors(run_weights(tmp_path / "stopped"), run_weights(tmp_path / "whole"))
    assert training_facts(tmp_path / "stopped") == training_facts(tmp_path / "whole")


def test_a_task_graded_by_loss_has_no_fitted_step(text, tmp_path):
    assert train(text_experiment(text), tmp_path / "run", device="cpu").facts["fitted"] is None
    with pytest.raises(SettingError, match="text is graded by loss; leave out fit_every"):
        train(text_experiment(text, fit_every=2), tmp_path / "other", device="cpu")
    assert not (tmp_path / "other").exists()


def test_a_continuation_of_text_is_neither_correct_nor_wrong(text, tmp_path):
    run = train(text_experiment(text, steps=40, learning_rate=1e-2), tmp_path / "run", device="cpu")
    assert run is not None
    answer = generate_from_prompt(run, "the bird ", max_new_tokens=5)
    assert (answer.expected, answer.correct) == ([], None)
    assert 1 <= len(answer.tokens) <= 5
    start = len(text.tokenizer.encode("the bird "))
    assert answer.position_ids == list(range(start, start + len(answer.tokens)))
    with pytest.raises(PromptError, match=r"the prompt is empty; write some words to continue"):
        generate_from_prompt(run, "")


def test_pickling_the_task_does_not_include_the_tokens_of_an_open_corpus(text):
    import pickle  # noqa: PLC0415  (what worker processes are sent by)

    before = len(pickle.dumps(text))
    text.sample(length=5, size=1, rng=random_stream(0))
    assert len(pickle.dumps(text)) < before + 100_000
