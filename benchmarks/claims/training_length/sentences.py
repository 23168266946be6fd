"""Sentences about the claim with numbers of its result rows, for benchmarks/claim_sentences.py."""

from collections.abc import Iterator

from claim_queries import listed, runs, span, word


def sentences() -> Iterator[str]:
    """Yield the sentences of README.md that have numbers of rows."""
    rows = runs("training_length")
    yield f"**Claim ({word(rows.num_seeds)} seeds).**"
    trained = sorted({row["train_lengths"][1] for row in rows.rows})
    alibi = [min(rows.of(f"ALiBi, up to {each}").longest_exact()) for each in trained]
    ppc = [min(rows.of(f"discovered (PPC), up to {each}").multiples()) for each in trained]
    yield f"""
    On copying, ALiBi trained on up to {listed(trained)} symbols reaches at least {listed(alibi)}. PPC reaches the
    longest test, {listed(sorted(set(ppc)))} times the training length, from each of them.
    """
    longest = rows.of("ALiBi, up to 40")
    yield f"At {200} symbols, models trained on up to 40 have {span(longest.at(200))}."
    other = [runs("minimax").of(label) for label in ("copy, ALiBi, tilt 0", "copy, ALiBi, 4,500 steps, tilt 0")]
    yield f"""
    it reaches {span(other[0].longest_exact(), "d")} after {other[0].rows[0]["steps"]:,} steps and
    {span(other[1].longest_exact(), "d")} after {other[1].rows[0]["steps"]:,}, and fits in all
    {word(sum(each.num_fit for each in other))} runs
    """
    number = sum(each.num_fit for each in (rows.of(label) for label in rows.labels))
    assert number == len(rows.by_run())
    yield f"All {number} runs fit."


def overview() -> Iterator[str]:
    """Yield the sentences about this claim in benchmarks/README.md."""
    lengths, minimax = runs("training_length"), runs("minimax")
    trained = sorted({row["train_lengths"][1] for row in lengths.rows})
    yield f"| copying by longest training length, {trained[0]} to {trained[-1]} symbols: PPC and ALiBi |"
    multiples = {
        method: [min(lengths.of(f"{method}, up to {length}").multiples()) for length in trained]
        for method in ("discovered (PPC)", "ALiBi")
    }
    yield f"""
    With PPC, {min(multiples["discovered (PPC)"]):g} times from {listed(trained)} symbols; with ALiBi,
    {listed(multiples["ALiBi"])} times (worst of {word(lengths.num_seeds)} seeds). More steps help ALiBi:
    {span(minimax.of("copy, ALiBi, 4,500 steps, tilt 0").longest_exact(), "d")} symbols instead of
    {span(minimax.of("copy, ALiBi, tilt 0").longest_exact(), "d")}.
    """
