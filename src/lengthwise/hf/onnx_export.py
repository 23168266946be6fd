"""Export of runs to ONNX: a graph of one step of greedy decoding, with the predicted position ID."""

import json
import logging
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lengthwise.core.errors import ModelError
from lengthwise.core.files import StrPath, check_output_folder, write_folder_atomically
from lengthwise.core.randomness import random_stream
from lengthwise.core.type_checks import check_arguments
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.run import load_run
from lengthwise.hf.lengthwise_model import find_first_prompt_position_id
from lengthwise.model.decoder import Decoder
from lengthwise.model.fast.switch import disable_fast_paths

MODEL_FILE = "model.onnx"
PACKAGES = ("onnx", "onnxscript")
# Tokens of the traced call; the graph accepts any number from 2 on.
TRACED_LENGTH = 7


class DecodingStep(nn.Module):
    """One step of greedy decoding without a cache.

    It returns the logits after the last token, the most likely next token, and the ID of this token on each level. A
    decoder without position heads continues with the last ID plus one.
    """

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self,
        tokens: Int[Tensor, "1 seq"],
        position_ids: Int[Tensor, "level 1 seq"],
        prompt_length: Int[Tensor, " 1"],
    ) -> tuple[Float[Tensor, "1 vocab"], Int[Tensor, "1 1"], Int[Tensor, "level 1 1"]]:
        """Read the prompt, which is the first ``prompt_length`` tokens, and the tokens generated so far."""
        hidden, _ = self.decoder(tokens, position_ids)
        last, last_ids = hidden[:, -1:], position_ids[:, :, -1:]
        logits = self.decoder.token_logits(last)
        next_tokens = logits.argmax(dim=-1)
        if not self.decoder.predicts_ids:
            return logits[:, 0], next_tokens, last_ids + 1
        prompts = self.decoder.build_prompt_keys(tokens, position_ids, prompt_length, tokens.shape[1])
        levels = self.decoder.next_id_distributions(last, last_ids, next_tokens, prompts)
        next_ids = torch.stack([level.most_likely_ids().clamp(min=0) for level in levels])
        return logits[:, 0], next_tokens, next_ids


@check_arguments
def export_onnx(run: StrPath, out: StrPath, *, overrides: Mapping[str, Any] | None = None) -> Path:
    """Export a finished run as ``out/model.onnx``, and return this path.

    Inputs: ``tokens`` (1, seq), ``position_ids`` (level, 1, seq) and ``prompt_length`` (1,), all int64. Outputs:
    ``logits`` (1, vocab), ``next_token`` (1, 1) and ``next_position_id`` (level, 1, 1). Each step computes all tokens
    again. The metadata of the file has ``symbols`` (in the order of the tokens), ``end`` (the end token), and a prompt
    with its IDs (``prompt``, ``prompt_ids``), all as JSON. ``overrides`` as in ``load_run``. Raises ``ModelError`` if
    no position head and no rule gives the ID of the next token, or if a package is missing.
    """
    out = Path(out)
    if missing := [package for package in PACKAGES if find_spec(package) is None]:
        raise ModelError(f"ONNX needs {' and '.join(missing)}; run pip install 'lengthwise[onnx]'")
    loaded = load_run(run, overrides=overrides, device="cpu")
    experiment, decoder = loaded.experiment, loaded.decoder.eval()
    if not decoder.predicts_ids and find_first_prompt_position_id(experiment) is None:
        raise ModelError(
            f"the IDs of the scheme {experiment.scheme.name} are neither predicted nor consecutive, so a graph alone "
            "cannot continue them; export a run with the scheme predicted or sequential, or use --format hf"
        )
    check_output_folder(out)
    program = _trace(decoder)
    program.model.metadata_props.update({name: json.dumps(value) for name, value in _describe(experiment).items()})
    with write_folder_atomically(out) as folder:
        program.save(folder / MODEL_FILE)
    return out / MODEL_FILE


def _describe(experiment: Experiment) -> dict[str, Any]:
    """Return the symbols of a run, its end token, and a prompt with its IDs on each level."""
    task, rng = experiment.task, random_stream(experiment.seed, "example of a graph")
    examples = task.sample(length=experiment.train_lengths[-1], size=1, rng=rng)
    length, vocabulary = int(examples.prompt_length[0]), list(task.vocabulary)
    ids = experiment.scheme.assign(examples, rng, training=False).position_ids
    return {
        "symbols": vocabulary,
        "end": vocabulary.index("end"),
        "prompt": [vocabulary[token] for token in examples.tokens[0, :length]],
        "prompt_ids": ids[:, 0, :length].tolist(),
    }


def _trace(decoder: Decoder) -> Any:
    """Return the ONNX program of a decoding step for any number of tokens."""
    tokens = torch.zeros(1, TRACED_LENGTH, dtype=torch.int64)
    ids = torch.arange(TRACED_LENGTH).expand(decoder.check_ids.num_levels, 1, -1).contiguous()
    seq = torch.export.Dim("seq", min=2)
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    # Torch warns about its own code and about packages that this graph does not need.
    logger.setLevel(logging.ERROR)
    try:
        with torch.no_grad(), disable_fast_paths(), warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            return torch.onnx.export(
                DecodingStep(decoder),
                (tokens, ids, torch.tensor([TRACED_LENGTH - 2])),
                dynamic_shapes=({1: seq}, {2: seq}, None),
                input_names=["tokens", "position_ids", "prompt_length"],
                output_names=["logits", "next_token", "next_position_id"],
                dynamo=True,
                verbose=False,
            )
    finally:
        logger.setLevel(level)
