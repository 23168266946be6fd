"""Tests of PPC around models of `transformers`: equal results of all code paths, and IDs of each hypothesis."""

import copy
import subprocess
import sys
from contextlib import nullcontext
from functools import cache
from types import SimpleNamespace

import pytest
import torch
import transformers
from tests.support.causal_models import CONFIGS, MAX_POSITIONS, SUPPORTED, UNSUPPORTED, VOCABULARY_SIZE, causal_model

from lengthwise.core.errors import ModelError, SettingError, UnknownNameError, UnreachablePositionIDsWarning
from lengthwise.hf.position_cache import PositionCache
from lengthwise.hf.predictive_model import PredictivePositionModel
from lengthwise.model.position_heads import POSITION_HEADS

ROWS, PROMPT, NUM_NEW = 3, 9, 8
# Left padding of two of the prompts.
MASK = torch.ones(ROWS, PROMPT, dtype=torch.long)
MASK[0, :4] = MASK[1, :2] = 0


def random_integers(*shape: int, below: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, below, shape, generator=torch.Generator().manual_seed(seed))


TOKENS = random_integers(ROWS, PROMPT, below=VOCABULARY_SIZE)
# IDs that repeat, jump and decrease.
IDS = random_integers(ROWS, PROMPT, below=40, seed=1)
IDS[:, 5] = IDS[:, 4]


def wrap_model(architecture: str, **options) -> PredictivePositionModel:
    """Return a wrapped model whose head depends on every token, without an end token."""
    model = causal_model(SUPPORTED[architecture]())
    wrapper = PredictivePositionModel.wrap(model, **{"segments": True} | options)
    torch.manual_seed(1)
    for part in (wrapper.position_head, wrapper.segment):
        for parameter in () if part is None else part.parameters():
            torch.nn.init.normal_(parameter)
    wrapper.generation_config.eos_token_id = None
    return wrapper.eval()


# The tests that use it do not change the model.
shared_model = cache(wrap_model)


def run_generate(model, **options):
    defaults = {"attention_mask": MASK, "position_ids": IDS, "max_new_tokens": NUM_NEW, "do_sample": False}
    return model.generate(TOKENS, **defaults | {"return_dict_in_generate": True} | options)


@pytest.mark.covering(1)
@pytest.mark.parametrize("scaling", ["none", "log"])
@pytest.mark.parametrize("architecture", SUPPORTED)
def test_cached_static_and_full_passes_agree(architecture, scaling):
    model = shared_model(architecture, length_scaling=scaling)
    output = run_generate(model)
    assert len(output.position_ids[:, PROMPT:-1].unique()) > 3
    assert torch.equal(run_generate(model, use_cache=False).sequences, output.sequences)
    static = run_generate(model, cache_implementation="static")
    assert torch.equal(static.sequences, output.sequences)
    assert torch.equal(static.position_ids, output.position_ids)
    # One forward pass with the predicted IDs.
    seq = PROMPT + NUM_NEW - 1
    mask = torch.nn.functional.pad(MASK, (0, NUM_NEW - 1), value=1)
    prompt = torch.nn.functional.pad(MASK, (0, NUM_NEW - 1))
    with torch.no_grad():
        forced = model(output.sequences[:, :seq], mask, output.position_ids[:, :seq], prompt_mask=prompt)
    assert torch.equal(forced.logits[:, PROMPT - 1 :].argmax(dim=-1), output.sequences[:, PROMPT:])


@pytest.mark.parametrize("architecture", SUPPORTED)
def test_batching_does_not_change_the_continuation_of_a_prompt(architecture):
    model = shared_model(architecture, length_scaling="none")
    together = run_generate(model)
    for row in range(ROWS):
        is_token = MASK[row] == 1
        alone = model.generate(
            TOKENS[row : row + 1, is_token],
            position_ids=IDS[row : row + 1, is_token],
            max_new_tokens=NUM_NEW,
            do_sample=False,
            return_dict_in_generate=True,
        )
        assert torch.equal(alone.sequences[0, -NUM_NEW:], together.sequences[row, PROMPT:])
        assert torch.equal(alone.position_ids[0, -NUM_NEW:], together.position_ids[row, PROMPT:])


@pytest.mark.parametrize("head", POSITION_HEADS)
def test_every_head_predicts_valid_ids(head):
    model = shared_model("llama", head=head)
    output, again = run_generate(model), run_generate(model, use_cache=False)
    assert torch.equal(output.sequences, again.sequences)
    ids = output.position_ids[:, PROMPT:-1]
    assert bool(((ids >= 0) & (ids < MAX_POSITIONS)).all())


