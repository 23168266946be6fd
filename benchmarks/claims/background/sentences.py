"""Sentences about the claim with numbers of its result rows, for benchmarks/claim_sentences.py."""

from collections.abc import Iterator

from claim_queries import runs, two_digits, up, word

BACKGROUNDS = ("independent letters", "Markov chain", "English text")


def sentences() -> Iterator[str]:
    """Yield the sentences of README.md that have numbers of rows."""
    rows = runs("background")
    nope = [rows.of(f"NoPE, {name}") for name in BACKGROUNDS]
    exact = [f"{each.exact(500)} of {each.num_seeds}" for each in nope]
    yield f"""
    Without positions, the parity of three planted bits is computed exactly at {500 // rows.trained} times the training
    length ({500} letters) by {exact[0]} seeds among independent letters, by {exact[1]} in a Markov chain (the worst:
    {nope[1].worst(500):.2f}), and by {exact[2]} in English text, where {nope[2].num_fit} of {nope[2].num_seeds} fit.
    """
    rotary = rows.of(*(f"rotary, {name}" for name in BACKGROUNDS))
    yield f"""
    With rotary, exact match is at most {up(rotary.best(100))} at twice the training length in every background.
    """
    medians = [two_digits(each.median(2000)) for each in nope]
    yield f"""
    At {2000 // rows.trained} times, the median of NoPE is {medians[0]} among independent letters, {medians[1]} in the
    Markov chain and {medians[2]} in text.
    """
    fitted = [
        values[0]
        for each in nope
        for values in zip(each.multiples(), each.each("fitted"), strict=True)
        if values[1] == 1
    ]
    assert max(rotary.multiples()) < 2
    yield f"every NoPE run that fits reaches at least {min(fitted):g} times the training length, and no rotary run"
    yield f"""
    **{word(nope[2].num_seeds - nope[2].num_fit).capitalize()} of {word(nope[2].num_seeds)} NoPE runs in English text
    does not fit**
    """


def overview() -> Iterator[str]:
    """Yield the sentences about this claim in benchmarks/README.md."""
    background = runs("background")
    reached = [
        sum(value >= 10 for value in background.of(f"NoPE, {name}").multiples())
        for name in ("Markov chain", "English text")
    ]
    rotary = background.of(*(f"rotary, {name}" for name in BACKGROUNDS))
    yield f"""
    No: NoPE reaches {10} times the training length in a Markov chain and in English text for {word(min(reached))} of
    {word(3)} seeds each, rotary only {max(rotary.multiples()):g} time.
    """
