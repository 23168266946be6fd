"""What each encoding costs: a training step and a step of cached decoding, as multiples of those without positions.

A decoder of 2 layers with d_model 128 and 4 heads takes 8 sequences of 512 tokens whose IDs start anywhere. A training
step is forward, backward and AdamW; a decoding step adds one token to 512 in the cache. Each encoding takes turns with
NoPE, one step of NoPE before and one after; the figures are medians over the rounds.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from step_speed import timed
from torch import nn

import lengthwise as lw
from lengthwise.core.provenance import provenance
from lengthwise.encodings import ENCODINGS
from lengthwise.experiments.run_folder import append_rows
from lengthwise.model.decoder import Decoder

BATCH, SEQ, LAYERS, D_MODEL, HEADS, VOCABULARY = 8, 512, 2, 128, 4, 16
FIRST_ID_BELOW = 512
# A decoding step is short: it takes so many times the rounds of a training step.
DECODING_ROUNDS = 10
WARM_UP = 2
RESULTS = Path(__file__).parent / "results" / "encoding_speed.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Random tokens, one more than a training step reads, and IDs that start anywhere in each row."""

    tokens: torch.Tensor
    position_ids: torch.Tensor


def given(device: torch.device) -> Given:
    """The same for all encodings."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (BATCH, SEQ + 1), generator=generator)
    starts = torch.randint(0, FIRST_ID_BELOW, (BATCH, 1), generator=generator)
    return Given(tokens=tokens.to(device), position_ids=(starts + torch.arange(SEQ + 1))[None].to(device))


def decoder_with(encoding: str, device: torch.device) -> Decoder:
    """A fresh decoder, with room for all IDs where the encoding has a table of them."""
    settings = ENCODINGS[encoding]
    room = {"num_position_ids": FIRST_ID_BELOW + SEQ + 1}
    known = {field.name for field in fields(settings)}
    torch.manual_seed(0)
    return Decoder(
        lw.DecoderSettings(num_layers=LAYERS, d_model=D_MODEL, num_heads=HEADS),
        settings(**{name: value for name, value in room.items() if name in known}),
        vocabulary_size=VOCABULARY,
    ).to(device)


def training_step(encoding: str, inputs: Given, device: torch.device) -> Callable[[], None]:
    """Forward, backward and AdamW."""
    decoder = decoder_with(encoding, device).train()
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-4, fused=True)
    tokens, targets, position_ids = inputs.tokens[:, :-1], inputs.tokens[:, 1:], inputs.position_ids[:, :, :-1]

    def step() -> None:
        hidden, _ = decoder(tokens, position_ids)
        loss = nn.functional.cross_entropy(decoder.token_logits(hidden).flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def decoding_step(encoding: str, inputs: Given, device: torch.device) -> Callable[[], None]:
    """One more token, after a cache that always holds the same."""
    decoder = decoder_with(encoding, device).eval()
    with torch.no_grad():
        _, cache = decoder(inputs.tokens[:, :-1], inputs.position_ids[:, :, :-1])

    @torch.no_grad()
    def step() -> None:
        decoder.token_logits(decoder(inputs.tokens[:, -1:], inputs.position_ids[:, :, -1:], cache)[0])

    return step


def compare(
    own: Callable[[], None], reference: Callable[[], None], rounds: int, device: torch.device
) -> tuple[float, float, float]:
    """Median seconds of both, and the median of the rounds' ratios."""
    seconds, reference_seconds, ratios = [], [], []
    for turn in range(WARM_UP + rounds):
        before, middle, after = (timed(work, device) for work in (reference, own, reference))
        if turn >= WARM_UP:
            seconds.append(middle)
            reference_seconds += [before, after]
            ratios.append(2 * middle / (before + after))
    return statistics.median(seconds), statistics.median(reference_seconds), statistics.median(ratios)


def measure(encoding: str, rounds: int, device: torch.device) -> dict[str, object]:
    """The row of one encoding; that of NoPE itself shows the noise."""
    inputs, row = given(device), {"encoding": encoding, "rounds": rounds}
    for name, made, times in (("training", training_step, 1), ("decoding", decoding_step, DECODING_ROUNDS)):
        own, reference = (made(which, inputs, device) for which in (encoding, "nope"))
        second, reference_second, ratio = compare(own, reference, times * rounds, device)
        row |= {
            f"{name}_ms": round(1e3 * second, 2),
            f"{name}_nope_ms": round(1e3 * reference_second, 2),
            f"{name}_ratio": round(ratio, 2),
        }
    return row


def main() -> None:
    """Print the table and add its rows to the results."""
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
        row = measure(encoding, arguments.rounds, torch.device(arguments.device))
        print("| {encoding} | {training_ms} | {training_ratio} | {decoding_ms} | {decoding_ratio} |".format(**row))
        append_rows(arguments.out, [{**row, **provenance()}])


if __name__ == "__main__":
    main()
