"""Coupling of text by its lines: an independent reference, causality, and training with several ID levels."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.text_runs import text_experiment

from lengthwise.core.errors import PromptError, UnsupportedTaskError
from lengthwise.experiments.run import train
from lengthwise.experiments.run_evaluation import evaluate, generate_from_prompt
from lengthwise.positions import Coupled, MultiLevel
from lengthwise.tasks import Text
from lengthwise.tasks.text.corpus import prepare_corpus
from lengthwise.tasks.text.tokenizer import END


@pytest.fixture(name="text", scope="module")
def build_text(tmp_path_factory):
    """Return the task with a corpus in which a token contains a newline and the indentation of the next line."""
    folder = tmp_path_factory.mktemp("corpora")
    for name in "ab":
        (folder / f"{name}.txt").write_text(f"the bird {name}\n    sees\n" * 40)
    prepare_corpus([str(folder)], folder / "corpus", vocabulary_size=290, held_out=0.5)
    return Text(corpus=str(folder / "corpus"), structure=True)


def lines_by_loop(pieces):
    """Return the place in the line and the number of the line of each token, from the bytes of the tokens."""
    place, line, places, lines = 0, 0, [], []
    for piece in pieces:
        places.append(place)
        lines.append(line)
        place += 1
        # The end token has no bytes.
        if piece.count(b"\n") > 0 or len(piece) == 0:
            place, line = 0, line + 1
    return [places, lines]


def test_the_coupling_is_the_place_in_the_line_and_the_number_of_the_line(text, rng):
    pieces = text.tokenizer.pieces
    newlines = np.array([token for token, piece in enumerate(pieces) if b"\n" in piece])
    assert {pieces[token] for token in newlines} >= {b"\n", b"\n   "}
    tokens = rng.integers(0, len(pieces), size=(40, 60))
    tokens = np.where(rng.random(tokens.shape) < 0.1, rng.choice(np.append(newlines, END), tokens.shape), tokens)
    for examples in (text.tokens_to_examples(tokens), text.sample(length=50, size=20, rng=rng)):
        for index, row in enumerate(examples.tokens):
            assert examples.coupling[:, index].tolist() == lines_by_loop([pieces[token] for token in row])
    assert examples.coupling[1].max() > 1


def test_later_tokens_never_change_the_coupling_of_earlier_tokens(text, rng):
    tokens = text.sample(length=40, size=8, rng=rng).tokens
    whole = text.tokens_to_examples(tokens).coupling
    for stop in range(1, tokens.shape[1]):
        np.testing.assert_array_equal(text.tokens_to_examples(tokens[:, :stop]).coupling, whole[..., :stop])


def test_structure_changes_no_token_and_is_off_by_default(text):
    plain = replace(text, structure=False)
    assert not Text().structure
    one, other = (task.sample(length=9, size=5, rng=np.random.default_rng(1)) for task in (plain, text))
    np.testing.assert_array_equal(one.tokens, other.tokens)
    assert one.coupling is None
    with pytest.raises(UnsupportedTaskError, match=r"this task declares no coupling"):
        MultiLevel().assign(one, np.random.default_rng(1), training=True)
    with pytest.raises(UnsupportedTaskError, match=r"has 2 levels but the scheme coupled supports only one"):
        Coupled().assign(other, np.random.default_rng(1), training=True)


def test_a_structured_run_trains_and_evaluates_but_cannot_continue_a_prompt(text, tmp_path):
    experiment = text_experiment(text, scheme=MultiLevel(num_position_ids=64, max_gaps=1))
    run = train(experiment, tmp_path / "run", device="cpu")
    assert run is not None
    rows = evaluate(run, experiment.evaluation)
    assert [row["length"] for row in rows] == [8, 16, 32]
    assert all(row["given"] == "ID range, coupling, response IDs" for row in rows)
    # The lines of the continuation are unknown, and so are its IDs.
    with pytest.raises(PromptError, match=r"scheme multilevel needs the coupling of prompt 'the bird '"):
        generate_from_prompt(run, "the bird ")
