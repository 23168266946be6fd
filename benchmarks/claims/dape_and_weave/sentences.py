"""Sentences about the claim with numbers of its result rows, for benchmarks/claim_sentences.py."""

from collections.abc import Iterator

from claim_queries import THRESHOLD, listed, rows_in, runs, span, two_digits, up, word

from lengthwise.evaluation.result_rows import longest_exact_length


def sentences() -> Iterator[str]:
    """Yield the sentences of README.md that have numbers of rows."""
    rows = runs("dape_and_weave")
    yield f"**Claim ({word(rows.num_seeds)} seeds).**"
    copy = rows.of("copy, DAPE V2")
    twice = 2 * copy.trained
    yield f"""
    Trained on up to {copy.trained} symbols, DAPE V2 copies {twice} (2x) with exact match {span(copy.at(twice))}; its
    base KERPLE (log) has {span(rows.of("copy, KERPLE (log)").at(twice))}.
    """
    values = []
    measurements = rows_in("dape_and_weave", "measurements")
    for task in ("parity", "addition"):
        dape = rows.of(f"{task}, DAPE V2")
        following = dape.lengths[dape.lengths.index(dape.trained) + 1]
        weave = [tests for row in measurements if row["row"] == f"{task}, rotary" for tests in row["weave"].values()]
        values += [
            dape.best(following),
            *(each["exact_match"] for tests in weave for each in tests if each["length"] == following),
        ]
    yield f"""
    On parity and addition, DAPE V2 and weave have at most {up(max(values))} at the next tested length.
    """
    farther = {name: listed(map(two_digits, rows.of(f"copy, {name}").at(30))) for name in ("DAPE V2", "KERPLE (log)")}
    yield f"at 3x DAPE V2 has {farther['DAPE V2']}, and KERPLE {farther['KERPLE (log)']}."
    six = {name: rows.of(f"parity, {name}") for name in ("DAPE V2", "KERPLE (log)", "rotary")}
    yield f"""
    At {6} bits, DAPE V2 has {span(six["DAPE V2"].at(6))}, KERPLE {span(six["KERPLE (log)"].at(6))} and rotary
    {six["rotary"].best(6):g}. At {8} bits, all have at most {up(max(each.best(8) for each in six.values()))}.
    """
    sums = rows.of("addition, rotary", "addition, KERPLE (log)", "addition, DAPE V2")
    yield f"All encodings fit {sums.trained} digits in all seeds and have at most {up(sums.best(3), 3)} on {3}."
    multiples = {name: rows.of(f"copy, {name}").multiples() for name in ("DAPE V2", "KERPLE (log)")}
    (kerple,) = set(multiples["KERPLE (log)"])
    yield f"on copying**: {listed(f'{each:g}x' for each in multiples['DAPE V2'])} instead of {kerple:g}x in all seeds."


def overview() -> Iterator[str]:
    """Yield the sentences about this claim in benchmarks/README.md."""
    dape = runs("dape_and_weave").of(*(f"{task}, DAPE V2" for task in ("copy", "parity", "addition")))
    weave = [
        longest_exact_length(tests, THRESHOLD) / measurement["trained_on"]
        for measurement in rows_in("dape_and_weave", "measurements")
        for tests in measurement.get("weave", {}).values()
    ]
    yield f"""
    On copying, parity and addition, DAPE V2 and weave reach at most {max(*dape.multiples(), *weave):g} times.
    """
