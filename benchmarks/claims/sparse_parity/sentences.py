"""Sentences about the claim with numbers of its result rows, for benchmarks/claim_sentences.py."""

from collections.abc import Iterator

from claim_queries import Runs, runs, word


def sentences() -> Iterator[str]:
    """Yield the sentences of README.md that have numbers of rows."""
    groups = {k: flagged(runs("sparse_parity").of(f"up to {k} bits"), k) for k in (4, 6, 8)}
    several = flagged(runs("sparse_parity", "rows_up_to_8_bits"), 8)
    held = {k: sum(value >= 0.99 for value in rows.at(500)) for k, rows in groups.items()}
    yield f"""
    At {500} bits ({500 // groups[4].trained}x), two attention layers without positions, trained on up to K flagged
    bits, are right on {0.99} of {groups[4].num_examples(500)} sequences or more: on {word(held[4])} of
    {word(groups[4].num_seeds)} seeds for K=4, {word(held[6])} for K=6 and {word(held[8])} for K=8 (worst seed
    {groups[8].worst(500):.2f}); with eight lengths per step, on
    {word(sum(value >= 0.99 for value in several.at(500)))} of {word(several.num_seeds)} for K=8.
    """


def overview() -> Iterator[str]:
    """Yield the sentences about this claim in benchmarks/README.md."""
    sparse = runs("sparse_parity")
    low, high = sparse.rows[0]["train_lengths"]
    yield f"""
    | sparse parity without scratchpad, trained on {low} to {high} bits, tested on 500 and {sparse.lengths[-1]:,} |
    """


def flagged(rows: Runs, up_to: int) -> Runs:
    """Select the tests of sparse parity with at most ``up_to`` flagged bits."""
    return Runs([row for row in rows.rows if int(row["variant"].removeprefix("flagged-")) <= up_to])
