"""Sentences about the claim with numbers of its result rows, for benchmarks/claim_sentences.py."""

from collections.abc import Iterator

from claim_queries import listed, runs, span, two_digits, word

from lengthwise.evaluation.result_rows import FIT_THRESHOLD


def sentences() -> Iterator[str]:
    """Yield the sentences of README.md that have numbers of rows."""
    rows = runs("arithmetic_traces")
    sums, products = rows.of("sum, trace"), rows.of("product, trace")
    narrow, wide = rows.of("sort, narrow lists"), rows.of("sort, all lists wide")
    yield f"""
    With a written trace, sums trained on at most {sums.trained} digits are exact at {1000:,} digits in every test of
    {sums.exact(1000)} of {sums.num_seeds} seeds ({sums.num_examples(1000) * sums.num_seeds} sums of each kind).
    """
    exact = [sum(each.at(100)[i] == each.at(128)[i] == 1 for i in range(each.num_seeds)) for each in (narrow, wide)]
    yield f"""
    Lists trained on at most {narrow.trained} items are sorted at {100} and {128} items without an error by {exact[0]}
    of {narrow.num_seeds} seeds ({narrow.num_examples(128)} lists each), and without narrow lists in training by
    {exact[1]} of {wide.num_seeds}.
    """
    yield f"""
    Products of {1000:,} digits are not solved: {products.num_fit} of {products.num_seeds} seeds fit their training
    lengths, and the worst has {products.worst(1000):.2f}.
    """
    untraced = runs("arithmetic").of("addition, PPC")
    yield f"Without it, the worst of {word(untraced.num_seeds)} seeds has {untraced.worst(1000):.2f} at {1000:,} digits"
    by_digits = [products.of(variant=f"{digits} digits").median(1000) for digits in (1, 2)]
    yield f"""
    {word(products.num_fit).capitalize()} of {word(products.num_seeds)} seeds fit and have
    {listed(map(two_digits, by_digits))} at {1000:,} by 1 and by 2 digits.
    """
    others = runs("arithmetic").of("product, PPC, IDs to 2,048", variant="2 digits")
    yield f"the worst of {word(others.num_seeds)} seeds has {others.worst(1000):.2f} at {1000:,} by 2 digits"
    short = [*narrow.at(20), *wide.at(20)]
    fit = narrow.num_fit + wide.num_fit
    yield f"""
    and {span(short, ".3f")} of them are right (wrong IDs). "Fits" asks for {FIT_THRESHOLD} of the 256 lists that
    training uses to measure itself, so {word(len(short) - fit)} of these {word(len(short))} runs stay just below it.
    """
    ten = runs("arithmetic").of("sort of 128 values, PPC")
    yield f"the worst of {word(ten.num_seeds)} seeds has {ten.worst(100):.2f} at {100} items"


def overview() -> Iterator[str]:
    """Yield the sentences about this claim in benchmarks/README.md."""
    yield f"""
    | sums of {runs("arithmetic_traces").of("sum, trace").lengths[-1]:,} digits, products and longer lists with a
    written trace |
    """
