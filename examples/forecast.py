"""Predict the accuracy of a run at longer lengths from short sequences, then measure it.

Run `python examples/forecast.py`; `--quick` checks in seconds that it works, without good results.
"""

import argparse
from dataclasses import replace

import lengthwise as lw

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="train for a few steps only")
parser.add_argument("--seed", type=int, default=0, help="seed of the weights and the examples")
options = parser.parse_args()
lengths = (8, 16) if options.quick else (40, 80, 160)

for scheme in ("predicted", "sequential"):
    experiment = replace(lw.experiment_for("parity", scheme), seed=options.seed)
    run = lw.train(lw.quick(experiment) if options.quick else experiment, f"runs/forecast-{scheme}")
    certificate = lw.certify_run(run, lengths)
    settings = lw.EvaluationSettings(lengths=lengths, num_examples=(64,))
    measured = {row["length"]: row for row in lw.evaluate(run, settings)}
    print(f"\nScheme {scheme}, trained on up to {run.experiment.train_lengths[1]} bits:")
    if certificate.refusal is not None:
        print(f"  no prediction, because {certificate.refusal}")
    for length, reason in certificate.abstentions.items():
        print(f"  {length} bits: no prediction, because {reason}")
    for each in certificate.forecasts:
        exact = measured[each.length]["exact_match"]
        print(f"  {each.length} bits: predicted {each.exact_low:.2f} to {each.exact_high:.2f}, measured {exact:.2f}")
