"""Count the errors in products by three digits.

Usage: python benchmarks/claims/arithmetic/product_rows.py RUN [LENGTH]

The second partial product can contain a sum of 90 or more. Products by two digits never contain such a sum. The script
counts the errors of a run in 512 products, with and without such a sum.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from lengthwise.evaluation.exact_match import iter_examples
from lengthwise.evaluation.grading import first_errors, grade
from lengthwise.experiments.run import load_run
from lengthwise.tasks import Multiplication


def main() -> None:
    """Print the counts of both groups."""
    torch.set_num_threads(1)
    run, length = load_run(Path(sys.argv[1])), int(sys.argv[2]) if len(sys.argv) > 2 else 40
    task = run.experiment.task
    if not isinstance(task, Multiplication):
        sys.exit(f"{sys.argv[1]} is a run of {task.name}; use a run of multiplication")
    task, symbols = replace(task, digits=3), task.vocabulary
    large_sums = {symbols.index(f"{total % 10}c{total // 10}") for total in range(90, 100)}
    counts, errors = {True: 0, False: 0}, {True: 0, False: 0}
    for _, batch in iter_examples(task, run.experiment.scheme, length, 512, 77):
        failed = {
            example
            for example, *_ in first_errors(grade(run.decoder, batch, end=symbols.index("end"), decode="forced"))
        }
        for number, tokens in enumerate(batch.tokens.tolist()):
            starts = [index for index, token in enumerate(tokens) if token == symbols.index(">")]
            has_large_sum = not large_sums.isdisjoint(tokens[starts[1] : starts[2]])
            counts[has_large_sum] += 1
            errors[has_large_sum] += number in failed
    print(f"with a sum of 90 or more in the second partial product: {errors[True]} errors in {counts[True]} products")
    print(f"without: {errors[False]} errors in {counts[False]} products")


if __name__ == "__main__":
    main()
