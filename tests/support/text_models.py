"""Tiny language models that are asked in text: byte tokens, random weights or answers learned by heart."""

from collections.abc import Sequence

import torch
from tests.hf.test_hf_loading import letters
from tests.support.causal_models import CONFIGS, causal_model
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from lengthwise.hf.text_model import Question, TextModel
from lengthwise.hf.tokenization import HFCodec

POSITIONS = 600


def bytewise() -> PreTrainedTokenizerFast:
    """A token per byte behind ``<s>``, which is what ends a text as well."""
    tokenizer = letters(begins=True)
    tokenizer.eos_token = "<s>"
    return tokenizer


def tiny_model(kind: str = "llama") -> PreTrainedModel:
    config = CONFIGS[kind]()
    config.vocab_size, config.max_position_embeddings, config.eos_token_id = 257, POSITIONS, 0
    return causal_model(config)


def asked_in_bytes(model: PreTrainedModel | None = None) -> TextModel:
    return TextModel(tiny_model() if model is None else model, HFCodec(bytewise(), "tiny"), "tiny")


def learned_by_heart(questions: Sequence[Question]) -> PreTrainedModel:
    """A model that answers these questions right, of one number of tokens, and others by chance."""
    torch.manual_seed(0)
    model = tiny_model().train()
    tokens = torch.tensor([each.given + each.answer for each in questions])
    asked = torch.tensor([[False] * len(each.given) + [True] * len(each.answer) for each in questions])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(400):
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits[asked[:, 1:]], tokens[:, 1:][asked[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss < 0.01:
            break
    return model.eval()
