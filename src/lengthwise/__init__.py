"""Length generalization in transformers: train short, test long, and see why."""

from lengthwise.answer import Answer, generate_from_prompt
from lengthwise.auto_classes import register_when_imported
from lengthwise.batch import Sampler
from lengthwise.claims import CLAIMS, Claim, Reproduction, reproduce
from lengthwise.comparison import Comparison, compare
from lengthwise.context_loss import ContextLoss, loss_by_context
from lengthwise.decoder import Decoder
from lengthwise.decoder_settings import DecoderSettings
from lengthwise.diagnosis.diagnosis import Diagnosis, diagnose_run
from lengthwise.documents import Document, read_documents
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
from lengthwise.errors import LengthwiseError, SeenRowsWarning, UntrainedDistanceWarning
from lengthwise.evaluation import EvaluationSettings, LengthResult, evaluate_by_length
from lengthwise.example import Examples
from lengthwise.experiment import Experiment, build_decoder
from lengthwise.export import export_hf, import_hf
from lengthwise.forecast.certificate import RunCertificate
from lengthwise.generate import generate
from lengthwise.harness import export_to_harness
from lengthwise.influence import (
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
from lengthwise.influence.next_token_model import NextTokenModel
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.short_context import short_context_losses
from lengthwise.influence.targets import LONGPPL, Rule
from lengthwise.influence.text_codec import TextCodec, tokenized
from lengthwise.language_models import Asking, LanguageModel, evaluate_language_model, load_language_model
from lengthwise.position_heads import POSITION_HEADS
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
    scored_everywhere,
)
from lengthwise.preparation import prepare_corpus
from lengthwise.randomness import stream
from lengthwise.reasoning_rows import reasoning_rows, write_reasoning_rows
from lengthwise.recipes import COMPARISONS, RECIPES, experiment_for, quick, recipe
from lengthwise.run import Run, certify_run, evaluate, load_run, train
from lengthwise.study import InfluenceStudy, measure_influence, without_copies
from lengthwise.study_report import report_study
from lengthwise.tasks import (
    TASKS,
    Addition,
    Copy,
    IndexHints,
    MultiAddition,
    Multiplication,
    Parity,
    Planted,
    Recall,
    Reverse,
    Rows,
    Sort,
    SparseParity,
    Task,
    Text,
    VariableAssignment,
)
from lengthwise.text_form import TextExample, texts_of
from lengthwise.theory.certificate import LawCertificate, certify_law
from lengthwise.theory.structure import TaskCertificate, certify_task
from lengthwise.training import Trainer, TrainingSettings

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
    "Answer",
    "Asking",
    "Assignment",
    "AttentionWeight",
    "Claim",
    "Comparison",
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
    "Gradient",
    "Greedy",
    "HardALiBi",
    "IndexHints",
    "InfluenceMeasure",
    "InfluenceSettings",
    "InfluenceStudy",
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
    "RandomChoice",
    "RandomFloats",
    "RandomStart",
    "Randomized",
    "Recall",
    "Reproduction",
    "Reverse",
    "Rotary",
    "Rows",
    "Rule",
    "Run",
    "RunCertificate",
    "Sampler",
    "Screened",
    "SeenRowsWarning",
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
    "reasoning_rows",
    "recipe",
    "report_study",
    "reproduce",
    "scored_everywhere",
    "short_context_losses",
    "stream",
    "texts_of",
    "tokenized",
    "train",
    "without_copies",
    "write_reasoning_rows",
]

register_when_imported()