def replay_ids(model, row: int, tokens: torch.Tensor) -> torch.Tensor:
    """Return the IDs of a sequence whose tokens are passed one by one, without other sequences."""
    is_token = MASK[row] == 1
    state = PositionCache(transformers.DynamicCache(config=model.config.get_text_config()))
    with torch.no_grad():
        model(TOKENS[row : row + 1, is_token], None, IDS[row : row + 1, is_token], past_key_values=state)
        for token in tokens[:-1]:
            model(token.view(1, 1), past_key_values=state)
    return state.all_tokens().position_ids[0, int(is_token.sum()) :]


@pytest.mark.parametrize("options", [{"num_beams": 4, "num_return_sequences": 3}, {"do_sample": True}])
# The pointer head reads tokens and IDs, the rank head also hidden states.
@pytest.mark.parametrize(("architecture", "head"), [("llama", "pointer"), ("llama", "rank"), ("gpt_neox", "class")])
def test_each_hypothesis_has_its_own_ids(architecture, head, options):
    model = shared_model(architecture, head=head)
    torch.manual_seed(3)
    output = run_generate(model, **options)
    each = len(output.sequences) // ROWS
    for place, sequence in enumerate(output.sequences):
        expected = replay_ids(model, place // each, sequence[PROMPT:])
        assert torch.equal(output.position_ids[place, PROMPT:-1], expected)
        assert torch.equal(output.position_ids[place, :PROMPT], IDS[place // each])


def test_sampled_sequences_of_one_prompt_differ():
    output = run_generate(shared_model("llama"), do_sample=True, num_return_sequences=4)
    assert len(output.sequences) == 4 * ROWS
    assert not torch.equal(output.position_ids[0, PROMPT:], output.position_ids[1, PROMPT:])


def test_response_ids_of_the_caller_are_used():
    model = shared_model("llama")
    ids = torch.cat([IDS, random_integers(ROWS, NUM_NEW, below=40, seed=2)], dim=1)
    output = run_generate(model, position_ids=ids)
    assert torch.equal(output.position_ids[:, :-1], ids[:, :-1])
    assert not torch.equal(output.sequences, run_generate(model).sequences)
    # The IDs of the other tokens are predicted.
    part = run_generate(model, position_ids=ids[:, : PROMPT + 3])
    assert torch.equal(part.position_ids[:, : PROMPT + 3], ids[:, : PROMPT + 3])
    assert torch.equal(
        part.sequences, run_generate(model, position_ids=ids[:, : PROMPT + 3], use_cache=False).sequences
    )


def test_without_a_head_ids_count_up():
    model = shared_model("llama", head=None, segments=False)
    output = run_generate(model)
    expected = IDS[:, -1:] + torch.arange(1, NUM_NEW)
    assert torch.equal(output.position_ids[:, PROMPT:-1], expected)


@pytest.mark.parametrize(
    "options",
    [{"prefill_chunk_size": 4}, {"prefill_chunk_size": 4, "num_beams": 3}, {"num_beams": 3, "use_cache": False}],
)
def test_chunked_prefill_and_uncached_beams_agree_with_one_pass(options):
    model = shared_model("llama")
    beams = {"num_beams": options["num_beams"]} if "num_beams" in options else {}
    expected, output = run_generate(model, **beams), run_generate(model, **options)
    assert torch.equal(output.sequences, expected.sequences)
    if options.get("use_cache", True):
        assert torch.equal(output.position_ids, expected.position_ids)


@pytest.mark.parametrize("returned_ids", [False, True])
def test_generate_continues_from_a_returned_cache(returned_ids):
    model = shared_model("llama")
    whole, half = run_generate(model), run_generate(model, max_new_tokens=4)
    ids = {"position_ids": half.position_ids} if returned_ids else {}
    mask = torch.nn.functional.pad(MASK, (0, 4), value=1)
    rest = model.generate(
        half.sequences, attention_mask=mask, past_key_values=half.past_key_values, max_new_tokens=4, do_sample=False,
        **ids,
    )  # fmt: skip
    assert torch.equal(rest, whole.sequences)


def test_a_prompt_in_two_calls_equals_a_prompt_in_one_call():
    model = shared_model("llama")
    whole, parts = (PositionCache(transformers.DynamicCache(config=model.config.get_text_config())) for _ in range(2))
    with torch.no_grad():
        model(TOKENS, MASK, IDS, past_key_values=whole)
        model(TOKENS[:, :5], MASK[:, :5], IDS[:, :5], past_key_values=parts)
        model.next_position_ids(parts, TOKENS[:, 5:6])
        prompt = torch.ones(ROWS, 4, dtype=torch.bool)
        model(TOKENS[:, 5:], MASK, IDS[:, 5:], past_key_values=parts, prompt_mask=prompt)
    tokens = random_integers(ROWS, 1, below=VOCABULARY_SIZE, seed=6)
    assert torch.equal(model.next_position_ids(parts, tokens), model.next_position_ids(whole, tokens))


def test_a_cache_of_the_caller_keeps_its_ids():
    model = shared_model("llama")
    own = transformers.DynamicCache(config=model.config.get_text_config())
    ours = PositionCache(transformers.DynamicCache(config=model.config.get_text_config()))
    with torch.no_grad():
        for state in (own, ours):
            model(TOKENS, MASK, IDS, past_key_values=state)
        mask = torch.nn.functional.pad(MASK, (0, 1), value=1)
        first, second = (model(TOKENS[:, :1], mask, past_key_values=state).logits for state in (own, ours))
    assert torch.equal(first, second)
    filled = transformers.DynamicCache(config=model.config.get_text_config())
    model.model(TOKENS, past_key_values=filled)
    with pytest.raises(SettingError, match="the cache contains tokens without position IDs"):
        model(TOKENS[:, :1], past_key_values=filled)


@pytest.mark.parametrize("head", ["pointer", "class"])
def test_cropping_removes_the_ids_of_a_draft(head):
    model = shared_model("llama", head=head)
    output = run_generate(model)
    state = output.past_key_values
    before = output.position_ids[:, : PROMPT + NUM_NEW - 1]
    state.crop(-4)
    assert state.num_tokens == PROMPT + NUM_NEW - 5
    mask = torch.nn.functional.pad(MASK, (0, NUM_NEW), value=1)
    with torch.no_grad():
        for place in range(PROMPT + NUM_NEW - 5, PROMPT + NUM_NEW - 1):
            model(output.sequences[:, place : place + 1], mask[:, : place + 1], past_key_values=state)
    assert torch.equal(state.all_tokens().position_ids, before)


def test_a_cache_repeats_and_selects_ids_with_keys():
    model = shared_model("llama")
    state = run_generate(model).past_key_values
    ids = state.all_tokens().position_ids
    state.batch_repeat_interleave(2)
    assert torch.equal(state.all_tokens().position_ids, ids.repeat_interleave(2, dim=0))
    state.batch_select_indices(torch.tensor([5, 0]))
    assert torch.equal(state.all_tokens().position_ids, ids[[2, 0]])
    assert len(state.prompts[0].keys) == len(state.layers[0].keys) == 2
    state.reset()
    assert state.num_tokens == 0


def test_a_cache_without_a_last_hidden_state_raises_an_error():
    model = shared_model("llama")
    state = run_generate(model).past_key_values
    state.crop(-NUM_NEW - 2)
    with pytest.raises(SettingError, match="the next ID cannot be predicted: the cache has no hidden state"):
        model(TOKENS[:, :1], past_key_values=state)


def make_batch() -> dict[str, torch.Tensor]:
    """Return a batch of prompts of several lengths with responses."""
    tokens, ids = random_integers(ROWS, 12, below=VOCABULARY_SIZE, seed=4), random_integers(ROWS, 12, below=40, seed=5)
    # Response IDs occur in the prompt, so that the head can point to them.
    ids[:, 7:] = ids[:, 1:6]
    labels, position_labels = tokens.clone(), ids.clone()
    for row, prompt in enumerate((7, 8, 9)):
        labels[row, :prompt] = position_labels[row, :prompt] = -100
    return {"input_ids": tokens, "position_ids": ids, "labels": labels, "position_labels": position_labels}


@pytest.mark.parametrize("architecture", SUPPORTED)
def test_packing_does_not_change_the_loss(architecture):
    model, inputs = shared_model(architecture), make_batch()
    packed = {name: values.view(1, -1) for name, values in inputs.items()}
    packed["sequence_ids"] = torch.arange(ROWS).repeat_interleave(12)[None]
    with torch.no_grad():
        apart, together = model(**inputs), model(**packed)
    assert torch.allclose(together.logits.view_as(apart.logits), apart.logits, atol=2e-4, rtol=1e-4)
    for name in ("loss", "token_loss", "position_loss"):
        torch.testing.assert_close(together[name], apart[name], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(apart.loss, apart.token_loss + apart.position_loss)


@pytest.mark.parametrize("architecture", SUPPORTED)
def test_the_last_logits_depend_on_tokens_before_a_jump(architecture):
    model = shared_model(architecture)
    embeddings = []
    handle = model.get_input_embeddings().register_forward_hook(
        lambda module, args, output: embeddings.append(output.retain_grad() or output)
    )
    model(TOKENS[:1], None, torch.tensor([[0, 1, 2, 3, 20, 21, 2, 2, 30]])).logits[0, -1].logsumexp(0).backward()
    handle.remove()
    model.zero_grad()
    assert bool((embeddings[0].grad[0].abs().sum(dim=-1) > 0).all())


@pytest.mark.parametrize("head", POSITION_HEADS)
def test_gradients_are_finite_if_all_tokens_are_labelled(head):
    model, inputs = wrap_model("llama", head=head).train(), make_batch()
    # Without a prompt, most heads have no IDs to choose among; increment reaches only the next few IDs.
    with (
        nullcontext()
        if head == "class"
        else pytest.warns(UnreachablePositionIDsWarning, match=r"cannot predict some of the")
    ):
        output = model(**inputs | {"labels": inputs["input_ids"], "position_labels": inputs["position_ids"]})
    output.loss.backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in model.parameters() if weight.grad is not None)
    assert bool(torch.isfinite(output.loss))


def test_no_text_predicts_the_first_token_of_the_next():
    model, inputs = shared_model("llama"), make_batch()
    packed = {name: values.view(1, -1) for name, values in inputs.items()}
    packed["sequence_ids"] = torch.arange(ROWS).repeat_interleave(12)[None]
    labels = {"labels": inputs["input_ids"]}
    flat = {"labels": inputs["input_ids"].view(1, -1)}
    with torch.no_grad():
        apart, together = model(**inputs | labels), model(**packed | flat)
    torch.testing.assert_close(together.token_loss, apart.token_loss, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head", POSITION_HEADS)
def test_wrapping_keeps_the_precision_of_a_model(head):
    model = causal_model(CONFIGS["llama"]()).to(torch.bfloat16)
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq.float()
    wrapper = PredictivePositionModel.wrap(model, head=head)
    assert wrapper.model is model
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    assert model.lm_head.weight.dtype == torch.bfloat16
    assert {weight.dtype for weight in wrapper.position_head.parameters()} == {torch.float32}
    assert run_generate(wrapper, eos_token_id=None).sequences.shape == (ROWS, PROMPT + NUM_NEW)


def test_wrapping_does_not_change_weights():
    model = causal_model(CONFIGS["llama"]())
    model.lm_head = torch.nn.Linear(32, VOCABULARY_SIZE, bias=False)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    wrapper = PredictivePositionModel.wrap(model)
    assert all(torch.equal(weight, before[name]) for name, weight in wrapper.model.named_parameters())


def test_loading_with_another_head_raises_an_error(tmp_path):
    wrap_model("llama", segments=False).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"the saved model has no position_head.scores.*; load it without options"):
        PredictivePositionModel.from_pretrained(tmp_path, head="rank")


def test_the_joint_loss_uses_the_id_weight_and_the_number_of_items():
    inputs = make_batch()
    light, heavy = shared_model("llama"), wrap_model("llama", id_weight=3.0)
    with torch.no_grad():
        one, three = light(**inputs), heavy(**inputs)
        summed = light(**inputs, num_items_in_batch=torch.tensor(10))
    torch.testing.assert_close(three.loss, one.token_loss + 3 * one.position_loss)
    scored = int((inputs["labels"][:, 1:] != -100).sum())
    torch.testing.assert_close(summed.token_loss, one.token_loss * scored / 10)


@pytest.mark.parametrize("option", [{"condition_on_token": False}, {"segments": False}, {"length_scaling": "log"}])
def test_options_change_the_predictions(option):
    inputs = make_batch()
    with torch.no_grad():
        plain, other = shared_model("llama")(**inputs), shared_model("llama", **option)(**inputs)
    assert abs(float(plain.loss - other.loss)) > 1e-4
    assert torch.equal(plain.logits, other.logits) == ("condition_on_token" in option)


def test_log_scaling_does_not_change_short_texts():
    plain, scaled = (
        shared_model("llama", segments=False),
        shared_model("llama", segments=False, length_scaling="log", log_length_from=6),
    )
    ids = torch.arange(PROMPT)[None]
    with torch.no_grad():
        short = [model(TOKENS[:1, :6], None, ids[:, :6]).logits for model in (plain, scaled)]
        long = [model(TOKENS[:1], None, ids).logits for model in (plain, scaled)]
    torch.testing.assert_close(*short)
    assert not torch.allclose(*long)


def test_saving_and_loading_restores_the_model(tmp_path):
    model = wrap_model("gpt_neox", length_scaling="log", head="rank")
    model.save_pretrained(tmp_path)
    loaded = PredictivePositionModel.from_pretrained(tmp_path)
    weights = loaded.state_dict()
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], weight) for name, weight in model.state_dict().items())
    assert torch.equal(run_generate(loaded, eos_token_id=None).sequences, run_generate(model).sequences)


