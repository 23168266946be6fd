"""Sentences about the claim with numbers of its result rows, for benchmarks/claim_sentences.py."""

from collections.abc import Iterator

from claim_queries import listed, rows_in, runs, span, two_digits, word


def sentences() -> Iterator[str]:
    """Yield the sentences of README.md that have numbers of rows."""
    measurements = rows_in("diagnosis", "measurements")
    dilution, distances = "attention diluted by more tokens", "IDs or distances that training did not show"
    without_ids = [
        row for row in measurements if row["row"] in ("recall, NoPE", "sparse parity, undiluted") and row["repaired"]
    ]
    rotary = [row for row in measurements if row["row"] in ("recall, rotary", "copy, rotary")]
    fewer, trained = ([row["repaired"][cause] for row in without_ids] for cause in (dilution, distances))
    yield f"""
    In the {word(len(without_ids))} failing runs, {span(fewer)} of the first errors are right with fewer tokens, and
    {word(round(max(trained)))} with the IDs of training.
    """
    by_ids = [row["repaired"][distances] for row in rotary]
    yield f"{span(by_ids)} of the first errors are right with the IDs of training."
    fitted = runs("diagnosis").of("copy, rotary").at(20)
    steps = runs("diagnosis").of("copy, rotary").rows[0]["steps"]
    yield f"""
    Copy does not fully fit {20} symbols ({listed(map(two_digits, fitted))} after {steps:,} steps), but its failure at
    {next(row["length"] for row in measurements if row["row"] == "copy, rotary")} is still one of IDs.
    """


def overview() -> Iterator[str]:
    """Yield the sentences about this claim in benchmarks/README.md."""
    yield f"""
    | diagnosis of {word(len({row["row"] for row in runs("diagnosis").rows}))} runs that fail for known reasons |
    """
