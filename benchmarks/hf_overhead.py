"""Overhead of the PPC wrapper in a model of `transformers`, per training step and per generated token.

    python benchmarks/hf_overhead.py --out benchmarks/results/hf_overhead.jsonl

The plain model and the wrapped model take turns in one process. The script prints the medians and their ratio.
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

from lengthwise.core.provenance import collect_provenance
from lengthwise.experiments.run_folder import append_rows
from lengthwise.hf import PredictivePositionModel
from lengthwise.hf.predictive_model import LENGTH_SCALINGS

SIZES = {
    "small": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1024},
    "larger": {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "intermediate_size": 2048},
}
MODELS = {
    "Llama": transformers.LlamaConfig,
    "GPT-NeoX": transformers.GPTNeoXConfig,
    "Llama, two key heads": partial(transformers.LlamaConfig, num_key_value_heads=2),
}
# Batch size, and tokens of the prompt and of the response.
SHAPES = {"8 of 128 + 128": (8, 128, 128), "1 of 128 + 128": (1, 128, 128), "1 of 1,024 + 1,024": (1, 1024, 1024)}
VOCABULARY, NUM_NEW_TOKENS = 8192, 64


def build_model(model: str, size: str) -> transformers.PreTrainedModel:
    """Return a model with random weights."""
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


def time_in_turns(functions: list[Callable[[], None]], rounds: int) -> list[list[float]]:
    """Return the seconds of each function per round; the functions take turns after a warm-up round."""
    seconds: list[list[float]] = [[] for _ in functions]
    for number in range(rounds + 1):
        for index, function in enumerate(functions):
            started = time.perf_counter()
            function()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if number:
                seconds[index].append(time.perf_counter() - started)
    return seconds


def training_step(model: transformers.PreTrainedModel, batch: dict[str, torch.Tensor]) -> Callable[[], None]:
    """Return a function that runs one training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model.train()

    def step() -> None:
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()

    return step


def generation(model: transformers.PreTrainedModel, batch: dict[str, torch.Tensor], prompt: int) -> Callable[[], None]:
    """Return a function that generates the first tokens of the responses of a batch."""
    inputs = {name: batch[name][:, :prompt] for name in ("input_ids", "attention_mask", "position_ids")}

    def generate() -> None:
        model.eval()
        model.generate(
            **inputs, max_new_tokens=NUM_NEW_TOKENS, min_new_tokens=NUM_NEW_TOKENS, do_sample=False, pad_token_id=0
        )

    return generate


def batches(shape: tuple[int, int, int], device: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the same texts for the bare model and for PPC, which repeats the prompt's IDs in the response."""
    rows, prompt, response = shape
    tokens = torch.randint(0, VOCABULARY, (rows, prompt + response), device=device)
    ids = torch.arange(prompt + response, device=device).expand(rows, -1).clone()
    labels = tokens.clone()
    labels[:, :prompt] = -100
    coupled_ids = ids.clone()
    coupled_ids[:, prompt:] = ids[:, :response]
    bare = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "position_ids": ids, "labels": labels}
    return bare, {**bare, "position_ids": coupled_ids, "position_labels": coupled_ids.masked_fill(labels == -100, -100)}


def measure(options: argparse.Namespace, model: str, size: str, shape: str) -> Iterator[dict[str, Any]]:
    """Yield one row for a training step and one for a generated token."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plain = build_model(model, size).to(device)
    wrapper = PredictivePositionModel.wrap(
        build_model(model, size).to(device), segments=True, length_scaling=options.scaling
    )
    bare_batch, ppc_batch = batches(SHAPES[shape], device)
    prompt = SHAPES[shape][1]
    for unit, functions, num_tokens in (
        ("training step", [training_step(plain, bare_batch), training_step(wrapper, ppc_batch)], 1),
        (
            "token of a batch",
            [generation(plain, bare_batch, prompt), generation(wrapper, ppc_batch, prompt)],
            NUM_NEW_TOKENS,
        ),
    ):
        bare, with_ppc = (
            statistics.median(seconds) / num_tokens for seconds in time_in_turns(functions, options.rounds)
        )
        yield {
            "model": model,
            "size": size,
            "texts": shape,
            "scaling": options.scaling,
            "what": unit,
            "bare_ms": round(1000 * bare, 3),
            "ppc_ms": round(1000 * with_ppc, 3),
            "ratio": round(with_ppc / bare, 3),
            "rounds": options.rounds,
            "commit": collect_provenance()["commit"],
            "cuda": torch.cuda.get_device_name() if device == "cuda" else None,
        }


def main() -> None:
    """Measure, print a table, and save the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--model", choices=MODELS, help="Measure only this model.")
    parser.add_argument("--size", choices=SIZES, help="Measure only this size.")
    parser.add_argument("--texts", choices=SHAPES, help="Measure only this shape.")
    parser.add_argument("--scaling", choices=LENGTH_SCALINGS, default="none")
    parser.add_argument("--out", type=Path, help="Append the rows to this file.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | size | texts | scaling | what | bare, ms | with PPC, ms | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for model in MODELS if options.model is None else [options.model]:
        for size in SIZES if options.size is None else [options.size]:
            for shape in SHAPES if options.texts is None else [options.texts]:
                for row in measure(options, model, size, shape):
                    print(
                        f"| {model} | {size} | {shape} | {options.scaling} | {row['what']} | {row['bare_ms']:.2f} "
                        f"| {row['ppc_ms']:.2f} | {row['ratio']:.2f} |",
                        flush=True,
                    )
                    if options.out is not None:
                        append_rows(options.out, [row])


if __name__ == "__main__":
    main()
