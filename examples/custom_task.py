"""Define a task in one file: the running maximum of a list of digits, written step by step.

Each answer needs one digit and the previous answer. The coupling places both at ID distance 0 or 1.
Run `python examples/custom_task.py`; `--quick` checks in seconds that it works, without good results.
"""

import argparse
from dataclasses import dataclass, replace

import numpy as np

import lengthwise as lw


@dataclass(frozen=True)
class RunningMaximum(lw.Task):
    """Task that writes the largest digit so far: 3 1 7 = > 3 3 7 end."""

    name, version, separators = "running_maximum", 1, ("=", ">")
    vocabulary = (*map(str, range(10)), "=", ">", "end")

    def sample(self, *, length, size, rng):
        """Sample digits; small ones are more frequent, so that the maximum keeps changing."""
        return self.make_examples((10 * rng.random((size, length)) ** 3).astype(int))

    def example_from_prompt(self, prompt):
        """Return the example of a prompt such as 317."""
        if not prompt.isdecimal():
            raise lw.LengthwiseError(f"invalid prompt '{prompt}' for running_maximum; write digits such as 317")
        return self.make_examples(np.array([[int(digit) for digit in prompt]]))

    def make_examples(self, digits):
        """Lay out digits, separators and answers; the token before an answer has the ID of the digit that it needs."""
        size, length = digits.shape
        marks, ids = np.broadcast_to([10, 11, 12], (size, 3)), np.arange(1, length + 1)
        tokens = np.hstack([digits, marks[:, :2], np.maximum.accumulate(digits, axis=1), marks[:, 2:]])
        coupling = np.hstack([ids, length + 1, ids, length + 1, length + 2])
        return lw.Examples(
            tokens=tokens,
            prompt_length=np.full(size, length + 2),
            is_answer=np.broadcast_to(np.arange(tokens.shape[1]) >= length + 2, tokens.shape),
            coupling=np.broadcast_to(coupling, (1, *tokens.shape)),
        )


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="train for a few steps only")
parser.add_argument("--seed", type=int, default=0, help="seed of the weights and the examples")
parser.add_argument("--out", default="runs/custom_task", help="folder of the run")
options = parser.parse_args()
experiment = replace(lw.experiment(RunningMaximum(), "predicted"), seed=options.seed)
experiment = lw.quick_version(experiment) if options.quick else experiment
run = lw.train(experiment, options.out)
settings = lw.EvaluationSettings(lengths=(4, 8) if options.quick else (20, 40, 200), num_examples=(128,))
for row in lw.evaluate(run, settings):
    print(f"{row['length']:>4} digits: {row['exact_match']:.0%} of the answers are exact")
print("Answer to 31415926:", " ".join(lw.generate_from_prompt(run, "31415926").tokens))
