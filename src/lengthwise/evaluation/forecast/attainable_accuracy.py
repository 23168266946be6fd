"""The accuracy that no predictor exceeds, where the law of a task is known."""

from lengthwise.core.intervals import wilson_interval
from lengthwise.evaluation.forecast.sparse_queries import Questions
from lengthwise.tasks import Planted, Task
from lengthwise.theory.risk.bayes import BayesPredictor

# Two samples of a share differ by at most so many standard deviations of one in 95% of cases.
APART = 2.77


def knowable_accuracy(task: Task, questions: Questions) -> float:
    """Return the highest accuracy that as many other questions may show of the best predictor; 1 for an unknown law.

    The best predictor of a planted law answers with the most probable label given the whole prompt. A class derived
    from ``Planted`` may draw otherwise, and sets without a span are too many to sum over: 1 for both.
    """
    if type(task) is not Planted or task.placement.span is None:
        return 1.0
    tokens = questions.batch.tokens[:, : questions.batch.length].numpy()
    best = BayesPredictor(task).predict(tokens).max(axis=1)
    _, high = wilson_interval(float(best.sum()), len(best), APART)
    return high
