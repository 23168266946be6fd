"""Sentences about the claim with numbers of its result rows, for benchmarks/claim_sentences.py."""

from collections.abc import Iterator

from claim_queries import down, runs, span, word


def sentences() -> Iterator[str]:
    """Yield the sentences of README.md that have numbers of rows."""
    needle = runs("recall").of("needle")
    longest = needle.lengths[-1]
    yield f"""
    A two-layer model without positions, trained on texts of at most {needle.trained} items, finds one needle among
    {longest:,} items ({longest // needle.trained}x) in all of {needle.num_examples(longest)} sequences, on
    {word(needle.exact(longest))} of {word(needle.num_seeds)} seeds.
    """
    four, scaled = (runs("recall").of(f"one of four{more}") for more in ("", ", log scaling"))
    rotary = runs("recall").of("one of four, rotary, log scaling")
    yield f"({down(min(scaled.worst(each) for each in scaled.lengths))} or more) only if scores grow"
    yield f"it is found in {span(four.at(longest))} of the texts of {longest:,}"
    yield f"One of four is found in {span(rotary.at(longest))} of the texts of {longest:,}."


def overview() -> Iterator[str]:
    """Yield the sentences about this claim in benchmarks/README.md."""
    rows = runs("recall")
    yield f"""
    | associative recall, trained on {rows.trained} items, tested on {rows.lengths[-1]:,}; attention dilution |
    """
    needle = rows.of("needle")
    longest = needle.lengths[-1]
    yield f"""
    Yes without positions ({longest // needle.trained} times, {needle.exact(longest)} of {needle.num_seeds} seeds), if
    attention is not diluted.
    """
