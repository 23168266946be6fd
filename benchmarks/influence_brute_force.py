"""Recompute losses of a finished influence study with plain ``transformers`` calls, and print the largest difference.

``python benchmarks/influence_brute_force.py MODEL STUDY_FOLDER TEXT... --targets 10`` reads the rows of searched
targets and the texts of the study. A row alone gives the visible tokens and their position IDs: the document, the place
of the target, the number of near tokens and the distances of the selected units. Nothing of the code that measures
studies is used. Far tokens of other texts and random units are not stored in rows, so they are not compared.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

MAX_DIFFERENCE = 1e-3


class Reference:
    """Model that hides tokens of a context by leaving them out, or by a mask over all tokens."""

    def __init__(self, model_name: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(model_name, dtype=torch.float32).eval()

    @torch.no_grad()
    def by_omission(self, context: Tensor, visible: list[int]) -> Tensor:
        """Return the log-probabilities if the model reads only the visible tokens, at their own position IDs."""
        ids = torch.tensor(visible)
        logits = self.model(input_ids=context[None, ids], position_ids=ids[None], attention_mask=_causal(len(ids)))
        return logits.logits[0, -1].double().log_softmax(dim=-1)

    @torch.no_grad()
    def by_mask(self, context: Tensor, visible: list[int], num_queries: int) -> Tensor:
        """Return the log-probabilities if the last ``num_queries`` tokens attend only to the visible tokens."""
        mask = _causal(len(context))
        hidden = torch.ones(len(context), dtype=torch.bool)
        hidden[visible] = False
        mask[0, 0, -num_queries:, hidden] = torch.finfo(torch.float32).min
        ids = torch.arange(len(context))
        logits = self.model(input_ids=context[None], position_ids=ids[None], attention_mask=mask)
        return logits.logits[0, -1].double().log_softmax(dim=-1)


def _causal(seq: int) -> Tensor:
    """Return an additive mask, because ``transformers`` takes a jump of the IDs for the start of another text."""
    return torch.full((seq, seq), torch.finfo(torch.float32).min).triu(1)[None, None]


def compare_row(
    row: dict[str, Any], settings: dict[str, Any], context: Tensor, num_start: int, reference: Reference
) -> Iterator[tuple[str, float]]:
    """Yield the name of each compared number of a row, and its difference from the reference."""
    near, far, target = row["near"], settings["far"], row["target"]
    fixed = list(range(num_start + settings["sink"]))
    near_indexes, all_indexes = list(range(len(context) - near, len(context))), list(range(len(context)))
    assert len(context) == len(fixed) + far + near
    whole, short = (reference.by_omission(context, indexes) for indexes in (all_indexes, fixed + near_indexes))

    def divergence(log_probs: Tensor) -> float:
        return float((whole.exp() * (whole - log_probs)).sum())

    yield "loss_long", abs(row["loss_long"] + float(whole[target]))
    yield "loss_short", abs(row["loss_short"] + float(short[target]))
    yield "divergence_short", abs(row["divergence_short"] - divergence(short))
    for selection in row["selections"]:
        if selection["from"] != "own" or not selection["chosen"]:
            continue
        mode, name = selection["mode"], f"{selection['mode']} {selection['knows']} {selection['measure']}"
        for k, loss, stored in zip(settings["ks"], selection["losses"], selection["divergences"], strict=True):
            # The distance of a unit is that of its last token; the token before the target has distance 1.
            units = [(len(context) - unit["distance"], unit["tokens"]) for unit in selection["chosen"][:k]]
            far_indexes = sorted(index for last, size in units for index in range(last - size + 1, last + 1))
            visible = fixed + far_indexes + near_indexes
            if mode == "strict":
                log_probs = reference.by_omission(context, visible)
            else:
                log_probs = reference.by_mask(context, visible, near if mode == "masked" else 1)
            yield f"{name} loss", abs(loss + float(log_probs[target]))
            yield f"{name} divergence", abs(stored - divergence(log_probs))


def main() -> None:
    """Print the largest difference of every kind of number; exit with 1 if one exceeds the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("study", type=Path)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--targets", type=int, default=10)
    options = parser.parse_args()
    settings = json.loads((options.study / "influence.json").read_text(encoding="utf-8"))["study"]["settings"]
    lines = (options.study / "influence.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["weight"] > 0 and row["document"] in options.texts]
    rows = rows[: options.targets]
    tokenizer, reference = AutoTokenizer.from_pretrained(options.model), Reference(options.model)
    start = tokenizer("a")["input_ids"][: -len(tokenizer("a", add_special_tokens=False)["input_ids"])]
    differences: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        text = Path(row["document"]).read_bytes().decode("utf-8")
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        place, size = row["place"], settings["sink"] + settings["far"] + row["near"]
        assert tokens[place] == row["target"], f"another token at place {place} of {row['document']}"
        context = torch.tensor([*start, *tokens[place - size : place]])
        for name, difference in compare_row(row, settings, context, len(start), reference):
            differences[name].append(difference)
    for name, values in differences.items():
        print(f"{name}: {len(values)} numbers, largest difference {max(values):.2g}")
    if not differences:
        sys.exit("no searched target of these texts; pass the texts as the study names them")
    largest = max(map(max, differences.values()))
    print(f"{len(rows)} targets: largest difference {largest:.2g} nats (limit {MAX_DIFFERENCE})")
    sys.exit(largest >= MAX_DIFFERENCE)


if __name__ == "__main__":
    main()
