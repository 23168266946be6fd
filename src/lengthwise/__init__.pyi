from .core.errors import LengthwiseError, UntrainedDistanceWarning
from .doctor.examination import examine_model
from .doctor.settings import DoctorSettings
from .encodings import ENCODINGS, Encoding, EncodingSettings, EncodingSize
from .evaluation.exact_match import EvaluationSettings
from .experiments.coupling_methods import find_coupling
from .experiments.experiment import Experiment
from .experiments.recipes import RECIPES, experiment, quick_version, recipe
from .experiments.reproduction import reproduce
from .experiments.run import Run, load_run, train
from .experiments.run_evaluation import certify_run, diagnose_run, evaluate, generate_from_prompt
from .experiments.runner import compare, sweep
from .experiments.show import show
from .hf.language_models import evaluate_language_model, load_language_model
from .influence.measures import MEASURES
from .influence.report.study_report import report_study
from .influence.settings import InfluenceSettings
from .influence.study import InfluenceStudy, measure_influence
from .model.decoder_settings import DecoderSettings
from .model.position_heads import POSITION_HEADS
from .positions import SCHEMES, Assignment, PositionScheme, make_assignment
from .tasks import TASKS, Task
from .tasks.examples import Examples
from .tasks.text.corpus import prepare_corpus
from .theory.task_certificate import certify_task
from .training.training_settings import TrainingSettings

__version__: str

__all__ = [
    "ENCODINGS",
    "MEASURES",
    "POSITION_HEADS",
    "RECIPES",
    "SCHEMES",
    "TASKS",
    "Assignment",
    "DecoderSettings",
    "DoctorSettings",
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
    "examine_model",
    "experiment",
    "find_coupling",
    "generate_from_prompt",
    "load_language_model",
    "load_run",
    "make_assignment",
    "measure_influence",
    "prepare_corpus",
    "quick_version",
    "recipe",
    "report_study",
    "reproduce",
    "show",
    "sweep",
    "train",
]
