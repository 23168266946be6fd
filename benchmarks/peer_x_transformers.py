"""Models of x-transformers with the shape of a lengthwise decoder, and their training steps."""

from collections.abc import Callable

from peer_models import D_HEAD, Shape, loop_step
from torch import Tensor, nn
from x_transformers import Decoder, TransformerWrapper

from lengthwise.training.batch import Batch


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
