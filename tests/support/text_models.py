"""Tiny language models for text, with byte tokens and random or memorized answers."""

from collections.abc import Sequence

import torch
from tests.hf.test_hf_loading import byte_level_tokenizer
from tests.support.causal_models import CONFIGS, causal_model
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from lengthwise.hf.text_evaluation import PlainTextModel, TokenizedQuestion
from lengthwise.hf.tokenization import HFTokenizerAdapter

MAX_POSITIONS = 600


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per byte; ``<s>`` starts and ends a text."""
    tokenizer = byte_level_tokenizer(has_start=True)
    tokenizer.eos_token = "<s>"
    return tokenizer


def tiny_model(kind: str = "llama") -> PreTrainedModel:
    """Return a model with random weights for the tokens of ``byte_tokenizer``."""
    config = CONFIGS[kind]()
    config.vocab_size, config.max_position_embeddings, config.eos_token_id = 257, MAX_POSITIONS, 0
    return causal_model(config)


def byte_text_model(model: PreTrainedModel | None = None) -> PlainTextModel:
    """Return a text model with byte tokens; by default it has random weights."""
    return PlainTextModel(
        tiny_model() if model is None else model, HFTokenizerAdapter(byte_tokenizer(), "tiny"), "tiny"
    )


def memorize(questions: Sequence[TokenizedQuestion]) -> PreTrainedModel:
    """Train a model to memorize the answers; all questions must have the same number of tokens."""
    torch.manual_seed(0)
    model = tiny_model().train()
    tokens = torch.tensor([each.context_tokens + each.answer_tokens for each in questions])
    is_answer = torch.tensor(
        [[False] * len(each.context_tokens) + [True] * len(each.answer_tokens) for each in questions]
    )[:, 1:]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(400):
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits[is_answer], tokens[:, 1:][is_answer])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss < 0.01:
            break
    return model.eval()
