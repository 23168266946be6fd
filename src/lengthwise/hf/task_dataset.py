"""Conversion of a task to a data set of the `datasets` library, with text, position IDs and coupling."""

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
    """Return ``size`` examples of a task, with lengths sampled uniformly from ``lengths``.

    Item i depends only on ``seed`` and i, so a larger data set begins with the examples of a smaller data set. Columns:

    - ``prompt``, ``response``: the text of a `TextExample`. The full text is prompt + response.
    - ``spans``: start and end of each symbol in prompt + response, including the newline of the end token. They map the
      columns below to the tokens of any tokenizer with offsets.
    - ``coupling``: the group of each symbol, if the task has a coupling.
    - ``position_ids``: the position ID of each symbol in evaluation, if ``scheme`` is not None.
    - ``length``, ``task``, ``seed``: the length of the example, the name of the task, and ``seed``.

    With several levels, ``coupling`` and ``position_ids`` contain one list per level. Raises ``LengthwiseError`` for a
    task that is graded by loss, a length that the task does not have, or a scheme that does not support the task.
    """
    if not lengths or size < 1:
        raise SettingError(
            f"invalid data set of {size} examples with {len(lengths)} lengths; use size 1 or more and at least 1 length"
        )
    items = [_item(task, lengths, seed, index, scheme) for index in range(size)]
    return Dataset.from_dict({name: [item[name] for item in items] for name in items[0]})


def _item(task: Task, lengths: Sequence[int], seed: int, index: int, scheme: PositionScheme | None) -> dict[str, Any]:
    rng = stream(seed, "data set examples", index)
    length = int(lengths[int(rng.integers(0, len(lengths)))])
    examples = task.sample(length=length, size=1, rng=rng)
    (text,) = format_examples(task, examples)
    # Padding after the end token belongs to no symbol.
    seq = int(examples.response_end[0]) + 1
    item: dict[str, Any] = {"prompt": text.prompt, "response": text.response, "spans": list(map(list, text.spans))}
    if examples.coupling is not None:
        item["coupling"] = _list_by_level(examples.coupling[:, 0, :seq])
    if scheme is not None:
        assignment = scheme.assign(examples, stream(seed, "data set positions", index), training=False)
        item["position_ids"] = _list_by_level(assignment.position_ids[:, 0, :seq])
    return {**item, "length": length, "task": task.name, "seed": seed}


def _list_by_level(values_by_level: np.ndarray) -> list[Any]:
    """Return a list with the value of each symbol, or one such list per level if there are several levels."""
    return list(values_by_level.tolist()[0] if len(values_by_level) == 1 else values_by_level.tolist())
