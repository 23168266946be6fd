"""Models of x-transformers and transformers with the shape of a lengthwise decoder, and their training steps.

Every peer has rotary positions on all components of a head, an MLP factor of 4, float32 weights, fused AdamW and
gradient clipping. Its loss covers the answer tokens only, like the loss of lengthwise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from x_transformers import Decoder, TransformerWrapper

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


def x_transformers_model(shape: Shape, *, flash: bool, rms_norm: bool) -> nn.Module:
    """Return a decoder of x-transformers."""
    layers = Decoder(
        dim=shape.d_model,
        depth=shape.num_layers,
        heads=shape.num_heads,
        attn_dim_head=D_HEAD,
        attn_flash=flash,
        rotary_pos_emb=True,
        rotary_emb_dim=D_HEAD,
        use_rmsnorm=rms_norm,
    )
    return TransformerWrapper(
        num_tokens=shape.vocabulary_size, max_seq_len=4096, use_abs_pos_emb=False, attn_layers=layers
    )


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
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()

    return step


def x_transformers_steps(shape: Shape, batch: Batch) -> dict[str, Callable[[], None]]:
    """Return the training step of x-transformers for each combination of attention and norm."""
    steps = {}
    for flash in (False, True):
        for rms_norm in (False, True):
            model = x_transformers_model(shape, flash=flash, rms_norm=rms_norm)

            def forward(tokens: Tensor, num_scored: int, model: nn.Module = model) -> Tensor:
                return model(tokens)[:, -num_scored:]

            name = f"attn_flash={flash}, use_rmsnorm={rms_norm}"
            steps[name] = loop_step(model, batch, forward)
    return steps


def gpt_neox_steps(shape: Shape, batch: Batch) -> dict[str, Callable[[], None]]:
    """Return the training step of a plain loop over GPT-NeoX for each attention implementation."""
    steps = {}
    for attention in ("eager", "sdpa"):
        model = gpt_neox_model(shape, attention=attention)

        def forward(tokens: Tensor, num_scored: int, model: transformers.PreTrainedModel = model) -> Tensor:
            return model(input_ids=tokens, use_cache=False, logits_to_keep=num_scored).logits

        steps[attention] = loop_step(model, batch, forward)
    return steps


class _StepTimer(transformers.TrainerCallback):
    """Callback that calls a function before the first and after every step of ``transformers.Trainer``."""

    def __init__(self, after_step: Callable[[], None]) -> None:
        self.after_step = after_step

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Call the function before the first step."""
        self.after_step()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Call the function after a step."""
        self.after_step()


class _TrainerOnHand(transformers.Trainer):
    """Trainer whose loader repeats one batch, so that its steps include no work for making batches."""

    batch: dict[str, Tensor]

    def get_train_dataloader(self) -> Sequence[dict[str, Tensor]]:
        """Return as many references to the batch as there are steps."""
        return list(repeat(self.batch, self.args.max_steps))


def run_hf_trainer(
    model: transformers.PreTrainedModel, batch: Batch, *, steps: int, folder: str, after_step: Callable[[], None]
) -> None:
    """Train with ``transformers.Trainer``; it calls ``after_step`` before the first and after every step."""
    labels = batch.tokens.masked_fill(~batch.token_scored, -100)
    arguments = transformers.TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=len(batch.tokens),
        learning_rate=LEARNING_RATE,
        max_grad_norm=CLIP,
        optim="adamw_torch_fused",
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = _TrainerOnHand(model=model, args=arguments, train_dataset=[{}], callbacks=[_StepTimer(after_step)])
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.batch = {"input_ids": batch.tokens, "labels": labels}
    trainer.train()


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
