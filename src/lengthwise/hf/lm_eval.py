"""Tasks for lm-evaluation-harness: a folder of YAML and JSON lines that `lm_eval --include_path` reads."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lengthwise.core.errors import SettingError
from lengthwise.core.files import write_atomically
from lengthwise.core.paths import StrPath
from lengthwise.core.randomness import stream
from lengthwise.core.type_checks import typed
from lengthwise.evaluation.exact_match import EvaluationSettings, tested_blocks
from lengthwise.tasks import Task
from lengthwise.tasks.text_format import SHOTS, TextExample, shots_of, texts_of

# Examples to show, of which the harness draws as many as it is asked for.
POOL = 32


@typed
def export_to_harness(task: Task, out: StrPath, settings: EvaluationSettings, *, shots: int = SHOTS) -> str:
    """Write a group ``lengthwise_<task>`` of one task per length into ``out``; the name of the group.

    Each length has what is tested (``<task>_<length>.jsonl``, the examples that ``evaluate`` draws) and, in a split of
    its own, what is shown (``<task>_<length>_shots.jsonl``, with other prompts). The model writes until a newline, and
    exact match is asked of the line, without the space before it. The files name each other by their whole path.
    """
    out = Path(out)
    if not 0 <= shots < POOL:
        raise SettingError(f"{shots} shots are not to be had; use 0 to {POOL - 1}")
    files: dict[str, str] = {}
    names = [f"lengthwise_{task.name}_{length}" for length in settings.lengths]
    for place, (name, length) in enumerate(zip(names, settings.lengths, strict=True)):
        total = settings.examples_at(place)
        tested = [text for block in tested_blocks(task, length, total, settings.seed) for text in texts_of(task, block)]
        shown = shots_of(
            task,
            length,
            POOL if shots else 0,
            stream(settings.seed, "harness shots", length),
            tested={text.prompt for text in tested[:total]},
        )
        splits = {"test": (f"{task.name}_{length}.jsonl", tested[:total])}
        if shots:
            splits["shots"] = (f"{task.name}_{length}_shots.jsonl", shown)
        files |= {file: _lines(texts, length) for file, texts in splits.values()}
        paths = {split: str((out / file).absolute()) for split, (file, _) in splits.items()}
        files[f"{task.name}_{length}.yaml"] = _yaml(_one_length(name, task, length, tested[:total], paths, shots))
    group = f"lengthwise_{task.name}"
    files[f"{task.name}.yaml"] = _yaml(
        {
            "group": group,
            "task": names,
            "aggregate_metric_list": [{"metric": "exact_match", "weight_by_size": True, "filter_list": "line"}],
            "metadata": {"version": task.version},
        }
    )
    for file, content in files.items():
        write_atomically(out / file, content.encode())
    return group


def _one_length(
    name: str, task: Task, length: int, tested: Sequence[TextExample], paths: Mapping[str, str], shots: int
) -> dict[str, Any]:
    shown = {"fewshot_split": "shots", "num_fewshot": shots} if shots else {"num_fewshot": 0}
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": dict(paths)},
        "test_split": "test",
        **shown,
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{response}}",
        "target_delimiter": " ",
        "fewshot_delimiter": "\n",
        # No answer is cut into more tokens than it has bytes.
        "generation_kwargs": {
            "until": ["\n"],
            "do_sample": False,
            "max_gen_toks": max(len(text.response.encode()) for text in tested),
        },
        "filter_list": [{"name": "line", "filter": [{"function": "remove_whitespace"}, {"function": "take_first"}]}],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": task.version, "length": length},
    }


def _lines(texts: Sequence[TextExample], length: int) -> str:
    rows = ({"prompt": text.prompt, "response": text.answer, "length": length} for text in texts)
    return "".join(json.dumps(row) + "\n" for row in rows)


def _yaml(tree: Mapping[str, Any]) -> str:
    """A key per line, its value as JSON, which YAML reads as it is."""
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in tree.items())
