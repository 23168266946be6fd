"""Add predicted position IDs (PPC) to a Llama with random weights, and train it with a plain PyTorch loop.

The model writes the running parity of up to 20 bits, and is tested on 20 and 200 bits. It needs `lengthwise[hf]`.
Run `python examples/llama_with_ppc.py`; `--quick` checks in seconds that it works, without good results.
"""

import argparse

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, LlamaConfig, get_cosine_schedule_with_warmup, set_seed

from lengthwise.hf import PositionCollator, PredictivePositionModel, build_symbol_tokenizer, to_dataset
from lengthwise.positions import Predicted
from lengthwise.tasks import Parity

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="train for a few steps only")
parser.add_argument("--seed", type=int, default=0, help="seed of the weights and the examples")
options = parser.parse_args()
set_seed(options.seed)
steps = 5 if options.quick else 1000

task, scheme = Parity(), Predicted(num_position_ids=2048, max_gaps=3)
tokenizer = build_symbol_tokenizer(task.vocabulary)


def load_rows(lengths: tuple[int, ...] | range, size: int, seed: int) -> list[dict]:
    """Return examples as dictionaries with tokens, the length of the prompt and the coupling."""
    rows = to_dataset(task, lengths=lengths, size=size, seed=seed).to_list()
    for row in rows:
        row["input_ids"] = tokenizer(row["prompt"] + row["response"])["input_ids"]
        row["prompt_length"] = len(tokenizer(row["prompt"])["input_ids"])
    return rows


sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2}
llama = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=2048, **sizes))
model = PredictivePositionModel.wrap(llama, segments=True, length_scaling="log")
collator = PositionCollator(scheme, tokenizer.pad_token_id, pack_to=48)
loader = DataLoader(load_rows(range(1, 21), 64 * steps, options.seed), 64, collate_fn=collator, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=100, num_training_steps=steps)
for batch in loader:
    loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
print(f"Loss of the tokens and IDs in the last of {steps} steps: {loss.item():.4f}")

model.eval()
for length in (20, 200):
    rows = load_rows((length,), 4 if options.quick else 32, options.seed + 1)
    prompts = PositionCollator(scheme, tokenizer.pad_token_id, training=False).prompts(rows)
    answer_length = len(rows[0]["input_ids"]) - rows[0]["prompt_length"]
    tokens = model.generate(**prompts, max_new_tokens=answer_length, do_sample=False, eos_token_id=None)
    exact = sum(tokens[i].tolist() == row["input_ids"] for i, row in enumerate(rows))
    print(f"{length:>4} bits: {exact} of {len(rows)} answers are exact")
