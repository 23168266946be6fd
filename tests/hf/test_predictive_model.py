"""PPC around models of `transformers`: one answer, however it is computed, and IDs that stay with their tokens."""

import copy
import subprocess
import sys
from contextlib import nullcontext
from functools import cache
from types import SimpleNamespace

import pytest
import torch
import transformers
from tests.support.causal_models import CONFIGS, POSITIONS, SUPPORTED, UNSUPPORTED, VOCABULARY, causal_model

from lengthwise.core.errors import ModelError, SettingError, UnknownNameError, UnreachableIDsWarning
from lengthwise.hf.position_cache import PositionCache
from lengthwise.hf.predictive_model import PredictivePositionModel
from lengthwise.model.position_heads import POSITION_HEADS

ROWS, PROMPT, WRITTEN = 3, 9, 8
# Fill before the tokens of two of the prompts.
INSIDE = torch.ones(ROWS, PROMPT, dtype=torch.long)
INSIDE[0, :4] = INSIDE[1, :2] = 0


def drawn(*shape: int, below: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, below, shape, generator=torch.Generator().manual_seed(seed))


TOKENS = drawn(ROWS, PROMPT, below=VOCABULARY)
# Repeated, jumping and falling.
IDS = drawn(ROWS, PROMPT, below=40, seed=1)
IDS[:, 5] = IDS[:, 4]


def wrapped(architecture: str, **options) -> PredictivePositionModel:
    """A model whose head says something else for every token, and whose end never comes."""
    model = causal_model(SUPPORTED[architecture]())
    made = PredictivePositionModel.wrap(model, **{"segments": True} | options)
    torch.manual_seed(1)
    for part in (made.position_head, made.segment):
        for parameter in () if part is None else part.parameters():
            torch.nn.init.normal_(parameter)
    made.generation_config.eos_token_id = None
    return made.eval()


# Nothing that is asked for below changes a model.
shared = cache(wrapped)


def written(model, **options):
    asked = {"attention_mask": INSIDE, "position_ids": IDS, "max_new_tokens": WRITTEN, "do_sample": False}
    return model.generate(TOKENS, **asked | {"return_dict_in_generate": True} | options)


@pytest.mark.parametrize("scaling", ["none", "log"])
@pytest.mark.parametrize("architecture", SUPPORTED)
def test_one_answer_however_it_is_computed(architecture, scaling):
    model = shared(architecture, length_scaling=scaling)
    made = written(model)
    assert len(made.position_ids[:, PROMPT:-1].unique()) > 3
    assert torch.equal(written(model, use_cache=False).sequences, made.sequences)
    static = written(model, cache_implementation="static")
    assert torch.equal(static.sequences, made.sequences)
    assert torch.equal(static.position_ids, made.position_ids)
    # All at once, with the IDs that were predicted.
    seq = PROMPT + WRITTEN - 1
    inside = torch.nn.functional.pad(INSIDE, (0, WRITTEN - 1), value=1)
    prompt = torch.nn.functional.pad(INSIDE, (0, WRITTEN - 1))
    with torch.no_grad():
        forced = model(made.sequences[:, :seq], inside, made.position_ids[:, :seq], prompt_mask=prompt)
    assert torch.equal(forced.logits[:, PROMPT - 1 :].argmax(dim=-1), made.sequences[:, PROMPT:])


@pytest.mark.parametrize("architecture", SUPPORTED)
def test_a_prompt_is_continued_as_it_is_alone(architecture):
    model = shared(architecture, length_scaling="none")
    together = written(model)
    for row in range(ROWS):
        own = INSIDE[row] == 1
        alone = model.generate(
            TOKENS[row : row + 1, own],
            position_ids=IDS[row : row + 1, own],
            max_new_tokens=WRITTEN,
            do_sample=False,
            return_dict_in_generate=True,
        )
        assert torch.equal(alone.sequences[0, -WRITTEN:], together.sequences[row, PROMPT:])
        assert torch.equal(alone.position_ids[0, -WRITTEN:], together.position_ids[row, PROMPT:])


@pytest.mark.parametrize("head", POSITION_HEADS)
def test_every_head_predicts(head):
    model = shared("llama", head=head)
    made, again = written(model), written(model, use_cache=False)
    assert torch.equal(made.sequences, again.sequences)
    ids = made.position_ids[:, PROMPT:-1]
    assert bool(((ids >= 0) & (ids < POSITIONS)).all())


