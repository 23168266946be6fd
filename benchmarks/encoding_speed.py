"""Measure the time of a training step and of a cached decoding step for each encoding, compared with NoPE.

The decoder has 2 layers, d_model 128 and 4 heads. It processes 8 sequences of 512 tokens with IDs from a random start.
A training step consists of forward, backward and AdamW. A decoding step adds one token to a cache of 512 tokens. Each
round times the encoding between two steps of NoPE. The printed values are medians over the rounds.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from step_speed import time_call
from torch import nn

import lengthwise as lw
from lengthwise.core.provenance import collect_provenance
from lengthwise.encodings import ENCODINGS
from lengthwise.experiments.run_folder import append_rows
from lengthwise.model.decoder import Decoder

BATCH, SEQ, LAYERS, D_MODEL, HEADS, VOCABULARY = 8, 512, 2, 128, 4, 16
FIRST_ID_BELOW = 512
# Number of decoding rounds per training round; a decoding step is short, so it needs more rounds.
DECODING_ROUNDS = 10
WARM_UP_ROUNDS = 2
RESULTS = Path(__file__).parent / "results" / "encoding_speed.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderInputs:
    """Random tokens of shape (batch, seq + 1), and position IDs that start at a random value in each row."""

    tokens: torch.Tensor
    position_ids: torch.Tensor


def random_inputs(device: torch.device) -> DecoderInputs:
    """Sample the inputs, which are the same for all encodings."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (BATCH, SEQ + 1), generator=generator)
    starts = torch.randint(0, FIRST_ID_BELOW, (BATCH, 1), generator=generator)
    return DecoderInputs(tokens=tokens.to(device), position_ids=(starts + torch.arange(SEQ + 1))[None].to(device))


def build_decoder(encoding: str, device: torch.device) -> Decoder:
    """Return a decoder with initial weights; an encoding with a table of IDs gets a row for every ID."""
    settings = ENCODINGS[encoding]
    id_range = {"num_position_ids": FIRST_ID_BELOW + SEQ + 1}
    setting_names = {field.name for field in fields(settings)}
    torch.manual_seed(0)
    return Decoder(
        lw.DecoderSettings(num_layers=LAYERS, d_model=D_MODEL, num_heads=HEADS),
        settings(**{name: value for name, value in id_range.items() if name in setting_names}),
        vocabulary_size=VOCABULARY,
    ).to(device)


def training_step(encoding: str, inputs: DecoderInputs, device: torch.device) -> Callable[[], None]:
    """Return a function that runs forward, backward and AdamW once."""
    decoder = build_decoder(encoding, device).train()
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-4, fused=True)
    tokens, targets, position_ids = inputs.tokens[:, :-1], inputs.tokens[:, 1:], inputs.position_ids[:, :, :-1]

    def step() -> None:
        hidden, _ = decoder(tokens, position_ids)
        loss = nn.functional.cross_entropy(decoder.token_logits(hidden).flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def decoding_step(encoding: str, inputs: DecoderInputs, device: torch.device) -> Callable[[], None]:
    """Return a function that decodes one token; the cache contains the same tokens in every call."""
    decoder = build_decoder(encoding, device).eval()
    with torch.no_grad():
        _, cache = decoder(inputs.tokens[:, :-1], inputs.position_ids[:, :, :-1])

    @torch.no_grad()
    def step() -> None:
        decoder.token_logits(decoder(inputs.tokens[:, -1:], inputs.position_ids[:, :, -1:], cache)[0])

    return step


def compare_steps(
    step: Callable[[], None], reference: Callable[[], None], rounds: int, device: torch.device
) -> tuple[float, float, float]:
    """Return the median seconds of both steps, and the median ratio over the rounds."""
    seconds, reference_seconds, ratios = [], [], []
    for number in range(WARM_UP_ROUNDS + rounds):
        before, middle, after = (time_call(function, device) for function in (reference, step, reference))
        if number >= WARM_UP_ROUNDS:
            seconds.append(middle)
            reference_seconds += [before, after]
            ratios.append(2 * middle / (before + after))
    return statistics.median(seconds), statistics.median(reference_seconds), statistics.median(ratios)


def measure_encoding(encoding: str, rounds: int, device: torch.device) -> dict[str, object]:
    """Return the row of one encoding; the row of NoPE shows the noise of the measurement."""
    inputs, row = random_inputs(device), {"encoding": encoding, "rounds": rounds}
    for name, build_step, factor in (("training", training_step, 1), ("decoding", decoding_step, DECODING_ROUNDS)):
        step, reference = (build_step(each, inputs, device) for each in (encoding, "nope"))
        seconds, reference_seconds, ratio = compare_steps(step, reference, factor * rounds, device)
        row |= {
            f"{name}_ms": round(1e3 * seconds, 2),
            f"{name}_nope_ms": round(1e3 * reference_seconds, 2),
            f"{name}_ratio": round(ratio, 2),
        }
    return row


def main() -> None:
    """Print the table and append its rows to the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--encodings", nargs="+", choices=ENCODINGS, default=list(ENCODINGS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    print("| encoding | training step, ms | x NoPE | decoding step, ms | x NoPE |\n|---|---|---|---|---|")
    for encoding in arguments.encodings:
        row = measure_encoding(encoding, arguments.rounds, torch.device(arguments.device))
        print("| {encoding} | {training_ms} | {training_ratio} | {decoding_ms} | {decoding_ratio} |".format(**row))
        append_rows(arguments.out, [{**row, **collect_provenance()}])


if __name__ == "__main__":
    main()
