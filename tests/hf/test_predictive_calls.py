"""PPC around models of `transformers`: what calls pass on, what they are refused for, and what precision they keep."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import peft
import pytest
import torch
import transformers
from tests.hf.test_predictive_model import IDS, INSIDE, TOKENS, batch, shared, wrapped, written
from tests.support.causal_models import CONFIGS, POSITIONS, VOCABULARY, causal_model
from transformers.utils import hub

from lengthwise.core.errors import FrozenHeadWarning, ModelError, SettingError, UnreachableIDsWarning
from lengthwise.hf import PositionCollator, symbol_tokenizer
from lengthwise.hf.model_inputs import causal_mask
from lengthwise.hf.predictive_model import PredictivePositionModel
from lengthwise.hf.text_model import TextModel
from lengthwise.hf.tokenization import HFCodec
from lengthwise.positions import Sequential
from lengthwise.tasks import Parity, VariableAssignment

TINY = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.parametrize("scaling", ["none", "log"])
@pytest.mark.parametrize("architecture", ["llama", "gpt_neox", "gpt2"])
def test_a_call_without_fill_says_what_a_mask_of_all_pairs_does(architecture, scaling):
    model, whole = shared(architecture, length_scaling=scaling), batch()
    seen = []
    handle = model.model.base_model.register_forward_pre_hook(
        lambda _, args, named: seen.append(named["attention_mask"]), with_kwargs=True
    )
    with torch.no_grad():
        plain = model(**whole)
        rows = causal_mask(torch.ones_like(whole["input_ids"], dtype=torch.bool))
        masked = model(**whole | {"attention_mask": rows})
        model(**whole | {"attention_mask": torch.ones_like(whole["input_ids"]).index_fill(1, torch.tensor([0]), 0)})
    handle.remove()
    # All pairs of tokens are written down only where one is hidden.
    assert [mask.dim() for mask in seen] == [2, 4, 4]
    torch.testing.assert_close(plain.logits, masked.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(plain.loss, masked.loss, atol=1e-5, rtol=1e-5)


def test_chosen_logits_leave_the_next_id_as_it_is():
    # A head that reads hidden states.
    model, chosen = shared("llama", head="class"), torch.tensor([1, 3])
    whole = model(TOKENS, INSIDE, IDS, use_cache=True)
    some = model(TOKENS, INSIDE, IDS, use_cache=True, logits_to_keep=chosen)
    assert torch.equal(some.logits, whole.logits[:, chosen])
    ids = [model.next_position_ids(read.past_key_values, TOKENS[:, :1]) for read in (whole, some)]
    assert torch.equal(*ids)


def test_whole_numbers_of_any_size_are_ids():
    model, whole = shared("llama"), batch()
    with torch.no_grad():
        assert torch.equal(model(**whole | {"position_ids": whole["position_ids"].int()}).loss, model(**whole).loss)


def test_without_a_head_ids_count_up_in_training_too():
    bare = causal_model(CONFIGS["llama"]())
    model = PredictivePositionModel.wrap(bare, head=None)
    with torch.no_grad():
        # What follows fill is foretold by fill.
        asked = (INSIDE.cumsum(dim=1) > 1) & INSIDE.bool()
        made = model(TOKENS, INSIDE, labels=TOKENS.where(asked, -100))
        counted = (INSIDE.cumsum(dim=1) - 1).clamp(min=0)
        expected = bare(TOKENS, INSIDE, position_ids=counted, labels=TOKENS.where(asked, -100))
    torch.testing.assert_close(made.loss, expected.loss)


def test_a_mask_of_pairs_says_no_ids():
    model = wrapped("llama", head=None)
    rows = causal_mask(torch.ones_like(TOKENS, dtype=torch.bool))
    with pytest.raises(
        SettingError, match="a mask of all pairs of tokens does not say where rows begin; give position"
    ):
        model(TOKENS, rows, labels=TOKENS)


def test_ids_stay_below_what_the_model_was_made_for():
    model, far = shared("llama"), IDS + POSITIONS
    with pytest.raises(
        SettingError, match=rf"position_ids reach {int(far.max())} and have to stay below {POSITIONS}; "
    ):
        model(TOKENS, None, far)
    counting = wrapped("gpt2", head=None)
    last = torch.arange(POSITIONS - 9, POSITIONS).expand(3, -1)
    with pytest.raises(SettingError, match=rf"position_ids reach {POSITIONS} and have to stay below {POSITIONS}; give"):
        written(counting, attention_mask=None, position_ids=last)


def test_fill_behind_an_end_needs_no_id():
    model = wrapped("gpt2", head=None)
    model.generation_config.pad_token_id = 0
    ids = torch.arange(9).repeat(3, 1)
    ids[0] += POSITIONS - 9
    read = model(TOKENS, None, ids, use_cache=True).past_key_values
    assert model.next_position_ids(read, torch.tensor([[0], [5], [5]])).tolist() == [[POSITIONS - 1], [9], [9]]
    with pytest.raises(SettingError, match=rf"position_ids reach {POSITIONS} and have to stay below {POSITIONS}; give"):
        model.next_position_ids(read, torch.tensor([[5], [0], [5]]))


def test_a_table_of_angles_ends_as_one_of_vectors_does():
    config = transformers.GPTJConfig(
        vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=32, n_layer=2, n_head=4, rotary_dim=8
    )
    with pytest.raises(SettingError, match=f"num_position_ids 200 is more than the {POSITIONS} positions that"):
        PredictivePositionModel.wrap(causal_model(config), num_position_ids=200)


def test_labels_that_a_trainer_smooths_itself_are_missed():
    model, whole = wrapped("llama").train(), batch()
    del whole["labels"]
    text = r"position_labels came without labels.*label_smoothing_factor at 0, and compute_loss_func out"
    with pytest.raises(SettingError, match=text):
        model(**whole)
    model.eval()(**whole)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("task_type", [None, "CAUSAL_LM"])
def test_adapters_that_leave_the_head_as_it_is_are_told_so(task_type):
    asked = {"r": 2, "target_modules": ["q_proj"], "task_type": task_type}
    frozen = peft.get_peft_model(wrapped("llama"), peft.LoraConfig(**asked)).train()
    with pytest.warns(
        FrozenHeadWarning, match=r"the position head is frozen.*modules_to_save=\['position_head', 'segm"
    ):
        frozen(**batch())
    saved = peft.LoraConfig(**asked, modules_to_save=["position_head", "segment"])
    trained = peft.get_peft_model(wrapped("llama"), saved).train()
    trained(**batch()).loss.backward()
    assert any(weight.grad is not None for weight in trained.base_model.model.position_head.parameters())


def test_ids_that_a_head_cannot_give_are_told_of():
    model, whole = wrapped("llama", head="increment").train(), batch()
    apart = 5 * torch.arange(12).repeat(3, 1)
    labelled = whole["position_labels"] >= 0
    far = {"position_ids": apart, "position_labels": apart.masked_fill(~labelled, -100)}
    with pytest.warns(
        UnreachableIDsWarning, match=r"none of the IDs in position_labels .* the head Increment can give"
    ):
        assert model(**whole | far).position_loss == 0
    model.eval()(**whole | far)


@pytest.mark.parametrize("head", ["pointer", "class"])
def test_the_head_computes_in_float32_whatever_is_around_it(head):
    model, whole = wrapped("llama", head=head), batch()
    known = {name: weight.clone() for name, weight in model.position_head.named_parameters()}
    made = []
    for part in model.position_head.modules():
        if isinstance(part, torch.nn.Linear):
            part.register_forward_hook(lambda _, __, found: made.append(found.dtype))
    with torch.no_grad():
        hidden = model(**whole).position_loss
        with torch.autocast("cpu", torch.bfloat16):
            around = model(**whole).position_loss
            read = model(TOKENS, INSIDE, IDS, use_cache=True)
            model.next_position_ids(read.past_key_values, TOKENS[:, :1])
        assert set(made) == {torch.float32}
        torch.testing.assert_close(around, hidden, atol=0.1, rtol=0.02)
        model.to(torch.bfloat16)
        assert model.model.lm_head.weight.dtype == torch.bfloat16
        assert all(torch.equal(weight, known[name]) for name, weight in model.position_head.named_parameters())
        torch.testing.assert_close(model(**whole).position_loss, hidden, atol=0.1, rtol=0.02)
    model.to("meta")
    assert {weight.device.type for weight in model.parameters()} == {"meta"}


def test_the_attention_of_a_model_stays_what_it_was():
    bare = causal_model(CONFIGS["llama"]())
    bare.set_attn_implementation("eager")
    model = PredictivePositionModel.wrap(bare)
    assert bare.config._attn_implementation == "eager"
    assert model(TOKENS, None, IDS, output_attentions=True).attentions[0].shape == (3, 4, 9, 9)


REFUSED = {
    "GPT-Neo": (
        transformers.GPTNeoConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            window_size=16,
        ),
        r"looks back 16 tokens by token index.*\(attention_types=\[\[\['global'\], 2\]\] in its configuration\)",
    ),
    "Gemma 3": (CONFIGS["gemma3"](), r"\(layer_types=\['full_attention'\] \* 3 in its configuration\)"),
    "Mixtral": (
        transformers.MixtralConfig(
            **TINY, num_key_value_heads=2, intermediate_size=32, num_local_experts=2, output_router_logits=True
        ),
        r"balances its experts by the mask .*; set output_router_logits=False",
    ),
}


@pytest.mark.parametrize("head", ["pointer", None])
def test_a_model_on_an_attention_without_masks_is_wrapped_on_sdpa(head):
    def without_masks(*args, **also):
        raise AssertionError("a mask was given to what takes none")

    transformers.AttentionInterface.register("without_masks", without_masks)
    bare = causal_model(CONFIGS["llama"]())
    bare.set_attn_implementation("without_masks")
    model = PredictivePositionModel.wrap(bare, head=head)
    assert bare.config._attn_implementation == "sdpa"
    model(TOKENS, None, IDS)


@pytest.mark.parametrize(("config", "message"), REFUSED.values(), ids=REFUSED)
def test_what_would_not_keep_to_ids_is_refused(config, message):
    with pytest.raises(ModelError, match=message):
        PredictivePositionModel.wrap(causal_model(config))


def test_a_model_that_breaks_when_it_is_asked_is_refused_in_a_line(monkeypatch):
    model = causal_model(CONFIGS["llama"]())
    model.set_attn_implementation("eager")

    def broken(*args, **also):
        raise ZeroDivisionError("division by zero\nand more")

    monkeypatch.setattr(model.model, "forward", broken)
    with pytest.raises(
        ModelError, match=r"cannot be run on tokens alone \(ZeroDivisionError: division by zero\); set what it asks for"
    ):
        PredictivePositionModel.wrap(model)
    assert model.config._attn_implementation == "eager"


def test_log_scaling_is_refused_where_it_would_do_nothing():
    falcon = transformers.FalconConfig(**TINY, alibi=False, max_position_embeddings=POSITIONS)
    with pytest.raises(
        SettingError, match="length_scaling='log' does nothing in falcon, which has an attention of its"
    ):
        PredictivePositionModel.wrap(model := causal_model(falcon), length_scaling="log")
    assert model.config._attn_implementation == "sdpa"


def test_a_collator_is_refused_for_a_model_that_knows_no_ids():
    tokenizer = symbol_tokenizer(Parity().vocabulary)
    falcon = transformers.FalconConfig(
        **TINY, alibi=True, max_position_embeddings=POSITIONS, hidden_dropout=0.5, attention_dropout=0.5
    )
    # In training, where dropout makes every call another one.
    model, drawn = causal_model(falcon).train(), torch.get_rng_state()
    with pytest.raises(ModelError, match=r"takes position_ids and does not use them"):
        PositionCollator.for_model(model, Sequential(), tokenizer)
    assert model.training
    assert torch.equal(torch.get_rng_state(), drawn)
    # What is not here cannot be asked.
    PositionCollator.for_model(model.to("meta"), Sequential(), tokenizer)
    carried = transformers.Qwen3NextConfig(**TINY, num_key_value_heads=2, head_dim=8)
    with pytest.raises(ModelError, match=r"layers of kind linear_attention, which carry a state from one packed text"):
        PositionCollator.for_model(carried, Sequential(), tokenizer, pack_to=16)


def test_a_tokenizer_of_symbols_cuts_texts_of_its_task_and_no_others():
    codec = HFCodec(symbol_tokenizer(Parity().vocabulary), "parity")
    named = HFCodec(symbol_tokenizer(VariableAssignment().vocabulary), "variables")
    assert codec.start == ()
    for own, text in (
        *((codec, text) for text in ("0 1 0 =", " 0 1 1\n", "0 = 0\n1 1 = 1 0\n", "\n\n")),
        *((named, text) for text in ("x0 = x1 x1 = v2 ? x0 >", "x0 x1\nx2 x3\n", " v1\n")),
    ):
        assert own.decode(own.encode(text)) == text.lstrip(" ")
    with pytest.raises(
        ModelError, match=r"the tokenizer of parity cannot cut the text \(.*\); give a model whose token"
    ):
        codec.encode("letters")


def test_a_model_that_predicts_ids_is_not_asked_in_text():
    with pytest.raises(
        ModelError, match=r"mine predicts position IDs, and a text names none for its prompt: .*EvaluateBy"
    ):
        TextModel(shared("llama"), HFCodec(symbol_tokenizer(Parity().vocabulary), "mine"), "mine")


def test_it_is_pushed_to_the_hub_as_it_is_saved(tmp_path, monkeypatch):
    pushed = {}

    class Card:
        def save(self, path):
            Path(path).write_text("card")

    def upload(self, folder, name, **options):
        shutil.copytree(folder, tmp_path / "there")
        pushed[name] = options["commit_message"]

    api = SimpleNamespace(create_repo=lambda name, **options: SimpleNamespace(repo_id=f"me/{name}"))
    monkeypatch.setattr(hub, "hf_api", lambda: api)
    monkeypatch.setattr(hub, "create_and_tag_model_card", lambda *args, **options: Card())
    monkeypatch.setattr(hub.PushToHubMixin, "_upload_modified_files", upload)
    model = wrapped("llama", length_scaling="log")
    model.push_to_hub("ppc", commit_message="first")
    assert pushed == {"me/ppc": "first"}
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "there").eval()
    assert torch.equal(written(again, eos_token_id=None).sequences, written(model).sequences)
