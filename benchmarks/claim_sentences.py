"""The sentences with measured numbers in README, docs and benchmark pages, filled from result rows.

``python benchmarks/claim_sentences.py`` lists the sentences that differ from their page, and ``--write`` puts the
numbers of the rows into the pages. A sentence is found in its page by its words, so a changed word has to be changed
here, too. The sentences of a claim of ``lengthwise reproduce`` are in its folder: ``claims/NAME/sentences.py`` yields
those of its page (``sentences``) and those about it in ``README.md`` (``overview``, optional). ``--write`` also adds a
missing claim to the table of ``README.md``. ``tests/project/test_claims.py`` checks that the pages agree, and that they
contain no other number outside setup, commands and tables.
"""

import argparse
import json
import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from claim_queries import (
    CLAIM_FOLDERS,
    RESULTS,
    THRESHOLD,
    WORDS,
    Row,
    Runs,
    down,
    listed,
    num_weights,
    percent,
    rows_in,
    runs,
    span,
    training_seconds,
    two_digits,
    up,
    word,
)
from memory import ended, newest_rows, peak_mib
from million_tokens import LENGTHS, MIN_FIT_LENGTH, exponent

from lengthwise.core.confidence_intervals import wilson_interval
from lengthwise.evaluation.result_rows import FIT_THRESHOLD
from lengthwise.experiments.recipes import RECIPES
from lengthwise.influence.report.summary import compose_answer

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(rf"[-+]?(?<![\w.,])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?|\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
PUBLISHED_METHODS = {"rotary", "alibi", "nope", "sinusoidal", "learned"}
UNCOUPLED = ("sequential", "skipwise", "randomized")
OUR_STEPS = ("lengthwise plain", "lengthwise coupled", "lengthwise PPC")


def first_failing_length(selected: Runs) -> int:
    """Return the shortest length at which a seed has an error."""
    return next(length for length in selected.lengths if selected.exact(length) < selected.num_seeds)


def seed_failures() -> Iterator[str]:
    """benchmarks/seed_failures.md."""
    parity = runs("seed_failures").of("parity")
    failing, longest = first_failing_length(parity), parity.lengths[-1]
    num_failing = parity.num_seeds - parity.exact(longest)
    low, high = wilson_interval(num_failing, parity.num_seeds)
    yield f"""
    All {parity.num_fit} seeds of the recipe `parity` fit {parity.trained} bits, and {parity.exact(longest)} are
    exact at {failing:,} and {longest:,} bits.
    {word(num_failing).capitalize()} fails at {failing:,}: share of failures {num_failing / parity.num_seeds:.2f}
    [{low:.2f}, {high:.2f}].
    """
    yield f"{min(runs('seed_failures').each('train_s')):.0f} s of training in the fastest run."


def readme() -> Iterator[str]:
    """README.md."""
    demo, parity, million = runs("demo"), runs("seed_failures").of("parity"), runs("million_tokens")
    found, rivals = demo.of("discovered (PPC)"), demo.of("rotary", "ALiBi", "NoPE")
    longest, reached = demo.lengths[-1], max(length for length in rivals.lengths if rivals.best(length) > 0)
    yield f"""
    to copy up to {demo.trained} symbols, with two seeds each, and tests them with up to {longest:,}
    ({word(found.num_examples(longest))} per seed).
    """
    yield f"""
    {word(len(rivals.labels))} encodings fit {demo.trained} symbols and then fall, PPC stays at
    {found.worst(longest):g} up to {longest:,}
    """
    fitting = [label for label in (*found.labels, *rivals.labels) if demo.of(label).num_fit == demo.of(label).num_seeds]
    yield f"All {word(len(fitting))} fit {demo.trained} symbols; only PPC copies more than {reached}"
    yield f"({word(found.num_seeds)} seeds; [explanation]"
    longest = parity.lengths[-1]
    yield f"""
    Parity with PPC is exact at {longest:,} bits on [{parity.exact(longest)} of {parity.num_seeds}
    seeds](benchmarks/seed_failures.md); the other one fails at {first_failing_length(parity):,}.
    """
    long = million.of(recipe="parity_long", decode="forced")
    yield f"""
    {word(long.exact(long.lengths[-1])).capitalize()} of {word(long.num_seeds)} seeds of `parity_long` are exact on one
    string of [a million tokens](benchmarks/million_tokens.md).
    """


def list_of_claims() -> Iterator[str]:
    """The table of claims in benchmarks/README.md."""
    parity = runs("parity_ppc").of("parity")
    yield f"| parity with PPC, trained on {parity.trained} bits, tested on {parity.lengths[-1]:,} |"
    copy = runs("copy_reverse")
    yield f"| copy and reverse, trained on {copy.trained} symbols, tested on {copy.lengths[-1]:,} |"
    several = runs("multi_addition")
    yield f"""
    | addition of 2 to 5 operands of 1 to {several.trained} digits, tested on 10 operands of 10 digits and more |
    """
    needles = [row["tokens"] for row in runs("needles").of("Llama, needle").rows]
    yield f"at up to {max(needles) // min(needles)} times the training length |"
    models = runs("hugging_face").of(positions="PPC", scaling="log", task="parity")
    first, *longer = models.lengths
    yield f"""
    | PPC in Llama, GPT-NeoX, Qwen3 and OLMo 2, at {listed(length // first for length in longer)} times the training
    length; overhead |
    """
    contexts = runs("context_length")
    yield f"""
    | perplexity at 1 to {contexts.lengths[-1] // contexts.trained} times the training context with
    {word(len({row["row"] for row in contexts.rows}))} position methods |
    """


def reviewers() -> Iterator[str]:
    """The table of the reviewers' questions in benchmarks/README.md."""
    one_span, most, last, other = shares_of_code()
    yield f"""
    A few, but not all of the effect: on Python code, one span of eight tokens recovers {one_span} of the effect of far
    tokens on the predictions of a real model, {last} spans at least {most}, and {last} spans of another text {other}.
    """
    yield bound_answer()
    yield f"Llama and GPT-NeoX trained here find it at {needle_times()} times."
    four = runs("needles").of("Llama, one of four", "GPT-NeoX, one of four")
    yield f"One of four: not learned (at most {up(four.best(four.lengths[0]))} at the training length)."


def recovered(study: str) -> tuple[str, str]:
    """Return k, and the share that k own tokens of a study recover after subtracting the effect of another text."""
    summary = json.loads((RESULTS / "influence_text" / study / "summary.json").read_text())
    found = re.search(r"(\d+) selected tokens recover (\d+%)", compose_answer(summary)["sentence"])
    assert found is not None
    return found[1], found[2]


def needle_multiple(runs_of_model: Runs) -> float:
    """Return the longest text in which every needle is found, in tokens of the longest training text, worst seed."""
    by_tokens = {row["tokens"]: row["length"] for row in runs_of_model.rows}
    exact = [tokens for tokens, length in by_tokens.items() if runs_of_model.worst(length) == 1]
    return max(exact) / min(by_tokens)


def bound_ratios(regime: str, key: str) -> tuple[float, float]:
    """Return the median of a bound divided by the exact risk, and the share of laws in which the bound is below 1."""
    rows = [row for row in rows_in("theory_bounds") if row["regime"] == regime and row["risk"] > 1e-12]
    pairs = [(row["values"][key], row["risk"]) for row in rows if key in row["values"]]
    return statistics.median(bound / risk for bound, risk in pairs), sum(bound < 1 for bound, _ in pairs) / len(pairs)


def parity_ppc() -> Iterator[str]:
    """benchmarks/parity_ppc.md."""
    both = runs("parity_ppc")
    parity, rank = both.of("parity"), both.of("parity_rank")
    longest = both.lengths[-1]
    yield f"""
    One layer, trained for {listed(sorted(set(both.each("steps"))))} steps on at most {both.trained} bits, is exact on
    tokens and IDs of {both.num_examples(longest)} strings of {longest:,} bits per seed, on
    {word(parity.exact(longest))} of {word(parity.num_seeds)} new seeds with the pointer head (`parity`,
    {num_weights("parity"):,} weights) and on {word(rank.exact(longest))} of {word(rank.num_seeds)} with the cheaper
    rank head (`parity_rank`, {num_weights("parity_rank"):,}).
    """
    tenth = runs("parity_id_range").of("IDs to 0.1x")
    later = runs("ppc").of("parity, IDs to 0.1x")
    assert not sum(tenth.at(20_000)), "some sequences are exact"
    exact = round(sum(later.at(20_000)) * later.num_examples(20_000))
    yield f"""
    With a tenth of the IDs, all sequences of {20_000:,} bits failed on {word(tenth.num_seeds)} seeds
    """
    yield f"""
    with a later initialization of the pointer, {exact} of {later.num_examples(20_000) * later.num_seeds} were exact on
    {word(later.num_seeds)} others
    """
    number = both.num_examples(longest)
    assert parity.exact(longest) == parity.num_seeds
    yield f"""
    **{word(number).capitalize()} sequences of {longest:,} bits per seed** show no error in {number * parity.num_seeds};
    the interval of one seed starts at {wilson_interval(number, number)[0]:.2f}.
    """
    yield f"{training_seconds(both)} of training each."


def demo() -> Iterator[str]:
    """benchmarks/demo.md."""
    rows = runs("demo")
    methods = [rows.of(name) for name in ("discovered (PPC)", "rotary", "ALiBi", "NoPE")]
    fits = min(each.num_fit for each in methods)
    yield f"""
    All methods fit their training lengths of up to {rows.trained} symbols, on {word(fits)} of
    {word(methods[0].num_seeds)} seeds.
    """
    middle, longest = 50, rows.lengths[-1]
    yield f"""
    At {middle} symbols, rotary, ALiBi and NoPE have at most {up(rows.of("rotary", "ALiBi", "NoPE").best(middle))}.
    """
    yield f"""
    PPC copies {word(methods[0].num_examples(longest))} string of {longest:,} on {word(methods[0].exact(longest))} of
    {word(methods[0].num_seeds)}; nobody supplied its coupling.
    """
    twice = [rows.of(name).worst(2 * rows.trained) for name in ("ALiBi", "NoPE")]
    yield f"to {listed(map(two_digits, twice))} at twice the length (worst seeds)."
    declared = rows.of("predicted (PPC)")
    failed = [row for row in declared.rows if row["length"] == longest and row["exact_match"] < 1]
    yield f"{word(len(failed))} of the same {word(declared.num_seeds)} seeds failed there ({failed[0]['seed']})"
    yield f"and {failed[0]['token_accuracy']:.1%} of the tokens."
    rotary = rows.of("rotary")
    assert rotary.best(12) == 0
    yield f"Rotary fits {rotary.trained} symbols and is wrong on every string of {12}."


def fit_sweep() -> Iterator[str]:
    """benchmarks/fit_sweep.md."""
    fitting = {}
    for task in ("copy", "parity", "variable_assignment"):
        fits: dict[tuple[Any, ...], list[float]] = {}
        for row in rows_in(f"fit_sweep_{task}"):
            if row["task"] == task:
                fits.setdefault((row["method"], row["configuration"], row["steps"]), []).append(row["fitted"])
        fitting[task] = {key[0] for key, values in fits.items() if len(values) > 1 and min(values) >= FIT_THRESHOLD}
    assert fitting["parity"] == fitting["variable_assignment"], fitting
    copy, others = (word(len(fitting[task] & PUBLISHED_METHODS)) for task in ("copy", "parity"))
    yield f"""
    With settings found for each encoding, {copy} fit copying up to {runs("demo").trained} symbols (rotary, ALiBi,
    NoPE), and {others} fit parity up to {runs("parity_scratchpad").trained} bits and variable assignment up to
    {runs("variable_assignment").of("rotary").trained} (rotary, sinusoidal, learned), on both tuning seeds.
    """
    parity = rows_in("fit_sweep_parity")
    first = {
        (row["method"], row["configuration"]): row["fitted"]
        for row in parity
        if row["steps"] == 250 and row["seed"] == 100
    }
    depth = [
        [f"{first[method, name]:.2f}" for name in ("base", "one more layer", "two more layers")]
        for method in ("rotary", "sinusoidal")
    ]
    yield f"""
    After {250} steps, rotary reaches {depth[0][0]} with 3 layers, {depth[0][1]} with 4 and {depth[0][2]} with 5;
    sinusoidal {listed(depth[1])}.
    """
    slow = max(value for (method, _), value in first.items() if method in ("alibi", "nope"))
    variables = rows_in("fit_sweep_variable_assignment")
    alibi = max(row["fitted"] for row in variables if row["method"] == "alibi")
    yield f"""
    on parity, at most {up(slow)} after {250} steps with all twelve configurations; on variable assignment, ALiBi has at
    most {up(alibi)} after {200} steps.
    """
    copy_rows = {
        row["configuration"]: row["fitted"]
        for row in rows_in("fit_sweep_copy")
        if (row["method"], row["seed"], row["steps"]) == ("nope", 100, 500)
    }
    yield f"after {500} steps on copy, NoPE rises from {copy_rows['base']:.2f} to {copy_rows['previous token']:.2f}."


def pointer_form() -> Iterator[str]:
    """benchmarks/pointer_form.md."""
    parity = coupling_rounds()[-1].of(task="parity")
    copy, addition = runs("demo").of("discovered (PPC)"), runs("addition").of("discovered (PPC), up to 10 digits")
    parts = [
        f"{what} of {each.lengths[-1]:,} {unit} ({each.num_examples(each.lengths[-1])} per seed{more}), "
        f"{each.exact(each.lengths[-1])} of {each.num_seeds} seeds"
        for what, unit, more, each in (
            ("parity", "bits", "", parity),
            ("copying", "symbols", "", copy),
            ("sums", "digits", " and kind", addition),
        )
    ]
    yield f"exact on fresh seeds at the longest lengths tested with them: {'; '.join(parts)}."
    yield f"""
    | parity, {runs("parity_ppc").trained} | found: the one by hand, up to a constant | {parity.rows[0]["given"]} |
    """
    variables = runs("variable_assignment").of("discovered (PPC), up to 16")
    longest = variables.lengths[-1]
    yield f"""
    On {longest:,} assignments, the worst of {word(variables.num_seeds)} seeds has {variables.worst(longest):.2f} with
    a found coupling and {runs("variable_assignment").of("predicted (PPC), up to 16").worst(longest):.2f} with the one
    by hand.
    """


def coupling_rounds() -> list[Runs]:
    """Return the rounds of training on found couplings; each has its own hundred of seeds."""
    rows = runs("coupling_training").rows
    return [
        Runs([row for row in rows if row["seed"] // 100 == each])
        for each in sorted({row["seed"] // 100 for row in rows})
    ]


def exact_at(rounds: Sequence[Runs], place: int, *tasks: str) -> tuple[int, int]:
    """Return the number of exact runs, and of runs, at the first (0) or last (-1) test length of each task."""
    groups = [each.of(task=task) for each in rounds for task in dict.fromkeys(row["task"] for row in each.rows)]
    groups = [group for group in groups if not tasks or group.rows[0]["task"] in tasks]
    return sum(group.exact(group.lengths[place]) for group in groups), sum(len(group.by_run()) for group in groups)


def coupling() -> Iterator[str]:
    """benchmarks/coupling.md."""
    *earlier, last = coupling_rounds()
    look_up = "look up in a table"
    others = {row["task"] for row in last.rows} - {look_up}
    near, far = exact_at([last], 0, *others), exact_at([last], -1, *others)
    table = last.of(task=look_up)
    yield f"""
    PPC trained on found couplings is exact at 10 times the training length in {near[0]} of {near[1]} runs (looking up
    in a table: {table.exact(39)} of {table.num_seeds} at 3.9 times), and at 40 to 100 times in {far[0]} of {far[1]}.
    """
    addition = [each.of(task="addition") for each in earlier]
    failed = [each.num_seeds - each.exact(100) for each in addition]
    xor = exact_at(earlier, 0, "running XOR of two strings")
    yield f"""
    In {word(len([each for each in failed if each]))} of {word(len(earlier))} earlier rounds, with other heads,
    {word(max(failed))} of {word(min(each.num_seeds for each in addition))} seeds failed on sums of {100} digits, and
    {word(xor[1] - xor[0])} of {word(xor[1])} runs on the running XOR.
    """
    exact, number = exact_at([last], -1, *(others - {"parity", "addition"}))
    yield f"{word(number - exact).capitalize()} of {number} runs of file tasks fail at 100 times the length"
    before, now = (rows_in(f"coupling_table{name}") for name in ("_before", ""))
    right, traps = ([row for row in now if row["trap"] is trap] for trap in (False, True))
    assert all(row["accepted"] and row["wrong"] == 0 for row in right)
    assert all(row["accepted"] for row in before)
    assert not any(row["accepted"] for row in traps)
    yield f"""
    All {len(right)} right rules stay accepted, with no wrong answer at the longer length. All {len(traps)} traps were
    accepted before; all are refused.
    """
    seconds = [rows[0]["train_s"] + rows[0]["find_s"] for rows in last.by_run()]
    yield f"Training took {span(seconds, '.0f')} s, including the search"


def copy_reverse() -> Iterator[str]:
    """benchmarks/copy_reverse.md."""
    rows = runs("copy_reverse")
    longest = rows.lengths[-1]
    yield f"""
    With PPC, a decoder with one layer and {num_weights("copy"):,} weights, trained on at most {rows.trained} symbols,
    copies and reverses {rows.num_examples(longest)} of {rows.num_examples(longest)} strings of {longest:,} symbols, on
    {word(min(rows.of(task).exact(longest) for task in ("copy", "reverse")))} of {word(rows.num_seeds)} new seeds.
    """
    yield f"{training_seconds(rows)} of training each."


def multi_addition() -> Iterator[str]:
    """benchmarks/multi_addition.md."""
    rows = runs("multi_addition").of(variant="10 operands")
    longest = rows.lengths[-1]
    ppc, given = rows.of("multi_addition"), rows.of("multi_addition_given")
    yield f"""
    A 1-layer decoder trained on sums of 2 to 5 operands of at most {rows.trained} digits is exact on
    {rows.num_examples(longest)} sums of 10 operands of {longest} digits, for {ppc.exact(longest)} of {ppc.num_seeds}
    seeds with PPC and for {given.exact(longest)} of {given.num_seeds} with all IDs given.
    """
    errors = {
        seed: [
            row["first_error"]
            for row in runs("multi_addition").of("multi_addition", seed=seed).rows
            if row["first_error"] and row["variant"] in kinds
        ]
        for seed, kinds in ((5402, ("20 operands",)), (5401, ("15 operands", "20 operands")))
    }
    wrong_ids = sum(each["id"] for each in errors[5402])
    yield f"""
    ({wrong_ids} of {wrong_ids + sum(each["token"] + each["end"] for each in errors[5402])} at 20 operands). On seed
    5401 all {word(sum(each["token"] for each in errors[5401]))} are tokens.
    """
    farthest = runs("multi_addition").of("multi_addition_given", variant="20 operands")
    assert farthest.worst(30) == 1
    yield f"exact on {20} operands of {30} digits ({20 // 5}x and {30 // farthest.trained}x)."
    yield f"{training_seconds(runs('multi_addition'))} of training per run."


def needle_times() -> str:
    """Return the multiple of the training text at which both transformers find every needle on every seed."""
    return f"{min(needle_multiple(runs('needles').of(f'{name}, needle')) for name in ('Llama', 'GPT-NeoX')):g}"


def needles() -> Iterator[str]:
    """benchmarks/needles.md."""
    rows = runs("needles")
    models = [rows.of(f"{name}, needle") for name in ("Llama", "GPT-NeoX", "our decoder, NoPE")]
    tokens = sorted({row["tokens"] for row in models[0].rows})
    (longest,) = {row["length"] for row in models[0].rows if row["tokens"] == tokens[-1]}
    yield f"""
    trained from random weights on texts with one needle of at most {tokens[0]} tokens, find it in
    {models[0].num_examples(longest)} of {models[0].num_examples(longest)} texts of {tokens[-1]:,} tokens
    ({tokens[-1] // tokens[0]} times) in {min(each.exact(longest) for each in models)} of {models[0].num_seeds} seeds.
    """
    language_model = rows.of("our language model, needle")
    best = max(row["exact_match"] for row in language_model.rows)
    yield f"""
    A small language model of this library, which never trained on the task, finds {word(round(best))}.
    """
    four = [rows.of(f"{name}, one of four") for name in ("Llama", "GPT-NeoX")]
    guesses = [value for each in four for value in each.at(each.lengths[0])]
    yield f"At the training length they have {span(guesses)}, about a guess"


def bound_answer() -> str:
    """Return the answer to the question about Theorem 4.3."""
    published = [f"{bound_ratios(regime, 'F0')[1]:.0%}" for regime in ("clean", "mixed")]
    cover, linear = ([f"{bound_ratios(regime, key)[0]:.2g}" for regime in ("clean", "mixed")] for key in ("B", "B2"))
    mixed = bound_ratios("mixed", "B2")[0]
    return f"""
    Its published form almost always (below 1 in {published[0]} of the clean laws and {published[1]} of the mixed).
    Medians of the improved forms in clean and mixed laws: {cover[0]} and {cover[1]} times the exact risk (window
    cover), {linear[0]} and {mixed:.0f} (linear in N / L).
    """


def hugging_face() -> Iterator[str]:
    """benchmarks/hugging_face.md."""
    rows = runs("hugging_face")
    models = [
        rows.of(model=name, task="parity", positions="PPC", scaling="log")
        for name in ("Llama", "GPT-NeoX", "Qwen3", "OLMo 2")
    ]
    first, *longer = models[0].lengths
    exact = min(each.exact(length) for each in models for length in longer)
    yield f"""
    make no error on parity at {listed(length // first for length in longer)} times the training length
    ({listed(models[0].num_examples(length) for length in longer)} strings), on {exact} of {models[0].num_seeds} seeds
    each.
    """
    unscaled = {
        name: rows.of(model=name, task="parity", positions="PPC", scaling="none")
        for name in ("Qwen3", "OLMo 2", "GPT-NeoX", "Llama")
    }
    normalized = max(unscaled[name].best(longer[0]) for name in ("Qwen3", "OLMo 2"))
    neox, llama = unscaled["GPT-NeoX"], unscaled["Llama"]
    yield f"""
    Without it, models that normalize queries and keys (Qwen3, OLMo 2) have at most {up(normalized)} at {longer[0]}
    bits, GPT-NeoX has {neox.worst(longer[0]):.2f} there on the worst seed and {neox.best(longer[1]):.2f} at
    {longer[1]:,}, and Llama has {llama.worst(longer[1]):.2f} at {longer[1]:,} on the worst of {word(llama.num_seeds)}
    seeds.
    """
    plain = rows.of(positions="plain")
    short = {"parity": 20, "variable_assignment": 16}
    values = [value for task, length in short.items() for value in plain.of(task=task).at(length)]
    fitted = sorted(value for value in values if value >= FIT_THRESHOLD)
    best = max(plain.of(task=task).best(10 * length) for task, length in short.items())
    steps = {
        positions: [
            min(rows.of(model=name, task="variable_assignment", positions=positions).each("step"))
            for name in ("GPT-NeoX", "Llama")
        ]
        for positions in ("plain", "PPC")
    }
    yield f"""
    With as many steps as PPC on parity, and fewer on variables ({listed(f"{each:,}" for each in steps["plain"])}
    instead of {listed(f"{each:,}" for each in steps["PPC"])}), {word(len(fitted))} of {word(len(values))} runs fit the
    training lengths (variables, {listed(f"{each:.3f}" for each in fitted)}), and the best has {best:.2f} at ten
    times this length.
    """
    olmo, qwen = (rows.of(model=name, task="variable_assignment", positions="PPC") for name in ("OLMo 2", "Qwen3"))

    def missed(model: Runs, length: int) -> int:
        return round(sum(1 - value for value in model.at(length)) * model.num_examples(length))

    far, near = (olmo.num_examples(length) * olmo.num_seeds for length in (1600, 160))
    yield f"""
    OLMo 2 misses {word(missed(olmo, 1600))} of {far} inputs of {1600:,}; Qwen3 misses {word(missed(qwen, 1600))} of
    {far}, and {word(missed(qwen, 160))} of {near} inputs of {160}.
    """
    costs = rows_in("hf_overhead")
    step, token = (
        span([row["ratio"] for row in costs if row["what"] == what]) for what in ("training step", "token of a batch")
    )
    yield f"PPC multiplies the time of a training step by {step} (target: at most 1.10)"
    yield f"generated token by {token} (target: at most 1.15)"
    found = [
        rows.of(model=name, task="variable_assignment", positions="PPC").worst(length)
        for name in ("Llama", "GPT-NeoX")
        for length in (160, 1600)
    ]
    assert min(found) == 1
    yield f"Llama and GPT-NeoX make no error at {160} and {1600:,} assignments."


def covers_accuracy(row: Row) -> bool:
    """Return True if the measured accuracy is within the predicted interval."""
    return bool(row["predicted"]["low"] <= row["measured"] <= row["predicted"]["high"])


def forecast() -> Iterator[str]:
    """benchmarks/forecast.md."""
    rows = rows_in("forecast")
    predicted = [row for row in rows if row["predicted"] is not None]
    by_seed: dict[int, list[bool]] = {}
    for row in predicted:
        by_seed.setdefault(row["seed"], []).append(covers_accuracy(row))
    held = [value for values in by_seed.values() for value in values]
    worst = min(statistics.mean(values) for values in by_seed.values())
    number = len({(row["row"], row["seed"]) for row in rows})
    low, high = wilson_interval(sum(held), len(held))
    yield f"""
    The 90% intervals of `lengthwise certify` contain the measured accuracy in {statistics.mean(held):.3f} of the
    {len(held)} cells with a prediction [{low:.2f}, {high:.2f}], and in {worst:.3f} on the worst seed. It predicts
    nothing in {1 - len(held) / len(rows):.2f} of the {len(rows)} cells. The cells are {number} new runs at
    {listed(sorted({row["times"] for row in rows}))} times the training length.
    """
    runs_held: dict[tuple[str, int], bool] = {}
    for row, hit in zip(predicted, map(covers_accuracy, predicted), strict=True):
        runs_held[row["row"], row["seed"]] = runs_held.get((row["row"], row["seed"]), True) and hit
    low, high = wilson_interval(sum(runs_held.values()), len(runs_held))
    yield f"all intervals hold in {sum(runs_held.values())} of {len(runs_held)} runs [{low:.2f}, {high:.2f}]."
    degraded = [row for row in rows if row["measured"] < THRESHOLD]
    known = [row["predicted"] for row in degraded if row["predicted"] is not None]
    yield f"""
    it predicts nothing in {len(degraded) - len(known)} of the {len(degraded)} cells whose accuracy is below
    {THRESHOLD}. The median width of the other {len(known)} is
    {statistics.median(each["high"] - each["low"] for each in known):.2f}.
    """
    seconds = [row["certify_seconds"] for row in rows]
    yield f"{span(seconds, '.0f')} seconds (median {statistics.median(seconds):.0f}) on a busy machine."
    copies = [row for row in rows if row["row"] in ("copy, rotary", "copy, ALiBi", "copy, NoPE")]
    yield f"""
    {sum(row["predicted"] is not None for row in copies)} of {len(copies)} cells of rotary, ALiBi and NoPE have a
    prediction here.
    """
    ranges = [(row["predicted"]["exact_low"], row["exact"], row["predicted"]["exact_high"]) for row in predicted]
    yield f"""
    It has a median width of {statistics.median(top - bottom for bottom, _, top in ranges):.2f} and holds in
    {sum(bottom <= value <= top for bottom, value, top in ranges)} of {len(ranges)} cells. A range from 0.00 to at
    least 0.90 remains in {sum(bottom < 0.005 and top >= 0.9 for bottom, _, top in ranges)} cells.
    """


def context_length() -> Iterator[str]:
    """benchmarks/context_length.md."""
    rows = runs("context_length")
    shortest, *_, longest = rows.lengths

    def perplexities(label: str) -> dict[int, float]:
        return {row["length"]: row["perplexity"] for row in rows.of(label).rows}

    alibi, rotary, pose = (perplexities(label) for label in ("ALiBi", "rotary", "rotary + PoSE"))
    change = (max(alibi.values()) / min(alibi.values()) - 1) * 100
    yield f"""
    With ALiBi, perplexity changes by at most {up(change, 1)}% at 1 to {longest // shortest} times the training context.
    """
    yield f"""
    Rotary rises from {rotary[shortest]:.0f} to {rotary[longest]:.0f}; with random gaps in training (PoSE) it ends at
    {pose[longest]:.0f}. {word(rows.num_seeds).capitalize()} seed.
    """
    fire, nope, yarn = (perplexities(label) for label in ("FIRE", "NoPE", "rotary + YaRN"))

    def more(value: float, reference: float) -> str:
        return f"{value / reference - 1:.0%}"

    yield f"""
    **FIRE** loses {more(fire[longest], fire[shortest])} at {longest // shortest}x. **NoPE** starts worst,
    {more(nope[shortest], rotary[shortest])} above rotary, and loses another {more(nope[longest], nope[shortest])}.
    """
    yield f"it is flat, but {more(yarn[shortest], rotary[shortest])} worse at the trained length."
    yield f"training took {training_seconds(rows)} each."


def encodings() -> Iterator[str]:
    """benchmarks/encodings.md."""
    rows = {row["encoding"]: row for row in rows_in("encoding_speed")}

    def largest(field: str, *names: str) -> float:
        return max(rows[name][field] for name in names)

    biases, vectors = ("alibi", "hard_alibi", "kerple_log", "kerple_power", "t5", "fire"), ("rotary", "learned")
    networks = ("dape", "dape_v2")
    yield f"""
    With an additive bias of the distance (ALiBi, KERPLE, T5, FIRE), a training step takes at most
    {largest("training_ratio", *biases)} times as long as one without positions (NoPE), and a cached decoding step at
    most {largest("decoding_ratio", *biases)} times. DAPE and DAPE V2, whose bias is a network over all scores, take
    {listed(rows[name]["training_ratio"] for name in networks)} times in training.
    """
    yield f"""
    For rotary and learned positions the factors are at most {largest("training_ratio", *vectors)} for training and
    {largest("decoding_ratio", *vectors)} for decoding.
    """


def speedrun() -> Iterator[str]:
    """benchmarks/speedrun.md."""
    rows = [row for row in rows_in("speedrun") if row["recipe"] in ("parity", "copy")]
    solved = {name: [row["solved"] for row in rows if row["recipe"] == name] for name in ("parity", "copy")}
    yield f"""
    On one core, a new process solves parity or copy at {100} times the training length in at most
    {up(max(row["cpu_s"] for row in rows), 0)} s of processor time on {word(min(map(sum, solved.values())))} of
    {word(len(solved["copy"]))} seeds each, import and evaluation included.
    """


def million_tokens() -> Iterator[str]:
    """benchmarks/million_tokens.md."""
    rows = runs("million_tokens").of(decode="forced")
    parity, copy = rows.of(recipe="parity_long"), rows.of(recipe="copy_long")
    longest = rows.lengths[-1]
    seconds = [up(max(row["cpu_s"] for row in each.rows if row["length"] == longest), 0) for each in (parity, copy)]
    yield f"""
    One layer, trained on at most {RECIPES["parity_long"]().train_lengths[1]} bits, computes the parity of {longest:,}
    bits (a million tokens; one string per seed) without an error in a token or an ID, on {word(parity.exact(longest))}
    of {word(parity.num_seeds)} new seeds, in at most {seconds[0]} s on one core. Copying does so on
    {word(copy.exact(longest))} of {word(copy.num_seeds)}, in at most {seconds[1]} s.
    """
    all_rows = runs("million_tokens").rows
    weight = max(row["omitted_weight"] for row in all_rows)
    assert not any(row.get("dense_queries") for row in all_rows)
    difference = max(row.get("logit_difference", 0.0) for row in all_rows)
    yield f"""
    The largest bound was {weight:.1e}, and no query read all keys. Up to 40,000 tokens, dense attention predicts the
    same tokens; the largest difference of two logits was {difference:.1e}.
    """
    slopes = {
        decode: [
            exponent([row for row in all_rows if (row["recipe"], row["seed"]) == run], "cpu_s", decode)
            for run in dict.fromkeys((row["recipe"], row["seed"]) for row in all_rows)
        ]
        for decode in ("forced", "free")
    }
    yield f"""
    with an exponent of at most {max(slopes["forced"]):.2f} (forced) and {max(slopes["free"]):.2f} (free) on every seed,
    from {MIN_FIT_LENGTH:,} and {LENGTHS["free"][0]:,} bits or symbols on.
    """
    yield f"training takes {training_seconds(runs('million_tokens'))}."


def mixed_lengths() -> Iterator[str]:
    """benchmarks/mixed_lengths.md."""
    rows = [row for row in rows_in("mixed_lengths") if row["part"] == "fit" and row["task"] == "parity"]

    def select(lengths_per_batch: int, steps: int) -> list[Row]:
        return [
            row for row in rows if row["lengths_per_batch"] == lengths_per_batch and row["exact_match"][-1][0] == steps
        ]

    eight, single = select(8, 1000), select(1, 1500)
    seconds = [row["process_s"] for row in eight]
    yield f"""
    Rotary as published, trained for {span(seconds, ".0f")} s with eight lengths per batch, reaches an exact match of at
    least {down(min(row["exact_match"][-1][1] for row in eight))} on parity with 10 bits (worst of {word(len(eight))}
    seeds). With one length per batch, the best seed reaches {up(max(row["exact_match"][-1][1] for row in single))} in
    {span([row["process_s"] for row in single], ".0f")} s.
    """
    costs = [row for row in rows_in("mixed_lengths") if row["part"] == "speed"]
    yield f"**Fill stays below {math.ceil(max(row['fill'] for row in costs) * 20) * 5}%** at all settings"
    tokens = [row["relative_time_per_token"] for row in costs if row["lengths_per_batch"] == 8]
    yield f"a token costs {span(tokens, '.1f')} times as much as with one length per batch.**"


def faults() -> Iterator[str]:
    """benchmarks/faults.md."""
    attacks = {row["kind"]: row for row in rows_in("faults")}
    launched = [attacks.pop(kind) for kind in ("sweep", "ray", "together", "workers")]
    commits = dict.fromkeys(row["commit"][:7] for row in attacks.values())
    yield f"""
    Seed 0, {sum(row["attacks"] for row in attacks.values()):,} attacks,
    commit{"s" * (len(commits) > 1)} {listed(list(commits))}
    """
    yield f"Seed 0, {sum(row['attacks'] for row in launched)} kills, commit {launched[0]['commit'][:7]}"
    inputs = {
        engine: sum(row["inputs"] for row in rows_in("fuzz") if row["engine"] == engine)
        for engine in ("hypothesis", "atheris")
    }
    yield f"Seed 0, {inputs['hypothesis']:,} inputs by hypothesis and {inputs['atheris']:,} by atheris 3"
    (nodes,), (soak,) = rows_in("sweep_nodes"), rows_in("soak")
    yield f"""
    trains {nodes["runs"]} small runs twice: with two local workers ({nodes["local_s"]:.0f} s), and on a ray cluster of
    two nodes with one core each ({nodes["ray_s"]:.0f} s).
    """
    yield f"""
    {soak["rounds"]} rounds, {soak["first_mib"]} to {soak["last_mib"]} MiB, a rise of {soak["rise_percent"]} %
    """


def memory() -> Iterator[str]:
    """benchmarks/memory.md."""
    rows = newest_rows(rows_in("memory"))
    finished = [row for row in rows if row["interrupted"] and ended(row)]
    yield f"""
    {len([row for row in rows if ended(row)])} of {len(rows)} measured commands of README and docs reached their end,
    and none took more than {max(map(peak_mib, rows)):,} MiB on the files of its page. {len(finished)} of these trained
    until a time limit, and again from the start to the end with two steps.
    """


def speed() -> Iterator[str]:
    """benchmarks/speed.md."""
    steps = {(row["scheme"], row["precision"]): row for row in rows_in("step_speed")}
    single, half = (steps["coupled", precision] for precision in ("float32", "bf16"))
    shares = [row["share"] for (_, precision), row in steps.items() if precision == "float32"]
    yield f"""
    reaches {span(shares)} of the rate of plain matrix products of the same shapes in float32, and {half["share"]:.2f}
    in bf16, in {half["step_ms"] / single["step_ms"]:.2f} of the time.
    """
    peers = {row["shape"]: row["median_wall_ms"] for row in rows_in("peer_speed")}
    products = {
        shape: span((peers[shape]["products of lengthwise"] / peers[shape][name] for name in OUR_STEPS), ".0%")
        for shape in ("2 x 64", "2 x 128", "4 x 256")
    }
    largest = peers["4 x 256"]
    yield f"""
    the products alone take {products["2 x 64"]} of our step at 2 x 64, {products["2 x 128"]} at 2 x 128 and
    {products["4 x 256"]} at 4 x 256. At 4 x 256, a step without any other work would reach
    {largest["x-transformers"] / largest["products of lengthwise"]:.2f} times the rate of x-transformers.
    """
    (stacked,) = (row["min_cpu_ms"] for row in rows_in("stacked_seeds"))
    yield f"""
    **Eight stacked seeds** (`stacked_seeds.py`, demo size, one thread, rows in `results/stacked_seeds.jsonl`): in turn
    they take {stacked["eight in turn"] / stacked["one seed"]:.1f} times the processor time of one seed, and as one
    batched model (`vmap`) {stacked["eight by vmap"] / stacked["one seed"]:.1f} times.
    """


def influence_cost() -> Iterator[str]:
    """benchmarks/influence.md."""
    rows = {row["measured"]: row for row in rows_in("influence_speed")}
    strict, memory = rows["strict leave one out"], rows["memory"]
    yield f"""
    `LeaveOneOut` takes {strict["ours_s"]:.0f} s, and a plain loop of forward passes takes {strict["loop_s"]:.0f} s, so
    it is **{strict["ratio"]:.2f} times as fast**.
    """
    yield f"""
    Scoring 128 far tokens takes {memory["ours_bytes"] / 1e6:.0f} MB beyond the loaded model. A plain forward pass over
    the same tokens, with logits for all of them, takes {memory["plain_bytes"] / 1e6:.0f} MB.
    """
    prefilter, trained = rows["screening"], rows["screening, trained, strict"]
    yield f"""
    It finds **{prefilter["found"]:.0%}** of the best eight tokens of the exhaustive search ({prefilter["targets"]}
    targets) in **{prefilter["time_share"]:.0%}** of the time.
    """
    yield f"{trained['targets']} targets of held-out text, near {trained['near']}, far {trained['far']}, and scores by"


def theory_bounds() -> Iterator[str]:
    """benchmarks/theory_bounds.md."""
    linear, cover, known = (bound_ratios("clean", key)[0] for key in ("B2", "B", "B0"))
    yield f"In *clean* laws, the median of the bound linear in N / L is {linear:.3g} times the risk."
    yield f"The window cover uses risks by planted set and has a median of {cover:.2g} times the risk."
    mixed = [bound_ratios("mixed", key)[0] for key in ("B2", "B", "B0")]
    yield f"""
    With known scores, the median is {known:.2f} times the risk. In *mixed* laws, the three medians are
    {listed(f"{each:.3g}" for each in mixed)}.
    """
    for regime in ("clean", "mixed"):
        laws = [row for row in rows_in("theory_bounds") if row["regime"] == regime and row["risk"] > 1e-12]
        risks = [f"{statistics.median(row[key] for row in laws):.2g}" for key in ("trained", "risk")]
        yield f"The median risk is {risks[0]} at L and {risks[1]} at N."


def theory_transformers() -> Iterator[str]:
    """benchmarks/theory_transformers.md."""
    rows = rows_in("theory_transformers")
    leakage = [row for row in rows if row["part"] == "leakage"]
    worst = max(max(row["measured"] / row["predicted"], row["predicted"] / row["measured"]) for row in leakage) - 1
    seeds = {row["seed"] for row in leakage}
    times = listed(sorted({row["times"] for row in leakage}))
    yield f"""
    at {times} times the trained length within {math.ceil(worst * 100)}%, for {len(seeds)} of {len(seeds)} seeds
    (limit: 15%).
    """

    def odds(share: float) -> float:
        return share / max(1e-9, 1 - share)

    # A run has learned the task if its risk at the trained length is at most 0.05.
    learned: dict[str, list[float]] = {}
    for row in rows:
        if row["part"] == "assumptions" and row["trained"] <= 0.05:
            ratio = odds(row["leakage_measured"]) / odds(row["leakage_predicted"])
            kind = row["name"].split(", ", 1)[1] if "coupled" in row["name"] else "broken"
            learned.setdefault(kind, []).append(ratio)
    broken, kerple, rotary = (learned[kind] for kind in ("broken", "coupled, kerple_log", "coupled, rotary"))
    yield f"""
    the odds are at least {math.floor(min(broken) / 100) * 100:,} times the prediction, in {len(broken)} of
    {len(broken)} runs that learned the task.
    """
    yield f"the odds are at most {up(max(kerple))} times the prediction, in {len(kerple)} of {len(kerple)} runs"
    restored = sum(each <= 1.3 for each in rotary)
    yield f"**With coupling and rotary, {restored} of {len(rotary)} runs is restored.**"
    by_seed = {
        seed: [row for row in rows if row["part"] == "functional" and row["seed"] == seed] for seed in sorted(seeds)
    }

    def ordered(key: str, sign: int) -> int:
        """Return the number of seeds on which a value rises (1) or falls (-1) with every k."""
        values = [[sign * row[key] for row in group] for group in by_seed.values()]
        return sum(each == sorted(set(each)) for each in values)

    off = max(abs(row["predicted"] / row["measured"] - 1) for group in by_seed.values() for row in group)
    yield f"""
    The risk increases with k from {1} to {len(by_seed[min(seeds)])} for {ordered("trained", 1)} of {len(seeds)} seeds.
    Predicted horizons are within {math.ceil(off * 100)}% of the measured horizons. Horizons decrease with k for
    {ordered("measured", -1)} of {len(seeds)} seeds.
    """


def which() -> Iterator[str]:
    """docs/which.md."""
    copy, parity = latest("copy"), latest("parity")
    uncoupled = [copy.of(label) for label in copy.labels if label.split("/")[0] in UNCOUPLED]
    kerple, alibi, rotary = (copy.of(f"sequential/{name}") for name in ("kerple_log", "alibi", "rotary"))
    best = max(mean(each, 2) for each in uncoupled)
    assert best == mean(kerple, 2)
    yield f"""
    In these tables, the best configuration without coupling (KERPLE (log) on copy) reaches an exact match of
    {best:.2f} at twice the training length and {mean(kerple, 5):.2f} at five times.
    """
    yield f"Our best cell without coupling has {best:.2f} at 2x."
    seconds = [
        row["train_s"]
        for task in ("parity", "copy", "addition")
        for row in rows_in(f"which_{task}")
        if row["steps"] == 2000
    ]
    yield f"A run of {2000:,} steps took {span(seconds, '.0f')} s of training."
    longer = runs("training_length").of("ALiBi, up to 20")
    yield f"""
    With other settings and more steps, ALiBi copies {span(longer.at(40))} at twice and {span(longer.at(100))} at five
    times the training length ([{word(longer.num_seeds)} seeds](../benchmarks/claims/training_length/README.md)).
    """
    yield f"Our best cell without coupling has {best:.2f} at 2x."
    cells = [each.of(label) for each in (copy, parity, latest("addition")) for label in each.labels]
    exact = {cell.labels[0].split("/")[0] for cell in cells if mean(cell, 5) == 1}
    yield f"All cells with an exact match of 1 at 5x use {listed(sorted(f'`{scheme}`' for scheme in exact), 'or')}."
    yield f"""
    On copy, KERPLE (log) has an exact match of {mean(kerple, 2):.2f} at 2x and {mean(kerple, 5):.2f} at 5x, and ALiBi
    has {mean(alibi, 2):.2f} and {mean(alibi, 5):.2f}.
    """
    lost = [mean(copy.of(f"sequential/{name}"), 2) for name in ("t5", "fire", "yarn")]
    yield f"T5, FIRE and YaRN have {span(lost)} at 2x; rotary, learned IDs and NoPE have at most {up(max_lost(copy))}."
    yield f"Rotary has an exact match of {mean(rotary, 2):g} at 2x."
    spread = [copy.of(label) for label in copy.labels if label.split("/")[0] in UNCOUPLED[1:]]
    fits = [cell for cell in spread if cell.num_fit]
    yield f"""
    With skip-wise and randomized IDs, {word(len(fits))} copy cells have a seed that fits in
    {max(step for cell in fits for step in cell.each("steps")):,} steps. No cell exceeds an exact match of
    {up(max(mean(cell, 2) for cell in spread))} at 2x.
    """
    logarithmic = [each.of(f"{scheme}/kerple_log") for each in (parity, copy) for scheme in ("coupled", "predicted")]
    smallest = min(cell.worst(length) for cell in logarithmic for length in cell.lengths)
    yield f"**KERPLE (log) with coupling has an exact match of {smallest:g} at every length of parity and copy.**"
    rotaries = [each.of(f"{scheme}/rotary") for each in (parity, copy) for scheme in ("coupled", "predicted")]
    far = parity.of("coupled/rotary")
    yield f"""
    **Rotary with coupling** has at least {down(min(mean(cell, times) for cell in rotaries for times in (1, 2, 5, 10)))}
    up to 10x on both of these tasks. At 100x the seeds differ (parity with `coupled`:
    {listed(sorted(far.at(100 * far.trained)))}).
    """
    long = runs("parity_ppc").of("parity")
    longest = long.lengths[-1]
    yield f"""
    It reaches an exact match of 1 at {longest:,} bits ({longest // long.trained:,}x,
    {word(long.num_examples(longest))} strings per seed) with {word(long.exact(longest))} of {word(long.num_seeds)}
    seeds.
    """
    buckets = [each.of(f"{scheme}/t5") for each in (parity, copy) for scheme in ("coupled", "predicted")]
    yield f"**T5** with coupling also fits, but has at most {up(max(mean(cell, 2) for cell in buckets))} at 2x."
    learned, close = copy.of("coupled/learned"), copy.of("coupled/alibi")
    best_fit = max(
        value for scheme in ("coupled", "predicted") for value in parity.of(f"{scheme}/alibi").each("fitted")
    )
    yield f"""
    **Learned IDs** with coupling fit, but their exact match falls slightly at 2x (copy: {mean(learned, 2):.2f}) and
    strongly by 10x, because each of the {learned.rows[0]["id_range"][1] + 1:,} IDs is rare in training.
    """
    yield f"""
    **ALiBi** almost fits copy with coupled IDs ({mean(close, 1):.2f} at 1x), but not parity ({best_fit:.2f} at best).
    """
    yield f"learned positions fit parity of {runs('parity_scratchpad').trained} bits and then fall"


def max_lost(copy: Runs) -> float:
    """Return the largest exact match at twice the training length of the encodings that lose all of it."""
    return max(mean(copy.of(f"sequential/{name}"), 2) for name in ("rotary", "learned", "nope"))


def latest(task: str) -> Runs:
    """Return the runs of a table of docs/which.md; longer runs replace those with the same label and seed."""
    longer = rows_in(f"which_{task}_longer")
    replaced = {(row["row"], row["seed"]) for row in longer}
    return Runs([row for row in rows_in(f"which_{task}") if (row["row"], row["seed"]) not in replaced] + longer)


def mean(cell: Runs, times: int) -> float:
    """Return the mean over seeds at a multiple of the training length."""
    return statistics.mean(cell.at(times * cell.trained))


def diagnose() -> Iterator[str]:
    """docs/diagnose.md."""
    measurements = rows_in("diagnosis", "measurements")
    dilution, distances = "attention diluted by more tokens", "IDs or distances that training did not show"
    recall, copy = ([row for row in measurements if row["row"] == label] for label in ("recall, NoPE", "copy, rotary"))
    fewer = listed(f"{row['repaired'][dilution]:.2f}" for row in recall)
    trained = listed(f"{row['repaired'][distances]:.2f}" for row in copy)
    yield f"""
    Recall with NoPE fails at length {recall[0]["length"]:,}. NoPE reads no IDs, so training IDs repair no error. Fewer
    tokens repair {fewer} of the first errors.
    """
    falls = [[f"{row['mass'][length]:.2f}" for length in ("20", "40")] for row in copy]
    yield f"falls from {falls[0][0]} to {falls[0][1]} and from {falls[1][0]} to {falls[1][1]}."
    best = max(row["exact_match"] for row in copy)
    yield f"Copying by token index with rotary has an exact match of {best:g} at length {copy[0]['length']}."
    yield f"fewer tokens repair no error, and training IDs repair {trained} of the first errors."


def influence_study(kind: str) -> dict[str, Any]:
    """Return the summary of a study of ``influence_text.md``, with its far contexts by name."""
    summary = json.loads((RESULTS / "influence_text" / f"influence_{kind}" / "summary.json").read_text())
    return {**summary, "far": {each["from"]: each for each in summary["far"]}}


def interval(estimate: Row, style: str = ".3f") -> str:
    """Return the value of an estimate with its interval."""
    return f"{estimate['value']:{style}} ({estimate['low']:.3f} to {estimate['high']:.3f})"


def influence() -> Iterator[str]:
    """docs/influence.md."""
    prose, code = influence_study("prose"), influence_study("code")
    k, share = recovered("influence_code")
    yield f"{k} selected tokens recover {share} of the effect of far context on its"
    nats = interval(code["far"]["other"]["own_minus"]).replace(" (", " nats per target (95% interval ")
    yield f"original text is {nats}."
    gains = {name: percent(prose["far"][name]["gains"]["value"]) for name in ("own", "other")}
    yield f"""
    On prose, {gains["own"]} of targets gain half a nat from far tokens of the original text, but {gains["other"]} gain
    as much from far tokens of another text
    """
    rows = rows_in("influence_speed")
    kept = {row["share"]: f"{row['gain_kept']:.0%}" for row in rows if row.get("measure") == "greedy"}
    yield f"search keeps {kept[0.1]} of the gain with a tenth of the tokens, and {kept[0.25]} with a quarter"
    ratios = {row["targets"]: row["ratio"] for row in rows if row["measured"] == "leave one out"}
    yield f"leave-one-out is {ratios[1]:.0f} times as fast as captum ({ratios[32]:.0f} times with {32} targets)."
    (strict,) = (row["ratio"] for row in rows if row["measured"] == "strict leave one out")
    yield f"it is {strict:.2f} times as fast as a plain loop"


def shares_of_code() -> tuple[str, str, int, str]:
    """Return the shares that the best span and the most spans recover, the number of spans, and the share of others."""
    groups, last = code_groups()
    first, most = (
        f"{percent(share['value'])} [{percent(share['low'])}, {percent(share['high'])}]"
        for share in (groups["proposed", "own"][0], groups["proposed", "own"][-1])
    )
    return first, most, last, percent(groups["proposed", "other"][-1]["value"])


def code_groups() -> tuple[dict[tuple[str, str], list[Row]], int]:
    """Return the shares of the complete study of Python code by measure and source, and the largest k."""
    (summary,) = (row for row in rows_in("influence_real") if row["study"] == "python-1024-span8-strict")
    groups = {
        (group["measure"], group["from"]): group["all_targets"]["prediction"]["shares"] for group in summary["groups"]
    }
    return groups, summary["ks"][-1]


def influence_real() -> Iterator[str]:
    """benchmarks/influence_real.md."""
    first, most, last, other = shares_of_code()
    random, nearest = (percent(code_groups()[0][name, "own"][-1]["value"]) for name in ("random", "nearest"))
    yield f"""
    A single span recovers {first} of the effect of all far tokens on the prediction, and {last} spans at least {most}.
    The best {last} spans of another text recover {other}, {last} random spans {random}, and the nearest {last} spans
    {nearest}.
    """


def influence_text() -> Iterator[str]:
    """benchmarks/influence_text.md."""
    studies = [influence_study(kind) for kind in ("prose", "code")]
    other, same = ([interval(each["far"][name]["own_minus"]) for each in studies] for name in ("other", "elsewhere"))
    by_other = other[0].replace(" (", " nats on prose (95% interval ")
    yield f"another text: by {by_other} and by {other[1].replace(' (', ' nats on code (')}."
    yield f"the gain is {same[0].replace(' (', ' nats (')} and {same[1].replace(' (', ' nats (')}."
    prose, code = (
        [
            percent(each["far"][source][name]["value"])
            for source, name in (("own", "gains"), ("other", "gains"), ("own", "loses"))
        ]
        for each in studies
    )
    yield f"""
    On prose, {prose[0]} of targets gain {studies[0]["settings"]["rule"]["gap"]} nats or more from their own far tokens,
    {prose[1]} gain as much from far tokens of another text, and {prose[2]} lose as much. On code the shares are
    {listed(code)}.
    """
    k = 8
    place = studies[0]["ks"].index(k)
    own, another = (
        [
            f"{group['all_targets']['prediction']['shares'][place]['value']:.2f}"
            for study in studies
            for group in study["groups"]
            if (group["from"], group["knows"], group["measure"]) == (source, "prediction", "screened")
        ]
        for source in ("own", "other")
    )
    yield f"""
    {word(k).capitalize()} own tokens recover {own[0]} of the prediction with the whole context on prose, and {own[1]}
    on code. {word(k).capitalize()} tokens of another text already recover {listed(another)}.
    """
    largest, share = recovered("influence_prose")
    yield f"{largest} own tokens recover {share} on prose and {recovered('influence_code')[1]} on code."
    chosen, target = (
        [pair for study in studies for pair in study["paired"] if pair["knows"] == knows]
        for knows in ("prediction", "target")
    )
    differences = [[interval(pair["difference"][place], "+.3f") for pair in pairs] for pairs in (chosen, target)]
    yield f"""
    At k = {k}, the difference is {differences[0][0].replace(" (", " nats (")} on prose and {differences[0][1]} on code
    if the prediction selects the tokens. If the target selects the tokens, it is {listed(differences[1])}.
    """
    own, another = (
        [f"{pair['selected'][source]['difference'][place]['value']:+.3f}" for pair in target]
        for source in ("own", "other")
    )
    yield f"""
    At k = {k} with the target objective, the difference is {listed(own)} over targets with a clear gain from their own
    text, but {listed(another)} over targets with a clear gain from another text.
    """


def teaching() -> Iterator[str]:
    """docs/teaching.md."""
    yield f"The figure above has {word(runs('demo').of('discovered (PPC)').num_seeds)} seeds."


# The module ``sentences`` of every claim that has one, and those that also have sentences in benchmarks/README.md.
CLAIMS = {
    name: import_module(f"claims.{name}.sentences")
    for name, folder in CLAIM_FOLDERS.items()
    if (folder / "sentences.py").exists()
}
OVERVIEWS = [claim for claim in CLAIMS.values() if hasattr(claim, "overview")]
PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "README.md": readme,
    "benchmarks/seed_failures.md": seed_failures,
    "benchmarks/influence.md": influence_cost,
    "benchmarks/README.md": lambda: chain(list_of_claims(), reviewers(), *(claim.overview() for claim in OVERVIEWS)),
    **{
        f"benchmarks/{page.__name__}.md": page
        for page in (
            *(parity_ppc, demo, fit_sweep, coupling, pointer_form, copy_reverse, multi_addition, needles),
            *(
                hugging_face,
                forecast,
                theory_transformers,
                theory_bounds,
                influence_real,
                influence_text,
                context_length,
            ),
            *(encodings, speedrun, million_tokens, mixed_lengths, faults, memory, speed),
        )
    },
    **{f"benchmarks/claims/{name}/README.md": claim.sentences for name, claim in CLAIMS.items()},
    **{f"docs/{page.__name__}.md": page for page in (which, diagnose, influence, teaching)},
}


# Parts of pages without result rows, and where their numbers come from. A claim lists those of its page in
# its module ``sentences``, also as NOT_FROM_ROWS.
NOT_FROM_ROWS: dict[str, tuple[tuple[str, str], ...]] = {
    "benchmarks/doctor.md": (
        ("SmolLM2-135M works to its trained context of 8,192 tokens", "results/doctor.jsonl: losses"),
        ("At 12,288 tokens, the loss of the same", "results/doctor.jsonl: losses"),
        ("0.85 nats [0.73, 0.96] above that at 4,096 tokens", "results/doctor.jsonl: paired losses, by the command"),
        ("in 20 minutes on two cores without AVX-512", "the time of the command"),
        ("YaRN 2x recovers 98% of the lost nats", "results/doctor_avx512.jsonl: paired losses, by the command"),
    ),
    "docs/doctor.md": (
        (
            "of 135M parameters on four kinds of text](../benchmarks/doctor.md), at up to 12,288",
            "benchmarks/doctor.md",
        ),
        ("tokens, in 20 minutes and 1.8 GB on two cores", "benchmarks/doctor.md"),
        ("no wrong cause in 40 examinations, but", "results/faulty_models.jsonl: all seeds but 0"),
        ("two kinds of fault are never found", "results/faulty_models.jsonl: models without a cause"),
    ),
    "README.md": (
        ("at 12,288 tokens its loss is higher, and YaRN 2x", "benchmarks/doctor.md"),
        ("[Start in five minutes", "the time to follow docs/start.md"),
        ("In four to eight minutes", "make demo; benchmarks/demo.md"),
        ("Parity of five bits", "the example of the figure"),
    ),
    "benchmarks/README.md": (
        ("works on four kinds of text", "the texts of benchmarks/doctor.md"),
        ("twelve tasks from files", "FILE_TASKS of benchmarks/coupling_tasks.py"),
        ("resumed runs are identical after 20 kills", "python -m pytest -m slow tests/training -k killed"),
        ("memory over two hours", "python benchmarks/soak.py --minutes 120"),
        ("what five scripts in `examples/` print on three seeds", "the commands of benchmarks/examples.md"),
        ("in one of two documented ways", "docs/influence.md"),
        ("(k = 1)", "a question"),
    ),
    "benchmarks/coupling.md": (
        (
            "Someone who had not seen the test wrote 14 more traps and 9 right tasks, with two seeds each",
            "tests/tasks/coupling/test_new_traps.py",
        ),
        (
            "11 of the 14 traps gave a wrong rule without a warning. With the test of noise, 12 gave none. Three tasks "
            "were decided afterwards:",
            "tests/tasks/coupling/test_new_traps.py",
        ),
        ("The other eight right tasks are accepted", "tests/tasks/coupling/test_new_traps.py"),
    ),
    "benchmarks/encodings.md": (
        (
            "The model has 2 layers, d_model 128 and 4 heads; the batch has 8 sequences of 512 tokens.",
            "settings of benchmarks/encoding_speed.py",
        ),
    ),
    "benchmarks/examples.md": (
        (
            "Four of five scripts in `examples/` print the same result on three of three seeds.",
            "the commands of the page, read by hand",
        ),
        (
            "Each script takes 31 to 72 s of processor time, so less than two minutes on a free core.",
            "the commands of the page, timed by hand",
        ),
    ),
    "benchmarks/faults.md": (
        (
            "a hang of more than 5 s (60 s for work that succeeds), or more than 2 GiB of memory",
            "limits in tests/attacks",
        ),
        (
            "The first run of tables, models and archives at 8e9becc found 6 faults with three causes.** `couple` "
            "needed 35 s for a table with one example of 20,000 tokens, which it also printed. Rules of a tokenizer "
            "that expand a text filled 2 GiB before they failed, which took 17 to 20 s. Reading 64 million empty "
            "lines takes longer than the time limit. The first two now take 5 s and 2 s;",
            "results/faults.jsonl (earlier rows of these kinds), and the attacks again one by one",
        ),
        ("These three kinds ran again at a86e29a.", "results/faults.jsonl"),
        ("All kinds together took 1,671 s", "the last line of make faults"),
    ),
    "benchmarks/hugging_face.md": (("Two-layer Llama", "settings of benchmarks/hugging_face.py"),),
    "benchmarks/influence.md": (
        ("one run of this command took **88 s** and at most 374 MB", "the command of the section, one run"),
    ),
    "benchmarks/influence_text.md": (("1 - KL(k) / KL(short); it needs no target and is at most 1.", "a definition"),),
    "benchmarks/needles.md": (
        ("A guess among the 16 values is right once in 16 (0.06).", "the values of the task recall"),
    ),
    "benchmarks/readability.md": (
        (
            "New readers with only the folder listing found the right module for 12 of 12 questions. The last of six "
            "readers found three sentences of the old voice.",
            "people's and models' answers, counted by hand",
        ),
    ),
    "benchmarks/report.md": (
        (
            "The page of 1,000 runs has 5.96 MB and is drawn in 1.2 s. The page of a study with 100,000 targets has "
            "6.43 MB and is drawn in 1.0 s.",
            "python benchmarks/report_size.py",
        ),
    ),
    "benchmarks/resume.md": (("at 20 random moments", "python -m pytest -m slow tests/training -k killed"),),
    "benchmarks/memory.md": (
        ("its limit (60 to 300 s)", "the option --limit of the runs"),
        ("to its end: 1.83 to 1.9 GB", "benchmarks/demo.md"),
    ),
    "benchmarks/speed.md": (
        (
            "a step took 214 ms with it and 198 ms without at 2 x 128 (100 sequences), and 739 and 817 ms at 4 x 256 "
            "(64 sequences): minimal processor times of torch 2.13 on one thread",
            "benchmarks/step_speed.py on the commits before and after 1945aed, in turn",
        ),
    ),
    "benchmarks/speedrun.md": (
        ("if exact match is at least 0.99 at 10 and at 100 times the training length.", "benchmarks/speedrun.py"),
    ),
    "benchmarks/theory_bounds.md": (
        (
            "It must be 0 except in the last three rows, which are not bounds. *below 1* is the share of instances "
            "where the bound is below 1 and therefore informative.",
            "a legend",
        ),
    ),
    "docs/diagnose.md": (
        (
            "Of the 256 examples, 45 fail, all at the queried value. The tokens that the answer needs are up to 134 "
            "IDs away, compared with at most 38 in training. Training IDs repair 0.64 of the first errors, fewer "
            "tokens 0.24, and subsampling alone 0.36.",
            "the commands of the section, one run",
        ),
        (
            "In this one run, of 128 first errors, 98 repeat the follower of another occurrence of the symbol before; "
            "random symbols would do so in 23. Hiding the competing tokens repairs 0.87 of these errors.",
            "make demo and diagnose, one run",
        ),
    ),
    "docs/which.md": (
        ("Point 3 lists their exact match at 2x.", "a reference"),
        ("fall quickly near distance 0", "a property of the encoding"),
        ("With three times the steps,", "6,000 steps of the longer runs instead of 2,000"),
        ("training ends 300 steps after the run fits", "a setting of the comparison"),
        ("With eight lengths per step", "a setting of the recipe"),
        ("by a factor of ten lowers", "a setting of the comparison"),
    ),
}
for name, claim in CLAIMS.items():
    if hasattr(claim, "NOT_FROM_ROWS"):
        NOT_FROM_ROWS[f"benchmarks/claims/{name}/README.md"] = claim.NOT_FROM_ROWS


def one_line(text: str) -> str:
    """Return a text with a single space between words, without the marks of quotes."""
    return " ".join(re.sub(r"^> ?", "", text, flags=re.MULTILINE).split())


def differing_sentences(page: str) -> list[str]:
    """Return the sentences of a page that it does not contain as the rows state them."""
    text = one_line((ROOT / page).read_text())
    return [sentence for sentence in map(one_line, PAGES[page]()) if sentence not in text]


def put_numbers(text: str, sentence: str) -> str:
    """Return a page with the numbers of a sentence in the place that has its words; line breaks stay."""
    words = [r"\s+(?:> )?".join(map(re.escape, part.split(" "))) for part in NUMBER.split(sentence)]
    pattern = re.compile(rf"({NUMBER.pattern})".join(words), re.IGNORECASE)
    found = pattern.search(text)
    if found is None:
        return text
    pieces, end = [], found.start()
    for place, number in enumerate(NUMBER.findall(sentence), start=1):
        pieces += [text[end : found.start(place)], number]
        end = found.end(place)
    return text[: found.start()] + "".join(pieces) + text[end:]


def add_claims(text: str) -> str:
    """Return benchmarks/README.md with a row in its first table for every claim without a link."""
    end = text.index("\n\n", text.index("\n|"))
    missing = [name for name in CLAIM_FOLDERS if f"(claims/{name}/README.md)" not in text]
    rows = [f"\n| {title_of(name)} | [{name}](claims/{name}/README.md) |" for name in missing]
    return text[:end] + "".join(rows) + text[end:]


def title_of(name: str) -> str:
    """Return the title of the page of a claim."""
    return (CLAIM_FOLDERS[name] / "README.md").read_text().partition("\n")[0].removeprefix("# ")


def main() -> None:
    """List the sentences that differ from their page, or write their numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the numbers of the rows into the pages")
    options = parser.parse_args()
    table = ROOT / "benchmarks/README.md"
    if options.write:
        table.write_text(add_claims(table.read_text()))
    for page in PAGES:
        path = ROOT / page
        if options.write:
            text = path.read_text()
            for sentence in differing_sentences(page):
                text = put_numbers(text, sentence)
            path.write_text(text)
        for sentence in differing_sentences(page):
            print(f"{page} lacks this sentence: {sentence}")


if __name__ == "__main__":
    main()
