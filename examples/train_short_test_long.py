"""Train on short strings and test on long ones: PPC and sequential positions learn to copy.

Both models use rotary encoding and copy strings of up to 10 symbols. Only the position IDs of one model are coupled.
Run `python examples/train_short_test_long.py`; `--quick` checks in seconds that it works, without good results.
"""

import argparse
from dataclasses import replace

import lengthwise as lw


def build_experiments(seed: int, quick: bool) -> dict[str, lw.Experiment]:
    """Return one experiment per kind of position IDs."""
    evaluation = lw.EvaluationSettings(lengths=(10, 20, 100), num_examples=(128, 128, 32))
    ppc = replace(lw.recipe("copy"), training=replace(lw.recipe("copy").training, steps=600))
    plain = lw.experiment("copy", "sequential", "rotary", train_lengths=(1, 10))
    experiments = {"coupled IDs (PPC)": ppc, "sequential IDs": plain}
    return {
        label: lw.quick_version(each)
        if quick
        else replace(each, train_lengths=(1, 10), evaluation=evaluation, seed=seed)
        for label, each in experiments.items()
    }


def main() -> None:
    """Train both models and print their share of exact copies at each length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="train for a few steps only")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and the examples")
    parser.add_argument("--out", default="runs/train_short_test_long", help="folder for the runs")
    options = parser.parse_args()
    experiments = build_experiments(options.seed, options.quick)
    comparison = lw.compare(experiments, options.out, workers=1)
    for label, experiment in experiments.items():
        longest = experiment.train_lengths[1]
        print(f"\n{label}, trained on up to {longest} symbols:")
        for row in comparison.rows:
            if row["row"] == label:
                print(f"  {row['length']:>5} symbols: {row['exact_match']:.0%} of the copies are exact")
    print(f"\nEvery row, with its confidence interval, is in {comparison.folder}/results.jsonl.")


if __name__ == "__main__":
    main()