def replayed(model, row: int, tokens: torch.Tensor) -> torch.Tensor:
    """The IDs that a sequence gets when its tokens are fed one by one, by themselves."""
    own = INSIDE[row] == 1
    state = PositionCache(transformers.DynamicCache(config=model.config.get_text_config()))
    with torch.no_grad():
        model(TOKENS[row : row + 1, own], None, IDS[row : row + 1, own], past_key_values=state)
        for token in tokens[:-1]:
            model(token.view(1, 1), past_key_values=state)
    return state.settle().position_ids[0, int(own.sum()) :]


@pytest.mark.parametrize("options", [{"num_beams": 4, "num_return_sequences": 3}, {"do_sample": True}])
# The pointer reads tokens and IDs, the rank head the hidden state too.
@pytest.mark.parametrize(("architecture", "head"), [("llama", "pointer"), ("llama", "rank"), ("gpt_neox", "class")])
def test_each_hypothesis_has_its_own_ids(architecture, head, options):
    model = shared(architecture, head=head)
    torch.manual_seed(3)
    made = written(model, **options)
    each = len(made.sequences) // ROWS
    for place, sequence in enumerate(made.sequences):
        expected = replayed(model, place // each, sequence[PROMPT:])
        assert torch.equal(made.position_ids[place, PROMPT:-1], expected)
        assert torch.equal(made.position_ids[place, :PROMPT], IDS[place // each])


def test_sampled_sequences_of_one_prompt_go_apart():
    made = written(shared("llama"), do_sample=True, num_return_sequences=4)
    assert len(made.sequences) == 4 * ROWS
    assert not torch.equal(made.position_ids[0, PROMPT:], made.position_ids[1, PROMPT:])


def test_given_ids_of_the_response_are_taken():
    model = shared("llama")
    given = torch.cat([IDS, drawn(ROWS, WRITTEN, below=40, seed=2)], dim=1)
    made = written(model, position_ids=given)
    assert torch.equal(made.position_ids[:, :-1], given[:, :-1])
    assert not torch.equal(made.sequences, written(model).sequences)
    # Some of them, and the others predicted.
    part = written(model, position_ids=given[:, : PROMPT + 3])
    assert torch.equal(part.position_ids[:, : PROMPT + 3], given[:, : PROMPT + 3])
    assert torch.equal(part.sequences, written(model, position_ids=given[:, : PROMPT + 3], use_cache=False).sequences)


def test_without_a_head_ids_count_up():
    model = shared("llama", head=None, segments=False)
    made = written(model)
    counted = IDS[:, -1:] + torch.arange(1, WRITTEN)
    assert torch.equal(made.position_ids[:, PROMPT:-1], counted)


@pytest.mark.parametrize(
    "options",
    [{"prefill_chunk_size": 4}, {"prefill_chunk_size": 4, "num_beams": 3}, {"num_beams": 3, "use_cache": False}],
)
def test_a_prompt_in_pieces_and_beams_without_a_cache_say_the_same(options):
    model = shared("llama")
    beams = {"num_beams": options["num_beams"]} if "num_beams" in options else {}
    expected, made = written(model, **beams), written(model, **options)
    assert torch.equal(made.sequences, expected.sequences)
    if options.get("use_cache", True):
        assert torch.equal(made.position_ids, expected.position_ids)


@pytest.mark.parametrize("given", ["none", "as answered"])
def test_a_returned_cache_is_gone_on_with(given):
    model = shared("llama")
    whole, half = written(model), written(model, max_new_tokens=4)
    ids = {} if given == "none" else {"position_ids": half.position_ids}
    inside = torch.nn.functional.pad(INSIDE, (0, 4), value=1)
    rest = model.generate(
        half.sequences, attention_mask=inside, past_key_values=half.past_key_values, max_new_tokens=4, do_sample=False,
        **ids,
    )  # fmt: skip
    assert torch.equal(rest, whole.sequences)


def test_a_prompt_that_is_read_in_two_calls_is_known_as_one():
    model = shared("llama")
    whole, parts = (PositionCache(transformers.DynamicCache(config=model.config.get_text_config())) for _ in range(2))
    with torch.no_grad():
        model(TOKENS, INSIDE, IDS, past_key_values=whole)
        model(TOKENS[:, :5], INSIDE[:, :5], IDS[:, :5], past_key_values=parts)
        model.next_position_ids(parts, TOKENS[:, 5:6])
        prompt = torch.ones(ROWS, 4, dtype=torch.bool)
        model(TOKENS[:, 5:], INSIDE, IDS[:, 5:], past_key_values=parts, prompt_mask=prompt)
    asked = drawn(ROWS, 1, below=VOCABULARY, seed=6)
    assert torch.equal(model.next_position_ids(parts, asked), model.next_position_ids(whole, asked))


def test_a_cache_of_the_callers_own_is_known_again():
    model = shared("llama")
    own = transformers.DynamicCache(config=model.config.get_text_config())
    ours = PositionCache(transformers.DynamicCache(config=model.config.get_text_config()))
    with torch.no_grad():
        for state in (own, ours):
            model(TOKENS, INSIDE, IDS, past_key_values=state)
        inside = torch.nn.functional.pad(INSIDE, (0, 1), value=1)
        first, second = (model(TOKENS[:, :1], inside, past_key_values=state).logits for state in (own, ours))
    assert torch.equal(first, second)
    filled = transformers.DynamicCache(config=model.config.get_text_config())
    model.model(TOKENS, past_key_values=filled)
    with pytest.raises(SettingError, match="the cache was filled elsewhere and knows no position IDs"):
        model(TOKENS[:, :1], past_key_values=filled)


@pytest.mark.parametrize("head", ["pointer", "class"])
def test_a_draft_that_is_cropped_leaves_no_trace(head):
    model = shared("llama", head=head)
    made = written(model)
    state = made.past_key_values
    before = made.position_ids[:, : PROMPT + WRITTEN - 1]
    state.crop(-4)
    assert state.num_read == PROMPT + WRITTEN - 5
    inside = torch.nn.functional.pad(INSIDE, (0, WRITTEN), value=1)
    with torch.no_grad():
        for place in range(PROMPT + WRITTEN - 5, PROMPT + WRITTEN - 1):
            model(made.sequences[:, place : place + 1], inside[:, : place + 1], past_key_values=state)
    assert torch.equal(state.settle().position_ids, before)


def test_a_cache_repeats_and_selects_its_ids_with_its_keys():
    model = shared("llama")
    state = written(model).past_key_values
    ids = state.settle().position_ids
    state.batch_repeat_interleave(2)
    assert torch.equal(state.settle().position_ids, ids.repeat_interleave(2, dim=0))
    state.batch_select_indices(torch.tensor([5, 0]))
    assert torch.equal(state.settle().position_ids, ids[[2, 0]])
    assert len(state.prompts[0].keys) == len(state.layers[0].keys) == 2
    state.reset()
    assert state.num_read == 0


def test_a_cache_that_was_filled_elsewhere_cannot_be_gone_on_with():
    model = shared("llama")
    state = written(model).past_key_values
    state.crop(-WRITTEN - 2)
    with pytest.raises(SettingError, match="no ID can be predicted: the cache holds no hidden state of its last token"):
        model(TOKENS[:, :1], past_key_values=state)


def batch() -> dict[str, torch.Tensor]:
    """Prompts of several lengths, with responses."""
    tokens, ids = drawn(ROWS, 12, below=VOCABULARY, seed=4), drawn(ROWS, 12, below=40, seed=5)
    # The IDs of responses are those of prompt tokens, which the head can point to.
    ids[:, 7:] = ids[:, 1:6]
    labels, position_labels = tokens.clone(), ids.clone()
    for row, prompt in enumerate((7, 8, 9)):
        labels[row, :prompt] = position_labels[row, :prompt] = -100
    return {"input_ids": tokens, "position_ids": ids, "labels": labels, "position_labels": position_labels}


@pytest.mark.parametrize("architecture", SUPPORTED)
def test_packed_rows_have_the_loss_of_their_texts(architecture):
    model, whole = shared(architecture), batch()
    packed = {name: values.view(1, -1) for name, values in whole.items()}
    packed["sequence_ids"] = torch.arange(ROWS).repeat_interleave(12)[None]
    with torch.no_grad():
        apart, together = model(**whole), model(**packed)
    assert torch.allclose(together.logits.view_as(apart.logits), apart.logits, atol=2e-4, rtol=1e-4)
    for name in ("loss", "token_loss", "position_loss"):
        torch.testing.assert_close(together[name], apart[name], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(apart.loss, apart.token_loss + apart.position_loss)


@pytest.mark.parametrize("architecture", SUPPORTED)
def test_the_last_logits_see_what_stands_before_a_jump(architecture):
    model = shared(architecture)
    embeddings = []
    handle = model.get_input_embeddings().register_forward_hook(
        lambda module, args, output: embeddings.append(output.retain_grad() or output)
    )
    model(TOKENS[:1], None, torch.tensor([[0, 1, 2, 3, 20, 21, 2, 2, 30]])).logits[0, -1].logsumexp(0).backward()
    handle.remove()
    model.zero_grad()
    assert bool((embeddings[0].grad[0].abs().sum(dim=-1) > 0).all())


@pytest.mark.parametrize("head", POSITION_HEADS)
def test_gradients_are_finite_where_all_is_labelled(head):
    model, whole = wrapped("llama", head=head).train(), batch()
    # Without a prompt there is nothing to choose among.
    choosing = head in ("pointer", "rank", "search")
    told = pytest.warns(UnreachableIDsWarning, match=r"prompt_mask") if choosing else nullcontext()
    with told:
        made = model(**whole | {"labels": whole["input_ids"], "position_labels": whole["position_ids"]})
    made.loss.backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in model.parameters() if weight.grad is not None)
    assert bool(torch.isfinite(made.loss))


def test_no_text_foretells_the_next_of_its_row():
    model, whole = shared("llama"), batch()
    packed = {name: values.view(1, -1) for name, values in whole.items()}
    packed["sequence_ids"] = torch.arange(ROWS).repeat_interleave(12)[None]
    labels = {"labels": whole["input_ids"]}
    flat = {"labels": whole["input_ids"].view(1, -1)}
    with torch.no_grad():
        apart, together = model(**whole | labels), model(**packed | flat)
    torch.testing.assert_close(together.token_loss, apart.token_loss, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head", POSITION_HEADS)
def test_a_model_in_half_precision_stays_as_it_is(head):
    model = causal_model(CONFIGS["llama"]()).to(torch.bfloat16)
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq.float()
    made = PredictivePositionModel.wrap(model, head=head)
    assert made.model is model
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    assert model.lm_head.weight.dtype == torch.bfloat16
    assert {weight.dtype for weight in made.position_head.parameters()} == {torch.float32}
    assert written(made, eos_token_id=None).sequences.shape == (ROWS, PROMPT + WRITTEN)


def test_wrapping_leaves_weights_as_they_are():
    model = causal_model(CONFIGS["llama"]())
    model.lm_head = torch.nn.Linear(32, VOCABULARY, bias=False)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    made = PredictivePositionModel.wrap(model)
    assert all(torch.equal(weight, before[name]) for name, weight in made.model.named_parameters())


def test_a_saved_model_that_lacks_what_is_asked_for_is_refused(tmp_path):
    wrapped("llama", segments=False).save_pretrained(tmp_path)
    with pytest.raises(
        ModelError, match=r"the saved model has no position_head.scores.*; load it with its own, or wrap"
    ):
        PredictivePositionModel.from_pretrained(tmp_path, head="rank")


def test_the_loss_of_ids_is_weighted_and_counted_as_the_trainer_counts():
    whole = batch()
    light, heavy = shared("llama"), wrapped("llama", id_weight=3.0)
    with torch.no_grad():
        one, three = light(**whole), heavy(**whole)
        summed = light(**whole, num_items_in_batch=torch.tensor(10))
    torch.testing.assert_close(three.loss, one.token_loss + 3 * one.position_loss)
    scored = int((whole["labels"][:, 1:] != -100).sum())
    torch.testing.assert_close(summed.token_loss, one.token_loss * scored / 10)


@pytest.mark.parametrize("option", [{"condition_on_token": False}, {"segments": False}, {"length_scaling": "log"}])
def test_options_change_what_is_predicted(option):
    whole = batch()
    with torch.no_grad():
        plain, other = shared("llama")(**whole), shared("llama", **option)(**whole)
    assert abs(float(plain.loss - other.loss)) > 1e-4
    assert torch.equal(plain.logits, other.logits) == ("condition_on_token" in option)


def test_log_scaling_leaves_short_texts_alone():
    plain, scaled = (
        shared("llama", segments=False),
        shared("llama", segments=False, length_scaling="log", log_length_from=6),
    )
    ids = torch.arange(PROMPT)[None]
    with torch.no_grad():
        short = [model(TOKENS[:1, :6], None, ids[:, :6]).logits for model in (plain, scaled)]
        long = [model(TOKENS[:1], None, ids).logits for model in (plain, scaled)]
    torch.testing.assert_close(*short)
    assert not torch.allclose(*long)


def test_it_is_saved_and_loaded_as_it_is(tmp_path):
    model = wrapped("gpt_neox", length_scaling="log", head="rank")
    model.save_pretrained(tmp_path)
    loaded = PredictivePositionModel.from_pretrained(tmp_path)
    weights = loaded.state_dict()
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], weight) for name, weight in model.state_dict().items())
    assert torch.equal(written(loaded, eos_token_id=None).sequences, written(model).sequences)


def test_a_copy_reads_its_own_hidden_states():
    model = wrapped("llama", head="class")
    written(model)
    other = copy.deepcopy(model)
    torch.nn.init.normal_(other.model.model.norm.weight)
    made = written(other)
    assert torch.equal(made.sequences, written(other, use_cache=False).sequences)
    assert model._output_input.value is None
    assert other._output_input is not model._output_input


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CONFIGS["mistral"], "looks back 4096 tokens by token index, whatever their IDs; give it the whole context"),
        (CONFIGS["gemma3"], "looks back 4096 tokens by token index"),
        (UNSUPPORTED["mamba"], "has layers of kind .*|takes no position_ids"),
        (UNSUPPORTED["bloom"], "takes no position_ids; give a model that takes both, such as Llama"),
        (
            lambda: transformers.FalconConfig(
                vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True
            ),
            "takes position_ids and does not use them|cannot be measured exactly|cannot be run with",
        ),
    ],
)
def test_what_takes_no_ids_of_ones_own_is_refused_with_the_reason(config, message):
    with pytest.raises(ModelError, match=message) as caught:
        PredictivePositionModel.wrap(causal_model(config()))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"head": "pointr"}, UnknownNameError, "pointer"),
        ({"length_scaling": "logn"}, UnknownNameError, "log"),
        ({"log_length_from": 20}, SettingError, "scales nothing; use a number of tokens with length_scaling='log'"),
        ({"num_position_ids": 0}, SettingError, "leaves no ID; use at least 1"),
    ],
)
def test_options_that_are_none_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        PredictivePositionModel.wrap(causal_model(CONFIGS["llama"]()), **options)