def test_a_copy_uses_its_own_hidden_states():
    model = wrap_model("llama", head="class")
    run_generate(model)
    other = copy.deepcopy(model)
    torch.nn.init.normal_(other.model.model.norm.weight)
    output = run_generate(other)
    assert torch.equal(output.sequences, run_generate(other, use_cache=False).sequences)
    assert model._output_layer_input.value is None
    assert other._output_layer_input is not model._output_layer_input


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CONFIGS["mistral"], "attends to the last 4096 tokens by token index, regardless of their IDs; use"),
        (CONFIGS["gemma3"], "attends to the last 4096 tokens by token index"),
        (UNSUPPORTED["mamba"], "has layers of type .*|does not accept position_ids"),
        (UNSUPPORTED["bloom"], "does not accept position_ids; use a model that accepts them, such as Llama"),
        (
            lambda: transformers.FalconConfig(
                vocab_size=VOCABULARY_SIZE, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True
            ),
            "accepts position_ids but ignores them|cannot be measured exactly|"
            "does not accept position IDs, a mask and a cache",
        ),
    ],
)
def test_wrapping_an_unsupported_model_raises_an_error_with_the_reason(config, message):
    with pytest.raises(ModelError, match=message) as caught:
        PredictivePositionModel.wrap(causal_model(config()))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"head": "pointr"}, UnknownNameError, "pointer"),
        ({"length_scaling": "logn"}, UnknownNameError, "log"),
        ({"log_length_from": 20}, SettingError, "log_length_from 20 with length_scaling='none'; use a positive number"),
        ({"num_position_ids": 0}, SettingError, "invalid num_position_ids 0; use at least 1"),
    ],
)
def test_invalid_options_raise_an_error(options, error, message):
    with pytest.raises(error, match=message):
        PredictivePositionModel.wrap(causal_model(CONFIGS["llama"]()), **options)


