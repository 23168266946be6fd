"""Free decoding of lengthwise, compared with ``generate`` of transformers."""

from collections.abc import Callable
from typing import Any

import torch
from peer_experiments import DECODE_SIZE, experiment_of, sample_batch, shape_of
from peer_models import gpt_neox_generation, gpt_neox_model
from rounds import fastest, row, time_in_rounds

from lengthwise.evaluation.exact_match import eval_mode
from lengthwise.experiments.experiment import Experiment, build_decoder
from lengthwise.model.decoder import Decoder
from lengthwise.model.generate import generate
from lengthwise.training.batch import Batch

PEER = "GPT-NeoX generate"


def generations(experiment: Experiment, batch: Batch, num_tokens: int) -> dict[str, Callable[[], torch.Tensor]]:
    """Return the greedy decoding of the same prompts by GPT-NeoX, for each setting.

    The settings are attention implementations and, on a GPU, a cache of fixed length, with which ``generate`` compiles.
    """
    prompt = batch.tokens[:, : int(batch.prompt_length[0])]
    settings: dict[str, tuple[str, dict[str, Any]]] = {"eager": ("eager", {}), "sdpa": ("sdpa", {})}
    if prompt.device.type != "cpu":
        settings["sdpa, static cache"] = ("sdpa", {"cache_implementation": "static"})
    return {
        name: gpt_neox_generation(
            gpt_neox_model(shape_of(experiment), attention=attention).to(prompt.device), prompt, num_tokens, **options
        )
        for name, (attention, options) in settings.items()
    }


def usable(functions: dict[str, Callable[[], torch.Tensor]]) -> tuple[dict[str, Callable[[], torch.Tensor]], list[str]]:
    """Return the functions that work on this machine, and the errors of the others."""
    working, errors = {}, []
    for name, function in functions.items():
        try:
            function()
            working[name] = function
        except Exception as error:  # Compilation needs a compiler, which the machine may not have.
            errors.append(f"{name}: {error!r:.200}")
    return working, errors


def decoding(decoder: Decoder, batch: Batch, num_tokens: int) -> Callable[[], object]:
    """Return a function that decodes freely; PPC predicts the IDs, and other schemes receive them."""
    prompt_length = int(batch.prompt_length[0])
    ids = batch.position_ids[:, :, : prompt_length if decoder.predicts_ids else None]

    def decode() -> object:
        with eval_mode(decoder):
            return generate(decoder, batch.tokens[:, :prompt_length], ids, end=-1, max_new_tokens=num_tokens)

    return decode


def free_decoding_row(
    num_sequences: int, num_tokens: int, rounds: int, device: torch.device, size: str = DECODE_SIZE
) -> dict[str, Any]:
    """Return the row of one number of sequences and new tokens; no token ends a sequence early."""
    functions: dict[str, Callable[[], object]] = {}
    for name in ("plain", "PPC"):
        experiment = experiment_of(name, size)
        batch = sample_batch(experiment, num_tokens - 1, num_sequences).to(device)
        functions[f"lengthwise {name}"] = decoding(build_decoder(experiment).to(device), batch, num_tokens)
    candidates, errors = usable(generations(experiment, batch, num_tokens))
    setting = fastest(candidates, 1)
    functions[PEER] = candidates[setting]
    result = row(
        "free decoding",
        f"{num_sequences} sequences, {num_tokens} new tokens",
        time_in_rounds(functions, rounds),
        {PEER: setting},
    )
    return {**result, "unusable_settings": errors}
