"""Influence of tokens on a decoder whose position IDs follow the lines of the text."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from claims.sparsity_in_text.paired_contexts import ContextSettings, measure_paired_targets
from short_context import short_context_losses
from tests.support.text_runs import text_experiment

from lengthwise.cli import app as cli
from lengthwise.core.errors import ModelError
from lengthwise.evaluation.language_model import BytePairTokenizerAdapter
from lengthwise.experiments.decoder_model import wrap_run_as_model
from lengthwise.experiments.experiment import build_decoder
from lengthwise.experiments.run import train
from lengthwise.influence.exactness_checks import check_study_exactness
from lengthwise.influence.hidden_context import TargetWindow, WindowEvaluator, strict_log_probs
from lengthwise.positions import MultiLevel, Randomized
from lengthwise.tasks import Text

TASK = Text(structure=True)
# The built-in texts have one token per byte.
LETTER, NEWLINE = TASK.tokenizer.encode("a\n")
FAR, NEAR = 30, 6


@pytest.fixture(name="run", scope="module")
def train_run(tmp_path_factory):
    """Train a run, then set weights that are large enough for far tokens to matter."""
    torch.set_num_threads(1)
    experiment = text_experiment(TASK, scheme=MultiLevel(num_position_ids=64, max_gaps=1), steps=2)
    run = train(experiment, tmp_path_factory.mktemp("runs") / "run", device="cpu")
    for parameter in run.decoder.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    return run


@pytest.fixture(name="model")
def wrap(run):
    return wrap_run_as_model(run, "structured")


@pytest.fixture(name="window")
def build_window():
    """Return a window of random letters with four line ends, two of them far."""
    tokens = np.random.default_rng(0).integers(LETTER, LETTER + 26, size=FAR + NEAR)
    tokens[[4, 17, FAR + 1, FAR + 3]] = NEWLINE
    return TargetWindow(start=tokens[:0], far=tokens[:FAR], near=tokens[FAR:], target=LETTER)


@pytest.fixture(name="masks")
def sample_masks():
    masks = np.random.default_rng(1).random((12, FAR)) < np.linspace(0, 1, 12)[:, None]
    masks[0], masks[-1] = False, True
    return masks


def ids_by_loop(tokens):
    """Return one pair (place in the line, number of the line) per token."""
    pairs, place, line = [], 0, 0
    for token in tokens:
        pairs.append((place, line))
        place, line = (0, line + 1) if token == NEWLINE else (place + 1, line)
    return torch.tensor(pairs).T


def predictions(model, window, masks, mode):
    if mode == "plain":
        batches = strict_log_probs(model, [(window, mask) for mask in masks])
    else:
        batches = WindowEvaluator(model, window).log_probs(masks, mode)
    by_query = {index: row for indices, rows in batches for index, row in zip(indices, rows, strict=True)}
    return torch.stack([by_query[index] for index in range(len(masks))])


def test_the_ids_of_a_window_are_the_places_and_lines_of_all_its_tokens(model, window):
    assert model.assign_position_ids(torch.from_numpy(window.tokens)).tolist() == ids_by_loop(window.tokens).tolist()


@torch.no_grad()
@pytest.mark.parametrize("mode", ["plain", "strict"])
def test_visible_tokens_keep_the_ids_of_the_whole_window(run, model, window, masks, mode):
    ids = ids_by_loop(window.tokens)
    for mask, log_probs in zip(masks, predictions(model, window, masks, mode), strict=True):
        keep = [index for index in range(FAR + NEAR) if index >= FAR or mask[index]]
        hidden, _ = run.decoder(torch.from_numpy(window.tokens)[None, keep], ids[:, None, keep])
        expected = run.decoder.token_logits(hidden[0, -1]).log_softmax(dim=-1)
        torch.testing.assert_close(log_probs, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("mode", ["plain", "strict"])
def test_a_hidden_token_has_exactly_no_influence_except_through_line_ends(model, window, masks, mode):
    masks[:, [9, 17]] = False
    before = predictions(model, window, masks, mode)
    for index, token, is_equal in ((9, LETTER, True), (17, LETTER, False)):
        changed = window.far.copy()
        changed[index] = token + (token == changed[index])
        after = predictions(model, replace(window, far=changed), masks, mode)
        # Without the line end, the same visible tokens belong to other lines.
        assert torch.equal(before, after) == is_equal


def test_all_checks_of_a_study_hold(model, window):
    check_study_exactness(model, window, modes=("masked", "decode"), check_gates=True, check_attention=True)


@pytest.mark.parametrize("mode", ["strict", "masked"])
def test_checks_detect_ids_that_depend_on_the_visible_tokens(model, window, monkeypatch, mode):
    method, assign = {"strict": "log_probs", "masked": "log_probs_with_mask"}[mode], model.assign
    predict = getattr(model, method)

    def with_new_ids(*inputs, **states):
        tokens, _, *rest = inputs if mode == "strict" else inputs[1:]
        new_ids = torch.stack([assign(row) for row in tokens]) if mode == "strict" else assign(tokens)
        return predict(*inputs[: mode == "masked"], tokens, new_ids, *rest, **states)

    monkeypatch.setattr(model, method, with_new_ids)
    with pytest.raises(ModelError, match=r"structured cannot be measured exactly"):
        check_study_exactness(model, window, modes=("masked", "decode"))


def test_checks_detect_a_cache_with_other_ids(model, window, monkeypatch):
    prefill = model.prefill
    monkeypatch.setattr(model, "prefill", lambda tokens, ids, num_prefix: prefill(tokens, ids.flip(0), num_prefix))
    with pytest.raises(ModelError, match=r"predictions after a cached prefix differ from one pass"):
        check_study_exactness(model, window)


@torch.no_grad()
def test_every_context_of_a_target_has_the_ids_of_its_own_lines(run, model):
    settings = ContextSettings(lengths=(16, 32, 64), near=4, ks=(1, 2), num_targets=8)
    texts = {text.name: text.tokens.astype(np.int64) for text in TASK.held_out()}
    for target in measure_paired_targets(model, BytePairTokenizerAdapter(TASK.tokenizer), TASK.held_out(), settings):
        for length, loss in zip(settings.lengths, target.losses, strict=True):
            context = texts[target.document][target.place - length : target.place]
            hidden, _ = run.decoder(torch.from_numpy(context)[None], ids_by_loop(context)[:, None])
            log_probs = run.decoder.token_logits(hidden[0, -1]).log_softmax(dim=-1)
            assert loss == pytest.approx(-float(log_probs[texts[target.document][target.place]]), abs=1e-4)


def test_short_context_losses_have_the_ids_of_each_window(model, window):
    tokens, near = window.tokens, 5
    losses = short_context_losses(model, tokens, near=near, stride=1)
    for index, loss in enumerate(losses):
        log_probs = model.log_probs_without_cache(torch.from_numpy(tokens[index : index + near]))
        assert loss == pytest.approx(-float(log_probs[tokens[index + near]]), abs=1e-4)


def test_random_ids_are_equal_in_all_windows_of_a_length(run, window):
    experiment = text_experiment(Text(), scheme=Randomized(num_position_ids=500))
    model = wrap_run_as_model(replace(run, experiment=experiment, decoder=build_decoder(experiment)), "random")
    first, second = (
        model.assign_position_ids(torch.from_numpy(tokens.copy())) for tokens in (window.tokens, window.tokens[::-1])
    )
    assert torch.equal(first, second)
    assert (first.diff() > 0).all()
    assert first.max() > len(window.tokens)


@pytest.mark.slow
def test_the_command_influence_measures_a_structured_run(run, tmp_path):
    sizes = ["--near", "8", "--far", "24", "--k", "1,2", "--targets", "4", "--prefilter", "0.5"]
    cli.main(["influence", str(run.folder), *sizes, "--out", str(tmp_path / "study")])
    rows = [json.loads(line) for line in (tmp_path / "study" / "influence.jsonl").read_text().splitlines()]
    assert len([row for row in rows if "loss_long" in row]) == 4