def test_no_id_goes_beyond_learned_positions():
    gpt2, llama = (causal_model(CONFIGS[name]()) for name in ("gpt2", "llama"))
    with pytest.raises(SettingError, match=f"num_position_ids 200 is more than the {POSITIONS} positions that"):
        PredictivePositionModel.wrap(gpt2, num_position_ids=200)
    assert PredictivePositionModel.wrap(llama, num_position_ids=200).config.num_position_ids == 200


def test_another_models_folder_is_no_configuration(tmp_path):
    causal_model(CONFIGS["llama"]()).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="this is a saved llama, and no model that predicts IDs; load it as"):
        PredictivePositionModel.from_pretrained(tmp_path)


def test_one_row_of_ids_is_for_all():
    model = shared("llama")
    torch.testing.assert_close(model(TOKENS, None, IDS[:1]).logits, model(TOKENS, None, IDS[:1].expand(3, -1)).logits)
    rows = [written(model, position_ids=ids).position_ids for ids in (IDS[:1], IDS[:1].expand(3, -1))]
    assert torch.equal(*rows)


@pytest.mark.parametrize("head", POSITION_HEADS)
def test_a_batch_without_labels_of_ids_has_a_gradient_for_every_weight(head):
    model = wrapped("llama", head=head)
    unlabelled = torch.full_like(TOKENS, -100)
    model(TOKENS, None, IDS, labels=TOKENS, position_labels=unlabelled).loss.backward()
    assert all(parameter.grad is not None for parameter in model.position_head.parameters())