def test_ids_beyond_learned_positions_raise_an_error():
    gpt2, llama = (causal_model(CONFIGS[name]()) for name in ("gpt2", "llama"))
    with pytest.raises(
        SettingError, match=f"num_position_ids 200 exceeds the model's table of {MAX_POSITIONS} positions"
    ):
        PredictivePositionModel.wrap(gpt2, num_position_ids=200)
    assert PredictivePositionModel.wrap(llama, num_position_ids=200).config.num_position_ids == 200


def test_loading_another_model_type_raises_an_error(tmp_path):
    causal_model(CONFIGS["llama"]()).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="the saved model has the type llama, not predictive_position; load"):
        PredictivePositionModel.from_pretrained(tmp_path)


def test_one_row_of_ids_applies_to_the_batch():
    model = shared_model("llama")
    torch.testing.assert_close(model(TOKENS, None, IDS[:1]).logits, model(TOKENS, None, IDS[:1].expand(3, -1)).logits)
    rows = [run_generate(model, position_ids=ids).position_ids for ids in (IDS[:1], IDS[:1].expand(3, -1))]
    assert torch.equal(*rows)


@pytest.mark.parametrize("head", POSITION_HEADS)
def test_a_batch_without_labelled_ids_gives_every_weight_a_gradient(head):
    model = wrap_model("llama", head=head)
    unlabelled = torch.full_like(TOKENS, -100)
    model(TOKENS, None, IDS, labels=TOKENS, position_labels=unlabelled).loss.backward()
    assert all(parameter.grad is not None for parameter in model.position_head.parameters())


