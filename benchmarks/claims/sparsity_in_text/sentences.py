"""Sentences about the claim with numbers of its result rows, for benchmarks/claim_sentences.py."""

import math
import statistics
from collections.abc import Iterator, Sequence

from claim_queries import Row, listed, rows_in, runs, span, training_seconds, up, word


def sentences() -> Iterator[str]:
    """Yield the sentences of README.md that have numbers of rows."""
    measurements = rows_in("sparsity_in_text", "measurements")
    labels = list(dict.fromkeys(row["row"] for row in measurements))
    longest = {label: [row["change"][-1] for row in measurements if row["row"] == label] for label in labels}
    every = [each for changes in longest.values() for each in changes]
    contain = [each for each in every if each["low"] <= 0 <= each["high"]]
    negative = [label for label, changes in longest.items() if all(each["value"] < 0 for each in changes)]
    times = measurements[0]["lengths"][-1] // measurements[0]["lengths"][0]
    yield f"""
    **The answer is "cannot be told" for all {word(len(labels))} ways to encode positions. There is no evidence for the
    claim: {len(contain)} of {len(every)} intervals at {times} times the trained context contain 0, and
    {word(len(negative))} of the rows has a negative correlation in all {word(len(longest[labels[0]]))} seeds.**
    """
    changes = {
        label: [row["mean_change"][-1]["value"] for row in measurements if row["row"] == label] for label in labels
    }
    yield f"""
    At {times} times the trained context, the loss of a target grows by {span(changes["rotary"])} nats with rotary, by
    {span(changes["rotary + PoSE"])} with rotary + PoSE, by {span(changes["coupled by structure"])} with "coupled by
    structure", and by {span(changes["NoPE"])} with NoPE. With ALiBi and KERPLE it changes by less than
    {up(max(map(abs, (*changes["ALiBi"], *changes["KERPLE"]))))}
    """
    coupled = [each["value"] for each in longest["coupled by structure"]]
    yield f"Its {word(len(coupled))} correlations are {span(coupled, '.3f')}."
    medians = [
        statistics.median(row["perplexity"] for row in runs("sparsity_in_text").of(label).rows if row["length"] == 128)
        for label in ("coupled by structure", "rotary")
    ]
    yield f"at {128} tokens is that of rotary (median seeds: {listed(f'{each:.1f}' for each in medians)})."
    lowest = min(every, key=lambda each: each["value"])
    lowest_end = min(each["low"] for each in every)
    yield f"direction of the claim is {lowest['value']:.3f} [{lowest['low']:.3f}, {lowest['high']:.3f}]"
    yield f"Correlations beyond {math.floor(lowest_end * 10) / 10:g} lie outside all {len(every)} intervals"
    brackets = rows_in("sparsity_in_text", "by_kind")
    excluding = [row for row in brackets if row["change"]["low"] > 0 or row["change"]["high"] < 0]
    assert [row["row"] for row in excluding] == ["rotary", "rotary + PoSE"]
    ends = ["{value:.3f} [{low:.3f}, {high:.3f}]".format(**row["change"]) for row in excluding]
    yield f"""
    **The answer is "cannot be told" for the {word(len({row["row"] for row in brackets}))} rows that were measured.**
    {word(len(excluding)).capitalize()} of the {len(brackets)} intervals exclude 0, and both agree with the claim: one
    seed of rotary ({ends[0]}) and one of rotary + PoSE ({ends[1]}).
    """
    growth = {
        label: [row["mean_change"]["value"] for row in brackets if row["row"] == label]
        for label in dict.fromkeys(row["row"] for row in brackets)
    }
    yield f"""
    At {1024:,} tokens, their loss grows by {span(growth["rotary"])} nats with rotary, much more than that of all
    targets. It grows by {span(growth["coupled by structure"])} nats with "coupled by structure", by
    {span(growth["rotary + PoSE"])} with rotary + PoSE, and by less than {up(max(growth["ALiBi"]))} with ALiBi.
    """
    yield f"a training took {training_seconds(runs('sparsity_in_text'))} beside other work"


def overview() -> Iterator[str]:
    """Yield the sentences about this claim in benchmarks/README.md."""
    text = runs("sparsity_in_text")
    yield f"""
    with {word(len({row["row"] for row in text.rows}))} ways to encode positions (one follows the lines of the text) and
    {word(text.num_seeds)} seeds each.
    """
    measurements = rows_in("sparsity_in_text", "measurements")
    kinds = list(dict.fromkeys(kind["kind"] for row in measurements for kind in row["kinds"]))
    agreeing = [kind for kind in kinds if any(agrees(measurements, label, kind) for label in text.labels)]
    yield f"""
    {word(len(agreeing)).capitalize()} of {len(kinds)} kinds of tokens agrees with the claim in its median seed.
    """
    brackets = runs("sparsity_in_text", "by_kind")
    agree = [row for row in brackets.rows if row["change"]["high"] < 0]
    yield f"""
    Over {brackets.rows[0]["measured"]} closing brackets, {len(agree)} of {len(brackets.rows)} intervals agree with the
    claim, but no method in all seeds.
    """


def agrees(measurements: Sequence[Row], label: str, kind: str) -> bool:
    """Return True if the correlation of a kind of target is below 0 in the median seed, with its interval."""
    changes = [
        each["change"] for row in measurements if row["row"] == label for each in row["kinds"] if each["kind"] == kind
    ]
    known = sorted((each for each in changes if each["value"] is not None), key=lambda each: each["value"])
    return bool(known) and known[(len(known) - 1) // 2]["high"] < 0
