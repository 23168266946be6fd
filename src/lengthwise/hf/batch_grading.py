"""Which answers of a batch a model of `transformers` gets right, after right tokens or on its own."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from lengthwise.core.errors import SettingError
from lengthwise.evaluation.grading import Graded
from lengthwise.hf.call_checks import check_has_head
from lengthwise.hf.columns import UNSCORED
from lengthwise.hf.devices import device_of
from lengthwise.hf.id_generation import PredictsIDs


@torch.no_grad()
def grade_batch(model: Any, batch: Mapping[str, Tensor], *, decode: str = "forced") -> Graded:
    """Grade a batch such as a collator makes, with ``labels`` and where IDs are predicted ``position_labels``.

    ``forced``: each choice after the right tokens and IDs, in one forward; where one answer is right, greedy decoding
    is exact if and only if all of these are. ``free``: the prompts are continued by ``generate``, greedily and with
    IDs of the model's own: predicted ones or, of a bare model, such as count up (``SettingError`` for prompts whose IDs
    do not). ``SettingError`` where IDs are to be predicted and the model predicts none.
    """
    device = device_of(model)
    inputs = {name: values.to(device) for name, values in batch.items()}
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    check_has_head(inner.num_heads_for_ids if isinstance(inner, PredictsIDs) else 0, inputs.get("position_labels"))
    return _forced(model, inputs) if decode == "forced" else _free(model, inputs, isinstance(inner, PredictsIDs))


def _forced(model: Any, inputs: dict[str, Tensor]) -> Graded:
    tokens, wanted = inputs["input_ids"], inputs.get("position_labels")
    made = model(**inputs)
    logits = made.logits[:, :-1].float()
    written_ids = None if wanted is None else made.predicted_position_ids[:, 1:]
    loss = torch.nn.functional.cross_entropy(logits.mT, tokens[:, 1:], reduction="none")
    return _graded(inputs, logits.argmax(dim=-1), written_ids, loss)


def _free(model: Any, inputs: dict[str, Tensor], takes_ids: bool) -> Graded:
    """Rows of one prompt length at a time; nothing ends early, and what is behind an end is not scored."""
    tokens, ids = inputs["input_ids"], inputs["position_ids"]
    written = torch.full_like(tokens, -1)
    written_ids = torch.full_like(tokens, -1) if "position_labels" in inputs else None
    first = (inputs["labels"] != UNSCORED).int().argmax(dim=1)
    for prompt in first.unique().tolist():
        rows = first == prompt
        given = ids[rows, :prompt]
        if not takes_ids and bool((given != torch.arange(prompt, device=given.device)).any()):
            raise SettingError(
                "this model cannot go on with IDs that do not count up from 0; wrap it, or use decode='forced'"
            )
        with _greedy(model):
            made = model.generate(
                input_ids=tokens[rows, :prompt],
                attention_mask=inputs["attention_mask"][rows, :prompt],
                **({"position_ids": given} if takes_ids else {}),
                max_new_tokens=tokens.shape[1] - prompt,
                pad_token_id=0,
                return_dict_in_generate=True,
            )
        written[rows] = made.sequences
        if written_ids is not None:
            written_ids[rows] = made.position_ids
    return _graded(inputs, written[:, 1:], None if written_ids is None else written_ids[:, 1:], None)


@contextmanager
def _greedy(model: Any) -> Iterator[None]:
    """No setting of a model's own: it may forbid tokens or punish repetition, and a greedy choice is the likeliest."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    own = inner.generation_config
    inner.generation_config = GenerationConfig(do_sample=False, num_beams=1)
    try:
        yield
    finally:
        inner.generation_config = own


def _graded(inputs: dict[str, Tensor], written: Tensor, written_ids: Tensor | None, loss: Tensor | None) -> Graded:
    scored, wanted = inputs["labels"][:, 1:] != UNSCORED, inputs.get("position_labels")
    id_scored, id_right = torch.zeros_like(scored), torch.ones_like(scored)
    if wanted is not None and written_ids is not None:
        id_scored, id_right = wanted[:, 1:] != UNSCORED, written_ids == wanted[:, 1:]
    return Graded(
        token_right=written == inputs["input_ids"][:, 1:],
        id_right=id_right,
        scored=scored,
        id_scored=id_scored,
        # Tokens of others have no name for their end.
        end=torch.zeros_like(scored),
        prompt_offset=scored.int().argmax(dim=1),
        token_loss=loss,
    )