def test_invalid_inputs_raise_an_error():
    model = shared_model("llama")
    with pytest.raises(SettingError, match=r"position_ids has 3 IDs for 9 tokens; calls with labels or packed"):
        model(TOKENS, None, IDS[:, :3], labels=TOKENS)
    with pytest.raises(SettingError, match=r"attention_mask has 4 columns, but the call and its cache have 9 tokens"):
        model(TOKENS, MASK[:, :4], IDS)
    with pytest.raises(SettingError, match=r"position_ids has 4 IDs for 9 prompt tokens; pass one ID per token"):
        run_generate(model, position_ids=IDS[:, :4])
    with pytest.raises(SettingError, match=r"assisted decoding cannot .* leave out prompt_lookup_num_tokens"):
        run_generate(model, prompt_lookup_num_tokens=2)
    cache = run_generate(model).past_key_values
    with pytest.raises(SettingError, match="packed texts cannot be continued"):
        model(TOKENS, None, IDS, past_key_values=cache, sequence_ids=torch.zeros_like(TOKENS))
    with pytest.raises(SettingError, match=r"position_ids have the shape \(2, 9\) for a batch of 3"):
        model(TOKENS, None, IDS[:2])
    with pytest.raises(SettingError, match=r"inputs_embeds is not supported, .*; pass input_ids"):
        model.generate(inputs_embeds=torch.zeros(1, 2, 32))
    with pytest.raises(SettingError, match="DataParallel is not supported, because its copies share state"):
        model._replicate_for_data_parallel()(TOKENS, None, IDS)
    with pytest.raises(SettingError, match="attention eager would disable length_scaling='log'"):
        shared_model("llama", length_scaling="log").set_attn_implementation("eager")


