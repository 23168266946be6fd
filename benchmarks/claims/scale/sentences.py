"""Sentences about the claim with numbers of its result rows, for benchmarks/claim_sentences.py."""

from collections.abc import Iterator

from claim_queries import Runs, listed, runs, two_digits, word

from lengthwise.evaluation.result_rows import FIT_THRESHOLD, label_without_variant, longest_exact_length


def sentences() -> Iterator[str]:
    """Yield the sentences of README.md that have numbers of rows."""
    yield f"On these {word(runs('scale').num_seeds)} seeds, the task decides what limits the reach."
    small = rows_of_scale("parity, 1 x 64, 0.25")
    fastest = max(row["train_s"] for row in small.rows)
    yield f"""
    One layer of {64} dimensions is exact at {20_000 // small.trained:,} times the training length after
    {small.rows[0]["steps"]} steps ({fastest:.0f} s of training), on {word(small.exact(20_000))} of
    {word(small.num_seeds)} seeds.
    """
    variables = [label for label in runs("scale").labels if label.startswith("variables")]
    exact = [label for label in variables if runs("scale").of(label).worst(1600) == 1]
    assert exact == ["variables, 1 x 128, 1 of the steps"]
    yield f"""
    only one layer of {128} dimensions with all steps makes no error at {1600 // 16} times the length on both seeds
    ({runs("scale").of(exact[0]).num_examples(1600)} sequences each).
    """
    bits = runs("scale").of(task="sparse_parity")
    fitting = [each for each in bits.by_run() if each[0]["fitted"] >= FIT_THRESHOLD]
    # Training that ends at the same step is the same at two budgets.
    longest_exact = {
        (label_without_variant(each[0]).split(", ")[1], each[0]["seed"], each[0]["steps"]): longest_exact_length(
            each, 0.9
        )
        for each in fitting
    }
    yield f"""
    {len(fitting)} values of the table are of runs that fit {bits.trained} bits. They are {len(longest_exact)} runs,
    because training that ends early is the same for half and all of the steps;
    {sum(each >= 500 for each in longest_exact.values())} of these have {0.9} or more at {500}.
    """
    deep, wide = (rows_of_scale(f"variables, {size}").at(1600) for size in ("4 x 64, 1", "1 x 128, 0.25"))
    yield f"""
    Four layers of {64} take fewer operations and have {listed(map(two_digits, deep))}; the wide model has
    {listed(map(two_digits, wide))} after a quarter of
    """


def overview() -> Iterator[str]:
    """Yield the sentences about this claim in benchmarks/README.md."""
    yield scale_answer()


def scale_values(task: str, size: str, length: int, budget: str = "1") -> list[float]:
    """Return the exact match of a size of the claim ``scale`` by seed."""
    return rows_of_scale(f"{task}, {size}, {budget}").at(length)


def rows_of_scale(label: str) -> Runs:
    """Return the runs of a size and budget of the claim ``scale``."""
    return runs("scale").of(f"{label} of the steps")


def scale_answer() -> str:
    """Return the answer to the question about the size of the model."""
    rows = runs("scale")
    width = [two_digits(min(scale_values("variables", size, 1600))) for size in ("1 x 32", "1 x 64", "1 x 128")]
    depth = [two_digits(min(scale_values("variables", size, 1600))) for size in ("1 x 64", "2 x 64", "4 x 64")]
    fits = [rows.of(f"sparse parity, {size}, 0.25 of the steps").num_fit for size in ("1 x 64", "2 x 64", "4 x 64")]
    return f"""
    The task decides. Variable assignment at {1600 // 16} times needs width ({listed(width)} with {32}, {64} and {128},
    worst of {word(rows.num_seeds)} seeds) more than depth ({listed(depth)} with one, two and four layers of {64}).
    Sparse parity fits after a quarter of the steps in {listed(fits)} of {word(rows.num_seeds)} seeds with one, two and
    four layers. Parity with PPC needs neither.
    """
