"""Export of runs to folders of `transformers` and back, and of tasks to lm-evaluation-harness and to data sets."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from lengthwise.core.defaults import DEFAULT_NUM_SHOTS
from lengthwise.core.errors import ModelError, RunFolderError, SettingError
from lengthwise.core.files import StrPath, check_output_folder, write_atomically, write_folder_atomically
from lengthwise.core.randomness import random_stream
from lengthwise.core.type_checks import check_arguments
from lengthwise.encodings import ENCODINGS
from lengthwise.evaluation.exact_match import EvaluationSettings, iter_example_blocks
from lengthwise.experiments.run_folder import (
    RESULTS,
    RUN_FOLDER,
    read_description,
    read_experiment,
    read_model,
    read_rows,
    write_description,
    write_model,
)
from lengthwise.positions import PositionScheme
from lengthwise.tasks import HasFilesToSave, Task
from lengthwise.tasks.text.corpus import TOKENIZER_FILE
from lengthwise.tasks.text_format import TextExample, format_examples, sample_few_shot_examples

CONFIG_FILE = "config.json"
# Number of examples per length from which lm-evaluation-harness samples its shots.
SHOT_POOL = 32


@check_arguments
def export_hf(run: StrPath, out: StrPath, *, overrides: Mapping[str, Any] | None = None) -> None:
    """Export a finished run and its tokenizer to a folder that ``AutoModelForCausalLM.from_pretrained`` can load.

    ``overrides`` replaces the saved ``task``, ``scheme`` or ``encoding``, as in ``load_run``. Raises
    ``RunFolderError`` if the run is missing, or if ``out`` is not empty.
    """
    # Importing `transformers` takes seconds.
    from tokenizers import Tokenizer  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    from lengthwise.hf.lengthwise_model import LengthwiseForCausalLM, build_config  # noqa: PLC0415
    from lengthwise.hf.model_card import CARD_FILE, build_model_card, describe_example  # noqa: PLC0415
    from lengthwise.hf.tokenization import build_symbol_tokenizer  # noqa: PLC0415

    run, out = Path(run), Path(out)
    experiment, (tensors, facts) = read_experiment(run, overrides=overrides), read_model(run)
    if type(experiment.encoding) not in ENCODINGS.values():
        raise ModelError(
            f"the custom encoding {experiment.encoding.name} cannot be exported; export a run with one of: "
            + ", ".join(ENCODINGS)
        )
    check_output_folder(out)
    description = read_description(run, RUN_FOLDER)
    files_to_save = experiment.task.files_to_save() if isinstance(experiment.task, HasFilesToSave) else {}
    files = {name: content.decode() for name, content in files_to_save.items()}
    model = LengthwiseForCausalLM(build_config(experiment, {"experiment": description, "facts": facts, "files": files}))
    model.decoder.load_state_dict(tensors)
    tokenizer = build_symbol_tokenizer(experiment.task.vocabulary)
    if TOKENIZER_FILE in files:
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(files[TOKENIZER_FILE]))
    with write_folder_atomically(out) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        card = build_model_card(experiment, facts, read_rows(run / RESULTS)) + model.describe_loading()
        card += "\n" + describe_example(model, experiment)
        (folder / CARD_FILE).write_text(card, encoding="utf-8")


@check_arguments
def import_hf(folder: StrPath, out: StrPath) -> None:
    """Restore the run folder of an exported model, with the model's current weights.

    Raises ``RunFolderError`` if ``folder`` is not an exported run, or if ``out`` is not empty.
    """
    from lengthwise.hf.lengthwise_model import LengthwiseForCausalLM  # noqa: PLC0415
    from lengthwise.hf.loading import load_pretrained  # noqa: PLC0415

    folder, out = Path(folder), Path(out)
    model = load_pretrained(str(folder)) if (folder / CONFIG_FILE).is_file() else None
    if not isinstance(model, LengthwiseForCausalLM):
        raise RunFolderError(f"{folder} is not an exported run; use a folder written by export --format hf")
    if not model.config.run:
        raise RunFolderError(f"{folder} has no run data in its config.json; export the run again")
    num_symbols = len(model.config.symbols or ())
    if model.config.vocab_size != num_symbols:
        raise RunFolderError(
            f"{folder} has embeddings of {model.config.vocab_size} tokens, but the run has {num_symbols} symbols; "
            "import a model whose embeddings were not resized"
        )
    description, files, training_facts = (model.config.run[key] for key in ("experiment", "files", "facts"))
    if outside_files := [name for name in files if Path(name).name != name]:
        raise RunFolderError(
            f"{folder} lists the file {outside_files[0]}, which is outside the run folder; export the run again"
        )
    with write_folder_atomically(out) as run:
        write_description(run, RUN_FOLDER, description, {name: content.encode() for name, content in files.items()})
        write_model(run, model.decoder.state_dict(), training_facts)


@check_arguments
def export_to_lm_eval(task: Task, out: StrPath, settings: EvaluationSettings, *, shots: int = DEFAULT_NUM_SHOTS) -> str:
    """Export a task to lm-evaluation-harness as a group with one task per length, and return the group's name.

    ``<task>_<length>.jsonl`` contains the test examples of ``evaluate``. ``<task>_<length>_shots.jsonl`` contains the
    examples for few-shot prompts; no test example has the same prompt. Exact match compares the generated line, without
    its leading space, with the answer. The files refer to each other by absolute path.
    """
    out = Path(out)
    if not 0 <= shots < SHOT_POOL:
        raise SettingError(f"invalid number of shots {shots}; use 0 to {SHOT_POOL - 1}")
    files: dict[str, str] = {}
    task_names = [f"lengthwise_{task.name}_{length}" for length in settings.lengths]
    for index, (task_name, length) in enumerate(zip(task_names, settings.lengths, strict=True)):
        num_examples = settings.num_examples_at(index)
        blocks = iter_example_blocks(task, length, num_examples, settings.seed)
        texts = [text for block in blocks for text in format_examples(task, block)][:num_examples]
        rng, test_prompts = random_stream(settings.seed, "harness shots", length), {text.prompt for text in texts}
        shot_pool = sample_few_shot_examples(
            task, length, SHOT_POOL if shots else 0, rng, excluded_prompts=test_prompts
        )
        splits = {"test": (f"{task.name}_{length}.jsonl", texts)}
        if shots:
            splits["shots"] = (f"{task.name}_{length}_shots.jsonl", shot_pool)
        for file, examples in splits.values():
            records = ({"prompt": text.prompt, "response": text.answer, "length": length} for text in examples)
            files[file] = "".join(json.dumps(record) + "\n" for record in records)
        paths = {split: str((out / file).absolute()) for split, (file, _) in splits.items()}
        files[f"{task.name}_{length}.yaml"] = _yaml(_task_config(task_name, task, length, texts, paths, shots))
    group_name = f"lengthwise_{task.name}"
    group = {
        "group": group_name,
        "task": task_names,
        "aggregate_metric_list": [{"metric": "exact_match", "weight_by_size": True, "filter_list": "line"}],
        "metadata": {"version": task.version},
    }
    files[f"{task.name}.yaml"] = _yaml(group)
    for file, content in files.items():
        write_atomically(out / file, content.encode())
    return group_name


def _task_config(
    name: str, task: Task, length: int, texts: Sequence[TextExample], paths: Mapping[str, str], shots: int
) -> dict[str, Any]:
    max_bytes = max(len(text.response.encode()) for text in texts)
    fewshot_settings = {"fewshot_split": "shots", "num_fewshot": shots} if shots else {"num_fewshot": 0}
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": dict(paths)},
        "test_split": "test",
        **fewshot_settings,
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{response}}",
        "target_delimiter": " ",
        "fewshot_delimiter": "\n",
        # An answer has at most as many tokens as bytes.
        "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": max_bytes},
        "filter_list": [{"name": "line", "filter": [{"function": "remove_whitespace"}, {"function": "take_first"}]}],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": task.version, "length": length},
    }


def _yaml(entries: Mapping[str, Any]) -> str:
    """Return YAML with one line per key; the values are written as JSON, which is valid YAML."""
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in entries.items())


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
    rng = random_stream(seed, "data set examples", index)
    length = int(lengths[int(rng.integers(0, len(lengths)))])
    examples = task.sample(length=length, size=1, rng=rng)
    (text,) = format_examples(task, examples)
    # Padding after the end token belongs to no symbol.
    seq = int(examples.response_end[0]) + 1
    item: dict[str, Any] = {
        "prompt": text.prompt,
        "response": text.response,
        "spans": list(map(list, text.symbol_spans)),
    }
    if examples.coupling is not None:
        item["coupling"] = _list_by_level(examples.coupling[:, 0, :seq])
    if scheme is not None:
        assignment = scheme.assign(examples, random_stream(seed, "data set positions", index), training=False)
        item["position_ids"] = _list_by_level(assignment.position_ids[:, 0, :seq])
    return {**item, "length": length, "task": task.name, "seed": seed}


def _list_by_level(values_by_level: np.ndarray) -> list[Any]:
    """Return a list with the value of each symbol, or one such list per level if there are several levels."""
    return list(values_by_level.tolist()[0] if len(values_by_level) == 1 else values_by_level.tolist())
