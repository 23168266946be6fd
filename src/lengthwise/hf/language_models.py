"""Language models by name: a run of this package, or a model of transformers, with what tokenizes text for it."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from lengthwise.core.devices import pick_device
from lengthwise.core.errors import ModelError, unknown_name
from lengthwise.core.files import StrPath
from lengthwise.core.provenance import now
from lengthwise.core.type_checks import check_arguments
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.run import load_run
from lengthwise.experiments.run_folder import EXPERIMENT, RESULTS, append_rows
from lengthwise.experiments.validation import select_variants
from lengthwise.influence.probing.decoder_model import DecoderModel
from lengthwise.influence.probing.next_token_model import NextTokenModel
from lengthwise.influence.text_codec import PieceCodec, TextCodec
from lengthwise.tasks import Task, Text, TokenizedDocument, task_facts
from lengthwise.tasks.text_format import SHOTS


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModel:
    """A model, its tokenizer, and for a run of ours the task that it was trained on."""

    model: NextTokenModel
    codec: TextCodec
    task: Text | None = None

    def held_out(self, kind: str | None = None) -> list[TokenizedDocument]:
        """The texts that a run of ours kept from training, all or of one kind."""
        if self.task is None:
            raise ModelError(f"what {self.model.name} was not trained on is unknown; name texts to measure on")
        if kind is None:
            return self.task.held_out()
        kinds = self.task.variants()
        if kind not in kinds:
            raise ModelError(f"{self.model.name} has no kind of text '{kind}'; it has {', '.join(kinds) or 'one only'}")
        named = kinds[kind]
        assert isinstance(named, Text)
        return named.held_out()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How a model of `transformers` is asked: so many examples are shown before each that it is to answer."""

    shots: int = SHOTS
    device: str = "auto"
    dtype: str = "float32"


@check_arguments
def load_language_model(
    name: str, *, tokenizer: str | None = None, device: str = "auto", dtype: str | None = None
) -> LanguageModel:
    """A run folder of ours, or what `transformers` loads; ``tokenizer`` names another than the model's own.

    ``dtype`` is float32 by default, or bfloat16 or float16 for a model of `transformers` that is too large otherwise.
    ``ModelError`` for a model that is missing, predicts no text, or cannot be measured; ``UnknownNameError`` where runs
    are, but not this one.
    """
    if is_run(name):
        if dtype is not None:
            raise ModelError(f"{name} is a run, which is measured as it was trained; leave --dtype {dtype} out")
        return _own(name, tokenizer, device)
    loading = _loading(name)
    precision = {} if dtype is None else {"dtype": dtype}
    model = loading.load_causal_lm(name, device=pick_device(device), **precision)
    return LanguageModel(model=model, codec=loading.load_codec(name if tokenizer is None else tokenizer))


@check_arguments
def evaluate_language_model(
    name: str,
    task: Task,
    settings: EvaluationSettings,
    *,
    asking: Asking | None = None,
    out: StrPath | None = None,
    report: Callable[[int, int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Measure exact match by length of a model that `transformers` loads, asked in plain text.

    ``name`` is a folder that ``save_pretrained`` made, or a name on the hub. Each variant that the settings name is
    measured; see ``evaluate_texts`` in ``lengthwise.hf.text_evaluation``. Each row is added to the ``results.jsonl`` in
    ``out``, if given, as soon as its length is measured. Raises as ``load_language_model``.
    """
    asking, tasks, loading = Asking() if asking is None else asking, select_variants(task, settings), _loading(name)
    from lengthwise.hf.text_evaluation import text_rows  # noqa: PLC0415

    model = loading.load_text_model(name, device=pick_device(asking.device), dtype=asking.dtype)
    rows = []
    for variant, each in tasks.items():
        for measured in text_rows(model, each, settings, shots=asking.shots, report=report):
            facts = {**task_facts(each), "model": name, "seed": settings.seed, "variant": variant}
            rows.append({**facts, **measured, "time": now()})
            if out is not None:
                append_rows(Path(out) / RESULTS, rows[-1:])
    return rows


def check_exists(name: str) -> None:
    """Raise as ``load_language_model`` unless there is a run folder, or a model, of this name: nothing is loaded."""
    if not is_run(name):
        _loading(name).check_exists(name)


def is_run(name: str) -> bool:
    """Whether a name stands for a run of ours, a folder with its experiment; any other is a model's."""
    return (Path(name) / EXPERIMENT).is_file()


def _loading(name: str) -> ModuleType:
    """What loads a model of this name, unless a run is meant: to look for one on the hub takes long and finds none.

    Where a folder of runs is called as an organization of the hub, its models are loaded from another folder.
    """
    path = Path(name)
    if "/" in name and not path.exists():
        beside = [str(each.parent) for each in path.parent.glob(f"*/{EXPERIMENT}")]
        if beside:
            raise unknown_name("run", name, beside)
    try:
        # Slow to import, and `transformers` is an optional dependency.
        return import_module("lengthwise.hf.loading")
    except ImportError:
        raise ModelError("models of transformers need that library; pip install 'lengthwise[hf]'") from None


def _own(name: str, tokenizer: str | None, device: str) -> LanguageModel:
    run = load_run(Path(name), device=device)
    task = run.experiment.task
    if not isinstance(task, Text):
        raise ModelError(f"{name} was trained on {task.name}, which is no text; give a run of the task text")
    if tokenizer is not None:
        raise ModelError(f"{name} has a tokenizer of its own; leave --tokenizer out")
    trained = run.facts["trained_distance"] if run.decoder.reads_ids else None
    model = DecoderModel(run.decoder, name, run.experiment.encoding.num_position_ids, trained)
    return LanguageModel(model=model, codec=PieceCodec(task.tokenizer), task=task)
