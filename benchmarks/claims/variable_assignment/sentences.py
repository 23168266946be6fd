"""Sentences about the claim with numbers of its result rows, for benchmarks/claim_sentences.py."""

from collections.abc import Iterator

from claim_queries import FITTED_ON_PARITY, down, listed, runs, span, two_digits, up, word


def sentences() -> Iterator[str]:
    """Yield the sentences of README.md that have numbers of rows."""
    rows = runs("variable_assignment")
    found = rows.of("discovered (PPC), up to 16")
    encodings = rows.of(*FITTED_ON_PARITY)
    longest = rows.lengths[-1]
    yield f"""
    Trained on 1 to {found.trained} assignments with a coupling that it finds, PPC has at least
    {down(found.worst(longest))} at {longest:,}, for {word(found.num_seeds)} fresh seeds.
    """
    yield f"""
    Rotary, sinusoidal and learned positions have at least {down(encodings.worst(encodings.trained))} at
    {encodings.trained}, their longest training length; at {16}, with all in the chain, they have at most
    {up(encodings.of(variant="all").best(16))}.
    """
    rotary, kinds = rows.of("rotary"), ("a quarter", "half", "all")
    yield f"""
    Rotary still holds at {6} assignments ({rotary.worst(6):.2f}). At {16} it keeps
    {span(rotary.of(variant=kinds[0]).at(16))} of the short chains
    """
    declared = [rows.of("predicted (PPC), up to 16", variant=kind) for kind in kinds]
    yield f"""
    the goal of 0.95 at {longest:,} is missed:** {listed(two_digits(each.worst(longest)) for each in declared)} for a
    quarter, half and all in the chain (median {listed(two_digits(each.median(longest)) for each in declared)}).
    """
    yield f"at {longest:,} assignments (100x), the worst of five fresh seeds has {found.worst(longest):.2f}"
    few, many = (rows.of(label).num_examples(160) for label in ("rotary", "discovered (PPC), up to 16"))
    yield f'At {160}, n is {few} for the rows without, and {many} for those with "up to {found.trained}".'


def overview() -> Iterator[str]:
    """Yield the sentences about this claim in benchmarks/README.md."""
    variables = runs("variable_assignment")
    yield f"""
    | variable assignment: PPC, and three encodings that fit {variables.of("rotary").trained} assignments; PPC to
    {variables.lengths[-1]:,} |
    """
