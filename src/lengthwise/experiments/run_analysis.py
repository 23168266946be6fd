"""Certificates and diagnoses of trained runs."""

import copy
from collections.abc import Callable, Sequence

from lengthwise.core.defaults import DIAGNOSIS_EXAMPLES
from lengthwise.core.type_checks import check_arguments
from lengthwise.evaluation.diagnosis.diagnosis import Diagnosis, check_diagnosis, diagnose
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.forecast.certificate import RunCertificate, certify_decoder
from lengthwise.evaluation.forecast.probed_model import ProbedModel
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.run import Run
from lengthwise.experiments.validation import check_evaluation
from lengthwise.positions import Discovered
from lengthwise.tasks import JSONLTask, Task
from lengthwise.tasks.coupling.pointers import FoundTask


@check_arguments
def certify_run(run: Run, lengths: Sequence[int], *, seed: int = 0) -> RunCertificate:
    """Check the assumptions of the theory on a run, and predict its accuracy at ``lengths``.

    Raises ``SettingError`` for a task whose examples have no support, or attention that does not allow subsampling.
    """
    return certify_decoder(probed_model_of(run, seed=seed), lengths)


@check_arguments
def diagnose_run(
    run: Run,
    length: int,
    *,
    num_examples: int = DIAGNOSIS_EXAMPLES,
    seed: int = 0,
    report: Callable[[str], None] = lambda stage: None,
) -> Diagnosis:
    """Find the causes of the failures of a run at ``length``, on the examples that ``evaluate`` uses with this seed.

    ``report`` receives the name of each stage, once per batch; its exceptions end the diagnosis.
    Raises ``SettingError`` for a length within the training lengths, and for a task graded by loss.
    """
    experiment = run.experiment
    check_diagnosis(experiment.task, experiment.train_lengths[1], length)
    check_evaluation(experiment, EvaluationSettings(lengths=(length,), num_examples=(num_examples,)))
    return diagnose(probed_model_of(run, seed=seed), length, num_examples=num_examples, report=report)


def task_with_support(experiment: Experiment) -> Task:
    """Return the task of an experiment; the examples of a task file get their support from a found coupling, if any.

    A found coupling names the prompt tokens that each answer needs and that no earlier answer needed. The tokens before
    them, and the last answers, are neighbors that every subsample keeps.
    """
    task, scheme = experiment.task, experiment.scheme
    if isinstance(task, JSONLTask) and isinstance(scheme, Discovered):
        return FoundTask(task=task, rule=scheme.pointer_rule, addresses=scheme.pointer_rule.addresses)
    return task


def probed_model_of(run: Run, *, seed: int) -> ProbedModel:
    """Return a `ProbedModel` of a run on the CPU, which is faster than a GPU for many small forward passes."""
    experiment = run.experiment
    smallest_id, largest_id = run.facts["id_range"]
    is_on_cpu = run.decoder.embedding.device.type == "cpu"
    return ProbedModel(
        decoder=run.decoder if is_on_cpu else copy.deepcopy(run.decoder).cpu(),
        task=task_with_support(experiment),
        scheme=experiment.scheme,
        encoding=experiment.encoding,
        train_lengths=experiment.train_lengths,
        id_range=(smallest_id, largest_id),
        trained_distance=run.facts["trained_distance"],
        fitted=run.facts["fitted"],
        seed=seed,
    )
