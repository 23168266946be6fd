"""Search of the learning rate and the steps of NoPE in English text, on tuning seeds (README.md).

Usage: lengthwise sweep benchmarks/claims/background/sweep.py --out runs/background-sweep
"""

from dataclasses import replace

from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.reproduction import load_claim

TESTS = EvaluationSettings(lengths=(50, 100, 200), num_examples=(512, 512, 512), variants=("flagged-3",))
BASE = replace(load_claim("background").experiments()["NoPE, English text"], evaluation=TESTS)
SETTINGS = {(rate, 2500) for rate in (0.001, 0.002, 0.004)} | {(0.002, 5000)}
EXPERIMENTS = {
    f"learning rate {rate:g}, {steps} steps": replace(
        BASE, training=replace(BASE.training, learning_rate=rate, steps=steps)
    )
    for rate, steps in sorted(SETTINGS)
}
SEEDS = (0, 1, 2)
