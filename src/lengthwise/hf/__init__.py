"""Integration with `transformers`: models, data collators, callbacks, and export of runs."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

# Public names and their modules. They are imported on first use, because some need more libraries than others.
MODULES = {
    "EvaluateByLength": "length_callback",
    "LanguageModel": "language_models",
    "LengthwiseConfig": "lengthwise_model",
    "LengthwiseForCausalLM": "lengthwise_model",
    "PositionCollator": "collators",
    "PredictivePositionConfig": "predictive_model",
    "PredictivePositionModel": "predictive_model",
    "PromptingConfig": "language_models",
    "export_hf": "export",
    "export_to_lm_eval": "export",
    "coupling_groups_from_spans": "collators",
    "import_hf": "export",
    "build_symbol_tokenizer": "tokenization",
    "to_dataset": "export",
}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"lengthwise.hf has no attribute {name}; known: {', '.join(MODULES)}")
    return getattr(import_module(f"lengthwise.hf.{MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *MODULES]


# The classes register their model types with the Auto classes. Without `transformers`, runs still load.
if find_spec("transformers") is not None:
    import_module("lengthwise.hf.lengthwise_model")
    import_module("lengthwise.hf.predictive_model")
