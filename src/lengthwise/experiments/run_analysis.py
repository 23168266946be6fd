"""Certify and diagnose a run: predict its accuracy at longer lengths, and explain why it fails at one."""

import copy
from collections.abc import Sequence

from lengthwise.core.type_checks import check_arguments
from lengthwise.evaluation.diagnosis.diagnosis import EXAMPLES, Diagnosis, check_diagnosis, diagnose
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.forecast.certificate import RunCertificate, certify_decoder
from lengthwise.evaluation.forecast.probed_model import Subject
from lengthwise.experiments.run import Run
from lengthwise.experiments.validation import check_evaluation


@check_arguments
def certify_run(run: Run, lengths: Sequence[int], *, seed: int = 0) -> RunCertificate:
    """Check the theory's assumptions on a run and predict its accuracy at ``lengths``; see ``RunCertificate``.

    ``SettingError`` for a task without support, and for a decoder whose attention does not allow subsampling.
    """
    return certify_decoder(probed_model_of(run, seed=seed), lengths)


@check_arguments
def diagnose_run(run: Run, length: int, *, num_examples: int = EXAMPLES, seed: int = 0) -> Diagnosis:
    """Return why a run fails at a length, on the examples that ``evaluate`` draws with the same seed.

    ``SettingError`` for a length within training, and for a task graded by loss; see ``diagnose``.
    """
    experiment = run.experiment
    check_diagnosis(experiment.task, experiment.train_lengths[1], length, num_examples)
    check_evaluation(experiment, EvaluationSettings(lengths=(length,), num_examples=(num_examples,)))
    return diagnose(probed_model_of(run, seed=seed), length, num_examples=num_examples)


def probed_model_of(run: Run, *, seed: int) -> Subject:
    """Return the run's decoder on the CPU, ready for queries: the passes are many and small."""
    experiment = run.experiment
    first, last = run.facts["id_range"]
    on_cpu = run.decoder.embedding.device.type == "cpu"
    return Subject(
        decoder=run.decoder if on_cpu else copy.deepcopy(run.decoder).cpu(),
        task=experiment.task,
        scheme=experiment.scheme,
        encoding=experiment.encoding,
        trained=experiment.train_lengths,
        id_range=(first, last),
        trained_distance=run.facts["trained_distance"],
        fitted=run.facts["fitted"],
        seed=seed,
    )
