"""What the wrapper for PPC costs a model of `transformers`: a training step, and a token written.

    python benchmarks/hf_overhead.py --out benchmarks/results/hf_overhead.jsonl

The bare model and the wrapped one take turns in one process; printed are medians and their ratio.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from lengthwise.core.provenance import provenance
from lengthwise.experiments.run_folder import append_rows
from lengthwise.hf import PredictivePositionModel
from lengthwise.hf.predictive_config import LENGTH_SCALINGS

SIZES = {
    "small": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1024},
    "larger": {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "intermediate_size": 2048},
}
MODELS = {
    "Llama": transformers.LlamaConfig,
    "GPT-NeoX": transformers.GPTNeoXConfig,
    "Llama, two key heads": partial(transformers.LlamaConfig, num_key_value_heads=2),
}
# Rows, and tokens of the prompt and of the response.
SHAPES = {"8 of 128 + 128": (8, 128, 128), "1 of 128 + 128": (1, 128, 128), "1 of 1,024 + 1,024": (1, 1024, 1024)}
VOCABULARY, WRITTEN = 8192, 64


def built(model: str, size: str) -> transformers.PreTrainedModel:
    """A model with random weights."""
    torch.manual_seed(0)
    config = MODELS[model](
        vocab_size=VOCABULARY,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **SIZES[size],
    )
    return transformers.AutoModelForCausalLM.from_config(config)


def turns(actions: list[Callable[[], None]], rounds: int) -> list[list[float]]:
    """Seconds of each action, one after the other, again and again; the first round does not count."""
    taken: list[list[float]] = [[] for _ in actions]
    for number in range(rounds + 1):
        for place, action in enumerate(actions):
            started = time.perf_counter()
            action()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if number:
                taken[place].append(time.perf_counter() - started)
    return taken


def stepping(model: transformers.PreTrainedModel, batch: dict[str, torch.Tensor]) -> Callable[[], None]:
    """A training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model.train()

    def step() -> None:
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()

    return step


def writing(model: transformers.PreTrainedModel, batch: dict[str, torch.Tensor], prompt: int) -> Callable[[], None]:
    """The beginning of the response of a batch, token by token."""
    given = {name: batch[name][:, :prompt] for name in ("input_ids", "attention_mask", "position_ids")}

    def write() -> None:
        model.eval()
        model.generate(**given, max_new_tokens=WRITTEN, min_new_tokens=WRITTEN, do_sample=False, pad_token_id=0)

    return write


def batches(shape: tuple[int, int, int], device: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The same texts for the bare model and for PPC.

    The IDs of the response are those of the prompt, in its order: the same masks and angles for both models.
    """
    rows, prompt, response = shape
    tokens = torch.randint(0, VOCABULARY, (rows, prompt + response), device=device)
    ids = torch.arange(prompt + response, device=device).expand(rows, -1).clone()
    labels = tokens.clone()
    labels[:, :prompt] = -100
    coupled = ids.clone()
    coupled[:, prompt:] = ids[:, :response]
    bare = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "position_ids": ids, "labels": labels}
    return bare, {**bare, "position_ids": coupled, "position_labels": coupled.masked_fill(labels == -100, -100)}


def measured(asked: argparse.Namespace, model: str, size: str, shape: str) -> Iterator[dict[str, Any]]:
    """A row for a training step, and one for a token."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plain = built(model, size).to(device)
    ours = PredictivePositionModel.wrap(built(model, size).to(device), segments=True, length_scaling=asked.scaling)
    given, joint = batches(SHAPES[shape], device)
    prompt = SHAPES[shape][1]
    for what, actions, each in (
        ("training step", [stepping(plain, given), stepping(ours, joint)], 1),
        ("token of a batch", [writing(plain, given, prompt), writing(ours, joint, prompt)], WRITTEN),
    ):
        bare, with_ppc = (statistics.median(taken) / each for taken in turns(actions, asked.rounds))
        yield {
            "model": model,
            "size": size,
            "texts": shape,
            "scaling": asked.scaling,
            "what": what,
            "bare_ms": round(1000 * bare, 3),
            "ppc_ms": round(1000 * with_ppc, 3),
            "ratio": round(with_ppc / bare, 3),
            "rounds": asked.rounds,
            "commit": provenance()["commit"],
            "cuda": torch.cuda.get_device_name() if device == "cuda" else None,
        }


def main() -> None:
    """Measure, print a table, and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--model", choices=MODELS, help="One model only.")
    parser.add_argument("--size", choices=SIZES, help="One size only.")
    parser.add_argument("--texts", choices=SHAPES, help="One shape only.")
    parser.add_argument("--scaling", choices=LENGTH_SCALINGS, default="none")
    parser.add_argument("--out", type=Path, help="Add rows to this file.")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | size | texts | scaling | what | bare, ms | with PPC, ms | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for model in MODELS if asked.model is None else [asked.model]:
        for size in SIZES if asked.size is None else [asked.size]:
            for shape in SHAPES if asked.texts is None else [asked.texts]:
                for row in measured(asked, model, size, shape):
                    print(
                        f"| {model} | {size} | {shape} | {asked.scaling} | {row['what']} | {row['bare_ms']:.2f} "
                        f"| {row['ppc_ms']:.2f} | {row['ratio']:.2f} |",
                        flush=True,
                    )
                    if asked.out is not None:
                        append_rows(asked.out, [row])


if __name__ == "__main__":
    main()
