"""Position IDs of prompts by the rule of a found coupling, which needs only the prompt's tokens."""

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import stream
from lengthwise.hf.input_checks import check_left_padding
from lengthwise.positions import Discovered
from lengthwise.tasks.coupling.answer_steps import NUM_UNKNOWN_STEPS
from lengthwise.tasks.examples import Examples


def prompt_ids_by_rule(
    scheme: Discovered, tokens: Int[Tensor, "batch seq"], attention_mask: Tensor | None
) -> Int[Tensor, "level batch seq"]:
    """Return the evaluation IDs of prompts, and 0 at padding on the left.

    Raises ``PromptError`` for a prompt without a token that the rule counts from.
    """
    if attention_mask is not None and attention_mask.ndim != 2:
        raise SettingError("a 4-D attention_mask does not mark the first token of a prompt; pass position_ids too")
    counts = [tokens.shape[1]] * len(tokens)
    if attention_mask is not None:
        mask = attention_mask.bool()
        check_left_padding(mask)
        counts = mask.sum(dim=1).tolist()
    ids = np.zeros((scheme.num_levels, *tokens.shape), dtype=np.int64)
    for row, count in enumerate(counts):
        prompt = tokens[row, tokens.shape[1] - count :].cpu().numpy()
        # The rule looks at what the first, unknown answers need.
        seq = np.concatenate([prompt, np.zeros(NUM_UNKNOWN_STEPS, dtype=prompt.dtype)])[None]
        examples = Examples(tokens=seq, prompt_length=np.array([count]), is_answer=np.zeros(seq.shape, dtype=bool))
        assignment = scheme.assign(examples, stream(0, "prompt IDs"), training=False)
        ids[:, row, tokens.shape[1] - count :] = assignment.position_ids[:, 0, :count]
    return torch.from_numpy(ids).to(tokens.device)
