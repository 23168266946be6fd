"""Sentences about the claim with numbers of its result rows, for benchmarks/claim_sentences.py."""

from collections.abc import Iterator

from claim_queries import listed, rows_in, runs, span, two_digits, word


def sentences() -> Iterator[str]:
    """Yield the sentences of README.md that have numbers of rows."""
    rows, measurements = runs("ppc"), rows_in("ppc", "measurements")
    relative = [rows.of(f"parity, {head}") for head in ("pointer", "rank", "increment")]
    longest = rows.lengths[-1]
    multiple = f"{longest // relative[0].trained:,}"
    yield f"""
    are exact at {multiple} times the length on {min(each.exact(longest) for each in relative)} of
    {relative[0].num_seeds} seeds.
    """
    gapless, examples = rows.of("parity, gaps up to 0"), rows.num_examples(2000)
    yield f"""
    Without gaps, {word(gapless.num_seeds - gapless.num_fit)} seed of {word(gapless.num_seeds)} already fails at
    {gapless.trained} bits, and at most {round(gapless.best(2000) * examples)} in {examples} sequences is exact at
    {2000:,}.
    """
    learned = rows.of("parity, class, learned IDs to 0.1x")
    yield f"it fits {20} bits and fails at {200} ({listed(map(two_digits, learned.at(200)))})."
    variables = rows.of("variables, pointer")
    yield f"""
    It is exact at {160} on {variables.exact(160)} of {variables.num_seeds} seeds, and on all of
    {variables.num_examples(1600)} sequences of {1600:,};
    """
    few = [each for each in measurements if each["row"] == "parity, pointer"]
    assert all(each["right_of_few"] == 1 for each in few)
    yield f"""
    In parity of {few[0]["length"]:,} bits, all of {rows.num_examples(2000)} answers are right when the decoder reads
    only {few[0]["tokens_read"]:.0f} of the {few[0]["tokens_before"]:,.0f} preceding tokens: the needed ones and their
    neighbours. With {few[0]["tokens_read"]:.0f} other tokens, {span(each["right_of_others"] for each in few)} are
    right.
    """
    own = rows.of("variables, half on own IDs", "variables, all on own IDs")
    yield f"at {160} assignments, and have {span(own.at(1600))} at {1600:,}."
    tenth, wide = rows.of("parity, IDs to 0.1x"), rows.of("parity, IDs to 4x")
    number = tenth.num_examples(longest) * tenth.num_seeds
    failed = round(number - sum(tenth.at(longest)) * tenth.num_examples(longest))
    yield f"With a tenth of it, {failed} of {number} sequences of {longest:,} bits fail at the end token."
    yield f"""
    With four times, {word(wide.num_seeds - wide.exact(2000))} seed of {word(wide.num_seeds)} also fails at {2000:,} and
    {longest:,}.
    """


def overview() -> Iterator[str]:
    """Yield the sentences about this claim in benchmarks/README.md."""
    ppc = [runs("ppc").of(label) for label in ("parity, pointer", "variables, pointer")]
    exact = [
        f"{each.lengths[-1] // each.trained:,} times, {each.exact(each.lengths[-1])} of {each.num_seeds} seeds"
        for each in ppc
    ]
    yield f"""
    Yes for parity ({exact[0]}) and variables ({exact[1]}), with gaps in training and the pointer head.
    """
