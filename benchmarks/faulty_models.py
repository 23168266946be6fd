"""Tiny models with planted faults, to see if the cause that `lengthwise doctor` names is the planted one.

``python benchmarks/faulty_models.py OUT --seed 0`` trains three models on synthetic texts, gives copies of them one
fault each, examines them, and prints a row per model. Each text has its own successor for each of its symbols, so far
tokens predict the next one. Training windows begin with a start token.
"""

import argparse
import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, MistralConfig, PreTrainedModel
from transformers.models.auto import AutoModelForCausalLM

import lengthwise as lw
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.hf.language_models import LanguageModel
from lengthwise.tasks import TokenizedDocument

VOCABULARY, TRAINED = 32, 256
# Numbers of symbols of a text; those with few symbols are learned first.
MIN_SYMBOLS, EXAMINED_SYMBOLS = 4, 24
# Share of tokens that are the successor of the token before; the others are random.
REPEATED = 0.9
# A lost theta is one of the values that the doctor tries.
THETA, LOST_THETA = 10_000.0, 500.0
START, WINDOW = VOCABULARY, 64
NUM_TEXTS, TEXT_TOKENS, BATCH = 32, 1200, 16
SHORT_LENGTHS = (64, 128, 256)
LENGTHS = (*SHORT_LENGTHS, 512)
ROTARY, MEMORY = "did not occur in training", "not those of its file"
NO_START, OTHER_THETA = "omits the start token", "rope_theta"


@dataclass(frozen=True)
class Codec:
    """Tokenizer whose tokens are their numbers."""

    start: tuple[int, ...] = (START,)
    name: str = "numbers"

    def encode(self, text: str) -> list[int]:
        """Return the bytes of a text as tokens; needles are not among the measured texts."""
        return [byte % VOCABULARY for byte in text.encode()]

    def token_text(self, token: int) -> str:
        """Return the number of a token."""
        return f" {token}"


def sample_text(rng: np.random.Generator, length: int, num_symbols: int = EXAMINED_SYMBOLS) -> np.ndarray:
    """Return a text of some symbols; most tokens are the successor of the token before."""
    symbols, successors = rng.permutation(VOCABULARY)[:num_symbols], rng.permutation(num_symbols)
    is_random, drawn = rng.random(length) > REPEATED, rng.integers(0, num_symbols, length)
    text = np.empty(length, dtype=np.int64)
    for index in range(length):
        text[index] = drawn[index] if index == 0 or is_random[index] else successors[text[index - 1]]
    return symbols[text]


