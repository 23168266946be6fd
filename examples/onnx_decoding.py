"""Decode a run with `onnxruntime` alone, without `torch` and `lengthwise`; the graph predicts position IDs as well.

``lengthwise export RUN --format onnx --out FOLDER`` writes the model. Run
``python examples/onnx_decoding.py FOLDER/model.onnx``, or add ``--prompt "0 1 1 =" --position-ids "1 2 3 1"``. It
prints the new symbols with their IDs. A model with several levels reads the IDs of each level, separated by commas.
"""

import argparse
import json
from collections.abc import Iterator

import numpy as np
import onnxruntime


def load(model: str) -> tuple[onnxruntime.InferenceSession, dict]:
    """Return the session of a model, and its symbols, end token and example."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session, {name: json.loads(text) for name, text in session.get_modelmeta().custom_metadata_map.items()}


def decode(model: str, prompt: list[str], prompt_ids: list[list[int]], num_new: int) -> Iterator[tuple[str, list[int]]]:
    """Yield at most ``num_new`` symbols and the IDs of each, one per level, until the end symbol."""
    session, facts = load(model)
    tokens = np.array([[facts["symbols"].index(symbol) for symbol in prompt]])
    ids, prompt_length = np.array(prompt_ids)[:, None], np.array([len(prompt)])
    for _ in range(num_new):
        inputs = {"tokens": tokens, "position_ids": ids, "prompt_length": prompt_length}
        _, next_token, next_id = session.run(None, inputs)
        yield facts["symbols"][next_token.item()], next_id[:, 0, 0].tolist()
        if next_token.item() == facts["end"]:
            break
        tokens, ids = np.concatenate([tokens, next_token], axis=1), np.concatenate([ids, next_id], axis=2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--prompt")
    parser.add_argument("--position-ids")
    parser.add_argument("--max-new-tokens", type=int, default=100)
    arguments = parser.parse_args()
    example = load(arguments.model)[1]
    symbols, levels = example["prompt"], example["prompt_ids"]
    if arguments.prompt:
        symbols = arguments.prompt.split()
        levels = [[int(each) for each in level.split()] for level in arguments.position_ids.split(",")]
    print(*symbols)
    for symbol, position_ids in decode(arguments.model, symbols, levels, arguments.max_new_tokens):
        print(symbol, *position_ids)
