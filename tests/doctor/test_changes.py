"""Every change of a configuration is what transformers does with the same lines in config.json."""

import copy
import json

import pytest
import torch
import transformers
from tests.support.causal_models import CONFIGS, MAX_POSITIONS, causal_model
from transformers import AutoModelForCausalLM

import lengthwise.hf.model_parts  # noqa: F401  (registers the attention with log-length scaling)
from lengthwise.doctor.changes import build_edited_model, list_changes
from lengthwise.hf.causal_lm import CausalLM

TOKENS = torch.randint(0, 97, (1, 2 * MAX_POSITIONS), generator=torch.Generator().manual_seed(0))
# Windows that are shorter than the tokens.
WINDOW = 16
MODELS = {
    **CONFIGS,
    "gpt_neox": lambda: with_two_frequencies(CONFIGS["gpt_neox"]()),
    "mistral": lambda: with_window(CONFIGS["mistral"]()),
    "gemma3": lambda: with_full_layer(with_window(CONFIGS["gemma3"]())),
    "llama_yarn": lambda: with_yarn(CONFIGS["llama"]()),
}


def with_two_frequencies(config):
    # The base of the angles has no effect on a single frequency.
    config.rope_parameters["partial_rotary_factor"] = 0.5
    return config


def with_window(config):
    config.sliding_window = WINDOW
    return config


def with_full_layer(config):
    config.layer_types = ["sliding_attention", "sliding_attention", "full_attention"]
    return config


def with_yarn(config):
    rope = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 10_000.0, "original_max_position_embeddings": 48}
    config.rope_parameters = rope
    return config


def logits(model):
    with torch.no_grad():
        return model(input_ids=TOKENS[:, : MAX_POSITIONS + 64], use_cache=False).logits


@pytest.mark.first(3)
@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "gpt2"])
def test_an_edit_has_the_logits_of_a_folder_with_its_lines(kind, tmp_path):
    model = CausalLM(causal_model(MODELS[kind]())).model
    model.save_pretrained(tmp_path)
    published = json.loads((tmp_path / "config.json").read_text())
    changes, _ = list_changes(model, MAX_POSITIONS)
    edits = [change for change in changes if change.edit]
    assert len(edits) >= 5
    original = logits(model)
    for change in edits:
        lines = json.loads("{" + ", ".join(change.lines()) + "}")
        (tmp_path / "config.json").write_text(json.dumps(published | lines))
        arguments = {} if change.attention is None else {"attn_implementation": change.attention}
        expected = logits(AutoModelForCausalLM.from_pretrained(tmp_path, **arguments).eval())
        found = logits(build_edited_model(model, change, kind).model)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
        # Otherwise, a comparison of unchanged models would pass.
        has_effect = not torch.allclose(found, original, atol=1e-3, rtol=0)
        # Mistral never reads more keys than in training, because all its layers have a window.
        assert has_effect or (kind, change.name) == ("mistral", "log-length scaling")
    torch.testing.assert_close(logits(model), original)


def test_a_lost_theta_is_repaired_by_a_common_one():
    config = CONFIGS["llama"]()
    config.rope_parameters = {"rope_type": "default", "rope_theta": 500_000.0}
    model = CausalLM(causal_model(config)).model
    lost = copy.deepcopy(model.config)
    lost.rope_parameters = {"rope_type": "default", "rope_theta": 10_000.0}
    damaged = type(model).from_pretrained(None, config=lost, state_dict=model.state_dict()).eval()
    changes = {change.name: change for change in list_changes(damaged, MAX_POSITIONS)[0] if change.everywhere}
    assert "rope_theta 10,000" not in changes
    assert not torch.allclose(logits(damaged), logits(model), atol=1e-3)
    repaired = build_edited_model(damaged, changes["rope_theta 500,000"], "llama").model
    torch.testing.assert_close(logits(repaired), logits(model))


def test_an_edited_model_shares_the_weights():
    model = CausalLM(causal_model(CONFIGS["llama"]())).model
    edited = build_edited_model(model, list_changes(model, MAX_POSITIONS)[0][0], "llama").model
    pairs = zip(model.parameters(), edited.parameters(), strict=True)
    assert all(ours.data_ptr() == theirs.data_ptr() for ours, theirs in pairs)


@pytest.mark.parametrize("kind", ["mistral", "gemma3"])
def test_a_model_with_a_window_has_a_change_of_its_window(kind):
    model = CausalLM(causal_model(MODELS[kind]())).model
    edits = [change.edit for change in list_changes(model, MAX_POSITIONS)[0]]
    assert {"sliding_window": 2 * WINDOW} in edits


def test_learned_positions_cannot_be_scaled():
    model = CausalLM(causal_model(CONFIGS["gpt2"]())).model
    changes, impossible = list_changes(model, MAX_POSITIONS)
    assert all("rope_parameters" not in change.edit for change in changes)
    assert any("no rotary encoding" in reason for reason in impossible)


def test_ntk_scaling_of_two_rotary_features_is_left_out():
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48}
    config = transformers.GPTNeoXConfig(**sizes, vocab_size=97, max_position_embeddings=96, rotary_pct=0.25)
    model = CausalLM(causal_model(config)).model
    changes, impossible = list_changes(model, MAX_POSITIONS)
    assert not [change.name for change in changes if "NTK" in change.name]
    assert any("2 rotary features" in reason for reason in impossible)
    assert torch.isfinite(logits(build_edited_model(model, changes[0], "neox").model)).all()


def test_angles_in_memory_are_repaired_by_those_of_the_configuration():
    model = CausalLM(causal_model(CONFIGS["llama"]())).model
    original = logits(model)
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq * 1.5
    assert not torch.allclose(logits(model), original, atol=1e-3)
    change = next(
        each for each in list_changes(model, MAX_POSITIONS)[0] if each.name == "angles from the configuration"
    )
    torch.testing.assert_close(logits(build_edited_model(model, change, "llama").model), original)
