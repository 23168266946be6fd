"""Train transformers on short sequences, test them on long sequences, and find out why they fail or succeed.

This module exports the public API. Tasks, schemes, encodings and measures are in subpackages, for example
``lengthwise.tasks.Parity`` and ``lengthwise.encodings.Rotary``. Models for `transformers` are in ``lengthwise.hf``.
"""

from lengthwise.core.errors import LengthwiseError, UntrainedDistanceWarning
from lengthwise.encodings import ENCODINGS, Encoding, EncodingSettings, EncodingSize
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.comparison import compare
from lengthwise.experiments.coupling_methods import find_coupling
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.generate_from_prompt import generate_from_prompt
from lengthwise.experiments.recipes import RECIPES, experiment_for, quick, recipe
from lengthwise.experiments.reproductions import reproduce
from lengthwise.experiments.run import Run, load_run, train
from lengthwise.experiments.run_analysis import certify_run, diagnose_run
from lengthwise.experiments.run_evaluation import evaluate
from lengthwise.experiments.show import show
from lengthwise.experiments.sweep import sweep
from lengthwise.hf.language_models import evaluate_language_model, load_language_model
from lengthwise.influence.measures import MEASURES
from lengthwise.influence.report.study_report import report_study
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.study import InfluenceStudy, measure_influence
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.model.position_heads import POSITION_HEADS
from lengthwise.positions import SCHEMES, Assignment, PositionScheme, score_all_answers
from lengthwise.tasks import TASKS, Task
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.text.prepare import prepare_corpus
from lengthwise.theory.task_certificate import certify_task
from lengthwise.training.training_settings import TrainingSettings

__all__ = [
    "ENCODINGS",
    "MEASURES",
    "POSITION_HEADS",
    "RECIPES",
    "SCHEMES",
    "TASKS",
    "Assignment",
    "DecoderSettings",
    "Encoding",
    "EncodingSettings",
    "EncodingSize",
    "EvaluationSettings",
    "Examples",
    "Experiment",
    "InfluenceSettings",
    "InfluenceStudy",
    "LengthwiseError",
    "PositionScheme",
    "Run",
    "Task",
    "TrainingSettings",
    "UntrainedDistanceWarning",
    "certify_run",
    "certify_task",
    "compare",
    "diagnose_run",
    "evaluate",
    "evaluate_language_model",
    "experiment_for",
    "find_coupling",
    "generate_from_prompt",
    "load_language_model",
    "load_run",
    "measure_influence",
    "prepare_corpus",
    "quick",
    "recipe",
    "report_study",
    "reproduce",
    "score_all_answers",
    "show",
    "sweep",
    "train",
]


def __dir__() -> list[str]:
    return sorted(__all__)
