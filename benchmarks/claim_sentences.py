"""The sentences with measured numbers in README, docs and benchmark pages, filled from result rows.

``python benchmarks/claim_sentences.py`` lists the sentences that differ from their page, and ``--write`` puts the
numbers of the rows into the pages. A sentence is found in its page by its words, so a changed word has to be changed
here, too. ``tests/project/test_claims.py`` checks that the pages agree, and that they contain no other number outside
setup, commands and tables.
"""

import argparse
import json
import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from claim_queries import (
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
from million_tokens import LENGTHS, MIN_FIT_LENGTH, exponent

from lengthwise.core.intervals import wilson_interval
from lengthwise.encodings import ENCODINGS
from lengthwise.evaluation.result_rows import FIT_THRESHOLD, label_of, longest_exact_length
from lengthwise.experiments.recipes import RECIPES
from lengthwise.influence.claims import CLAIMS
from lengthwise.influence.report.summary import compose_answer
from lengthwise.model.position_heads import POSITION_HEADS
from lengthwise.positions import SCHEMES
from lengthwise.tasks import TASKS

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(rf"[-+]?(?<![\w.,])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?|\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
BACKGROUNDS = ("independent letters", "Markov chain", "English text")
OPTIONS = {
    "log": "NoPE, log scaling",
    "top-k": "NoPE, top-k",
    "entmax": "NoPE, entmax",
    "DAPE V2": "DAPE V2",
    "ALiBi": "ALiBi",
}
PUBLISHED_METHODS = {"rotary", "alibi", "nope", "sinusoidal", "learned"}
UNCOUPLED = ("sequential", "skipwise", "randomized")
STEADY = ("NoPE, log scaling", "NoPE, top-k", "NoPE, entmax", "NAPE, log scaling", "NAPE, scalable entmax")
FITTED_ON_PARITY = ("rotary", "sinusoidal", "learned")
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
    yield f"""
    The library includes {len(TASKS)} tasks, {len(SCHEMES)} position schemes, {len(ENCODINGS)} encodings and
    {len(POSITION_HEADS)} position heads
    """


def list_of_claims() -> Iterator[str]:
    """The table of claims in benchmarks/README.md."""
    parity = runs("parity_ppc").of("parity")
    yield f"| parity with PPC, trained on {parity.trained} bits, tested on {parity.lengths[-1]:,} |"
    yield f"""
    | parity, trained on {runs("parity_scratchpad").trained} bits: PPC, coupled IDs, and three encodings that fit |
    """
    copy = runs("copy_reverse")
    yield f"| copy and reverse, trained on {copy.trained} symbols, tested on {copy.lengths[-1]:,} |"
    addition = runs("addition")
    yield f"""
    | addition, trained on {addition.trained} digits, tested on {addition.lengths[-1]:,}, beside three encodings that
    fit {addition.of("rotary").trained} digits |
    """
    several = runs("multi_addition")
    yield f"""
    | addition of 2 to 5 operands of 1 to {several.trained} digits, tested on 10 operands of 10 digits and more |
    """
    arithmetic = runs("arithmetic")
    yield f"""
    | sums of {runs("arithmetic_traces").of("sum, trace").lengths[-1]:,} digits, products and longer lists with a
    written trace |
    """
    products = arithmetic.of("sort, PPC", "addition, PPC", "product, PPC")
    factors = [
        each.lengths[-1] / each.trained for each in map(products.of, ("sort, PPC", "product, PPC", "addition, PPC"))
    ]
    yield f"""
    | sums, products and sorted lists, tested at {span(factors, ".0f")} times the training length |
    """
    variables = runs("variable_assignment")
    yield f"""
    | variable assignment: PPC, and three encodings that fit {variables.of("rotary").trained} assignments; PPC to
    {variables.lengths[-1]:,} |
    """
    sparse = runs("sparse_parity")
    low, high = sparse.rows[0]["train_lengths"]
    yield f"""
    | sparse parity without scratchpad, trained on {low} to {high} bits, tested on 500 and {sparse.lengths[-1]:,} |
    """
    recall = runs("recall")
    yield f"""
    | associative recall, trained on {recall.trained} items, tested on {recall.lengths[-1]:,}; attention dilution |
    """
    options = runs("recall_attention")
    yield f"""
    | recall by attention option and encoding, tested at up to {options.lengths[-1] // options.trained:,} times the
    training length |
    """
    needles = [row["tokens"] for row in runs("needles").of("Llama, needle").rows]
    yield f"at up to {max(needles) // min(needles)} times the training length |"
    models = runs("hugging_face").of(positions="PPC", scaling="log", task="parity")
    first, *longer = models.lengths
    yield f"""
    | PPC in Llama, GPT-NeoX, Qwen3 and OLMo 2, at {listed(length // first for length in longer)} times the training
    length; overhead |
    """
    yield f"""
    | diagnosis of {word(len({row["row"] for row in runs("diagnosis").rows}))} runs that fail for known reasons |
    """
    contexts = runs("context_length")
    yield f"""
    | perplexity at 1 to {contexts.lengths[-1] // contexts.trained} times the training context with
    {word(len({row["row"] for row in contexts.rows}))} position methods |
    """
    trained = sorted({row["train_lengths"][1] for row in runs("training_length").rows})
    yield f"| copying by longest training length, {trained[0]} to {trained[-1]} symbols: PPC and ALiBi |"


def reviewers() -> Iterator[str]:
    """The table of the reviewers' questions in benchmarks/README.md."""
    shares = [recovered(study) for study in ("influence_prose", "influence_code")]
    yield f"""
    Not shown: {shares[0][0]} own tokens recover {shares[0][1]} of the effect on prose that is specific to the text,
    {shares[1][1]} on code.
    """
    text = runs("sparsity_in_text")
    yield f"""
    with {word(len({row["row"] for row in text.rows}))} ways to encode positions (one follows the lines of the text) and
    {word(text.num_seeds)} seeds each.
    """
    readings = rows_in("sparsity_in_text_readings")
    kinds = list(dict.fromkeys(kind["kind"] for row in readings for kind in row["kinds"]))
    agreeing = [kind for kind in kinds if any(agrees(readings, label, kind) for label in text.labels)]
    yield f"""
    {word(len(agreeing)).capitalize()} of {len(kinds)} kinds of tokens agrees with the claim in its median seed.
    """
    brackets = runs("sparsity_by_kind")
    agree = [row for row in brackets.rows if row["change"]["high"] < 0]
    yield f"""
    Over {brackets.rows[0]["measured"]} closing brackets, {len(agree)} of {len(brackets.rows)} intervals agree with the
    claim, but no method in all seeds.
    """
    yield scale_answer()
    yield bound_answer()
    mild, strong = minimax_ratio("copy, ALiBi, tilt 10"), minimax_ratio("copy, ALiBi, 4,500 steps, tilt 1000")
    yield f"""
    Not on copying, in {word(3)} seeds each: with ALiBi, a mild tilt changes the reach by a factor of {mild}, and a
    strong one with {word(4500 // 1500)} times the steps by {strong}.
    """
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
    lengths, reach = runs("training_length"), runs("minimax")
    trained = sorted({row["train_lengths"][1] for row in lengths.rows})
    multiples = {
        method: [min(lengths.of(f"{method}, up to {each}").multiples()) for each in trained]
        for method in ("discovered (PPC)", "ALiBi")
    }
    yield f"""
    With PPC, {min(multiples["discovered (PPC)"]):g} times from {listed(trained)} symbols; with ALiBi,
    {listed(multiples["ALiBi"])} times (worst of {word(lengths.num_seeds)} seeds). More steps help ALiBi:
    {span(reach.of("copy, ALiBi, 4,500 steps, tilt 0").reach(), "d")} symbols instead of
    {span(reach.of("copy, ALiBi, tilt 0").reach(), "d")}.
    """
    ppc = [runs("ppc").of(label) for label in ("parity, pointer", "variables, pointer")]
    exact = [
        f"{each.lengths[-1] // each.trained:,} times, {each.exact(each.lengths[-1])} of {each.num_seeds} seeds"
        for each in ppc
    ]
    yield f"""
    Yes for parity ({exact[0]}) and variables ({exact[1]}), with gaps in training and the pointer head.
    """
    needle = runs("recall").of("needle")
    longest = needle.lengths[-1]
    yield f"""
    Yes without positions ({longest // needle.trained} times, {needle.exact(longest)} of {needle.num_seeds} seeds), if
    attention is not diluted.
    """
    yield f"Llama and GPT-NeoX trained here find it at {needle_times()} times."
    four = runs("needles").of("Llama, one of four", "GPT-NeoX, one of four")
    yield f"One of four: not learned (at most {up(four.best(four.lengths[0]))} at the training length)."
    options = {
        name: min(runs("recall_attention").of(f"one of four, {label}").multiples()) for name, label in OPTIONS.items()
    }
    yield f"""
    On recall, log scaling reaches {options["log"]:,g} times, top-k and entmax
    {listed(sorted({options["top-k"], options["entmax"]}))} (each the longest test), DAPE V2 {options["DAPE V2"]:g} and
    ALiBi {options["ALiBi"]:g} (worst of {word(runs("recall_attention").num_seeds)} seeds).
    """
    dape = runs("dape_and_weave").of(*(f"{task}, DAPE V2" for task in ("copy", "parity", "addition")))
    weave = [
        longest_exact_length(tests, THRESHOLD) / reading["trained_on"]
        for reading in rows_in("dape_and_weave_readings")
        for tests in reading.get("weave", {}).values()
    ]
    yield f"""
    On copying, parity and addition, DAPE V2 and weave reach at most {max(*dape.multiples(), *weave):g} times.
    """
    rivals, fitting = runs("rivals"), fitting_rivals()
    farthest = max(max(rivals.of(label).multiples()) for label in fitting)
    yield f"""
    On copying, PPC reaches {min(rivals.of("copy, PPC").multiples()):g} times; the best seed of the
    {word(len(fitting))} rivals that fit in most seeds reaches {farthest:g} times
    """


def recovered(study: str) -> tuple[str, str]:
    """Return k, and the share that k own tokens of a study recover after subtracting the effect of another text."""
    summary = json.loads((RESULTS / "influence_text" / study / "summary.json").read_text())
    found = re.search(r"(\d+) selected tokens recover (\d+%)", compose_answer(summary)["sentence"])
    assert found is not None
    return found[1], found[2]


def minimax_ratio(label: str) -> str:
    """Return the ratio of the reach of a row to that of the average over lengths, with its interval."""
    readings = rows_in("minimax_readings")
    (_, _, body), *_ = CLAIMS["minimax"].tables(runs("minimax").rows, readings)
    (ratio,) = (cells[2] for cells in body if cells[0] == label)
    return ratio


def fitting_rivals() -> list[str]:
    """Return the labels of the rivals of PPC that fit in at least two of three seeds."""
    rivals = runs("rivals")
    labels = [label for label in dict.fromkeys(row["row"] for row in rivals.rows) if label != "copy, PPC"]
    return [label for label in labels if rivals.of(label).num_fit > 1]


def needle_multiple(runs_of_model: Runs) -> float:
    """Return the longest text in which every needle is found, in tokens of the longest training text, worst seed."""
    by_tokens = {row["tokens"]: row["length"] for row in runs_of_model.rows}
    exact = [tokens for tokens, length in by_tokens.items() if runs_of_model.worst(length) == 1]
    return max(exact) / min(by_tokens)


def agrees(readings: Sequence[Row], label: str, kind: str) -> bool:
    """Return True if the correlation of a kind of target is below 0 in the median seed, with its interval."""
    changes = [
        each["change"] for row in readings if row["row"] == label for each in row["kinds"] if each["kind"] == kind
    ]
    known = sorted((each for each in changes if each["value"] is not None), key=lambda each: each["value"])
    return bool(known) and known[(len(known) - 1) // 2]["high"] < 0


def scale_values(task: str, size: str, length: int, budget: str = "1") -> list[float]:
    """Return the exact match of a size of the claim ``scale`` by seed."""
    return rows_of_scale(f"{task}, {size}, {budget}").at(length)


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


def parity_scratchpad() -> Iterator[str]:
    """benchmarks/parity_scratchpad.md."""
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
    | parity, {runs("parity_ppc").trained} | found: the one by hand, up to a constant | {parity.rows[0]["told"]} |
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


def addition() -> Iterator[str]:
    """benchmarks/addition.md."""
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


def arithmetic() -> Iterator[str]:
    """benchmarks/arithmetic.md."""
    rows = runs("arithmetic")
    sums, lists = rows.of("addition, carries written, PPC"), rows.of("sort, PPC")
    products = rows.of("product, PPC", variant="2 digits")
    longest = [each.lengths[-1] for each in (sums, products, lists)]
    exact = [each.exact(length) for each, length in zip((sums, products, lists), longest, strict=True)]
    yield f"""
    1-layer decoders trained on at most {rows.trained} digits or items are exact on {listed(sorted(set(exact)), "to")}
    of {sums.num_seeds} seeds: sums with written carries at {longest[0]:,} digits, products of {longest[1]} by 2 digits,
    and sorted lists of {longest[2]} items.
    """
    plain, given = rows.of("addition, PPC"), rows.of("addition, IDs given")
    later = runs("addition").of("predicted (PPC), up to 10 digits")
    yield f"""
    At {1000:,} digits, {given.exact(1000)} of {given.num_seeds} seeds are exact with all IDs given and
    {plain.exact(1000)} of {plain.num_seeds} with PPC; with the later settings of [addition.md](addition.md), PPC is
    exact on {later.exact(1000)} of {later.num_seeds}.
    """
    far = rows.of("product, PPC, IDs to 2,048", variant="2 digits")
    number = far.num_examples(1000) * far.num_seeds
    wrong = round(number - sum(far.at(1000)) * far.num_examples(1000))
    yield f"{wrong} of {number} products over {word(far.num_seeds)} seeds"
    wide = rows.of("sort of 128 values, PPC")
    yield f"""
    **Lists of {100} items need a wider decoder, and {word(wide.num_seeds - wide.exact(100))} of {word(wide.num_seeds)}
    seeds fails.**
    """
    yield f"All seeds have {down(wide.worst(10), 3)} or more on {wide.num_examples(10)} lists of {10} items"


def arithmetic_traces() -> Iterator[str]:
    """benchmarks/arithmetic_traces.md."""
    rows = runs("arithmetic_traces")
    sums, products = rows.of("sum, trace"), rows.of("product, trace")
    narrow, wide = rows.of("sort, narrow lists"), rows.of("sort, all lists wide")
    yield f"""
    With a written trace, sums trained on at most {sums.trained} digits are exact at {1000:,} digits in every test of
    {sums.exact(1000)} of {sums.num_seeds} seeds ({sums.num_examples(1000) * sums.num_seeds} sums of each kind).
    """
    exact = [sum(each.at(100)[i] == each.at(128)[i] == 1 for i in range(each.num_seeds)) for each in (narrow, wide)]
    yield f"""
    Lists trained on at most {narrow.trained} items are sorted at {100} and {128} items without an error by {exact[0]}
    of {narrow.num_seeds} seeds ({narrow.num_examples(128)} lists each), and without narrow lists in training by
    {exact[1]} of {wide.num_seeds}.
    """
    yield f"""
    Products of {1000:,} digits are not solved: {products.num_fit} of {products.num_seeds} seeds fit their training
    lengths, and the worst has {products.worst(1000):.2f}.
    """
    untraced = runs("arithmetic").of("addition, PPC")
    yield f"Without it, the worst of {word(untraced.num_seeds)} seeds has {untraced.worst(1000):.2f} at {1000:,} digits"
    by_digits = [products.of(variant=f"{digits} digits").median(1000) for digits in (1, 2)]
    yield f"""
    {word(products.num_fit).capitalize()} of {word(products.num_seeds)} seeds fit and have
    {listed(map(two_digits, by_digits))} at {1000:,} by 1 and by 2 digits.
    """
    others = runs("arithmetic").of("product, PPC, IDs to 2,048", variant="2 digits")
    yield f"the worst of {word(others.num_seeds)} seeds has {others.worst(1000):.2f} at {1000:,} by 2 digits"
    short = [*narrow.at(20), *wide.at(20)]
    fit = narrow.num_fit + wide.num_fit
    yield f"""
    and {span(short, ".3f")} of them are right (wrong IDs). "Fits" asks for {FIT_THRESHOLD} of the 256 lists that
    training uses to measure itself, so {word(len(short) - fit)} of these {word(len(short))} runs stay just below it.
    """
    ten = runs("arithmetic").of("sort of 128 values, PPC")
    yield f"the worst of {word(ten.num_seeds)} seeds has {ten.worst(100):.2f} at {100} items"


def variable_assignment() -> Iterator[str]:
    """benchmarks/variable_assignment.md."""
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


def flagged(rows: Runs, up_to: int) -> Runs:
    """Select the tests of sparse parity with at most ``up_to`` flagged bits."""
    return Runs([row for row in rows.rows if int(row["variant"].removeprefix("flagged-")) <= up_to])


def sparse_parity() -> Iterator[str]:
    """benchmarks/sparse_parity.md."""
    groups = {k: flagged(runs("sparse_parity").of(f"up to {k} bits"), k) for k in (4, 6, 8)}
    several = flagged(runs("sparse_parity_8"), 8)
    held = {k: sum(value >= 0.99 for value in rows.at(500)) for k, rows in groups.items()}
    yield f"""
    At {500} bits ({500 // groups[4].trained}x), two attention layers without positions, trained on up to K flagged
    bits, are right on {0.99} of {groups[4].num_examples(500)} sequences or more: on {word(held[4])} of
    {word(groups[4].num_seeds)} seeds for K=4, {word(held[6])} for K=6 and {word(held[8])} for K=8 (worst seed
    {groups[8].worst(500):.2f}); with eight lengths per step, on
    {word(sum(value >= 0.99 for value in several.at(500)))} of {word(several.num_seeds)} for K=8.
    """


def background() -> Iterator[str]:
    """benchmarks/background.md."""
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


def recall() -> Iterator[str]:
    """benchmarks/recall.md."""
    needle = runs("recall").of("needle")
    longest = needle.lengths[-1]
    yield f"""
    A two-layer model without positions, trained on texts of at most {needle.trained} items, finds one needle among
    {longest:,} items ({longest // needle.trained}x) in all of {needle.num_examples(longest)} sequences, on
    {word(needle.exact(longest))} of {word(needle.num_seeds)} seeds.
    """
    four, scaled = (runs("recall").of(f"one of four{more}") for more in ("", ", log scaling"))
    rotary = runs("recall").of("one of four, rotary, log scaling")
    yield f"({down(min(scaled.worst(each) for each in scaled.lengths))} or more) only if scores grow"
    yield f"it is found in {span(four.at(longest))} of the texts of {longest:,}"
    yield f"One of four is found in {span(rotary.at(longest))} of the texts of {longest:,}."


def recall_attention() -> Iterator[str]:
    """benchmarks/recall_attention.md."""
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
    reach = {label: each.multiples() for label in rows.labels for each in [rows.of(label)]}

    def times(label: str) -> str:
        return listed(f"{value:g}x" for value in reach[f"one of four, {label}"])

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
    yield f"**Without a change to the attention, NoPE reaches {max(reach['one of four, NoPE']):g}x, and"
    dape = reach["one of four, DAPE V2"]
    assert sorted(dape)[0] == sorted(dape)[1]
    yield f"**DAPE V2 differs between seeds**: {max(dape):g}x in one, and {min(dape):g}x in two."
    entmax = rows.of("one of four, NAPE, scalable entmax")
    yield f"Scalable entmax has {down(min(map(entmax.worst, entmax.lengths)))} or more at every length."
    yield f"Log scaling also has {found[0]} of {rows.num_examples(longest) * scaled.num_seeds} at {longest // 32:,}x."


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


def dape_and_weave() -> Iterator[str]:
    """benchmarks/dape_and_weave.md."""
    rows = runs("dape_and_weave")
    yield f"**Claim ({word(rows.num_seeds)} seeds).**"
    copy = rows.of("copy, DAPE V2")
    twice = 2 * copy.trained
    yield f"""
    Trained on up to {copy.trained} symbols, DAPE V2 copies {twice} (2x) with exact match {span(copy.at(twice))}; its
    base KERPLE (log) has {span(rows.of("copy, KERPLE (log)").at(twice))}.
    """
    values = []
    readings = rows_in("dape_and_weave_readings")
    for task in ("parity", "addition"):
        dape = rows.of(f"{task}, DAPE V2")
        following = dape.lengths[dape.lengths.index(dape.trained) + 1]
        weave = [tests for row in readings if row["row"] == f"{task}, rotary" for tests in row["weave"].values()]
        values += [
            dape.best(following),
            *(each["exact_match"] for tests in weave for each in tests if each["length"] == following),
        ]
    yield f"""
    On parity and addition, DAPE V2 and weave have at most {up(max(values))} at the next tested length.
    """
    farther = {name: listed(map(two_digits, rows.of(f"copy, {name}").at(30))) for name in ("DAPE V2", "KERPLE (log)")}
    yield f"at 3x DAPE V2 has {farther['DAPE V2']}, and KERPLE {farther['KERPLE (log)']}."
    six = {name: rows.of(f"parity, {name}") for name in ("DAPE V2", "KERPLE (log)", "rotary")}
    yield f"""
    At {6} bits, DAPE V2 has {span(six["DAPE V2"].at(6))}, KERPLE {span(six["KERPLE (log)"].at(6))} and rotary
    {six["rotary"].best(6):g}. At {8} bits, all have at most {up(max(each.best(8) for each in six.values()))}.
    """
    sums = rows.of("addition, rotary", "addition, KERPLE (log)", "addition, DAPE V2")
    yield f"All encodings fit {sums.trained} digits in all seeds and have at most {up(sums.best(3), 3)} on {3}."
    reach = {name: rows.of(f"copy, {name}").multiples() for name in ("DAPE V2", "KERPLE (log)")}
    (kerple,) = set(reach["KERPLE (log)"])
    yield f"on copying**: {listed(f'{each:g}x' for each in reach['DAPE V2'])} instead of {kerple:g}x in all seeds."


def rivals() -> Iterator[str]:
    """benchmarks/rivals.md."""
    rows = runs("rivals")
    yield f"**Claim ({word(rows.num_seeds)} seeds).**"
    ppc = rows.of("copy, PPC")
    fitting = {label.removeprefix("copy, "): min(rows.of(label).multiples()) for label in fitting_rivals()}
    farther = [name for name, multiple in fitting.items() if multiple > 1]
    yield f"""
    Trained on copying up to {ppc.trained} symbols, PPC copies {ppc.lengths[-1]:,} symbols ({min(ppc.multiples()):g}
    times).
    """
    yield f"""
    Of the {word(len(fitting))} rivals that fit in two or three seeds, {listed(farther)} reach
    {min(fitting[name] for name in farther):g} times in the worst seed, and
    {listed([name for name in fitting if name not in farther])} {min(fitting.values()):g} time.
    """
    at_fifteen = {name: listed(map(two_digits, rows.of(f"copy, {name}").at(15))) for name in ("looped NoPE", "NoPE")}
    yield f"""
    at {15} symbols, the three seeds have {at_fifteen["looped NoPE"]} with loops, and {at_fifteen["NoPE"]} without
    """


def rows_of_scale(label: str) -> Runs:
    """Return the runs of a size and budget of the claim ``scale``."""
    return runs("scale").of(f"{label} of the steps")


def scale() -> Iterator[str]:
    """benchmarks/scale.md."""
    yield f"On these {word(runs('scale').num_seeds)} seeds, the task decides what limits the reach."
    small = rows_of_scale("parity, 1 x 64, 0.25")
    fastest = max(row["train_s"] for row in small.rows)
    yield f"""
    One layer of {64} dimensions is exact at {20_000 // small.trained:,} times the training length after
    {small.rows[0]["steps"]} steps ({fastest:.0f} s of training), on {word(small.exact(20_000))} of
    {word(small.num_seeds)} seeds.
    """
    variables = [label for label in runs("scale").labels if label.startswith("variables")]
    exact = [label for label in variables if runs("scale").of(label).worst(1600) == 1]
    assert exact == ["variables, 1 x 128, 1 of the steps"]
    yield f"""
    only one layer of {128} dimensions with all steps makes no error at {1600 // 16} times the length on both seeds
    ({runs("scale").of(exact[0]).num_examples(1600)} sequences each).
    """
    bits = runs("scale").of(task="sparse_parity")
    fitting = [each for each in bits.by_run() if each[0]["fitted"] >= FIT_THRESHOLD]
    # Training that ends at the same step is the same at two budgets.
    reach = {
        (label_of(each[0]).split(", ")[1], each[0]["seed"], each[0]["steps"]): longest_exact_length(each, 0.9)
        for each in fitting
    }
    yield f"""
    {len(fitting)} values of the table are of runs that fit {bits.trained} bits. They are {len(reach)} runs, because
    training that ends early is the same for half and all of the steps; {sum(each >= 500 for each in reach.values())} of
    these have {0.9} or more at {500}.
    """
    deep, wide = (rows_of_scale(f"variables, {size}").at(1600) for size in ("4 x 64, 1", "1 x 128, 0.25"))
    yield f"""
    Four layers of {64} take fewer operations and have {listed(map(two_digits, deep))}; the wide model has
    {listed(map(two_digits, wide))} after a quarter of
    """


def scale_answer() -> str:
    """Return the answer to the question about the size of the model."""
    rows = runs("scale")
    width = [two_digits(min(scale_values("variables", size, 1600))) for size in ("1 x 32", "1 x 64", "1 x 128")]
    depth = [two_digits(min(scale_values("variables", size, 1600))) for size in ("1 x 64", "2 x 64", "4 x 64")]
    fits = [rows.of(f"sparse parity, {size}, 0.25 of the steps").num_fit for size in ("1 x 64", "2 x 64", "4 x 64")]
    return f"""
    The task decides. Variable assignment at {1600 // 16} times needs width ({listed(width)} with {32}, {64} and {128},
    worst of {word(rows.num_seeds)} seeds) more than depth ({listed(depth)} with one, two and four layers of {64}).
    Sparse parity fits after a quarter of the steps in {listed(fits)} of {word(rows.num_seeds)} seeds with one, two and
    four layers. Parity with PPC needs neither.
    """


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


def training_length() -> Iterator[str]:
    """benchmarks/training_length.md."""
    rows = runs("training_length")
    yield f"**Claim ({word(rows.num_seeds)} seeds).**"
    trained = sorted({row["train_lengths"][1] for row in rows.rows})
    alibi = [min(rows.of(f"ALiBi, up to {each}").reach()) for each in trained]
    ppc = [min(rows.of(f"discovered (PPC), up to {each}").multiples()) for each in trained]
    yield f"""
    On copying, ALiBi trained on up to {listed(trained)} symbols reaches at least {listed(alibi)}. PPC reaches the
    longest test, {listed(sorted(set(ppc)))} times the training length, from each of them.
    """
    longest = rows.of("ALiBi, up to 40")
    yield f"At {200} symbols, models trained on up to 40 have {span(longest.at(200))}."
    other = [runs("minimax").of(label) for label in ("copy, ALiBi, tilt 0", "copy, ALiBi, 4,500 steps, tilt 0")]
    yield f"""
    it reaches {span(other[0].reach(), "d")} after {other[0].rows[0]["steps"]:,} steps and {span(other[1].reach(), "d")}
    after {other[1].rows[0]["steps"]:,}, and fits in all {word(sum(each.num_fit for each in other))} runs
    """
    number = sum(each.num_fit for each in (rows.of(label) for label in rows.labels))
    assert number == len(rows.by_run())
    yield f"All {number} runs fit."


def minimax() -> Iterator[str]:
    """benchmarks/minimax.md."""
    rows = runs("minimax")
    strong = rows.of("copy, ALiBi, tilt 1000")
    yield f"is not better than training on the average, in {word(strong.num_seeds)} seeds each."
    long = rows.of("copy, ALiBi, 4,500 steps, tilt 1000")
    yield f"""
    With ALiBi and {strong.rows[0]["steps"]:,} steps, a mild tilt reaches about as far (geometric mean of the ratio
    {minimax_ratio("copy, ALiBi, tilt 10")}), and a strong one fits in {strong.num_fit} of {strong.num_seeds} seeds.
    With {long.rows[0]["steps"]:,} steps the strong tilt fits in {long.num_fit} of {long.num_seeds} and reaches
    {minimax_ratio("copy, ALiBi, 4,500 steps, tilt 1000")} times as far.
    """
    ppc = rows.of(
        *(
            f"{task}, PPC, tilt {tilt}"
            for task, tilt in (("copy", 0), ("copy", 10), ("copy", 1000), ("parity", 0), ("parity", 1000))
        )
    )
    yield f"""
    PPC reaches the longest test, {min(ppc.multiples()):g} times the training length, with every tilt,
    """
    ratios: dict[bool, list[float]] = {}
    for reading in rows_in("minimax_readings"):
        if reading["tilt"] == 0:
            ratios.setdefault("4,500 steps" in reading["row"], []).append(reading["worst_loss"] / reading["mean_loss"])
    yield f"""
    There the worst length has up to {max(ratios[True]):.1f} times the mean loss over lengths (tilt 0), nearly L = 10
    times. In the runs of {strong.rows[0]["steps"]:,} steps it has at most {up(max(ratios[False]), 1)} times.
    """
    average = [rows.of(f"copy, ALiBi{steps}, tilt 0") for steps in (", 4,500 steps", "")]
    reach = [span(each.reach(), "d") for each in average]
    yield f"""
    with tilt 0, ALiBi reaches {reach[0]} after {average[0].rows[0]["steps"]:,} steps and {reach[1]} after
    {average[1].rows[0]["steps"]:,}
    """


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
    attacks: dict[str, int] = {}
    for row in {row["kind"]: row for row in rows_in("faults")}.values():
        attacks[row["commit"][:7]] = attacks.get(row["commit"][:7], 0) + row["attacks"]
    (first, number), (last, kills), *newer = attacks.items()
    yield f"Seed 0, {number:,} attacks, commit {first}"
    yield f"Seed 0, {kills} kills, commit {last}"
    commits, numbers = zip(*newer, strict=True)
    yield f"Seed 0, {sum(numbers):,} attacks, commits {listed(commits)}"
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


def ppc() -> Iterator[str]:
    """benchmarks/ppc.md."""
    rows, readings = runs("ppc"), rows_in("ppc_readings")
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
    few = [each for each in readings if each["row"] == "parity, pointer"]
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


def diagnosis() -> Iterator[str]:
    """benchmarks/diagnosis.md."""
    readings = rows_in("diagnosis_readings")
    dilution, distances = "attention diluted by more tokens", "IDs or distances that training did not show"
    without_ids = [
        row for row in readings if row["row"] in ("recall, NoPE", "sparse parity, undiluted") and row["repaired"]
    ]
    rotary = [row for row in readings if row["row"] in ("recall, rotary", "copy, rotary")]
    fewer, trained = ([row["repaired"][cause] for row in without_ids] for cause in (dilution, distances))
    yield f"""
    In the {word(len(without_ids))} failing runs, {span(fewer)} of the first errors are right with fewer tokens, and
    {word(round(max(trained)))} with the IDs of training.
    """
    by_ids = [row["repaired"][distances] for row in rotary]
    yield f"{span(by_ids)} of the first errors are right with the IDs of training."
    fitted = runs("diagnosis").of("copy, rotary").at(20)
    steps = runs("diagnosis").of("copy, rotary").rows[0]["steps"]
    yield f"""
    Copy does not fully fit {20} symbols ({listed(map(two_digits, fitted))} after {steps:,} steps), but its failure at
    {next(row["length"] for row in readings if row["row"] == "copy, rotary")} is still one of IDs.
    """


def sparsity_in_text() -> Iterator[str]:
    """benchmarks/sparsity_in_text.md."""
    readings = rows_in("sparsity_in_text_readings")
    labels = list(dict.fromkeys(row["row"] for row in readings))
    longest = {label: [row["change"][-1] for row in readings if row["row"] == label] for label in labels}
    every = [each for changes in longest.values() for each in changes]
    contain = [each for each in every if each["low"] <= 0 <= each["high"]]
    negative = [label for label, changes in longest.items() if all(each["value"] < 0 for each in changes)]
    times = readings[0]["lengths"][-1] // readings[0]["lengths"][0]
    yield f"""
    **The answer is "cannot be told" for all {word(len(labels))} ways to encode positions. There is no evidence for the
    claim: {len(contain)} of {len(every)} intervals at {times} times the trained context contain 0, and
    {word(len(negative))} of the rows has a negative correlation in all {word(len(longest[labels[0]]))} seeds.**
    """
    changes = {label: [row["mean_change"][-1]["value"] for row in readings if row["row"] == label] for label in labels}
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
    brackets = rows_in("sparsity_by_kind")
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
    times the training length ([{word(longer.num_seeds)} seeds](../benchmarks/training_length.md)).
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
    readings = rows_in("diagnosis_readings")
    dilution, distances = "attention diluted by more tokens", "IDs or distances that training did not show"
    recall, copy = ([row for row in readings if row["row"] == label] for label in ("recall, NoPE", "copy, rotary"))
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


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "README.md": readme,
    "benchmarks/seed_failures.md": seed_failures,
    "benchmarks/influence.md": influence_cost,
    "benchmarks/README.md": lambda: chain(list_of_claims(), reviewers()),
    **{
        f"benchmarks/{page.__name__}.md": page
        for page in (
            *(parity_ppc, demo, fit_sweep, parity_scratchpad, coupling, pointer_form, ppc, copy_reverse, addition),
            *(multi_addition, arithmetic, arithmetic_traces, variable_assignment, sparse_parity, background, recall),
            *(recall_attention, needles, dape_and_weave, rivals, scale, hugging_face, diagnosis, forecast),
            *(theory_transformers, theory_bounds, influence_text, sparsity_in_text, context_length),
            *(training_length, minimax, encodings, speedrun, million_tokens, mixed_lengths, faults, speed),
        )
    },
    **{f"docs/{page.__name__}.md": page for page in (which, diagnose, influence, teaching)},
}


# Parts of claims without result rows, and where their numbers come from.
NOT_FROM_ROWS: dict[str, tuple[tuple[str, str], ...]] = {
    "README.md": (
        ("[Start in five minutes", "the time to follow docs/start.md"),
        ("In less than five minutes", "make demo; benchmarks/demo.md"),
        ("Parity of five bits", "the example of the figure"),
    ),
    "benchmarks/README.md": (
        ("twelve tasks from files", "FILE_TASKS of benchmarks/coupling_tasks.py"),
        ("resumed runs are identical after 20 kills", "python -m pytest -m slow tests/training -k killed"),
        ("memory over two hours", "python benchmarks/soak.py --minutes 120"),
        ("what the five scripts in `examples/` print on three seeds", "the commands of benchmarks/examples.md"),
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
            "Four of the five scripts in `examples/` print the same result on three of three seeds.",
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


def main() -> None:
    """List the sentences that differ from their page, or write their numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the numbers of the rows into the pages")
    options = parser.parse_args()
    for page in PAGES:
        path = ROOT / page
        if options.write:
            text = path.read_text()
            for sentence in differing_sentences(page):
                text = put_numbers(text, sentence)
            path.write_text(text)
        for sentence in differing_sentences(page):
            print(f"{page}: {sentence}")


if __name__ == "__main__":
    main()
