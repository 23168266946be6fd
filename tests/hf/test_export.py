"""Tests of the export of runs to folders of `transformers`, and of the import."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from tests.cli.test_cli import error_of, output_of
from tests.support.small_runs import small_experiment
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from lengthwise.core.errors import RunFolderError, SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.encodings import ALiBi, NoPE
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.run import load_run, train
from lengthwise.experiments.run_evaluation import evaluate
from lengthwise.experiments.run_folder import EXPERIMENT, read_experiment, read_model
from lengthwise.hf.export import export_hf, import_hf
from lengthwise.hf.loading import load_text_model
from lengthwise.hf.text_evaluation import evaluate_in_plain_text
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.model.generate import generate
from lengthwise.positions import DiscoveredCoupling, Predicted, Sequential
from lengthwise.tasks import Addition, MultiAddition, Parity
from lengthwise.tasks.text_format import PromptFormat, format_examples
from lengthwise.training.batch import to_batch
from lengthwise.training.loss import compute_answer_loss

EXPERIMENTS = {
    "PPC": small_experiment(),
    "rank head": small_experiment(head="rank"),
    "ALiBi": small_experiment(scheme=Sequential(), encoding=ALiBi()),
    "previous token mix": replace(small_experiment(), decoder=DecoderSettings(d_model=16, previous_token_mix=True)),
    "two levels": small_experiment(MultiAddition(operands=(2, 2)), Predicted(num_position_ids=64), weight_decay=0.1),
}


@pytest.fixture(scope="module", params=EXPERIMENTS)
def folders(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("export")
    assert train(EXPERIMENTS[request.param], root / "run") is not None
    export_hf(root / "run", root / "hf")
    return root


def batch_of(experiment: Experiment, length: int = 4, size: int = 3):
    examples = experiment.task.sample(length=length, size=size, rng=random_stream(0, "export"))
    return to_batch(length, examples, experiment.scheme.assign(examples, random_stream(0, "ids"), training=False))


def without_single_level(ids: torch.Tensor) -> torch.Tensor:
    return ids[0] if len(ids) == 1 else ids


def test_the_exported_model_has_the_logits_of_the_run(folders):
    run, model = load_run(folders / "run"), AutoModelForCausalLM.from_pretrained(folders / "hf").eval()
    batch = batch_of(run.experiment)
    with torch.no_grad():
        expected = run.decoder.token_logits(run.decoder(batch.tokens, batch.position_ids)[0])
        torch.testing.assert_close(
            model(batch.tokens, position_ids=without_single_level(batch.position_ids)).logits,
            expected,
            atol=1e-6,
            rtol=0,
        )


def test_one_row_of_ids_applies_to_all_sequences(folders):
    model = AutoModelForCausalLM.from_pretrained(folders / "hf").eval()
    batch = batch_of(load_run(folders / "run").experiment)
    ids = without_single_level(batch.position_ids)[..., :1, :]
    every = ids.expand(*ids.shape[:-2], len(batch.tokens), -1)
    with torch.no_grad():
        torch.testing.assert_close(
            model(batch.tokens, position_ids=ids).logits, model(batch.tokens, position_ids=every).logits
        )


def test_unsupported_arguments_raise_an_error_and_casts_keep_float32(folders):
    model = AutoModelForCausalLM.from_pretrained(folders / "hf").eval()
    batch = batch_of(load_run(folders / "run").experiment)
    ids = without_single_level(batch.position_ids)
    with torch.no_grad():
        expected = model(batch.tokens, position_ids=ids, inputs_embeds=None, output_hidden_states=False).logits
        for option in ({"sequence_ids": batch.tokens}, {"output_attentions": True}):
            with pytest.raises(SettingError, match=f"this decoder does not support {next(iter(option))}; leave"):
                model(batch.tokens, position_ids=ids, **option)
        assert torch.equal(model.to(torch.bfloat16)(batch.tokens, position_ids=ids).logits, expected)


def test_a_run_with_counted_ids_has_the_same_results_in_plain_text(tmp_path):
    run = train(replace(small_experiment(scheme=Sequential(), encoding=NoPE(), steps=40)), tmp_path / "run")
    export_hf(tmp_path / "run", tmp_path / "hf")
    settings = EvaluationSettings(lengths=(2, 4), num_examples=(32,))
    model = load_text_model(str(tmp_path / "hf"))
    same = ("length", "exact_match", "token_accuracy", "first_error")
    text_rows = evaluate_in_plain_text(model, Parity(), settings, prompts=PromptFormat(shots=0))
    for mine, texts in zip(evaluate(run, settings), text_rows, strict=True):
        assert {name: texts[name] for name in same} == {name: mine[name] for name in same}
        assert 0 < mine["token_accuracy"] < 1


def test_import_restores_the_run(folders, tmp_path):
    # Import also works after `transformers` saved the model again.
    AutoModelForCausalLM.from_pretrained(folders / "hf").save_pretrained(tmp_path / "again")
    for place, source in enumerate((folders / "hf", tmp_path / "again")):
        import_hf(source, tmp_path / str(place))
        assert read_experiment(tmp_path / str(place)) == read_experiment(folders / "run")
        (weights, facts), (expected, known) = read_model(tmp_path / str(place)), read_model(folders / "run")
        assert facts == known
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], weight) for name, weight in expected.items())


def generate_by_run(decoder: Decoder, experiment: Experiment, tokens: torch.Tensor, ids: torch.Tensor):
    end = experiment.task.vocabulary.index("end")
    all_ids = ids if decoder.predicts_ids else torch.arange(40).expand(len(ids), len(tokens), -1)
    return generate(decoder, tokens, all_ids, end=end, max_new_tokens=9)


def test_the_exported_model_generates_the_tokens_of_the_run(folders):
    run, model = load_run(folders / "run"), AutoModelForCausalLM.from_pretrained(folders / "hf").eval()
    batch = batch_of(run.experiment)
    prompt = int(batch.prompt_length[0])
    tokens, ids = batch.tokens[:, :prompt], batch.position_ids[:, :, :prompt]
    expected = generate_by_run(run.decoder, run.experiment, tokens, ids)
    output = model.generate(
        tokens, position_ids=without_single_level(ids), max_new_tokens=9, do_sample=False, return_dict_in_generate=True
    )
    new = output.sequences[:, prompt:]
    assert torch.equal(new[expected.is_written[:, : new.shape[1]]], expected.tokens[expected.is_written])
    without = model.generate(
        tokens, position_ids=without_single_level(ids), max_new_tokens=9, do_sample=False, use_cache=False
    )
    assert torch.equal(without, output.sequences)


def test_the_exported_model_has_the_training_loss(folders):
    run, model = load_run(folders / "run"), AutoModelForCausalLM.from_pretrained(folders / "hf")
    batch = batch_of(run.experiment)
    labels = torch.where(batch.token_scored, batch.tokens, -100)
    position_labels = without_single_level(torch.where(batch.id_scored, batch.position_ids, -100))
    targets = {"position_labels": position_labels} if run.experiment.scheme.predicts_ids else {}
    output = model(batch.tokens, position_ids=without_single_level(batch.position_ids), labels=labels, **targets)
    expected = compute_answer_loss(run.decoder, [batch], run.experiment.training.id_weight)
    torch.testing.assert_close(output.loss, expected.loss)


def test_labels_without_ids_raise_an_error(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokens = torch.tensor([[0, 1, 2, 1]])
    with pytest.raises(SettingError, match="position_ids are missing; calls with labels or packed texts"):
        model(tokens, labels=tokens)


def test_the_exported_tokenizer_has_the_symbols_of_the_task(folders):
    vocabulary = read_experiment(folders / "run").task.vocabulary
    tokenizer = AutoTokenizer.from_pretrained(folders / "hf")
    assert tokenizer(" ".join(vocabulary))["input_ids"] == list(range(len(vocabulary)))
    assert tokenizer.eos_token == "end"
    task = read_experiment(folders / "run").task
    examples = task.sample(length=4, size=1, rng=random_stream(0, "text"))
    (text,) = format_examples(task, examples)
    assert tokenizer(text.prompt + text.response)["input_ids"] == examples.tokens[0].tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("one")
    train(EXPERIMENTS["PPC"], root / "run")
    export_hf(root / "run", root / "hf")
    return root / "hf"


@pytest.mark.filterwarnings("ignore:a prompt does not end with:UserWarning")
def test_left_padding_does_not_change_generation(folder):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    prompts = tokenizer(["01=", "0110="], padding=True, return_tensors="pt", return_token_type_ids=False)
    ids = torch.tensor([[0, 0, 1, 2, 0], [1, 2, 3, 4, 0]])
    together = model.generate(**prompts, position_ids=ids, max_new_tokens=5, do_sample=False, eos_token_id=None)
    alone = tokenizer(["01="], return_tensors="pt", return_token_type_ids=False)
    expected = model.generate(**alone, position_ids=ids[:1, 2:], max_new_tokens=5, do_sample=False, eos_token_id=None)
    assert torch.equal(together[0, -5:], expected[0, -5:])


def test_padding_with_previous_token_mix_raises_an_error(tmp_path):
    train(EXPERIMENTS["previous token mix"], tmp_path / "run")
    export_hf(tmp_path / "run", tmp_path / "hf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    with pytest.raises(SettingError, match="pass prompts of equal length without an attention_mask"):
        model(torch.tensor([[0, 1, 1]]), torch.tensor([[0, 1, 1]]), torch.tensor([[0, 1, 2]]))


def test_invalid_export_and_import_folders_raise_an_error(folder, tmp_path):
    with pytest.raises(RunFolderError, match="already exists and is not an empty folder; choose another --out"):
        export_hf(folder.parent / "run", folder)
    with pytest.raises(RunFolderError, match="is not an exported run; use a folder written by export --format hf"):
        import_hf(folder.parent / "run", tmp_path / "out")
    assert not (tmp_path / "out" / EXPERIMENT).exists()


def output_of_code(code: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize("imports", ["import lengthwise.hf, transformers", "import transformers, lengthwise.hf"])
def test_importing_hf_registers_the_model_types(folder, imports):
    code = f"{imports}; print(type(transformers.AutoModelForCausalLM.from_pretrained({str(folder)!r})).__name__, "
    code += "transformers.AutoConfig.for_model('predictive_position').model_type)"
    assert output_of_code(code) == ["LengthwiseForCausalLM", "predictive_position"]


@pytest.mark.slow
def test_a_run_is_evaluated_without_transformers(folder):
    command = ["evaluate", str(folder.parent / "run"), "--lengths", "4", "--num-examples", "4"]
    code = f"import sys; sys.modules['transformers'] = None; from lengthwise.cli.app import main; main({command})"
    assert "4" in output_of_code(code)


def launch(program: str, *arguments: object) -> subprocess.CompletedProcess:
    """Run a program through ``python -m lengthwise.hf``."""
    command = [sys.executable, "-m", "lengthwise.hf", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_launcher_starts_programs_that_load_an_exported_model(folder, tmp_path):
    # Programs know nothing about this library.
    script = tmp_path / "predict.py"
    script.write_text(
        "import sys, transformers\n"
        "model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
        "print(getattr(transformers, model.config.architectures[0]) is type(model))\n"
    )
    assert "True" in launch(str(script), folder).stdout
    # A command of a package.
    assert launch("transformers", "version").returncode == 0
    missing = launch("no-such-program")
    assert missing.returncode == 2
    assert "no-such-program is neither" in missing.stderr


@pytest.mark.slow
def test_the_launcher_says_that_transformers_is_missing(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['transformers'] = None\n")
    script = tmp_path / "program.py"
    script.write_text("print('started')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = launch(str(script))
    assert result.returncode == 2
    assert "transformers is not installed" in result.stderr.splitlines()[-1]


def test_auto_config_loads_the_configuration(folder):
    assert AutoConfig.from_pretrained(folder).symbols == list(Parity().vocabulary)


def test_the_command_line_exports_and_imports(folder, tmp_path, capsys):
    for source, form, out in ((folder.parent / "run", "hf", "hf"), (folder, "run", "back")):
        printed, _ = output_of(["export", str(source), "--format", form, "--out", str(tmp_path / out)], capsys)
        assert printed.startswith(f"saved in {tmp_path / out}; ")
    assert read_experiment(tmp_path / "back") == read_experiment(folder.parent / "run")
    flags = ["--format", "hf", "--out", str(tmp_path / "x")]
    assert error_of(["export", "nowhere", *flags], capsys).startswith("nowhere does not exist; ")


def test_all_public_names_of_hf_exist():
    from lengthwise import hf  # noqa: PLC0415

    assert all(getattr(hf, name).__name__ == name for name in hf.MODULES)
    assert set(hf.MODULES) <= set(dir(hf))
    with pytest.raises(AttributeError, match=r"lengthwise\.hf has no attribute Predictive; known: EvaluateByLength"):
        hf.Predictive  # noqa: B018


def test_import_writes_no_file_outside_the_run_folder(folder, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.config.run["files"] = {"../outside.json": "{}"}
    model.save_pretrained(tmp_path / "hf")
    with pytest.raises(
        RunFolderError, match=r"lists the file .*, which is outside the run folder; export the run again"
    ):
        import_hf(tmp_path / "hf", tmp_path / "in" / "run")
    assert not (tmp_path / "in").exists()


FOUND_RULES = {
    "parity": (Parity(), ("one", "rising: prompt first +1 +0")),
    "addition": (Addition(), ("one", "rising: prompt first +1 +0", "rising: prompt #10.0 +1 +1")),
}


@pytest.mark.parametrize("name", FOUND_RULES)
def test_a_model_with_a_found_rule_needs_no_prompt_ids(name, tmp_path):
    task, rule = FOUND_RULES[name]
    scheme = DiscoveredCoupling(rule=rule, num_position_ids=64)
    assert train(small_experiment(task, scheme, head="wide_pointer"), tmp_path / "run") is not None
    export_hf(tmp_path / "run", tmp_path / "hf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    assert "prompts get the position IDs of the rule" in (tmp_path / "hf" / "README.md").read_text()
    batch = batch_of(load_run(tmp_path / "run").experiment)
    length = int(batch.prompt_length[0])
    prompts, ids = batch.tokens[:, :length], without_single_level(batch.position_ids[..., :length])
    assert torch.equal(model.default_prompt_ids(prompts, None), ids)
    settings = {"max_new_tokens": 4, "do_sample": False}
    # The tokenizer finds stop strings, and servers always pass it.
    tokens = model.generate(prompts, attention_mask=torch.ones_like(prompts), tokenizer=object(), **settings)
    assert torch.equal(
        tokens, model.generate(prompts, position_ids=ids, attention_mask=torch.ones_like(prompts), **settings)
    )
    # Padding on the left changes no ID.
    padded = torch.nn.functional.pad(prompts, (2, 0))
    mask = torch.nn.functional.pad(torch.ones_like(prompts), (2, 0))
    assert torch.equal(model.default_prompt_ids(padded, mask)[..., 2:], ids)
    assert not model.default_prompt_ids(padded, mask)[..., :2].any()


def test_the_exported_decoder_has_the_calls_of_transformers(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    batch = batch_of(load_run(folder.parent / "run").experiment)
    tokens, ids, labels = batch.tokens, batch.position_ids[0], torch.where(batch.token_scored, batch.tokens, -100)
    targets = {"labels": labels, "position_labels": torch.where(batch.id_scored[0], ids, -100)}
    with torch.no_grad():
        output = model.eval()(tokens, position_ids=ids, output_hidden_states=True)
    assert [tuple(layer.shape) for layer in output.hidden_states] == [(*tokens.shape, 16)] * 2
    torch.testing.assert_close(model.decoder.token_logits(output.hidden_states[-1]), output.logits)
    # Without IDs for all tokens, the model predicts them.
    pieces = model(tokens, position_ids=ids[:, :-2], logits_to_keep=1, output_hidden_states=True)
    assert pieces.logits.shape[1] == 1
    assert pieces.hidden_states[0].shape[1] == tokens.shape[1]
    gradients = []
    for checkpoints in (False, True):
        if checkpoints:
            model.activation_checkpointing_enable()
        model.train().zero_grad()
        model(tokens, position_ids=ids, **targets).loss.backward()
        gradients.append([weight.grad.clone() for weight in model.parameters() if weight.grad is not None])
    torch.testing.assert_close(*gradients)
    assert "forward" not in vars(model.decoder.blocks[0])
    with pytest.raises(SettingError, match="input_ids are missing"):
        model()
    with pytest.raises(SettingError, match="does not support output_attentions"):
        model(tokens, position_ids=ids, output_attentions=True)


def test_resized_embeddings_keep_the_logits_and_are_no_run(folder, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens, ids = torch.tensor([[0, 1, 1]]), torch.tensor([[1, 2, 3]])
    size = model.config.vocab_size
    before = model(tokens, position_ids=ids).logits
    model.resize_token_embeddings(size + 3)
    assert model.get_input_embeddings().weight is model.decoder.embedding
    torch.testing.assert_close(model(tokens, position_ids=ids).logits[..., :size], before)
    model.save_pretrained(tmp_path / "more")
    assert (
        AutoModelForCausalLM.from_pretrained(tmp_path / "more")(tokens, position_ids=ids).logits.shape[-1] == size + 3
    )
    with pytest.raises(RunFolderError, match="embeddings of"):
        import_hf(tmp_path / "more", tmp_path / "run")
