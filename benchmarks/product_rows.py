"""Where products by three digits go wrong: ``python benchmarks/product_rows.py RUN [LENGTH]``.

A third row can read a sum of 90 or more in the second one; no row of a product by two digits reads such a sum. Counts
how many of 512 products hold one, and how many of these, and of the others, a run gets wrong.
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
    """Print both counts."""
    torch.set_num_threads(1)
    run, length = load_run(Path(sys.argv[1])), int(sys.argv[2]) if len(sys.argv) > 2 else 40
    task = run.experiment.task
    if not isinstance(task, Multiplication):
        sys.exit(f"{sys.argv[1]} is a run of {task.name}; give one of multiplication")
    task, symbols = replace(task, digits=3), task.vocabulary
    large = {symbols.index(f"{total % 10}c{total // 10}") for total in range(90, 100)}
    shown, wrong = {True: 0, False: 0}, {True: 0, False: 0}
    for _, batch in iter_examples(task, run.experiment.scheme, length, 512, 77):
        failed = {row for row, *_ in first_errors(grade(run.decoder, batch, end=symbols.index("end"), decode="forced"))}
        for number, tokens in enumerate(batch.tokens.tolist()):
            starts = [place for place, token in enumerate(tokens) if token == symbols.index(">")]
            holds = not large.isdisjoint(tokens[starts[1] : starts[2]])
            shown[holds] += 1
            wrong[holds] += number in failed
    print(f"a sum of 90 or more in the second row: {wrong[True]} of {shown[True]} wrong")
    print(f"none there: {wrong[False]} of {shown[False]} wrong")


if __name__ == "__main__":
    main()
