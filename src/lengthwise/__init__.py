"""Length generalization in transformers: train short, test long, and see why."""

from lengthwise.batch import Sampler
from lengthwise.comparison import Comparison, compare
from lengthwise.decoder import Decoder, DecoderSettings
from lengthwise.encodings import (
    DAPE,
    ENCODINGS,
    FIRE,
    NTK,
    ALiBi,
    DAPEv2,
    DynamicNTK,
    HardALiBi,
    KERPLELog,
    KERPLEPower,
    Learned,
    LinearInterpolation,
    NoPE,
    PartialRotary,
    Rotary,
    Sinusoidal,
    T5Bias,
    Weave,
    YaRN,
)
from lengthwise.errors import LengthwiseError
from lengthwise.evaluation import EvaluationSettings, LengthResult, evaluate_by_length
from lengthwise.example import Examples
from lengthwise.experiment import Experiment, build_decoder
from lengthwise.generate import generate
from lengthwise.position_heads import POSITION_HEADS
from lengthwise.positions import (
    SCHEMES,
    Abacus,
    Coupled,
    MultiLevel,
    Predicted,
    RandomFloats,
    Randomized,
    RandomStart,
    Sequential,
    Skipwise,
)
from lengthwise.randomness import stream
from lengthwise.recipes import COMPARISONS, RECIPES, experiment_for, quick, recipe
from lengthwise.run import Answer, Run, evaluate, generate_from_prompt, load_run, train
from lengthwise.tasks import TASKS, Addition, Copy, IndexHints, MultiAddition, Parity, Reverse
from lengthwise.training import Trainer, TrainingSettings

__all__ = [
    "COMPARISONS",
    "DAPE",
    "ENCODINGS",
    "FIRE",
    "NTK",
    "POSITION_HEADS",
    "RECIPES",
    "SCHEMES",
    "TASKS",
    "ALiBi",
    "Abacus",
    "Addition",
    "Answer",
    "Comparison",
    "Copy",
    "Coupled",
    "DAPEv2",
    "Decoder",
    "DecoderSettings",
    "DynamicNTK",
    "EvaluationSettings",
    "Examples",
    "Experiment",
    "HardALiBi",
    "IndexHints",
    "KERPLELog",
    "KERPLEPower",
    "Learned",
    "LengthResult",
    "LengthwiseError",
    "LinearInterpolation",
    "MultiAddition",
    "MultiLevel",
    "NoPE",
    "Parity",
    "PartialRotary",
    "Predicted",
    "RandomFloats",
    "RandomStart",
    "Randomized",
    "Reverse",
    "Rotary",
    "Run",
    "Sampler",
    "Sequential",
    "Sinusoidal",
    "Skipwise",
    "T5Bias",
    "Trainer",
    "TrainingSettings",
    "Weave",
    "YaRN",
    "build_decoder",
    "compare",
    "evaluate",
    "evaluate_by_length",
    "experiment_for",
    "generate",
    "generate_from_prompt",
    "load_run",
    "quick",
    "recipe",
    "stream",
    "train",
]
