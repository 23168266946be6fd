"""Tests of calls of wrapped models: masks, checks of inputs, warnings and precision."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import peft
import pytest
import torch
import transformers
from tests.hf.test_predictive_model import IDS, MASK, TOKENS, make_batch, run_generate, shared_model, wrap_model
from tests.support.causal_models import CONFIGS, MAX_POSITIONS, VOCABULARY_SIZE, causal_model
from transformers.utils import hub

from lengthwise.core.errors import FrozenHeadWarning, ModelError, SettingError, UnreachablePositionIDsWarning
from lengthwise.hf import PositionCollator, build_symbol_tokenizer
from lengthwise.hf.model_inputs import causal_mask
from lengthwise.hf.predictive_model import PredictivePositionModel
from lengthwise.hf.text_evaluation import PlainTextModel
from lengthwise.hf.tokenization import HFTokenizerAdapter
from lengthwise.positions import Sequential
from lengthwise.tasks import Parity, VariableAssignment

TINY = {"vocab_size": VOCABULARY_SIZE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.parametrize("scaling", ["none", "log"])
@pytest.mark.parametrize("architecture", ["llama", "gpt_neox", "gpt2"])
def test_a_call_without_padding_equals_a_call_with_a_4d_mask(architecture, scaling):
    model, inputs = shared_model(architecture, length_scaling=scaling), make_batch()
    masks = []
    handle = model.model.base_model.register_forward_pre_hook(
        lambda _, args, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True
    )
    with torch.no_grad():
        plain = model(**inputs)
        rows = causal_mask(torch.ones_like(inputs["input_ids"], dtype=torch.bool))
        masked = model(**inputs | {"attention_mask": rows})
        model(**inputs | {"attention_mask": torch.ones_like(inputs["input_ids"]).index_fill(1, torch.tensor([0]), 0)})
    handle.remove()
    # The mask is 4-D only if it hides a token.
    assert [mask.dim() for mask in masks] == [2, 4, 4]
    torch.testing.assert_close(plain.logits, masked.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(plain.loss, masked.loss, atol=1e-5, rtol=1e-5)


def test_logits_to_keep_does_not_change_the_next_id():
    # A head that reads hidden states.
    model, indexes = shared_model("llama", head="class"), torch.tensor([1, 3])
    whole = model(TOKENS, MASK, IDS, use_cache=True)
    some = model(TOKENS, MASK, IDS, use_cache=True, logits_to_keep=indexes)
    assert torch.equal(some.logits, whole.logits[:, indexes])
    ids = [model.next_position_ids(output.past_key_values, TOKENS[:, :1]) for output in (whole, some)]
    assert torch.equal(*ids)


def test_ids_may_have_any_integer_type():
    model, inputs = shared_model("llama"), make_batch()
    with torch.no_grad():
        assert torch.equal(model(**inputs | {"position_ids": inputs["position_ids"].int()}).loss, model(**inputs).loss)


def test_without_a_head_ids_count_up_in_training():
    bare = causal_model(CONFIGS["llama"]())
    model = PredictivePositionModel.wrap(bare, head=None)
    with torch.no_grad():
        # Padding predicts the first token, so it is not scored.
        labels = TOKENS.where((MASK.cumsum(dim=1) > 1) & MASK.bool(), -100)
        output = model(TOKENS, MASK, labels=labels)
        ids = (MASK.cumsum(dim=1) - 1).clamp(min=0)
        expected = bare(TOKENS, MASK, position_ids=ids, labels=labels)
    torch.testing.assert_close(output.loss, expected.loss)


def test_a_4d_mask_without_ids_raises_an_error():
    model = wrap_model("llama", head=None)
    rows = causal_mask(torch.ones_like(TOKENS, dtype=torch.bool))
    with pytest.raises(SettingError, match="a 4-D attention_mask does not mark the first token of a sequence; pass"):
        model(TOKENS, rows, labels=TOKENS)


def test_ids_beyond_the_limit_raise_an_error():
    model, far = shared_model("llama"), IDS + MAX_POSITIONS
    with pytest.raises(
        SettingError, match=rf"to {int(far.max())}, but only 0 to {MAX_POSITIONS - 1} are allowed; change"
    ):
        model(TOKENS, None, far)
    counting = wrap_model("gpt2", head=None)
    last = torch.arange(MAX_POSITIONS - 9, MAX_POSITIONS).expand(3, -1)
    with pytest.raises(
        SettingError, match=rf"to {MAX_POSITIONS}, but only 0 to {MAX_POSITIONS - 1} are allowed; change the IDs"
    ):
        run_generate(counting, attention_mask=None, position_ids=last)


def test_negative_ids_in_generate_raise_an_error():
    with pytest.raises(
        SettingError, match=r"^position_ids contain -2; use IDs from 0 on \(-1 marks IDs that are to be"
    ):
        shared_model("llama").generate(TOKENS[:1, :3], position_ids=torch.tensor([[-2, -1, 0]]), max_new_tokens=1)


def test_a_call_with_a_wrong_number_of_ids_raises_an_error():
    tokens = torch.tensor([[1, 2, 3]])
    with pytest.raises(SettingError, match=r"^position_ids has 4 IDs for 3 tokens; pass one ID per token$"):
        shared_model("llama")(tokens, position_ids=torch.arange(4)[None])
    with pytest.raises(SettingError, match=r"^position_ids are missing; calls with labels or packed texts need one ID"):
        shared_model("llama")(tokens, labels=tokens)


def test_padding_after_the_end_is_not_checked():
    model = wrap_model("gpt2", head=None)
    model.generation_config.pad_token_id = 0
    ids = torch.arange(9).repeat(3, 1)
    ids[0] += MAX_POSITIONS - 9
    read = model(TOKENS, None, ids, use_cache=True).past_key_values
    assert model.next_position_ids(read, torch.tensor([[0], [5], [5]])).tolist() == [[MAX_POSITIONS - 1], [9], [9]]
    with pytest.raises(
        SettingError, match=rf"to {MAX_POSITIONS}, but only 0 to {MAX_POSITIONS - 1} are allowed; change the IDs"
    ):
        model.next_position_ids(read, torch.tensor([[5], [0], [5]]))


def test_ids_beyond_a_table_of_angles_raise_an_error():
    config = transformers.GPTJConfig(
        vocab_size=VOCABULARY_SIZE, n_positions=MAX_POSITIONS, n_embd=32, n_layer=2, n_head=4, rotary_dim=8
    )
    with pytest.raises(
        SettingError, match=f"num_position_ids 200 exceeds the model's table of {MAX_POSITIONS} positions"
    ):
        PredictivePositionModel.wrap(causal_model(config), num_position_ids=200)


def test_training_with_position_labels_alone_raises_an_error():
    model, inputs = wrap_model("llama").train(), make_batch()
    del inputs["labels"]
    text = r"position_labels need labels; .*label_smoothing_factor to 0 and do not pass compute_loss_func"
    with pytest.raises(SettingError, match=text):
        model(**inputs)
    model.eval()(**inputs)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("task_type", [None, "CAUSAL_LM"])
def test_adapters_with_a_frozen_head_issue_a_warning(task_type):
    options = {"r": 2, "target_modules": ["q_proj"], "task_type": task_type}
    frozen = peft.get_peft_model(wrap_model("llama"), peft.LoraConfig(**options)).train()
    with pytest.warns(FrozenHeadWarning, match=r"the position head is frozen.*modules_to_save=\['position_head'"):
        frozen(**make_batch())
    saved = peft.LoraConfig(**options, modules_to_save=["position_head", "segment"])
    trained = peft.get_peft_model(wrap_model("llama"), saved).train()
    trained(**make_batch()).loss.backward()
    assert any(weight.grad is not None for weight in trained.base_model.model.position_head.parameters())


def test_unreachable_ids_issue_a_warning():
    model, inputs = wrap_model("llama", head="increment").train(), make_batch()
    ids = 5 * torch.arange(12).repeat(3, 1)
    labelled = inputs["position_labels"] >= 0
    far = {"position_ids": ids, "position_labels": ids.masked_fill(~labelled, -100)}
    with pytest.warns(UnreachablePositionIDsWarning, match=r"the head IncrementHead cannot predict some of the IDs"):
        assert model(**inputs | far).position_loss == 0
    model.eval()(**inputs | far)


@pytest.mark.parametrize("head", ["pointer", "class"])
def test_the_head_computes_in_float32_under_autocast_and_casts(head):
    model, inputs = wrap_model("llama", head=head), make_batch()
    weights = {name: weight.clone() for name, weight in model.position_head.named_parameters()}
    dtypes = []
    for part in model.position_head.modules():
        if isinstance(part, torch.nn.Linear):
            part.register_forward_hook(lambda _, __, output: dtypes.append(output.dtype))
    with torch.no_grad():
        expected = model(**inputs).position_loss
        with torch.autocast("cpu", torch.bfloat16):
            autocast = model(**inputs).position_loss
            output = model(TOKENS, MASK, IDS, use_cache=True)
            model.next_position_ids(output.past_key_values, TOKENS[:, :1])
        assert set(dtypes) == {torch.float32}
        torch.testing.assert_close(autocast, expected, atol=0.1, rtol=0.02)
        model.to(torch.bfloat16)
        assert model.model.lm_head.weight.dtype == torch.bfloat16
        assert all(torch.equal(weight, weights[name]) for name, weight in model.position_head.named_parameters())
        torch.testing.assert_close(model(**inputs).position_loss, expected, atol=0.1, rtol=0.02)
    model.to("meta")
    assert {weight.device.type for weight in model.parameters()} == {"meta"}


def test_wrapping_keeps_the_attention_of_a_model():
    bare = causal_model(CONFIGS["llama"]())
    bare.set_attn_implementation("eager")
    model = PredictivePositionModel.wrap(bare)
    assert bare.config._attn_implementation == "eager"
    assert model(TOKENS, None, IDS, output_attentions=True).attentions[0].shape == (3, 4, 9, 9)


UNSUPPORTED = {
    "GPT-Neo": (
        transformers.GPTNeoConfig(
            vocab_size=VOCABULARY_SIZE,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            window_size=16,
        ),
        r"attends to the last 16 tokens .*\(attention_types=\[\[\['global'\], 2\]\] in its configuration\)",
    ),
    "Gemma 3": (CONFIGS["gemma3"](), r"\(layer_types=\['full_attention'\] \* 3 in its configuration\)"),
    "Mixtral": (
        transformers.MixtralConfig(
            **TINY, num_key_value_heads=2, intermediate_size=32, num_local_experts=2, output_router_logits=True
        ),
        r"the load-balancing loss of .* depends on the attention mask, .*; set output_router_logits=False",
    ),
}


@pytest.mark.parametrize("head", ["pointer", None])
def test_wrapping_replaces_an_attention_without_masks_by_sdpa(head):
    def without_masks(*args, **kwargs):
        raise AssertionError("this attention takes no mask")

    transformers.AttentionInterface.register("without_masks", without_masks)
    bare = causal_model(CONFIGS["llama"]())
    bare.set_attn_implementation("without_masks")
    model = PredictivePositionModel.wrap(bare, head=head)
    assert bare.config._attn_implementation == "sdpa"
    model(TOKENS, None, IDS)


@pytest.mark.parametrize(("config", "message"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_wrapping_an_unsupported_model_raises_an_error(config, message):
    with pytest.raises(ModelError, match=message):
        PredictivePositionModel.wrap(causal_model(config))


def test_wrapping_a_model_without_an_output_layer_raises_an_error():
    with pytest.raises(ModelError, match=r"^LlamaModel has no output layer; load the model with AutoModelForCausalLM$"):
        PredictivePositionModel.wrap(causal_model(CONFIGS["llama"]()).model)


def test_a_model_that_fails_in_a_call_raises_a_one_line_error(monkeypatch):
    model = causal_model(CONFIGS["llama"]())
    model.set_attn_implementation("eager")

    def broken(*args, **kwargs):
        raise ZeroDivisionError("division by zero\nand more")

    monkeypatch.setattr(model.model, "forward", broken)
    with pytest.raises(ModelError, match=r"called with only input_ids \(ZeroDivisionError: division by zero\); fix"):
        PredictivePositionModel.wrap(model)
    assert model.config._attn_implementation == "eager"


def test_log_scaling_without_effect_raises_an_error():
    falcon = transformers.FalconConfig(**TINY, alibi=False, max_position_embeddings=MAX_POSITIONS)
    with pytest.raises(SettingError, match="length_scaling='log' has no effect in falcon, which has its own"):
        PredictivePositionModel.wrap(model := causal_model(falcon), length_scaling="log")
    assert model.config._attn_implementation == "sdpa"


def test_a_collator_for_an_unsupported_model_raises_an_error():
    tokenizer = build_symbol_tokenizer(Parity().vocabulary)
    falcon = transformers.FalconConfig(
        **TINY, alibi=True, max_position_embeddings=MAX_POSITIONS, hidden_dropout=0.5, attention_dropout=0.5
    )
    # In training mode, dropout changes every call.
    model, rng_state = causal_model(falcon).train(), torch.get_rng_state()
    with pytest.raises(ModelError, match=r"accepts position_ids but ignores them"):
        PositionCollator.for_model(model, Sequential(), tokenizer)
    assert model.training
    assert torch.equal(torch.get_rng_state(), rng_state)
    # A model without weights is not tested.
    PositionCollator.for_model(model.to("meta"), Sequential(), tokenizer)
    recurrent = transformers.Qwen3NextConfig(**TINY, num_key_value_heads=2, head_dim=8)
    with pytest.raises(ModelError, match=r"layers of type linear_attention, which carry a state from one packed text"):
        PositionCollator.for_model(recurrent, Sequential(), tokenizer, pack_to=16)


def test_a_symbol_tokenizer_encodes_texts_of_its_task_only():
    codec = HFTokenizerAdapter(build_symbol_tokenizer(Parity().vocabulary), "parity")
    variables = HFTokenizerAdapter(build_symbol_tokenizer(VariableAssignment().vocabulary), "variables")
    assert codec.start == ()
    for tokenizer, text in (
        *((codec, text) for text in ("0 1 0 =", " 0 1 1\n", "0 = 0\n1 1 = 1 0\n", "\n\n")),
        *((variables, text) for text in ("x0 = x1 x1 = v2 ? x0 >", "x0 x1\nx2 x3\n", " v1\n")),
    ):
        assert tokenizer.decode(tokenizer.encode(text)) == text.lstrip(" ")
    with pytest.raises(ModelError, match=r"the tokenizer of parity cannot encode the text \(.*\); use a model"):
        codec.encode("letters")


def test_a_text_model_that_predicts_ids_raises_an_error():
    with pytest.raises(ModelError, match=r"mine predicts position IDs, but plain text .*EvaluateByLength"):
        PlainTextModel(
            shared_model("llama"), HFTokenizerAdapter(build_symbol_tokenizer(Parity().vocabulary), "mine"), "mine"
        )


def test_push_to_hub_uploads_the_saved_model(tmp_path, monkeypatch):
    pushed = {}

    class Card:
        def save(self, path):
            Path(path).write_text("card", encoding="utf-8")

    def upload(self, folder, name, **options):
        shutil.copytree(folder, tmp_path / "hub")
        pushed[name] = options["commit_message"]

    api = SimpleNamespace(create_repo=lambda name, **options: SimpleNamespace(repo_id=f"me/{name}"))
    monkeypatch.setattr(hub, "hf_api", lambda: api)
    monkeypatch.setattr(hub, "create_and_tag_model_card", lambda *args, **options: Card())
    monkeypatch.setattr(hub.PushToHubMixin, "_upload_modified_files", upload)
    model = wrap_model("llama", length_scaling="log")
    model.push_to_hub("ppc", commit_message="first")
    assert pushed == {"me/ppc": "first"}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hub").eval()
    assert torch.equal(run_generate(loaded, eos_token_id=None).sequences, run_generate(model).sequences)


def test_pieces_of_a_call_return_all_hidden_states_and_attention_weights():
    model = wrap_model("llama")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        # Both calls predict no ID, so the pieces equal one call with the same IDs.
        options = {"output_hidden_states": True, "output_attentions": True}
        pieces = model(TOKENS[:1], position_ids=IDS[:1, :6], use_cache=True, **options)
        ids = torch.cat(list(pieces.past_key_values.steps), dim=1)
        whole = model(TOKENS[:1], position_ids=ids, prompt_mask=torch.arange(9)[None] < 6, **options)
    torch.testing.assert_close(pieces.logits, whole.logits, atol=1e-4, rtol=1e-4)
    for name in ("hidden_states", "attentions"):
        torch.testing.assert_close(pieces[name], whole[name], atol=1e-4, rtol=1e-4)


def test_log_scaling_raises_an_error_for_attention_weights():
    with pytest.raises(SettingError, match="computes no attention weights"):
        shared_model("llama", length_scaling="log")(TOKENS, MASK, IDS, output_attentions=True)


def test_a_call_without_tokens_raises_a_one_line_error():
    model = shared_model("llama")
    with pytest.raises(SettingError, match="inputs_embeds is not supported"):
        model(inputs_embeds=torch.zeros(1, 2, 32))
    with pytest.raises(SettingError, match="input_ids are missing"):
        model()


def test_the_configuration_has_the_sizes_of_the_wrapped_model():
    config = wrap_model("gpt2").config
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (VOCABULARY_SIZE, 32, 3)
    config.vocab_size = 100
    assert config.text_config.vocab_size == 100
    assert type(config)(text_config=config.text_config, num_labels=5).num_labels == 5
