"""Sentences about the claim with numbers of its result rows, for benchmarks/claim_sentences.py."""

from collections.abc import Iterator

from claim_queries import listed, runs, two_digits, word


def sentences() -> Iterator[str]:
    """Yield the sentences of README.md that have numbers of rows."""
    rows = runs("rivals")
    yield f"**Claim ({word(rows.num_seeds)} seeds).**"
    ppc = rows.of("copy, PPC")
    fitting = {label.removeprefix("copy, "): min(rows.of(label).multiples()) for label in fitting_rivals()}
    farther = [name for name, multiple in fitting.items() if multiple > 1]
    yield f"""
    Trained on copying up to {ppc.trained} symbols, PPC copies {ppc.lengths[-1]:,} symbols ({min(ppc.multiples()):g}
    times).
    """
    yield f"""
    Of the {word(len(fitting))} rivals that fit in two or three seeds, {listed(farther)} reach
    {min(fitting[name] for name in farther):g} times in the worst seed, and
    {listed([name for name in fitting if name not in farther])} {min(fitting.values()):g} time.
    """
    at_fifteen = {name: listed(map(two_digits, rows.of(f"copy, {name}").at(15))) for name in ("looped NoPE", "NoPE")}
    yield f"""
    at {15} symbols, the three seeds have {at_fifteen["looped NoPE"]} with loops, and {at_fifteen["NoPE"]} without
    """


def overview() -> Iterator[str]:
    """Yield the sentences about this claim in benchmarks/README.md."""
    rivals, fitting = runs("rivals"), fitting_rivals()
    farthest = max(max(rivals.of(label).multiples()) for label in fitting)
    yield f"""
    On copying, PPC reaches {min(rivals.of("copy, PPC").multiples()):g} times; the best seed of the
    {word(len(fitting))} rivals that fit in most seeds reaches {farthest:g} times
    """


def fitting_rivals() -> list[str]:
    """Return the labels of the rivals of PPC that fit in at least two of three seeds."""
    rivals = runs("rivals")
    labels = [label for label in dict.fromkeys(row["row"] for row in rivals.rows) if label != "copy, PPC"]
    return [label for label in labels if rivals.of(label).num_fit > 1]
