"""Small tasks, schemes and decoders that several test modules run over."""

from dataclasses import fields, replace
from itertools import product

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
    Parity,
    Planted,
    Recall,
    Reverse,
    Sort,
    SparseParity,
    Task,
    VariableAssignment,
)
from lengthwise.tasks.examples import Examples

NUM_POSITION_IDS = 256

ADDITIONS = {
    f"addition-{order}-{scratchpad}-{'padded' if padded else 'bare'}{'-unequal' if unequal else ''}": Addition(
        order=order, scratchpad=scratchpad, zero_padding=padded, unequal=unequal
    )
    for order, scratchpad, padded, unequal in product(
        ("least", "most", "reversed_sum"), ("none", "carry"), (True, False), (False, True)
    )
    if (order, scratchpad) != ("most", "carry")
}

SETTINGS: dict[str, Task] = {
    **{name: task() for name, task in TASKS.items()},
    **{f"{name}-{variant}": task for name in TASKS for variant, task in TASKS[name]().variants().items()},
    "parity-same": Parity(coupling="same"),
    "parity-none": Parity(coupling="none"),
    "copy-12": Copy(num_symbols=12),
    "reverse-2": Reverse(num_symbols=2),
    "sparse_parity-letters": SparseParity(coding="letters", window=5),
    "recall-asked": Recall(num_queries=3),
    "variable_assignment-sums": VariableAssignment(operands=3),
    "variable_assignment-one": VariableAssignment(num_chains=1),
    "variable_assignment-shallow": VariableAssignment(depth=2, num_chains=3, num_names=20),
    "sort-repeats": Sort(num_values=5, repeats=True),
    **ADDITIONS,
}

# Tasks with one right answer to every prompt, and an end token behind it.
ANSWERED = {name: task for name, task in SETTINGS.items() if not isinstance(task, GradedByLoss)}

# What an encoding does only beyond its training range or a window, it does among a few dozen IDs with these.
EARLY = {"original_length": 8, "window": 3, "width": 2, "threshold": 8.0, "num_buckets": 8, "max_distance": 20}


def smallest_length(task: Task) -> int:
    """Where the lengths of a task start."""
    return task.min_length if isinstance(task, Planted) else 1


def small_scheme(name: str, **changes: int) -> PositionScheme:
    """A scheme of the table with a small range of IDs, and with those changes that it has a setting for."""
    scheme = SCHEMES[name]()
    wanted = {"num_position_ids": NUM_POSITION_IDS, **changes}
    return replace(scheme, **{field.name: wanted[field.name] for field in fields(scheme) if field.name in wanted})


def small_encoding(name: str, **changes: object) -> EncodingSettings:
    """An encoding of the table with settings that matter among few IDs, and those changes that it has a setting for."""
    encoding = ENCODINGS[name]()
    wanted = {**EARLY, **changes}
    return replace(encoding, **{field.name: wanted[field.name] for field in fields(encoding) if field.name in wanted})


def serves(scheme: str, examples: Examples) -> bool:
    """What a scheme declares: which part of the examples it needs, and for ``coupled`` that it has one level."""
    needs = SCHEMES[scheme].needs
    if needs is None:
        return True
    part = getattr(examples, needs)
    return part is not None and not (scheme == "coupled" and len(part) > 1)


def small_decoder(
    encoding: str | EncodingSettings,
    task: Task,
    *,
    num_levels: int = 1,
    num_predicted_ids: int | None = None,
    **settings: object,
) -> Decoder:
    """Two layers with every option on and no parameter at its starting value: blocks start as the identity."""
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


def words(task: Task, tokens: np.ndarray) -> list[str]:
    """The symbols of one row of tokens."""
    vocabulary = task.vocabulary
    return [vocabulary[token] for token in tokens]
