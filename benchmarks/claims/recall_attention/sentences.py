"""Sentences about the claim with numbers of its result rows, for benchmarks/claim_sentences.py."""

from collections.abc import Iterator

from claim_queries import down, listed, runs, span, two_digits, word

OPTIONS = {
    "log": "NoPE, log scaling",
    "top-k": "NoPE, top-k",
    "entmax": "NoPE, entmax",
    "DAPE V2": "DAPE V2",
    "ALiBi": "ALiBi",
}
STEADY = ("NoPE, log scaling", "NoPE, top-k", "NoPE, entmax", "NAPE, log scaling", "NAPE, scalable entmax")


def sentences() -> Iterator[str]:
    """Yield the sentences of README.md that have numbers of rows."""
    rows = runs("recall_attention")
    yield f"**Claim ({word(rows.num_seeds)} seeds).**"
    scaled, plain = rows.of("one of four, NoPE, log scaling"), rows.of("one of four, NoPE")
    longest = rows.lengths[-1]
    texts = rows.num_examples(longest) * scaled.num_seeds
    found = [round(sum(each.at(longest)) * rows.num_examples(longest)) for each in (scaled, plain)]
    yield f"""
    Trained on at most {rows.trained} items, a two-layer model without positions and with log scaling finds one of four
    keys among {longest:,} items ({longest // rows.trained:,}x) in {word(found[0])} of {word(texts)} texts.
    """
    yield f"""
    With plain softmax it finds {word(found[1])} of {word(texts)} there, and the worst seed has
    {plain.worst(2048):.2f} at {2048 // rows.trained}x.
    """
    steady = [rows.of(f"one of four, {label}") for label in STEADY]
    smallest = min(each.worst(length) for each in steady for length in each.lengths)
    yield f"both rows with NAPE have {down(smallest)} or more in every seed at every tested length.**"
    counts = {sum(each.at(8192)) * rows.num_examples(8192) for each in steady}
    texts = rows.num_examples(8192) * scaled.num_seeds
    yield f"At {8192 // rows.trained}x these are {listed(counts)} of {texts} texts."
    multiples = {label: each.multiples() for label in rows.labels for each in [rows.of(label)]}

    def times(label: str) -> str:
        return listed(f"{value:g}x" for value in multiples[f"one of four, {label}"])

    worst = [two_digits(rows.of(f"one of four, {label}").worst(2048)) for label in ("NoPE", "ALiBi")]
    yield f"ALiBi {times('ALiBi')}.** At {2048 // rows.trained}x their worst seeds have {listed(worst)}."
    yield f"{times('rotary, weave')}, and rotary without it {times('rotary')}."
    steps = {
        label: rows.of(f"one of four, {label}").each("steps")
        for label in (*STEADY, "ALiBi", "DAPE V2", "rotary", "NoPE")
    }
    slow = [step for label in STEADY if "NAPE" in label for step in steps[label]]
    fast = [step for label in steps if "NAPE" not in label for step in steps[label]]
    yield f"({span(slow, ',')}; the other rows without weave {span(fast, ',')})."
    yield f"**Without a change to the attention, NoPE reaches {max(multiples['one of four, NoPE']):g}x, and"
    dape = multiples["one of four, DAPE V2"]
    assert sorted(dape)[0] == sorted(dape)[1]
    yield f"**DAPE V2 differs between seeds**: {max(dape):g}x in one, and {min(dape):g}x in two."
    entmax = rows.of("one of four, NAPE, scalable entmax")
    yield f"Scalable entmax has {down(min(map(entmax.worst, entmax.lengths)))} or more at every length."
    yield f"Log scaling also has {found[0]} of {rows.num_examples(longest) * scaled.num_seeds} at {longest // 32:,}x."


def overview() -> Iterator[str]:
    """Yield the sentences about this claim in benchmarks/README.md."""
    rows = runs("recall_attention")
    yield f"""
    | recall by attention option and encoding, tested at up to {rows.lengths[-1] // rows.trained:,} times the training
    length |
    """
    multiples = {name: min(rows.of(f"one of four, {label}").multiples()) for name, label in OPTIONS.items()}
    yield f"""
    On recall, log scaling reaches {multiples["log"]:,g} times, top-k and entmax
    {listed(sorted({multiples["top-k"], multiples["entmax"]}))} (each the longest test), DAPE V2
    {multiples["DAPE V2"]:g} and ALiBi {multiples["ALiBi"]:g} (worst of {word(rows.num_seeds)} seeds).
    """
