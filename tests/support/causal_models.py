"""Tiny causal language models with random weights, one per architecture."""

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

VOCABULARY_SIZE, MAX_POSITIONS = 97, 96
_SIZES = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": MAX_POSITIONS,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
_GPT2 = {
    "vocab_size": VOCABULARY_SIZE,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": MAX_POSITIONS,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**_GROUPED),
    "qwen3": lambda: transformers.Qwen3Config(**_GROUPED, head_dim=8),
    "mistral": lambda: transformers.MistralConfig(**_GROUPED),
    "gemma3": lambda: transformers.Gemma3TextConfig(**_GROUPED, head_dim=8),
    "olmo2": lambda: transformers.Olmo2Config(**_GROUPED),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**_SIZES),
    "gpt2": lambda: transformers.GPT2Config(**_GPT2),
}
# Models that support custom position IDs; they have no attention window by token index.
SUPPORTED = {
    **{name: CONFIGS[name] for name in ("llama", "qwen3", "olmo2", "gpt_neox", "gpt2")},
    "mistral": lambda: transformers.MistralConfig(**_GROUPED, sliding_window=None),
    "qwen2": lambda: transformers.Qwen2Config(**_GROUPED),
    "gemma": lambda: transformers.GemmaConfig(**_GROUPED, head_dim=8),
}
_NEO = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 32,
    "num_layers": 4,
    "num_heads": 4,
    "max_position_embeddings": MAX_POSITIONS,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LONGROPE = {"rope_type": "longrope", "rope_theta": 10_000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
# Models with a window by token index, and models with angles that depend on the largest ID of a call.
CALL_DEPENDENT = {
    "gpt_neo_local": lambda: transformers.GPTNeoConfig(
        **_NEO, attention_types=[[["global", "local"], 2]], window_size=24
    ),
    "gpt_neo_global": lambda: transformers.GPTNeoConfig(**_NEO, attention_types=[[["global"], 4]]),
    "phi3_longrope": lambda: transformers.Phi3Config(
        **_GROUPED,
        original_max_position_embeddings=14,
        rope_parameters={**_LONGROPE, "original_max_position_embeddings": 14},
    ),
    "llama_dynamic": lambda: transformers.LlamaConfig(
        **{**_GROUPED, "max_position_embeddings": 14},
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0},
    ),
}
# Models with attention that depends on the number of keys.
KEY_COUNTING = {
    "llama4": lambda: transformers.Llama4TextConfig(
        **_GROUPED, head_dim=8, intermediate_size_mlp=48, num_local_experts=2, no_rope_layers=[1, 1, 0], floor_scale=4
    ),
    "doge": lambda: transformers.DogeConfig(**_GROUPED, keep_window_size=8),
    "doge_wide": lambda: transformers.DogeConfig(**_GROUPED, keep_window_size=80),
}
# Models without keys to hide, or without position IDs.
UNSUPPORTED = {
    "mamba": lambda: transformers.MambaConfig(
        vocab_size=VOCABULARY_SIZE, hidden_size=32, num_hidden_layers=2, bos_token_id=1, eos_token_id=2, pad_token_id=0
    ),
    "bloom": lambda: transformers.BloomConfig(
        vocab_size=VOCABULARY_SIZE, hidden_size=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2, pad_token_id=0
    ),
}


def causal_model(config) -> PreTrainedModel:
    """Return a model with random weights that are large enough for every token to change the prediction."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    return model.eval()
