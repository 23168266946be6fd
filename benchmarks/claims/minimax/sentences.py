"""Sentences about the claim with numbers of its result rows, for benchmarks/claim_sentences.py."""

from collections.abc import Iterator

from claim_queries import rows_in, runs, span, up, word

from lengthwise.experiments.reproduction import load_claim


def sentences() -> Iterator[str]:
    """Yield the sentences of README.md that have numbers of rows."""
    rows = runs("minimax")
    strong = rows.of("copy, ALiBi, tilt 1000")
    yield f"is not better than training on the average, in {word(strong.num_seeds)} seeds each."
    long = rows.of("copy, ALiBi, 4,500 steps, tilt 1000")
    yield f"""
    With ALiBi and {strong.rows[0]["steps"]:,} steps, a mild tilt reaches about as far (geometric mean of the ratio
    {minimax_ratio("copy, ALiBi, tilt 10")}), and a strong one fits in {strong.num_fit} of {strong.num_seeds} seeds.
    With {long.rows[0]["steps"]:,} steps the strong tilt fits in {long.num_fit} of {long.num_seeds} and reaches
    {minimax_ratio("copy, ALiBi, 4,500 steps, tilt 1000")} times as far.
    """
    ppc = rows.of(
        *(
            f"{task}, PPC, tilt {tilt}"
            for task, tilt in (("copy", 0), ("copy", 10), ("copy", 1000), ("parity", 0), ("parity", 1000))
        )
    )
    yield f"""
    PPC reaches the longest test, {min(ppc.multiples()):g} times the training length, with every tilt,
    """
    ratios: dict[bool, list[float]] = {}
    for measurement in rows_in("minimax", "measurements"):
        if measurement["tilt"] == 0:
            ratios.setdefault("4,500 steps" in measurement["row"], []).append(
                measurement["worst_loss"] / measurement["mean_loss"]
            )
    yield f"""
    There the worst length has up to {max(ratios[True]):.1f} times the mean loss over lengths (tilt 0), nearly L = 10
    times. In the runs of {strong.rows[0]["steps"]:,} steps it has at most {up(max(ratios[False]), 1)} times.
    """
    average = [rows.of(f"copy, ALiBi{steps}, tilt 0") for steps in (", 4,500 steps", "")]
    longest_exact = [span(each.longest_exact(), "d") for each in average]
    yield f"""
    with tilt 0, ALiBi reaches {longest_exact[0]} after {average[0].rows[0]["steps"]:,} steps and {longest_exact[1]}
    after {average[1].rows[0]["steps"]:,}
    """


def overview() -> Iterator[str]:
    """Yield the sentences about this claim in benchmarks/README.md."""
    mild, strong = minimax_ratio("copy, ALiBi, tilt 10"), minimax_ratio("copy, ALiBi, 4,500 steps, tilt 1000")
    yield f"""
    Not on copying, in {word(3)} seeds each: with ALiBi, a mild tilt changes the reach by a factor of {mild}, and a
    strong one with {word(4500 // 1500)} times the steps by {strong}.
    """


def minimax_ratio(label: str) -> str:
    """Return the ratio of the reach of a row to that of the average over lengths, with its interval."""
    measurements = rows_in("minimax", "measurements")
    (_, _, body), *_ = load_claim("minimax").tables(runs("minimax").rows, measurements)
    (ratio,) = (cells[2] for cells in body if cells[0] == label)
    return ratio