def test_wrong_input_is_refused():
    model = shared("llama")
    with pytest.raises(SettingError, match=r"labels and packed texts need all IDs, and position_ids has 3 of 9"):
        model(TOKENS, None, IDS[:, :3], labels=TOKENS)
    with pytest.raises(SettingError, match=r"attention_mask covers 4 tokens, and there are 9"):
        model(TOKENS, INSIDE[:, :4], IDS)
    with pytest.raises(SettingError, match=r"position_ids are given for 4 of 9 prompt tokens; give one for each"):
        written(model, position_ids=IDS[:, :4])
    with pytest.raises(SettingError, match="drafted tokens would get counted IDs; leave out prompt_lookup_num_tokens"):
        written(model, prompt_lookup_num_tokens=2)
    with pytest.raises(SettingError, match="packed texts cannot be gone on with"):
        model(TOKENS, None, IDS, past_key_values=written(model).past_key_values, sequence_ids=torch.zeros_like(TOKENS))
    with pytest.raises(SettingError, match=r"position_ids are \(2, 9\) and there are 3 rows of tokens"):
        model(TOKENS, None, IDS[:2])
    with pytest.raises(SettingError, match="inputs_embeds names none; give input_ids"):
        model.generate(inputs_embeds=torch.zeros(1, 2, 32))
    with pytest.raises(SettingError, match="DataParallel runs copies of this model that share what they read"):
        model._replicate_for_data_parallel()(TOKENS, None, IDS)
    with pytest.raises(SettingError, match="attention eager would leave out length_scaling='log'"):
        shared("llama", length_scaling="log").set_attn_implementation("eager")


