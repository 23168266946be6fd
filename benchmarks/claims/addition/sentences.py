"""Sentences about the claim with numbers of its result rows, for benchmarks/claim_sentences.py."""

from collections.abc import Iterator

from claim_queries import FITTED_ON_PARITY, down, runs, span, up, word


def sentences() -> Iterator[str]:
    """Yield the sentences of README.md that have numbers of rows."""
    rows = runs("addition")
    declared, found = (rows.of(f"{name} (PPC), up to 10 digits") for name in ("predicted", "discovered"))
    longest = rows.lengths[-1]
    yield f"""
    Trained on 1 to {declared.trained} digits, PPC is exact on all of {declared.num_examples(longest)} sums of
    {longest:,} digits of each kind, for {word(declared.exact(longest))} of {word(declared.num_seeds)} fresh seeds, and
    for {word(found.exact(longest))} of {word(found.num_seeds)} with a coupling that it finds itself.
    """
    encodings = rows.of(*FITTED_ON_PARITY, variant="uniform")
    short = encodings.trained
    yield f"""
    On numbers of equal length, rotary, sinusoidal and learned positions have at least {down(encodings.worst(short))} at
    {short}
    digits, their longest training length, and at most {up(encodings.best(short + 1))} at {short + 1}.
    """
    three = rows.of("predicted (PPC)", variant="uniform")
    exact = three.exact(longest)
    (failed,) = (seed for seed, value in zip(three.each("seed"), three.at(longest), strict=True) if value < 1)
    yield f"""
    **Three digits are enough for {word(exact)} of {word(three.num_seeds)} seeds** (PPC trained on 1 to
    {three.trained}). Seed {failed} fails: {three.of(seed=failed).worst(4):.2f} at {4} digits,
    {three.of(seed=failed).worst(longest):.2f} at {longest:,}. It fits {3} digits with
    {three.of(seed=failed).each("fitted")[0]:.3f}
    """
    unequal = [rows.of(name, variant="unequal").median(3) for name in FITTED_ON_PARITY]
    ppc = rows.of("predicted (PPC)", variant="unequal")
    yield f"""
    they fall to {span(unequal)} (median) at {3} digits. PPC keeps {ppc.median(3):.3f} (worst seed {ppc.worst(3):.2f}).
    """


def overview() -> Iterator[str]:
    """Yield the sentences about this claim in benchmarks/README.md."""
    addition = runs("addition")
    yield f"""
    | addition, trained on {addition.trained} digits, tested on {addition.lengths[-1]:,}, beside three encodings that
    fit {addition.of("rotary").trained} digits |
    """
