"""Predict the share of right answers of a run at longer lengths from short sequences, then measure it.

Both runs fit their training lengths. The one without gaps between IDs fails at longer lengths.
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
recipe = replace(lw.experiment("parity", "predicted"), seed=options.seed)

# Gaps between the IDs of short sequences train the IDs of long ones.
for max_gaps in (recipe.scheme.max_gaps, 0):
    experiment = replace(recipe, scheme=replace(recipe.scheme, max_gaps=max_gaps))
    run = lw.train(lw.quick_version(experiment) if options.quick else experiment, f"runs/forecast-{max_gaps}-gaps")
    certificate = lw.certify_run(run, lengths)
    settings = lw.EvaluationSettings(lengths=lengths, num_examples=(64,))
    measured = {row["length"]: row for row in lw.evaluate(run, settings)}
    print(f"\nUp to {max_gaps} gaps between IDs, trained on up to {run.experiment.train_lengths[1]} bits:")
    if certificate.refusal is not None:
        print(f"  no prediction, because {certificate.refusal}")
    for length, reason in certificate.abstentions.items():
        print(f"  {length} bits: no prediction, because {reason}")
    for each in certificate.forecasts:
        right = measured[each.length]["token_accuracy"]
        print(f"  {each.length} bits: {each.low:.2f} to {each.high:.2f} of the answers right; measured {right:.3f}")
