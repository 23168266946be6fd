"""Length generalization in transformers: train short, test long, and see why."""

from lengthwise.core.errors import LengthwiseError, TrainingOverlapWarning, UntrainedDistanceWarning
from lengthwise.core.randomness import stream
from lengthwise.encodings import (
    DAPE,
    ENCODINGS,
    FIRE,
    NTK,
    ALiBi,
    DAPEv2,
    DynamicNTK,
    Encoding,
    EncodingSettings,
    EncodingSize,
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
from lengthwise.evaluation.diagnosis.diagnosis import Diagnosis
from lengthwise.evaluation.exact_match import EvaluationSettings, LengthResult, evaluate_by_length
from lengthwise.evaluation.forecast.certificate import RunCertificate
from lengthwise.evaluation.loss_by_context import ContextLoss, loss_by_context
from lengthwise.experiments.comparison import Comparison, compare
from lengthwise.experiments.experiment import Experiment, build_decoder
from lengthwise.experiments.generate_from_prompt import Completion, generate_from_prompt
from lengthwise.experiments.recipes import COMPARISONS, RECIPES, experiment_for, quick, recipe
from lengthwise.experiments.reproductions import CLAIMS, Claim, Reproduction, reproduce
from lengthwise.experiments.run import Run, evaluate, load_run, train
from lengthwise.experiments.run_analysis import certify_run, diagnose_run
from lengthwise.hf.export import export_hf, export_to_harness, import_hf
from lengthwise.hf.language_models import (
    LanguageModel,
    PromptingConfig,
    evaluate_language_model,
    load_language_model,
)
from lengthwise.influence.measures import (
    MEASURES,
    AddOneIn,
    AttentionWeight,
    Gradient,
    Greedy,
    InfluenceMeasure,
    LeaveOneOut,
    RandomChoice,
    Screened,
)
from lengthwise.influence.probing.next_token_model import NextTokenModel
from lengthwise.influence.report.study_report import report_study
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.short_context import short_context_losses
from lengthwise.influence.study import InfluenceStudy, measure_influence, without_copies
from lengthwise.influence.targets import LONGPPL, GapRule
from lengthwise.influence.text_codec import TextCodec, tokenize_documents
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.model.generate import generate
from lengthwise.model.position_heads import POSITION_HEADS
from lengthwise.positions import (
    SCHEMES,
    Abacus,
    Assignment,
    Coupled,
    MultiLevel,
    PositionScheme,
    Predicted,
    RandomFloats,
    Randomized,
    RandomStart,
    Sequential,
    Skipwise,
    score_all_answers,
)
from lengthwise.tasks import (
    TASKS,
    Addition,
    Copy,
    IndexHints,
    JSONLTask,
    MultiAddition,
    Multiplication,
    Parity,
    Planted,
    Recall,
    Reverse,
    Sort,
    SparseParity,
    Task,
    Text,
    VariableAssignment,
)
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.reasoning_gym import reasoning_records, write_reasoning_records
from lengthwise.tasks.text.documents import Document, read_documents
from lengthwise.tasks.text.prepare import prepare_corpus
from lengthwise.tasks.text_format import TextExample, format_examples
from lengthwise.theory.law_certificate import LawCertificate, certify_law
from lengthwise.theory.task_certificate import TaskCertificate, certify_task
from lengthwise.training.batch import Sampler
from lengthwise.training.trainer import Trainer, TrainingSettings

__all__ = [
    "CLAIMS",
    "COMPARISONS",
    "DAPE",
    "ENCODINGS",
    "FIRE",
    "LONGPPL",
    "MEASURES",
    "NTK",
    "POSITION_HEADS",
    "RECIPES",
    "SCHEMES",
    "TASKS",
    "ALiBi",
    "Abacus",
    "AddOneIn",
    "Addition",
    "Assignment",
    "AttentionWeight",
    "Claim",
    "Comparison",
    "Completion",
    "ContextLoss",
    "Copy",
    "Coupled",
    "DAPEv2",
    "Decoder",
    "DecoderSettings",
    "Diagnosis",
    "Document",
    "DynamicNTK",
    "Encoding",
    "EncodingSettings",
    "EncodingSize",
    "EvaluationSettings",
    "Examples",
    "Experiment",
    "GapRule",
    "Gradient",
    "Greedy",
    "HardALiBi",
    "IndexHints",
    "InfluenceMeasure",
    "InfluenceSettings",
    "InfluenceStudy",
    "JSONLTask",
    "KERPLELog",
    "KERPLEPower",
    "LanguageModel",
    "LawCertificate",
    "Learned",
    "LeaveOneOut",
    "LengthResult",
    "LengthwiseError",
    "LinearInterpolation",
    "MultiAddition",
    "MultiLevel",
    "Multiplication",
    "NextTokenModel",
    "NoPE",
    "Parity",
    "PartialRotary",
    "Planted",
    "PositionScheme",
    "Predicted",
    "PromptingConfig",
    "RandomChoice",
    "RandomFloats",
    "RandomStart",
    "Randomized",
    "Recall",
    "Reproduction",
    "Reverse",
    "Rotary",
    "Run",
    "RunCertificate",
    "Sampler",
    "Screened",
    "Sequential",
    "Sinusoidal",
    "Skipwise",
    "Sort",
    "SparseParity",
    "T5Bias",
    "Task",
    "TaskCertificate",
    "Text",
    "TextCodec",
    "TextExample",
    "Trainer",
    "TrainingOverlapWarning",
    "TrainingSettings",
    "UntrainedDistanceWarning",
    "VariableAssignment",
    "Weave",
    "YaRN",
    "build_decoder",
    "certify_law",
    "certify_run",
    "certify_task",
    "compare",
    "diagnose_run",
    "evaluate",
    "evaluate_by_length",
    "evaluate_language_model",
    "experiment_for",
    "export_hf",
    "export_to_harness",
    "format_examples",
    "generate",
    "generate_from_prompt",
    "import_hf",
    "load_language_model",
    "load_run",
    "loss_by_context",
    "measure_influence",
    "prepare_corpus",
    "quick",
    "read_documents",
    "reasoning_records",
    "recipe",
    "report_study",
    "reproduce",
    "score_all_answers",
    "short_context_losses",
    "stream",
    "tokenize_documents",
    "train",
    "without_copies",
    "write_reasoning_records",
]
