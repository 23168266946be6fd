"""Sentences about the claim with numbers of its result rows, for benchmarks/claim_sentences.py."""

from collections.abc import Iterator

from claim_queries import down, listed, runs, span, word


def sentences() -> Iterator[str]:
    """Yield the sentences of README.md that have numbers of rows."""
    rows = runs("arithmetic")
    sums, lists = rows.of("addition, carries written, PPC"), rows.of("sort, PPC")
    products = rows.of("product, PPC", variant="2 digits")
    longest = [each.lengths[-1] for each in (sums, products, lists)]
    exact = [each.exact(length) for each, length in zip((sums, products, lists), longest, strict=True)]
    yield f"""
    1-layer decoders trained on at most {rows.trained} digits or items are exact on {listed(sorted(set(exact)), "to")}
    of {sums.num_seeds} seeds: sums with written carries at {longest[0]:,} digits, products of {longest[1]} by 2 digits,
    and sorted lists of {longest[2]} items.
    """
    plain, given = rows.of("addition, PPC"), rows.of("addition, IDs given")
    later = runs("addition").of("predicted (PPC), up to 10 digits")
    yield f"""
    At {1000:,} digits, {given.exact(1000)} of {given.num_seeds} seeds are exact with all IDs given and
    {plain.exact(1000)} of {plain.num_seeds} with PPC; with the later settings of [addition](../addition/README.md), PPC
    is exact on {later.exact(1000)} of {later.num_seeds}.
    """
    far = rows.of("product, PPC, IDs to 2,048", variant="2 digits")
    number = far.num_examples(1000) * far.num_seeds
    wrong = round(number - sum(far.at(1000)) * far.num_examples(1000))
    yield f"{wrong} of {number} products over {word(far.num_seeds)} seeds"
    wide = rows.of("sort of 128 values, PPC")
    yield f"""
    **Lists of {100} items need a wider decoder, and {word(wide.num_seeds - wide.exact(100))} of {word(wide.num_seeds)}
    seeds fails.**
    """
    yield f"All seeds have {down(wide.worst(10), 3)} or more on {wide.num_examples(10)} lists of {10} items"


def overview() -> Iterator[str]:
    """Yield the sentences about this claim in benchmarks/README.md."""
    rows = [runs("arithmetic").of(label) for label in ("sort, PPC", "product, PPC", "addition, PPC")]
    factors = [each.lengths[-1] / each.trained for each in rows]
    yield f"""
    | sums, products and sorted lists, tested at {span(factors, ".0f")} times the training length |
    """
