"""Loading and evaluation of language models by name: runs of this library, and `transformers` models."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from lengthwise.core.devices import pick_device
from lengthwise.core.errors import ModelError, SettingError, unknown_name_error
from lengthwise.core.files import StrPath
from lengthwise.core.provenance import utc_timestamp
from lengthwise.core.type_checks import check_arguments
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.language_model import BytePairTokenizerAdapter, ModelTokenizer, NextTokenModel
from lengthwise.experiments.decoder_model import wrap_run_as_model
from lengthwise.experiments.run import load_run
from lengthwise.experiments.run_folder import EXPERIMENT, RESULTS, append_rows, is_run_folder
from lengthwise.experiments.setting_checks import select_variants
from lengthwise.positions import describe_given_information
from lengthwise.tasks import GradedByLoss, Task, Text, TokenizedDocument, task_result_fields
from lengthwise.tasks.text_format import PromptFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModel:
    """Language model with its tokenizer, and with the training task if it is a run."""

    model: NextTokenModel
    codec: ModelTokenizer
    task: Text | None = None

    def held_out_documents(self, kind: str | None = None) -> list[TokenizedDocument]:
        """Return all held-out texts of a run, or only the held-out texts of one kind."""
        if self.task is None:
            raise ModelError(f"{self.model.name} has no held-out texts, because it is not a run; pass texts")
        if kind is None:
            return self.task.held_out()
        kinds = self.task.variants()
        if kind not in kinds:
            raise ModelError(
                f"{self.model.name} has no held-out texts of kind '{kind}'; known kinds: {', '.join(kinds) or 'none'}"
            )
        variant = kinds[kind]
        assert isinstance(variant, Text)
        return variant.held_out()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptingConfig(PromptFormat):
    """Format of the prompts, and the tokenizer, device and precision of a `transformers` model.

    Without a name of a ``tokenizer``, the model uses its own tokenizer.
    """

    tokenizer: str | None = None
    device: str = "auto"
    dtype: str = "float32"


@check_arguments
def load_language_model(
    name: str, *, tokenizer: str | None = None, device: str = "auto", dtype: str | None = None
) -> LanguageModel:
    """Load a run folder or a `transformers` model, such as a GGUF file, with its tokenizer.

    A `transformers` model can use another ``tokenizer``, and the ``dtype`` float32 (default), bfloat16 or float16.
    Raises ``ModelError`` for a model that is missing, unsupported or no language model, and ``UnknownNameError`` for a
    missing run in a folder of runs.
    """
    if is_run_folder(name):
        if dtype is not None:
            raise ModelError(f"{name} is a run, which has a fixed precision; leave out --dtype {dtype}")
        run = load_run(Path(name), device=device)
        task = run.experiment.task
        if not isinstance(task, Text):
            raise ModelError(f"{name} was trained on {task.name}, not on text; use a run of the task text")
        if tokenizer is not None:
            raise ModelError(f"the run {name} has its own tokenizer; leave out --tokenizer")
        codec = BytePairTokenizerAdapter(task.tokenizer)
        return LanguageModel(model=wrap_run_as_model(run, name), codec=codec, task=task)
    loading_module = _import_loading_module(name)
    dtype_argument = {} if dtype is None else {"dtype": dtype}
    model = loading_module.load_causal_lm(name, device=pick_device(device), **dtype_argument)
    codec = loading_module.load_tokenizer_adapter(name if tokenizer is None else tokenizer)
    return LanguageModel(model=model, codec=codec)


@check_arguments
def evaluate_language_model(
    name: str,
    task: Task,
    settings: EvaluationSettings,
    *,
    prompting: PromptingConfig | None = None,
    out: StrPath | None = None,
    report: Callable[[int, int, int], None] | None = None,
    report_row: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Return result rows with the exact match by length of a `transformers` model, evaluated in plain text.

    ``name`` is a folder written by ``save_pretrained``, a GGUF file, or a name on the Hub. All variants in the settings
    are evaluated with ``lengthwise.hf.text_evaluation.evaluate_in_plain_text``. If ``out`` is set, each row is appended
    to ``results.jsonl`` in this folder. ``report_row`` gets each row as soon as it is measured. Raises the same errors
    as ``load_language_model``, and ``SettingError`` for a task that is graded by loss.
    """
    if isinstance(task, GradedByLoss):
        raise SettingError(
            f"{name} is not a run, so its loss on the task {task.name} is not supported; measure its loss with and "
            f"without distant tokens with lengthwise influence {name} TEXT"
        )
    prompting = PromptingConfig() if prompting is None else prompting
    tasks, loading_module = select_variants(task, settings), _import_loading_module(name)
    from lengthwise.hf.text_evaluation import evaluate_in_plain_text  # noqa: PLC0415

    model = loading_module.load_text_model(
        name, tokenizer=prompting.tokenizer, device=pick_device(prompting.device), dtype=prompting.dtype
    )
    rows = []
    for variant, variant_task in tasks.items():
        given = describe_given_information(variant_task, None)
        row_fields = {**task_result_fields(variant_task), "model": name, "given": given, "seed": settings.seed}
        row_fields["variant"] = variant
        if prompting.tokenizer is not None:
            row_fields["tokenizer"] = prompting.tokenizer
        for row in evaluate_in_plain_text(model, variant_task, settings, prompts=prompting, report=report):
            rows.append({**row_fields, **row, "time": utc_timestamp()})
            if out is not None:
                append_rows(Path(out) / RESULTS, rows[-1:])
            if report_row is not None:
                report_row(rows[-1])
    return rows


def check_model_exists(name: str) -> None:
    """Raise an error unless a run folder or model of this name exists. The model is not loaded."""
    if not is_run_folder(name):
        _import_loading_module(name).check_model_exists(name)


def _import_loading_module(name: str) -> ModuleType:
    """Import the module that loads models. Raises ``UnknownNameError`` for a misspelled run, without a Hub request."""
    path = Path(name)
    is_missing = "/" in name and not path.exists()
    if is_missing and (run_names := [str(file.parent) for file in path.parent.glob(f"*/{EXPERIMENT}")]):
        raise unknown_name_error("run", name, run_names)
    try:
        # Importing `transformers` takes seconds, and it is an optional dependency.
        return import_module("lengthwise.hf.loading")
    except ImportError:
        raise ModelError("transformers is not installed; run pip install 'lengthwise[hf]'") from None