def sample_window(rng: np.random.Generator, kind: str) -> np.ndarray:
    """Return a window of training; with the kind "short texts", it has four texts, so far tokens are useless."""
    number = 4 if kind == "short texts" else 1
    sizes = rng.integers(MIN_SYMBOLS, VOCABULARY + 1, number)
    texts = [sample_text(rng, TRAINED // number, size) for size in sizes]
    return np.concatenate([[START], *texts])[:TRAINED]


def train_model(kind: str, seed: int, steps: int) -> PreTrainedModel:
    """Return a model that was trained on windows of ``TRAINED`` tokens; one kind has a window of attention."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": VOCABULARY + 1,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
        "max_position_embeddings": TRAINED,
        "bos_token_id": START,
        "tie_word_embeddings": True,
    }
    config = MistralConfig(**sizes, sliding_window=WINDOW) if kind == "window" else LlamaConfig(**sizes)
    model, rng = AutoModelForCausalLM.from_config(config), np.random.default_rng([seed, 1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for step in range(steps):
        tokens = torch.from_numpy(np.stack([sample_window(rng, kind) for _ in range(BATCH)]))
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"{kind}, step {step}: loss {loss.item():.3f}", flush=True)
    return model.eval()


def lose_theta(model: PreTrainedModel) -> None:
    """Load the model with another theta."""
    model.config.rope_parameters = {**model.config.rope_parameters, "rope_theta": LOST_THETA}
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)


def round_angles(model: PreTrainedModel) -> None:
    """Round the products of IDs and frequencies to bfloat16, as a cast of the whole model once did."""
    rotary = model.model.rotary_emb

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = (position_ids[..., None].bfloat16() * rotary.inv_freq.bfloat16()).float()
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()

    rotary.forward = forward


def cut_table(model: PreTrainedModel) -> None:
    """Give all IDs beyond half of the trained context the same angles."""
    rotary = model.model.rotary_emb
    forward = rotary.forward
    rotary.forward = lambda x, position_ids: forward(x, position_ids.clamp(max=TRAINED // 2 - 1))


def claim_more(model: PreTrainedModel) -> None:
    """Claim four times the trained context."""
    model.config.max_position_embeddings = 4 * TRAINED


def shorten_window(model: PreTrainedModel) -> None:
    """Make the window of attention one token shorter."""
    model.config.sliding_window = WINDOW - 1


@dataclass(frozen=True, kw_only=True)
class Case:
    """Model to examine: its training, its fault, and a part of the cause to name (None: no cause)."""

    kind: str = "plain"
    plant: Callable[[PreTrainedModel], None] = lambda model: None
    start: tuple[int, ...] = (START,)
    lengths: tuple[int, ...] = LENGTHS
    expected: str | None = None


CASES = {
    "trained on short windows only": Case(expected=ROTARY),
    "max_position_embeddings that lies": Case(plant=claim_more, expected=ROTARY),
    "RoPE table cut": Case(plant=cut_table, lengths=SHORT_LENGTHS, expected=MEMORY),
    "angles rounded to bfloat16": Case(plant=round_angles, lengths=SHORT_LENGTHS, expected=MEMORY),
    "wrong theta at load": Case(plant=lose_theta, lengths=SHORT_LENGTHS, expected=OTHER_THETA),
    "start token dropped": Case(start=(), lengths=SHORT_LENGTHS, expected=NO_START),
    "window of attention one token short": Case(kind="window", plant=shorten_window),
    "far text useless in training": Case(kind="short texts", lengths=SHORT_LENGTHS),
    "healthy": Case(lengths=SHORT_LENGTHS),
    "healthy, window of attention": Case(kind="window"),
}


def examine(model: PreTrainedModel, name: str, case: Case, seed: int, out: Path) -> dict:
    """Return the conclusions about one model."""
    rng = np.random.default_rng([seed, 2])
    texts = [
        TokenizedDocument(name=f"text {number}", tokens=sample_text(rng, TEXT_TOKENS)) for number in range(NUM_TEXTS)
    ]
    settings = lw.DoctorSettings(lengths=case.lengths, minutes=10.0, documents=NUM_TEXTS, seed=seed)
    loaded = LanguageModel(model=CausalLM(model, name), codec=Codec(case.start))
    result = lw.examine_model(loaded, texts, out / f"{seed}-{name.replace(' ', '_')}.html", settings=settings)
    boxes = result["boxes"]
    return {
        "model": name,
        "seed": seed,
        "losses": [round(row["loss"]["value"], 3) for row in boxes["works"]["rows"]],
        "works_to": boxes["works"]["works_to"],
        "fails_at": boxes["works"]["fails_at"],
        "needed_to": boxes["needs"]["needed_to"],
        "expected": case.expected,
        "cause": boxes["why"]["cause"],
        "why": boxes["why"]["sentence"],
        "change": boxes["change"]["sentence"],
    }


def main(out: Path, seed: int, steps: int) -> Iterator[dict]:
    """Yield the row of each faulty model."""
    out.mkdir(parents=True, exist_ok=True)
    trained = {kind: train_model(kind, seed, steps) for kind in dict.fromkeys(case.kind for case in CASES.values())}
    for name, case in CASES.items():
        model = copy.deepcopy(trained[case.kind])
        case.plant(model)
        row = examine(model, name, case, seed, out)
        cause = row["cause"]
        # No cause is right for a healthy model, and undecided for a faulty one.
        row["is_right"] = cause is None if case.expected is None else None if cause is None else case.expected in cause
        yield row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2500)
    arguments = parser.parse_args()
    with (arguments.out.parent / f"{arguments.out.name}.jsonl").open("a") as file:
        for row in main(arguments.out, arguments.seed, arguments.steps):
            print(json.dumps(row), flush=True)
            file.write(json.dumps(row) + "\n")
