"""Sentences about the claim with numbers of its result rows, for benchmarks/claim_sentences.py."""

from collections.abc import Iterator

from claim_queries import FITTED_ON_PARITY, down, runs, span, up, word


def sentences() -> Iterator[str]:
    """Yield the sentences of README.md that have numbers of rows."""
    rows = runs("parity_scratchpad")
    encodings, ppc = rows.of(*FITTED_ON_PARITY), rows.of("predicted (PPC)")
    yield f"""
    Rotary, sinusoidal and learned positions have at least {down(encodings.worst(encodings.trained))} at
    {encodings.trained} bits, their longest training length, and at most {up(encodings.best(12))} at {12}.
    """
    yield f"""
    PPC, trained on the same lengths, is exact at {2000:,} bits on {word(ppc.exact(2000))} of {word(ppc.num_seeds)}
    seeds, and at {20_000:,} on {word(ppc.exact(20_000))} ({word(ppc.num_examples(20_000))} strings per seed).
    """
    tokens = [row["token_accuracy"] for row in encodings.rows if row["length"] == 12]
    longest_learned = down(encodings.worst(encodings.trained))
    yield f"""
    All {word(len(FITTED_ON_PARITY))} encodings are right on at least {longest_learned} of
    {encodings.num_examples(encodings.trained)} strings of {encodings.trained} bits, with every seed, and on at most
    {up(encodings.best(12))} of {12}. There, {span(tokens)} of the single tokens are right
    """
    (failed,) = (row for row in ppc.rows if row["length"] == 20_000 and row["exact_match"] < 1)
    yield f"""
    **One seed of PPC fails at {20_000:,} bits** ({failed["seed"]}): its first errors are wrong bits, never IDs, in the
    middle at the {failed["first_error"]["median_index"]:,.0f}th.
    """
    without = rows.of("coupled, no gaps")
    yield f"""
    With the same coupling but no gaps in training, exact match at {100} bits is {without.best(100):g} on every seed.
    """


def overview() -> Iterator[str]:
    """Yield the sentences about this claim in benchmarks/README.md."""
    yield f"""
    | parity, trained on {runs("parity_scratchpad").trained} bits: PPC, coupled IDs, and three encodings that fit |
    """
