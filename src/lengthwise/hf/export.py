"""Export of runs to folders of `transformers` and back, and of tasks to lm-evaluation-harness."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lengthwise.core.errors import ModelError, RunFolderError, SettingError
from lengthwise.core.files import StrPath, atomic_folder, check_output_folder, write_atomically
from lengthwise.core.randomness import stream
from lengthwise.core.type_checks import check_arguments
from lengthwise.encodings import ENCODINGS
from lengthwise.evaluation.exact_match import EvaluationSettings, tested_blocks
from lengthwise.experiments.run_folder import (
    RUN_FOLDER,
    read_description,
    read_experiment,
    read_model,
    write_description,
    write_model,
)
from lengthwise.tasks import HasRunFiles, Task
from lengthwise.tasks.text.corpus import TOKENIZER
from lengthwise.tasks.text_format import SHOTS, TextExample, format_examples, sample_shots

CONFIG = "config.json"


@check_arguments
def export_hf(run: StrPath, out: StrPath, *, overrides: Mapping[str, Any] | None = None) -> None:
    """Write a finished run as a folder that ``AutoModelForCausalLM.from_pretrained`` loads, with a tokenizer.

    ``overrides`` holds a ``task``, ``scheme`` or ``encoding`` in place of the saved one, as of ``load_run``.
    ``RunFolderError`` where there is no run, or where ``out`` holds something already.
    """
    # Imported here: it takes seconds, and nothing else in a run needs it.
    from lengthwise.hf.lengthwise_config import build_config  # noqa: PLC0415
    from lengthwise.hf.lengthwise_model import LengthwiseForCausalLM  # noqa: PLC0415
    from lengthwise.hf.tokenization import symbol_tokenizer, tokenizer_from_json  # noqa: PLC0415

    run, out = Path(run), Path(out)
    experiment, (tensors, facts) = read_experiment(run, overrides=overrides), read_model(run)
    if type(experiment.encoding) not in ENCODINGS.values():
        raise ModelError(
            f"the encoding {experiment.encoding.name} is a class of your own, which no folder for transformers can "
            "hold; export a run with one of: " + ", ".join(ENCODINGS)
        )
    check_output_folder(out)
    tree = read_description(run, RUN_FOLDER)
    kept = experiment.task.run_files() if isinstance(experiment.task, HasRunFiles) else {}
    files = {name: content.decode() for name, content in kept.items()}
    model = LengthwiseForCausalLM(build_config(experiment, {"experiment": tree, "facts": facts, "files": files}))
    model.decoder.load_state_dict(tensors)
    symbols = experiment.task.vocabulary
    tokenizer = tokenizer_from_json(files[TOKENIZER]) if TOKENIZER in files else symbol_tokenizer(symbols)
    with atomic_folder(out) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@check_arguments
def import_hf(folder: StrPath, out: StrPath) -> None:
    """Write the run folder that an exported folder came from; its weights are those of the model now.

    ``RunFolderError`` for a folder that holds no such model, or where ``out`` holds something already.
    """
    from lengthwise.hf.lengthwise_model import LengthwiseForCausalLM  # noqa: PLC0415
    from lengthwise.hf.loading import load_pretrained  # noqa: PLC0415

    folder, out = Path(folder), Path(out)
    model = load_pretrained(str(folder)) if (folder / CONFIG).is_file() else None
    if not isinstance(model, LengthwiseForCausalLM):
        raise RunFolderError(f"{folder} holds no decoder of ours; give a folder that export --format hf made")
    if not model.config.run:
        raise RunFolderError(f"{folder} says of no run where it came from; export a run folder again")
    tree, files, facts = (model.config.run[key] for key in ("experiment", "files", "facts"))
    if outside := [name for name in files if Path(name).name != name]:
        raise RunFolderError(f"{folder} names a file outside of a run folder ({outside[0]}); export the run again")
    with atomic_folder(out) as whole:
        write_description(whole, RUN_FOLDER, tree, {name: content.encode() for name, content in files.items()})
        write_model(whole, model.decoder.state_dict(), facts)


# Examples to show, of which the harness draws as many as it is asked for.
POOL = 32


@check_arguments
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
        tested = [
            text for block in tested_blocks(task, length, total, settings.seed) for text in format_examples(task, block)
        ]
        shown = sample_shots(
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
