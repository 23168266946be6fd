"""A task as a data set of the `datasets` library: text with the IDs and the coupling of its symbols."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import stream
from lengthwise.positions import PositionScheme
from lengthwise.tasks import Task
from lengthwise.tasks.text_format import format_examples


def to_dataset(
    task: Task, *, lengths: Sequence[int], size: int, seed: int = 0, scheme: PositionScheme | None = None
) -> Dataset:
    """``size`` examples of a task, each of a length drawn uniformly from ``lengths``.

    Item i depends on ``seed`` and i alone: a larger data set begins with the smaller one. Its columns:

    - ``prompt``, ``response``: text; one behind the other is what a model reads, in the form of ``TextExample``.
    - ``spans``: for each symbol, the end token's newline included, where it begins and ends in prompt + response. By
      these, what is said of symbols is said of characters, and so of the tokens of any tokenizer with offsets.
    - ``coupling``: the group of each symbol; missing where the task has none.
    - ``position_ids``: the evaluation IDs of each symbol; missing without a scheme.
    - ``length``, ``task``, ``seed``.

    With several levels, ``coupling`` and ``position_ids`` have one such list per level. ``LengthwiseError`` for a task
    that is graded by loss, for lengths that the task does not have, and for a scheme that does not serve it.
    """
    if not lengths or size < 1:
        raise SettingError(f"{size} examples of {len(lengths)} lengths make no data set; give at least one of each")
    items = [_item(task, lengths, seed, index, scheme) for index in range(size)]
    return Dataset.from_dict({name: [item[name] for item in items] for name in items[0]})


def _item(task: Task, lengths: Sequence[int], seed: int, index: int, scheme: PositionScheme | None) -> dict[str, Any]:
    rng = stream(seed, "data set examples", index)
    length = int(lengths[int(rng.integers(0, len(lengths)))])
    examples = task.sample(length=length, size=1, rng=rng)
    (text,) = format_examples(task, examples)
    # What fills up behind the end token belongs to no symbol.
    seq = int(examples.response_end[0]) + 1
    item: dict[str, Any] = {"prompt": text.prompt, "response": text.response, "spans": [list(s) for s in text.spans]}
    if examples.coupling is not None:
        item["coupling"] = _by_level(examples.coupling[:, 0, :seq])
    if scheme is not None:
        assigned = scheme.assign(examples, stream(seed, "data set positions", index), training=False)
        item["position_ids"] = _by_level(assigned.position_ids[:, 0, :seq])
    return {**item, "length": length, "task": task.name, "seed": seed}


def _by_level(values: np.ndarray) -> list[Any]:
    """A number per symbol or, on several levels, such a list per level."""
    return list(values.tolist()[0] if len(values) == 1 else values.tolist())