@pytest.mark.parametrize("in_memory", ["lm_head", "model.layers"])
def test_offloaded_weights_do_not_change_generation(in_memory, tmp_path):
    model = shared_model("llama")
    model.model.save_pretrained(tmp_path)
    parts = ("model.embed_tokens", "model.layers", "model.norm", "model.rotary_emb", "lm_head")
    places = {part: "cpu" if part == in_memory else "disk" for part in parts}
    offloaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, device_map=places, offload_folder=tmp_path / "offloaded"
    )
    wrapper = PredictivePositionModel.wrap(offloaded, segments=True).eval()
    wrapper.position_head.load_state_dict(model.position_head.state_dict())
    wrapper.segment.load_state_dict(model.segment.state_dict())
    expected, output = run_generate(model), run_generate(wrapper)
    assert torch.equal(output.sequences, expected.sequences)
    assert torch.equal(output.position_ids, expected.position_ids)


def test_wrapping_a_model_on_several_devices_raises_an_error(monkeypatch):
    model = copy.deepcopy(shared_model("llama").model)
    places = [SimpleNamespace(device=torch.device(device)) for device in ("meta", "cuda:1", "cuda:0")]
    monkeypatch.setattr(model, "parameters", lambda recurse=True: iter(places))
    with pytest.raises(ModelError, match=r"is split over cuda:0, cuda:1, but a position head needs its"):
        PredictivePositionModel.wrap(model)


COMPILED = """
import torch
from tests.hf.test_predictive_model import make_batch, run_generate, wrap_model

torch.set_num_threads(1)
torch._dynamo.config.recompile_limit, torch._dynamo.config.fail_on_recompile_limit_hit = 4, True
model, inputs = wrap_model("llama", length_scaling="log"), make_batch()
expected = model(**inputs)
output = torch.compile(model, backend="aot_eager")(**inputs)
torch.testing.assert_close(output.loss, expected.loss)
output.loss.backward()
expected = run_generate(model)
model.forward = torch.compile(model.forward, backend="eager")
# All steps share one graph.
output = run_generate(model, cache_implementation="static", max_new_tokens=8)
assert torch.equal(output.sequences, expected.sequences)
assert torch.equal(output.position_ids, expected.position_ids)
print("done")
"""


@pytest.mark.slow
def test_compiling_does_not_change_results():
    # In a separate process, because shape checks cannot be compiled.
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILED], capture_output=True, text=True, check=False
    )
    assert process.stdout.strip().splitlines()[-1:] == ["done"], process.stderr
