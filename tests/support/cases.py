"""Small tasks, schemes, encodings and decoders for the parameters of tests."""

from dataclasses import fields, replace
from itertools import product
from pathlib import Path

import numpy as np
import torch

from lengthwise.encodings import ENCODINGS, EncodingSettings
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import SCHEMES, PositionScheme
from lengthwise.tasks import (
    TASKS,
    Addition,
    Copy,
    GradedByLoss,
    Multiplication,
    MultiQueryRecall,
    Parity,
    Recall,
    Reverse,
    Sort,
    SparseParity,
    Task,
    VariableAssignment,
)
from lengthwise.tasks.examples import Examples

NUM_POSITION_IDS = 256

ADDITION_VARIANTS = {
    f"addition-{order}-{scratchpad}-{'padded' if padded else 'bare'}{'-unequal' if unequal else ''}": Addition(
        order=order, scratchpad=scratchpad, zero_padding=padded, unequal=unequal
    )
    for order, scratchpad, padded, unequal in product(
        ("least", "most", "reversed_sum"), ("none", "carry", "trace"), (True, False), (False, True)
    )
    if order != "most" or scratchpad == "none"
}

TASK_VARIANTS: dict[str, Task] = {
    **{name: task() for name, task in TASKS.items()},
    **{f"{name}-{variant}": task for name in TASKS for variant, task in TASKS[name]().variants().items()},
    "parity-same": Parity(coupling="same"),
    "parity-none": Parity(coupling="none"),
    "copy-12": Copy(num_symbols=12),
    "reverse-2": Reverse(num_symbols=2),
    "sparse_parity-letters": SparseParity(coding="letters", window=5),
    "recall-asked": Recall(num_queries=3),
    "multi_query_recall-dense": MultiQueryRecall(
        num_symbols=3, key_length=1, value_length=3, density=1.0, numbered=True
    ),
    "variable_assignment-sums": VariableAssignment(operands=3),
    "variable_assignment-one": VariableAssignment(num_chains=1),
    "variable_assignment-shallow": VariableAssignment(depth=2, num_chains=3, num_names=20),
    "sort-repeats": Sort(num_values=5, repeats=True),
    "sort-narrow": Sort(narrow_share=0.5),
    "multiplication-trace": Multiplication(digits=3, trace=True, nines_share=0.5),
    **ADDITION_VARIANTS,
}

# Tasks with one correct answer per prompt, followed by an end token.
EXACT_MATCH_TASKS = {name: task for name, task in TASK_VARIANTS.items() if not isinstance(task, GradedByLoss)}

# Small ranges and windows, so that scaling and windows have an effect within a few dozen IDs.
SMALL_RANGES = {"original_length": 8, "window": 3, "width": 2, "threshold": 8.0, "num_buckets": 8, "max_distance": 20}


def has_own_test(task: str) -> bool:
    """Return True if a task has its own test file, such as ``tests/tasks/test_sort.py``."""
    return (Path(__file__).parents[1] / "tasks" / f"test_{task}.py").is_file()


def small_scheme(name: str, **changes: int) -> PositionScheme:
    """Return a listed scheme with a small ID range; changes of settings that it does not have are ignored."""
    scheme = SCHEMES[name]()
    settings = {"num_position_ids": NUM_POSITION_IDS, **changes}
    return replace(scheme, **{field.name: settings[field.name] for field in fields(scheme) if field.name in settings})


def small_encoding(name: str, **changes: object) -> EncodingSettings:
    """Return a listed encoding with small ranges; changes of settings that it does not have are ignored."""
    encoding = ENCODINGS[name]()
    settings = {**SMALL_RANGES, **changes}
    names = {field.name for field in fields(encoding)}
    return replace(encoding, **{name: value for name, value in settings.items() if name in names})


def supports_examples(scheme: str, examples: Examples) -> bool:
    """Return True if the examples have the field that a scheme needs; ``coupled`` also needs a single level."""
    needs = SCHEMES[scheme].needs
    if needs is None:
        return True
    values = getattr(examples, needs)
    return values is not None and not (scheme == "coupled" and len(values) > 1)


def small_decoder(
    encoding: str | EncodingSettings,
    task: Task,
    *,
    num_levels: int = 1,
    num_predicted_ids: int | None = None,
    **settings: object,
) -> Decoder:
    """Return a two-layer decoder with all options and random parameters, because initial blocks are the identity."""
    options = {"previous_token_mix": True, "segments": True, "length_scaling": "learned", **settings}
    decoder = Decoder(
        DecoderSettings(**{"num_layers": 2, "d_model": 32, "num_heads": 2, "temperature": 1.0, **options}),
        small_encoding(encoding) if isinstance(encoding, str) else encoding,
        vocabulary_size=len(task.vocabulary),
        separators=tuple(task.vocabulary.index(symbol) for symbol in task.separators),
        num_predicted_ids=num_predicted_ids,
        num_levels=num_levels,
    )
    randomize(decoder)
    return decoder.eval()


def randomize(module: torch.nn.Module) -> None:
    """Move every parameter by noise from a fixed seed."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.15 * torch.randn(parameter.shape, generator=generator))


def decode_tokens(task: Task, tokens: np.ndarray) -> list[str]:
    """Return the symbols of the tokens of one example."""
    vocabulary = task.vocabulary
    return [vocabulary[token] for token in tokens]