@pytest.mark.parametrize("here", ["lm_head", "model.layers"])
def test_a_model_whose_weights_are_offloaded_writes_the_same(here, tmp_path):
    model = shared("llama")
    model.model.save_pretrained(tmp_path)
    parts = ("model.embed_tokens", "model.layers", "model.norm", "model.rotary_emb", "lm_head")
    places = {part: "cpu" if part == here else "disk" for part in parts}
    offloaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, device_map=places, offload_folder=tmp_path / "offloaded"
    )
    made = PredictivePositionModel.wrap(offloaded, segments=True).eval()
    made.position_head.load_state_dict(model.position_head.state_dict())
    made.segment.load_state_dict(model.segment.state_dict())
    ours, theirs = written(model), written(made)
    assert torch.equal(theirs.sequences, ours.sequences)
    assert torch.equal(theirs.position_ids, ours.position_ids)


def test_a_model_on_several_devices_is_refused(monkeypatch):
    model = copy.deepcopy(shared("llama").model)
    places = [SimpleNamespace(device=torch.device(device)) for device in ("meta", "cuda:1", "cuda:0")]
    monkeypatch.setattr(model, "parameters", lambda recurse=True: iter(places))
    with pytest.raises(ModelError, match=r"is spread over cuda:0, cuda:1, and a position head reads it at both ends"):
        PredictivePositionModel.wrap(model)


COMPILED = """
import torch
from tests.hf.test_predictive_model import batch, wrapped, written

torch.set_num_threads(1)
torch._dynamo.config.recompile_limit, torch._dynamo.config.fail_on_recompile_limit_hit = 4, True
model, whole = wrapped("llama", length_scaling="log"), batch()
expected = model(**whole)
made = torch.compile(model, backend="aot_eager")(**whole)
torch.testing.assert_close(made.loss, expected.loss)
made.loss.backward()
expected = written(model)
model.forward = torch.compile(model.forward, backend="eager")
# One graph for all steps: more would be too many.
made = written(model, cache_implementation="static", max_new_tokens=8)
assert torch.equal(made.sequences, expected.sequences)
assert torch.equal(made.position_ids, expected.position_ids)
print("done")
"""


@pytest.mark.slow
def test_compiled_it_says_the_same():
    # By itself: what checks shapes in these tests cannot be compiled.
    shown = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILED], capture_output=True, text=True, check=False
    )
    assert shown.stdout.strip().splitlines()[-1:] == ["done"], shown.stderr
