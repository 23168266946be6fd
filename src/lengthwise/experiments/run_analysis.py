"""Certificates and diagnoses of trained runs."""

import copy
from collections.abc import Sequence

from lengthwise.core.defaults import DIAGNOSIS_EXAMPLES
from lengthwise.core.type_checks import check_arguments
from lengthwise.evaluation.diagnosis.diagnosis import Diagnosis, check_diagnosis, diagnose
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.forecast.certificate import RunCertificate, certify_decoder
from lengthwise.evaluation.forecast.probed_model import ProbedModel
from lengthwise.experiments.run import Run
from lengthwise.experiments.validation import check_evaluation


@check_arguments
def certify_run(run: Run, lengths: Sequence[int], *, seed: int = 0) -> RunCertificate:
    """Check the assumptions of the theory on a run, and predict its accuracy at ``lengths``.

    Raises ``SettingError`` for a task whose examples have no support, or attention that does not allow subsampling.
    """
    return certify_decoder(probed_model_of(run, seed=seed), lengths)


@check_arguments
def diagnose_run(run: Run, length: int, *, num_examples: int = DIAGNOSIS_EXAMPLES, seed: int = 0) -> Diagnosis:
    """Find the causes of the failures of a run at ``length``, on the examples that ``evaluate`` uses with this seed.

    Raises ``SettingError`` for a length within the training lengths, and for a task graded by loss.
    """
    experiment = run.experiment
    check_diagnosis(experiment.task, experiment.train_lengths[1], length)
    check_evaluation(experiment, EvaluationSettings(lengths=(length,), num_examples=(num_examples,)))
    return diagnose(probed_model_of(run, seed=seed), length, num_examples=num_examples)


def probed_model_of(run: Run, *, seed: int) -> ProbedModel:
    """Return a `ProbedModel` of a run on the CPU, which is faster than a GPU for many small forward passes."""
    experiment = run.experiment
    smallest_id, largest_id = run.facts["id_range"]
    is_on_cpu = run.decoder.embedding.device.type == "cpu"
    return ProbedModel(
        decoder=run.decoder if is_on_cpu else copy.deepcopy(run.decoder).cpu(),
        task=experiment.task,
        scheme=experiment.scheme,
        encoding=experiment.encoding,
        train_lengths=experiment.train_lengths,
        id_range=(smallest_id, largest_id),
        trained_distance=run.facts["trained_distance"],
        fitted=run.facts["fitted"],
        seed=seed,
    )
