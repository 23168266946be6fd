"""What only a CUDA device can show; make gpu runs these, without beartype."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from short_context import short_context_losses
from tests.model.test_near_attention import QUERY_START, coupled_ids, random_decoder, random_tokens
from tests.support.cases import small_decoder, small_scheme
from tests.support.causal_models import CONFIGS, causal_model
from tests.support.small_runs import small_experiment

import lengthwise as lw
from lengthwise.encodings import ENCODINGS
from lengthwise.evaluation.exact_match import evaluate_by_length
from lengthwise.experiments.decoder_model import DecoderModel
from lengthwise.experiments.experiment import build_decoder
from lengthwise.experiments.run_folder import read_rows
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.influence.hidden_context import MODES, TargetWindow, WindowEvaluator
from lengthwise.influence.measures import SubsetScorer, TargetLoss
from lengthwise.model import generate as generation
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.fast import near_attention
from lengthwise.model.fast import near_key_generation as near_generate
from lengthwise.model.fast.near_attention import NearAttention
from lengthwise.model.generate import generate
from lengthwise.model.position_heads import pointer
from lengthwise.tasks import MultiAddition, Parity
from lengthwise.training.batch import TrainingSampler
from lengthwise.training.loss import compute_answer_loss
from lengthwise.training.trainer import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]
CUDA = torch.device("cuda")


def batch_of(experiment):
    return TrainingSampler(
        task=experiment.task, scheme=experiment.scheme, lengths=(40, 40), batch_size=8, seed=3
    ).batches(0)[0]


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name != "learned"])
@torch.no_grad()
def test_cuda_and_cpu_agree_in_float32(encoding):
    experiment = lw.experiment("parity", "predicted", encoding)
    decoder, batch = build_decoder(experiment).eval(), batch_of(experiment)
    here, _ = decoder(batch.tokens, batch.position_ids)
    there, _ = decoder.to(CUDA)(batch.tokens.to(CUDA), batch.position_ids.to(CUDA))
    torch.testing.assert_close(there.cpu(), here, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("task", [Parity(), MultiAddition(operands=(2, 2))], ids=["one level", "two levels"])
@pytest.mark.parametrize("encoding", ENCODINGS)
@torch.no_grad()
def test_cached_decoding_gives_the_hidden_states_of_one_pass_on_cuda(encoding, task):
    for length in (2, 40):
        scheme = small_scheme("multilevel")
        batch = (
            TrainingSampler(task=task, scheme=scheme, lengths=(length, length), batch_size=4, seed=3)
            .batches(0)[0]
            .to(CUDA)
        )
        decoder = small_decoder(encoding, task, num_levels=len(batch.position_ids)).to(CUDA)
        whole, _ = decoder(batch.tokens, batch.position_ids)
        prompt = int(batch.prompt_length.min())
        hidden, cache = decoder(batch.tokens[:, :prompt], batch.position_ids[:, :, :prompt])
        steps = [hidden]
        for token, ids in zip(
            batch.tokens[:, prompt:].split(1, dim=1), batch.position_ids[:, :, prompt:].split(1, dim=2), strict=True
        ):
            hidden, cache = decoder(token, ids, cache)
            steps.append(hidden)
        torch.testing.assert_close(torch.cat(steps, dim=1), whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head", lw.POSITION_HEADS)
def test_gradients_are_finite_in_bf16_on_cuda(head):
    experiment = lw.experiment("parity", "predicted")
    experiment = replace(experiment, decoder=replace(experiment.decoder, head=head))
    decoder = build_decoder(experiment).to(CUDA)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        outcome = compute_answer_loss(decoder, [batch_of(experiment).to(CUDA)], 1.0)
    outcome.loss.backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in decoder.parameters())


@pytest.mark.parametrize("decode", ["forced", "free"])
def test_evaluation_gives_the_same_on_cuda_and_cpu(decode, tmp_path):
    experiment = lw.experiment("parity", "predicted", quick=True)
    run = lw.train(experiment, tmp_path / "run", device="cpu")
    settings = lw.EvaluationSettings(lengths=(4, 30), num_examples=(32,), decode=decode)
    here = tuple(evaluate_by_length(run.decoder, experiment.task, experiment.scheme, settings))
    there = tuple(evaluate_by_length(run.decoder.to(CUDA), experiment.task, experiment.scheme, settings))
    assert [row.exact_match for row in here] == [row.exact_match for row in there]


@pytest.fixture
def _near_in_short_sequences(monkeypatch):
    """Let short sequences have far keys, and several chunks of queries."""
    for module in (near_attention, near_generate):
        monkeypatch.setattr(module, "WIDTHS", (4, 8, 16))
    monkeypatch.setattr(near_attention, "GPU_NEAR_QUERIES", 32)
    monkeypatch.setattr(near_attention, "GPU_SCORES_PER_CHUNK", 1 << 10)
    monkeypatch.setattr(near_generate, "FIRST_BLOCK", 4)
    for module in (generation, pointer):
        monkeypatch.setattr(module, "MAX_DENSE_PROMPT", 1)


@pytest.mark.usefixtures("_near_in_short_sequences")
@pytest.mark.parametrize("max_single_share", [0.0, 1.0])
@pytest.mark.parametrize("encoding", ["rotary", "alibi"])
@pytest.mark.parametrize("temperature", [0.3, 60.0])
@torch.no_grad()
def test_near_attention_is_the_same_on_cuda_and_cpu(temperature, encoding, max_single_share, monkeypatch):
    # Queries that near keys do not suffice for read all keys: together, or in small groups.
    monkeypatch.setattr(near_attention, "MAX_SINGLE_SHARE", max_single_share)
    decoder = random_decoder(ENCODINGS[encoding](), temperature=temperature)
    tokens, ids, hidden = random_tokens(), coupled_ids(1), []
    for device in (torch.device("cpu"), CUDA):
        near = NearAttention()
        inputs, hooks = (tokens.to(device), ids.to(device)), AttentionHooks(near=near)
        hidden.append(decoder.to(device)(*inputs, query_start=QUERY_START, hooks=hooks)[0].cpu())
        assert near.omitted <= near_attention.MAX_OMITTED
    torch.testing.assert_close(hidden[1], hidden[0], rtol=0, atol=2e-5 * max(1, temperature))


@pytest.mark.usefixtures("_near_in_short_sequences")
@pytest.mark.parametrize("head", ["rank", "pointer", "wide_pointer"])
@pytest.mark.parametrize("temperature", [0.3, 20.0])
def test_near_decoding_is_the_same_on_cuda_and_cpu(temperature, head):
    decoder = random_decoder(num_predicted_ids=100, head=head, temperature=temperature)
    prompt, ids = torch.randint(2, 5, (2, 60)), torch.arange(1, 61).expand(1, 2, -1)
    here, there = (
        generate(decoder.to(device), prompt.to(device), ids.to(device), end=1, max_new_tokens=40)
        for device in (torch.device("cpu"), CUDA)
    )
    assert torch.equal(there.tokens.cpu(), here.tokens)
    assert torch.equal(there.position_ids.cpu(), here.position_ids)


def test_training_resumes_on_cuda(tmp_path):
    experiment = lw.experiment("parity", "predicted", quick=True)
    steps = iter([False] * 12 + [True])
    assert lw.train(experiment, tmp_path / "run", device="cuda", stop=lambda: next(steps)) is None
    run = lw.train(experiment, tmp_path / "run", device="cuda", resume=True)
    assert run is not None
    assert run.facts["steps"] == experiment.training.steps


def next_token_models(name, device):
    """A model of that architecture, or a decoder of ours."""
    if name in CONFIGS:
        return CausalLM(causal_model(CONFIGS[name]()).to(device), name)
    options = {"previous_token_mix": False, "segments": False}
    torch.manual_seed(0)
    return DecoderModel(small_decoder(name, Parity(), **options).to(device), name)


@pytest.mark.parametrize("name", [*CONFIGS, "rotary", "alibi"])
def test_influence_is_the_same_on_cuda_and_cpu(name):
    tokens = np.random.default_rng(0).integers(0, 4, 40)
    window = TargetWindow(start=tokens[:0], far=tokens[:30], near=tokens[30:39], target=int(tokens[39]))
    visible = np.random.default_rng(1).random((5, 30)) < 0.5
    here, there = (next_token_models(name, device) for device in (torch.device("cpu"), CUDA))
    for mode in MODES:
        scores, others = (
            SubsetScorer(
                evaluator=WindowEvaluator(model, window),
                mode=mode,
                objective=TargetLoss(window.target),
                units=list(np.arange(30)[:, None]),
                candidates=np.arange(30),
            ).scores(visible)
            for model in (here, there)
        )
        np.testing.assert_allclose(others, scores, rtol=1e-3, atol=1e-3)
    short = [short_context_losses(model, tokens, near=8, stride=4) for model in (here, there)]
    np.testing.assert_allclose(short[1], short[0], rtol=1e-3, atol=1e-3)


def test_a_run_that_was_trained_on_cuda_is_certified(tmp_path):
    run = lw.train(small_experiment(), tmp_path / "run", device="cuda")
    assert run.decoder.embedding.device.type == "cuda"
    assert lw.certify_run(run, [8]).train_lengths == (1, 4)
    assert run.decoder.embedding.device.type == "cuda"


@pytest.mark.parametrize("scaling", ["none", "log"])
def test_a_wrapped_model_writes_the_same_on_cuda_and_cpu(scaling):
    predictive = pytest.importorskip("lengthwise.hf.predictive_model", exc_type=ImportError)
    model = predictive.PredictivePositionModel.wrap(
        causal_model(CONFIGS["llama"]()), segments=True, length_scaling=scaling
    )
    model.generation_config.eos_token_id = None
    tokens, ids = torch.tensor([[5, 6, 7, 8], [9, 5, 8, 6]]), torch.tensor([[3, 9, 9, 4], [2, 7, 1, 7]])

    def written(device, **options):
        made = model.to(device).generate(
            tokens.to(device),
            position_ids=ids.to(device),
            max_new_tokens=6,
            do_sample=False,
            return_dict_in_generate=True,
            **options,
        )
        # Without a cache, the IDs are not collected.
        return made.sequences.cpu(), made.position_ids.cpu() if options.get("use_cache", True) else None

    expected = written("cpu")
    # With a cache of fixed length `generate` compiles its steps there.
    for options in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
        sequences, position_ids = written("cuda", **options)
        assert torch.equal(sequences, expected[0])
        if position_ids is not None:
            assert torch.equal(position_ids, expected[1])


def trainer_on_cuda(experiment, folder):
    sampler = TrainingSampler(
        task=experiment.task, scheme=experiment.scheme, lengths=experiment.train_lengths, batch_size=8, seed=3
    )
    torch.manual_seed(0)
    return Trainer(build_decoder(experiment).to(CUDA), sampler, experiment.training, folder)


def losses_of(trainer, step):
    return [step(trainer._prepare(0, index)).loss.item() for index in range(6)]


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize(
    "change",
    [
        *({"encoding": name} for name in ENCODINGS if name != "learned"),
        *({"head": name} for name in lw.POSITION_HEADS),
        {"scheme": "coupled"},
        {"scheduled_sampling": 0.5},
    ],
    ids=str,
)
def test_recorded_steps_have_the_losses_of_the_same_steps_without_a_recording(change, precision, tmp_path):
    encoding, scheme = change.get("encoding", "rotary"), change.get("scheme", "predicted")
    experiment = lw.experiment("parity", scheme, encoding)
    sampling = change.get("scheduled_sampling", 0.0)
    experiment = replace(
        experiment,
        training=replace(experiment.training, precision=precision, scheduled_sampling=sampling),
        decoder=replace(experiment.decoder, head=change.get("head", "pointer")),
        train_lengths=(20, 20),
    )
    recorded, plain = trainer_on_cuda(experiment, tmp_path), trainer_on_cuda(experiment, tmp_path)
    losses = losses_of(recorded, lambda batches: recorded.recorder.step(batches, CUDA))
    expected = losses_of(plain, lambda batches: plain.update([batch.to(CUDA) for batch in batches]))
    assert all(recorded.recorder.recordings.values())
    np.testing.assert_allclose(losses, expected, rtol=1e-4 if precision == "float32" else 2e-2)


@pytest.mark.parametrize("scheme", ["predicted", "coupled"])
@pytest.mark.parametrize("encoding", ENCODINGS)
@torch.no_grad()
def test_recorded_decoding_writes_the_tokens_of_plain_steps(encoding, scheme, monkeypatch):
    scheme = small_scheme(scheme)
    batch = TrainingSampler(task=Parity(), scheme=scheme, lengths=(20, 20), batch_size=4, seed=3).batches(0)[0].to(CUDA)
    limit = 48 if scheme.predicts_ids else None
    decoder = small_decoder(encoding, Parity(), num_predicted_ids=limit).to(CUDA)
    prompt = int(batch.prompt_length[0])
    ids = batch.position_ids if limit is None else batch.position_ids[:, :, :prompt]
    written = []
    for min_tokens in (1, 1 << 30):
        monkeypatch.setattr(generation, "MIN_RECORDED_TOKENS", min_tokens)
        count = batch.tokens.shape[1] - prompt
        written.append(generate(decoder, batch.tokens[:, :prompt], ids, end=1, max_new_tokens=count))
    assert torch.equal(written[0].tokens, written[1].tokens)
    assert torch.equal(written[0].position_ids, written[1].position_ids)
    assert torch.equal(written[0].is_written, written[1].is_written)


def test_compiled_steps_have_the_losses_of_plain_steps(tmp_path):
    experiment = replace(lw.experiment("parity", "predicted"), train_lengths=(20, 20))
    experiment = replace(experiment, training=replace(experiment.training, precision="float32"))
    losses = []
    for compiles in (False, True):
        trainer = trainer_on_cuda(experiment, tmp_path)
        trainer.decoder.compiles_training = compiles
        batches = [trainer.samplers[0].batches(index)[0].to(CUDA) for index in range(4)]
        losses.append([trainer.update([batch]).loss.item() for batch in batches])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_train_the_run_of_one(tmp_path):
    command = ["train", "parity", "--quick", "--set", "training.precision=float32", "--device", "cuda"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "lengthwise"]
    subprocess.run([*launcher, *command, "--out", "two"], cwd=tmp_path, check=True)
    subprocess.run([sys.executable, "-m", "lengthwise", *command, "--out", "one"], cwd=tmp_path, check=True)
    one, two = (read_rows(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert len(one) > 0
    assert [row["loss"] for row in two] == pytest.approx([row["loss"] for row in one], abs=1e-4)
