"""Models of transformers with the shape of a lengthwise decoder, and training steps of a plain loop.

Every peer has rotary positions on all components of a head, an MLP factor of 4, float32 weights, fused AdamW and
gradient clipping. Its loss covers the answer tokens only, like the loss of lengthwise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from lengthwise.training.batch import Batch

LEARNING_RATE, CLIP, D_HEAD = 1e-3, 1.0, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Number of layers, model width and vocabulary size; a head has ``D_HEAD`` components."""

    num_layers: int
    d_model: int
    vocabulary_size: int

    @property
    def num_heads(self) -> int:
        """Number of attention heads."""
        return self.d_model // D_HEAD


def gpt_neox_model(shape: Shape, *, attention: str) -> transformers.PreTrainedModel:
    """Return a GPT-NeoX model of transformers with ``eager`` or ``sdpa`` attention."""
    config = transformers.GPTNeoXConfig(
        vocab_size=shape.vocabulary_size,
        hidden_size=shape.d_model,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        intermediate_size=4 * shape.d_model,
        max_position_embeddings=4096,
        rotary_pct=1.0,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)


def loop_step(model: nn.Module, batch: Batch, forward: Callable[[Tensor, int], Tensor]) -> Callable[[], None]:
    """Return a training step of a plain loop; ``forward(tokens, n)`` returns the logits of the last n tokens."""
    prompt_length = int(batch.prompt_length[0])
    tokens, targets = batch.tokens[:, :-1], batch.tokens[:, prompt_length:]
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)
    model.train()

    def step() -> None:
        logits = forward(tokens, targets.shape[1])
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()

    return step


def gpt_neox_steps(shape: Shape, batch: Batch, precision: str) -> dict[str, Callable[[], None]]:
    """Return the training step of a plain loop over GPT-NeoX for each attention implementation."""
    steps, device = {}, batch.tokens.device
    for attention in ("eager", "sdpa"):
        model = gpt_neox_model(shape, attention=attention).to(device)

        def forward(tokens: Tensor, num_scored: int, model: transformers.PreTrainedModel = model) -> Tensor:
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
                return model(input_ids=tokens, use_cache=False, logits_to_keep=num_scored).logits

        steps[attention] = loop_step(model, batch, forward)
    return steps


def gpt_neox_generation(
    model: transformers.PreTrainedModel, prompt: Tensor, num_new_tokens: int, **options: Any
) -> Callable[[], Tensor]:
    """Return a function that decodes greedily with the cache of transformers, and returns the new tokens."""
    model.eval()
    mask = torch.ones_like(prompt)
    generate = partial(
        model.generate, max_new_tokens=num_new_tokens, do_sample=False, use_cache=True, pad_token_id=0, **options
    )
    return lambda: generate(prompt, attention_mask=mask)[:, prompt.shape[1] :]
