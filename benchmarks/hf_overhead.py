"""What the wrapper for PPC costs a model of `transformers`: a training step, and a token written.

    python benchmarks/hf_overhead.py

The bare model and the wrapped one take turns in one process; printed are medians and their ratio.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import transformers

from lengthwise.hf import PredictivePositionModel

SIZES = {
    "small": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1024},
    "larger": {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "intermediate_size": 2048},
}
MODELS = {"Llama": transformers.LlamaConfig, "GPT-NeoX": transformers.GPTNeoXConfig}
VOCABULARY, BATCH, PROMPT, RESPONSE = 8192, 8, 128, 128


def built(model: str, size: str) -> transformers.PreTrainedModel:
    """A model with random weights."""
    torch.manual_seed(0)
    config = MODELS[model](
        vocab_size=VOCABULARY,
        max_position_embeddings=1024,
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


def writing(model: transformers.PreTrainedModel, batch: dict[str, torch.Tensor]) -> Callable[[], None]:
    """The response of a batch, token by token."""
    prompt = {name: batch[name][:, :PROMPT] for name in ("input_ids", "attention_mask", "position_ids")}

    def write() -> None:
        model.eval()
        model.generate(**prompt, max_new_tokens=RESPONSE, min_new_tokens=RESPONSE, do_sample=False, pad_token_id=0)

    return write


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", choices=SIZES, help="One size only.")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = torch.randint(0, VOCABULARY, (BATCH, PROMPT + RESPONSE), device=device)
    ids = torch.arange(PROMPT + RESPONSE, device=device).expand(BATCH, -1).clone()
    # The IDs of the response are those of the prompt, in its order: the same masks and angles for both models.
    bare = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "position_ids": ids}
    labels = tokens.clone()
    labels[:, :PROMPT] = -100
    coupled = ids.clone()
    coupled[:, PROMPT:] = ids[:, :RESPONSE]
    wanted = coupled.masked_fill(labels == -100, -100)
    print("| model | size | what | bare | with PPC | ratio |")
    print("|---|---|---|---|---|---|")
    for name in MODELS:
        for size in SIZES if asked.size is None else [asked.size]:
            plain = built(name, size).to(device)
            ours = PredictivePositionModel.wrap(built(name, size).to(device), segments=True)
            given = {**bare, "labels": labels}
            joint = {**given, "position_ids": coupled, "position_labels": wanted}
            for what, made in (
                ("training step, ms", [stepping(plain, given), stepping(ours, joint)]),
                ("token of a batch, ms", [writing(plain, given), writing(ours, joint)]),
            ):
                seconds = [statistics.median(each) for each in turns(made, asked.rounds)]
                each = RESPONSE if "token" in what else 1
                shown = " | ".join(f"{1000 * second / each:.2f}" for second in seconds)
                print(f"| {name} | {size} | {what} | {shown} | {seconds[1] / seconds[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
