"""Models of the `transformers` library; nothing else in this package imports it."""

from importlib import import_module
from typing import Any

# Public names, imported on first use: `transformers` takes seconds to import.
MODULES = {
    "EvaluateByLength": "length_callback",
    "LengthwiseConfig": "lengthwise_config",
    "LengthwiseForCausalLM": "lengthwise_model",
    "PositionCollator": "collators",
    "PredictivePositionConfig": "predictive_config",
    "PredictivePositionModel": "predictive_model",
    "export_hf": "export",
    "groups_of_spans": "dataset_columns",
    "import_hf": "export",
    "symbol_tokenizer": "tokenization",
    "to_dataset": "task_dataset",
}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"lengthwise.hf has no {name}; it has {', '.join(MODULES)}")
    return getattr(import_module(f"lengthwise.hf.{MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *MODULES]
