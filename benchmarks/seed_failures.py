"""Train recipes on many seeds, and count the seeds that do not fit or fail at longer lengths.

    python benchmarks/seed_failures.py parity --first-seed 90210 --seeds 24 --lengths 20,200 --num-examples 64,64

Every seed is trained in a temporary folder and evaluated at each length. Rows are appended to
``results/seed_failures.jsonl``, and finished seeds are not trained again. Without seeds (``--seeds 0``), the script
prints only the table of the page: seeds that are exact at a length, and the 95% Wilson interval of the share that is
not. Several processes can share the seeds: ``--part 0 --parts 2`` trains every second one.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lengthwise as lw
from lengthwise.core.confidence_intervals import wilson_interval
from lengthwise.core.provenance import collect_provenance
from lengthwise.evaluation.result_rows import FIT_THRESHOLD
from lengthwise.evaluation.tables_and_figures import format_num_examples
from lengthwise.experiments.run_folder import append_rows, read_rows

RESULTS = Path(__file__).parent / "results" / "seed_failures.jsonl"


def measure(recipe: str, seed: int, settings: lw.EvaluationSettings) -> list[dict[str, Any]]:
    """Train one seed of a recipe, and return its result rows."""
    with tempfile.TemporaryDirectory() as folder:
        run = lw.train(replace(lw.recipe(recipe), seed=seed), Path(folder) / "run", threads=1, report=None)
        assert run is not None
        return [{"row": recipe, **row} for row in lw.evaluate(run, settings)]


def table_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield one line of Markdown per recipe and length: seeds without an error, and the interval of the others."""
    yield "| recipe | length | examples | seeds that fit | seeds without an error | share of seeds with errors |"
    yield "|---|---|---|---|---|---|"
    for recipe, length in dict.fromkeys((row["row"], row["length"]) for row in rows):
        runs = [row for row in rows if (row["row"], row["length"]) == (recipe, length)]
        num_fits = sum(run["fitted"] >= FIT_THRESHOLD for run in runs)
        num_exact = sum(run["exact_match"] == 1 for run in runs)
        low, high = wilson_interval(len(runs) - num_exact, len(runs))
        interval = f"{1 - num_exact / len(runs):.2f} [{low:.2f}, {high:.2f}]"
        cells = (f"{num} of {len(runs)}" for num in (num_fits, num_exact))
        num_examples = format_num_examples(runs, length)
        yield f"| {recipe} | {length:,} | {num_examples} | {' | '.join(cells)} | {interval} |"


def main() -> None:
    """Train the seeds that have no rows yet, append their rows, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", help="Names of recipes.")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=0, help="Number of seeds per recipe.")
    parser.add_argument("--lengths", default="20,200", help="Test lengths, separated by commas.")
    parser.add_argument("--num-examples", default="64", help="Number of examples, for all lengths or each of them.")
    parser.add_argument("--part", type=int, default=0, help="Number of this process.")
    parser.add_argument("--parts", type=int, default=1, help="Number of processes that share the seeds.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    lengths, num_examples = (tuple(map(int, each.split(","))) for each in (options.lengths, options.num_examples))
    settings = lw.EvaluationSettings(lengths=lengths, num_examples=num_examples)
    for recipe in options.recipes:
        for seed in range(options.first_seed + options.part, options.first_seed + options.seeds, options.parts):
            if (recipe, seed) not in {(row["row"], row["seed"]) for row in read_rows(options.out)}:
                rows = measure(recipe, seed, settings)
                append_rows(options.out, [{**row, "provenance": collect_provenance()} for row in rows])
                print(
                    json.dumps({"seed": seed, **{str(row["length"]): row["exact_match"] for row in rows}}), flush=True
                )
    print(*table_lines(read_rows(options.out)), sep="\n")


if __name__ == "__main__":
    main()
