"""Program that runs the test suites of `transformers` on one kind of model, and prints the outcome of each test.

``python -m tests.support.transformers_suites FOLDER KIND`` reads the suites in the folder: `ModelTesterMixin` and
`ConfigTester` of the source distribution. They change global settings, so they run in their own process.
"""

import copy
import importlib
import json
import os
import sys
import unittest
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tests.support.causal_models import CONFIGS
from tests.support.small_runs import small_experiment
from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from lengthwise.hf.lengthwise_model import LengthwiseForCausalLM, build_config
from lengthwise.hf.predictive_model import PredictivePositionModel
from lengthwise.positions import PositionScheme, Predicted, Sequential
from lengthwise.tasks import Sort

BATCH_SIZE, SEQ, NUM_LAYERS = 3, 7, 2
# Package name of the folder. Its original name, ``tests``, would hide our tests.
PACKAGE = "transformers_suites"


def decoder_config(scheme: PositionScheme) -> PreTrainedConfig:
    """Return the configuration of an exported decoder that counts prompt IDs from 0."""
    experiment = small_experiment(Sort(), scheme)
    settings = replace(experiment.decoder, num_layers=NUM_LAYERS)
    config = build_config(replace(experiment, decoder=settings), {})
    config.count_prompt_from = 0
    return config


def wrapped_config(architecture: str, length_scaling: str) -> PreTrainedConfig:
    """Return the configuration of a wrapped model with all parts of PPC that counts prompt IDs from 0."""
    text_config = CONFIGS[architecture]()
    sizes = {"num_hidden_layers": NUM_LAYERS, "layer_types": None, "pad_token_id": 0}
    text_config = type(text_config)(**text_config.to_dict() | sizes)
    model = AutoModelForCausalLM.from_config(text_config)
    options = {"segments": True, "length_scaling": length_scaling, "count_prompt_from": 0}
    config = PredictivePositionModel.wrap(model, **options).config
    # A configuration without an attention implementation, as in a file.
    return type(config)(**config.to_dict())


KINDS: dict[str, Callable[[], PreTrainedConfig]] = {
    "decoder": partial(decoder_config, Sequential()),
    "decoder_with_head": partial(decoder_config, Predicted(num_position_ids=48)),
    **{
        f"{architecture}{suffix}": partial(wrapped_config, architecture, scaling)
        for architecture in ("llama", "gpt_neox", "qwen3")
        for suffix, scaling in (("", "none"), ("_log", "log"))
    },
}


@cache
def saved_config(kind: str) -> PreTrainedConfig:
    """Return the configuration of a kind; building it takes longer than most tests."""
    return KINDS[kind]()


class ModelTester:
    """Configuration and inputs of a small model, under the names that the suites read."""

    batch_size, seq_length, num_hidden_layers, is_training = BATCH_SIZE, SEQ, NUM_LAYERS, True

    def __init__(self, kind: str) -> None:
        self.kind, config = kind, saved_config(kind)
        self.hidden_size, self.num_attention_heads = config.hidden_size, config.num_attention_heads

    def get_config(self) -> PreTrainedConfig:
        """Return a configuration that a test may change."""
        return copy.deepcopy(saved_config(self.kind))

    def prepare_config_and_inputs_for_common(self) -> tuple[PreTrainedConfig, dict[str, torch.Tensor]]:
        """Return a configuration, and random tokens with padding on the right, as the testers of `transformers` do."""
        config, generator = self.get_config(), torch.Generator().manual_seed(0)
        tokens = torch.randint(config.get_text_config().vocab_size, (BATCH_SIZE, SEQ), generator=generator)
        return config, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens).tril()}


def import_suites(folder: Path) -> tuple[ModuleType, ModuleType]:
    """Import the modules with `ModelTesterMixin` and `ConfigTester`.

    The source distribution lacks the subfolders of ``tests``, so their suites are empty classes here.
    """
    package = ModuleType(PACKAGE)
    package.__path__ = [str(folder)]
    sys.modules[PACKAGE] = package
    settings = {"return_dict": False, "output_hidden_states": True, "dtype": "float16", "problem_type": "regression"}
    replacements: dict[str, dict[str, Any]] = {
        "exporters.test_export": {"ExportTesterMixin": type("ExportTesterMixin", (), {})},
        "generation.test_utils": {"GenerationTesterMixin": type("GenerationTesterMixin", (), {})},
        "utils.test_configuration_utils": {"config_common_kwargs": settings},
    }
    for path, content in replacements.items():
        for name in (path.partition(".")[0], path):
            sys.modules[f"{PACKAGE}.{name}"] = ModuleType(f"{PACKAGE}.{name}")
        vars(sys.modules[f"{PACKAGE}.{path}"]).update(content)
    modeling, configuration = ("test_modeling_common", "test_configuration_common")
    return importlib.import_module(f"{PACKAGE}.{modeling}"), importlib.import_module(f"{PACKAGE}.{configuration}")


def build_suite(kind: str, folder: Path) -> type[unittest.TestCase]:
    """Return the test case of one kind of model."""
    modeling, configuration = import_suites(folder)
    is_decoder = kind.startswith("decoder")
    model_class: Any = LengthwiseForCausalLM if is_decoder else PredictivePositionModel
    # Without this entry, the suites would not test the loss.
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_class.config_class.model_type] = model_class.__name__

    class Suite(modeling.ModelTesterMixin, unittest.TestCase):  # type: ignore[name-defined, misc]
        all_model_classes = (model_class,)
        _is_composite = not is_decoder
        # Decoders and scaled attention compute no attention weights.
        has_attentions = not is_decoder and not kind.endswith("_log")
        # Run a test that the suite limits to new models, which it recognizes by the year in their files.
        test_can_init_all_missing_weights_before_2023 = True

        def setUp(self) -> None:
            torch.manual_seed(0)
            self.model_tester = ModelTester(kind)

        def _prepare_for_class(self, inputs_dict: Any, model_class: Any, return_labels: bool = False) -> Any:
            inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels)
            if return_labels:
                inputs["position_ids"] = torch.arange(SEQ).expand(BATCH_SIZE, -1)
                if self.model_tester.get_config().predicts_ids:
                    inputs["position_labels"] = inputs["position_ids"]
            return inputs

        def test_config(self) -> None:
            config = self.model_tester.get_config()
            names = (
                ("decoder_settings", "symbols", "vocab_size")
                if is_decoder
                else ("head", "num_position_ids", "segments")
            )
            settings = {name: config.to_dict()[name] for name in names}
            configuration.ConfigTester(self, config_class=type(config), **settings).run_common_tests()

    return Suite


def run_suite(kind: str, folder: Path) -> dict[str, dict[str, str]]:
    """Run all tests; return the failed tests with the last lines of their errors, the skipped, and the passed tests."""
    # Some tests start a process per test, with a command of pytest, unless this variable is set.
    os.environ["_INSIDE_SUB_PROCESS"] = "1"
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(build_suite(kind, folder))
    names = [test._testMethodName for test in tests]
    result = unittest.TestResult()
    tests.run(result)

    def by_name(outcomes: list[Any]) -> dict[str, str]:
        return {getattr(test, "test_case", test)._testMethodName: str(text).strip() for test, text in outcomes}

    failed, skipped = by_name(result.failures + result.errors), by_name(result.skipped)
    return {
        "failed": failed,
        "skipped": skipped,
        "passed": {name: "" for name in names if name not in failed and name not in skipped},
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.stdout.write(json.dumps(run_suite(sys.argv[2], Path(sys.argv[1]))))
