"""Laws of all position schemes, properties of each one, and the places of digits."""

from collections import Counter
from dataclasses import fields, replace
from math import comb

import numpy as np
import pytest
from tests.support.cases import (
    NUM_POSITION_IDS,
    TASK_VARIANTS,
    decode_tokens,
    small_scheme,
    supports_examples,
)

from lengthwise.core.errors import UnsupportedTaskError
from lengthwise.encodings import ENCODINGS
from lengthwise.positions import (
    SCHEMES,
    Abacus,
    Coupled,
    MultiLevel,
    PositionScheme,
    Predicted,
    RandomFloats,
    Sequential,
    Skipwise,
    describe_given_information,
    given_knowledge_of_scheme,
)
from lengthwise.positions.randomized import sample_sorted_ids
from lengthwise.tasks import (
    TASKS,
    Addition,
    IndexHints,
    JSONLTask,
    Multiplication,
    MultiQueryRecall,
    Parity,
    PlantedCorrelations,
    Recall,
    Sort,
    SparseParity,
    Text,
    VariableAssignment,
)
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import declared_given

# Enough IDs for the longest of the tasks below.
RANGE = 512
# One example of every task, to read what it declares.
EXAMPLES = {name: task.sample(length=4, size=1, rng=np.random.default_rng(0)) for name, task in TASK_VARIANTS.items()}


def pairs(*, supported: bool, random: bool = True) -> list:
    """Return all pairs of scheme and task in which the scheme supports the task, or does not.

    Without ``random``, schemes with random evaluation IDs are left out.
    """
    return [
        pytest.param(scheme, TASK_VARIANTS[name], id=f"{scheme}-{name}")
        for scheme in SCHEMES
        for name in TASK_VARIANTS
        if supports_examples(scheme, EXAMPLES[name]) == supported
        and (random or not SCHEMES[scheme].random_at_evaluation)
    ]


over_supported = pytest.mark.parametrize(("scheme", "task"), pairs(supported=True))
over_deterministic = pytest.mark.parametrize(("scheme", "task"), pairs(supported=True, random=False))
over_schemes = pytest.mark.parametrize("scheme", SCHEMES)
over_training = pytest.mark.parametrize("training", [True, False])
over_gapped = pytest.mark.parametrize(
    "scheme", [name for name, scheme in SCHEMES.items() if "max_gaps" in {field.name for field in fields(scheme)}]
)
over_random = pytest.mark.parametrize(
    "scheme", [name for name, scheme in SCHEMES.items() if scheme.random_at_evaluation]
)
over_multilevel = pytest.mark.parametrize("scheme", ["multilevel", "predicted"])
over_ranges = pytest.mark.parametrize(
    "scheme", [name for name in SCHEMES if small_scheme(name).num_position_ids is not None]
)


def groups_of(scheme: str, examples: Examples) -> np.ndarray:
    """Return the numbers whose order and ties the IDs must keep: the part that a scheme reads, or token indexes."""
    needs = SCHEMES[scheme].needs
    if scheme == "discovered":
        return counting_prompt_with_one_pointer(examples)
    if needs is None:
        return np.broadcast_to(np.arange(examples.tokens.shape[1]), (1, *examples.tokens.shape))
    groups = getattr(examples, needs)
    assert groups is not None
    return groups if needs == "coupling" else groups[None]


def counting_prompt_with_one_pointer(examples: Examples) -> np.ndarray:
    """Return the numbers of the default rule of the scheme discovered, token by token."""
    numbers = np.zeros((1, *examples.tokens.shape), dtype=np.int64)
    for row, start, end in zip(numbers[0], examples.prompt_length - 1, examples.response_end, strict=True):
        row[:start] = np.arange(start) + 2
        # The pointer stops at the last prompt token before the start token.
        row[start:end] = np.minimum(np.arange(end - start), start - 1) + 2
        row[end:] = row.max() + 1
    return numbers


def examples_with_coupling(groups: np.ndarray) -> Examples:
    """Return examples with this coupling and nothing else that a scheme reads."""
    size, seq = groups.shape[1:]
    is_answer = np.broadcast_to(np.arange(seq) >= seq // 2, (size, seq))
    return Examples(
        tokens=np.zeros((size, seq), np.int64),
        prompt_length=np.full(size, seq // 2),
        is_answer=is_answer,
        coupling=groups,
    )


def two_level_examples(size: int, largest: tuple[int, int] = (4, 4)) -> Examples:
    """Return examples whose groups rise, repeat and fall; the levels differ only in the largest group."""
    groups = np.array([[1, 2, 3, last, 3, 2, 3, last] for last in largest])
    return examples_with_coupling(np.broadcast_to(groups[:, None], (2, size, groups.shape[1])))


@pytest.mark.covering(2)
@pytest.mark.parametrize(("scheme", "task"), pairs(supported=False))
@over_training
def test_a_scheme_rejects_an_unsupported_task_and_names_other_schemes(scheme, task, training, rng):
    examples = task.sample(length=4, size=20, rng=rng)
    with pytest.raises(UnsupportedTaskError, match=r"this task (declares no|has \d levels) .* use the scheme"):
        small_scheme(scheme).assign(examples, rng, training=training)


@pytest.mark.covering(2)
@over_supported
def test_training_ids_keep_the_order_and_ties_of_their_groups(scheme, task, rng):
    examples = task.sample(length=4, size=20, rng=rng)
    ids = small_scheme(scheme, num_position_ids=RANGE).assign(examples, rng, training=True).position_ids
    groups = groups_of(scheme, examples)
    assert np.array_equal(
        np.sign(ids[..., :, None] - ids[..., None, :]), np.sign(groups[..., :, None] - groups[..., None, :])
    )
    assert ids.min() >= 0
    assert ids.max() < RANGE


@pytest.mark.covering(2)
@over_deterministic
def test_without_gaps_all_nonzero_ids_of_a_level_are_shifted_as_one_block(scheme, task, rng):
    examples = task.sample(length=4, size=20, rng=rng)
    groups = groups_of(scheme, examples)
    is_shifted = groups > 0 if SCHEMES[scheme].needs == "step_index" else np.ones(groups.shape, dtype=np.bool_)
    shifts = (
        small_scheme(scheme, max_gaps=0, num_position_ids=RANGE).assign(examples, rng, training=True).position_ids
        - groups
    )
    highest = np.where(is_shifted, shifts, -1).max(axis=-1, keepdims=True)
    assert np.array_equal(shifts, np.where(is_shifted, highest, 0))
    assert len(np.unique(highest)) > 1 or scheme == "sequential"


@pytest.mark.covering(2)
@over_deterministic
def test_deterministic_evaluation_ids_equal_the_groups_and_use_no_random_numbers(scheme, task, rng):
    examples = task.sample(length=4, size=5, rng=rng)
    before = rng.bit_generator.state
    # Also beyond the training range, which is no limit at evaluation.
    for settings in (small_scheme(scheme, num_position_ids=RANGE), small_scheme(scheme, num_position_ids=2)):
        ids = settings.assign(examples, rng, training=False).position_ids
        assert np.array_equal(ids, groups_of(scheme, examples))
    assert rng.bit_generator.state == before


@over_random
def test_random_evaluation_ids_have_the_distribution_of_training_ids(scheme):
    examples = Parity().sample(length=4, size=5, rng=np.random.default_rng(0))
    trained, evaluated, other = (
        small_scheme(scheme, num_position_ids=RANGE)
        .assign(examples, np.random.default_rng(seed), training=training)
        .position_ids
        for seed, training in ((1, True), (1, False), (2, False))
    )
    assert np.array_equal(trained, evaluated)
    assert not np.isin(other, evaluated).all()
    assert len({tuple(ids) for ids in evaluated[0].tolist()}) == 5


@pytest.mark.covering(2)
@over_supported
@over_training
def test_every_answer_is_scored_and_every_answer_id_except_the_end_tokens(training, scheme, task, rng):
    examples = task.sample(length=4, size=20, rng=rng)
    assignment = small_scheme(scheme, num_position_ids=RANGE).assign(examples, rng, training=training)
    is_end = np.arange(examples.tokens.shape[1]) == examples.response_end[:, None]
    assert np.array_equal(assignment.token_scored, examples.is_answer)
    assert np.array_equal(assignment.id_scored, examples.is_answer & ~is_end)


@over_schemes
@over_training
def test_ids_are_real_numbers_if_and_only_if_the_scheme_declares_it(training, scheme, rng):
    examples = Parity().sample(length=7, size=2, rng=rng)
    ids = small_scheme(scheme).assign(examples, rng, training=training).position_ids
    assert ids.dtype == (np.float64 if SCHEMES[scheme].real_valued else np.int64)


@over_ranges
def test_training_uses_every_id_of_the_range(scheme, rng):
    examples = Parity().sample(length=2, size=4_000, rng=rng)
    ids = small_scheme(scheme, num_position_ids=64).assign(examples, rng, training=True).position_ids
    lowest = groups_of(scheme, examples).min()
    assert np.array_equal(np.unique(np.floor(ids)), np.arange(lowest, 64))


@pytest.mark.parametrize("needs", ["coupling", "step_index"])
def test_the_error_for_an_unsupported_task_names_all_schemes_that_support_it(needs, rng):
    examples = Parity().sample(length=2, size=1, rng=rng)
    bare = replace(examples, coupling=None, step_index=None)
    universal = {name for name, scheme in SCHEMES.items() if scheme.needs is None}
    rejecting = next(name for name, scheme in SCHEMES.items() if scheme.needs == needs)
    for unsupported, others in (
        (bare, set()),
        (replace(examples, **{needs: None}), {"abacus"} if needs == "coupling" else {"multilevel", "predicted"}),
    ):
        with pytest.raises(UnsupportedTaskError) as caught:
            small_scheme(rejecting).assign(unsupported, rng, training=True)
        advice = str(caught.value).split("use the scheme")[1]
        assert {word.strip(",") for word in advice.split()} & set(SCHEMES) == universal | others


@over_gapped
def test_gaps_produce_distances_of_every_size_up_to_the_whole_range(scheme, rng):
    examples = Parity().sample(length=4, size=3_000, rng=rng)
    ids = small_scheme(scheme).assign(examples, rng, training=True).position_ids[0]
    distances = ids.max(axis=1) - ids.min(axis=1)
    shortest = np.ptp(groups_of(scheme, examples)[0, 0])
    tenths = np.linspace(shortest, NUM_POSITION_IDS - 1, 11)
    assert distances.min() == shortest
    assert (np.histogram(distances, bins=tenths)[0] > 50).all()
    neighbours = np.diff(np.sort(ids, axis=1), axis=1).max(axis=1)
    assert neighbours.max() > 0.9 * NUM_POSITION_IDS


@pytest.mark.parametrize("max_gaps", [0, 1, 5])
def test_skipwise_has_at_most_one_more_chunk_than_gaps(max_gaps, rng):
    examples = Parity().sample(length=20, size=2_000, rng=rng)
    ids = Skipwise(num_position_ids=4_096, max_gaps=max_gaps).assign(examples, rng, training=True).position_ids[0]
    chunks = 1 + (np.diff(ids, axis=1) != 1).sum(axis=1)
    assert set(chunks.tolist()) == set(range(1, max_gaps + 2))


@over_multilevel
def test_gaps_of_different_levels_are_independent(scheme, rng):
    ids = small_scheme(scheme, max_gaps=1).assign(two_level_examples(4_000), rng, training=True).position_ids
    # Every other sorted ID belongs to the next group.
    gaps = np.diff(np.sort(ids, axis=-1)[..., ::2], axis=-1)
    opened = gaps.max(axis=-1) > 1
    both = opened.all(axis=0)
    assert both.mean() == pytest.approx(opened[0].mean() * opened[1].mean(), abs=0.03)
    places, sizes = gaps[:, both].argmax(axis=-1), gaps[:, both].max(axis=-1)
    assert (places[0] == places[1]).mean() == pytest.approx(1 / 3, abs=0.07)
    assert (sizes[0] == sizes[1]).mean() < 0.03


@over_multilevel
def test_shifts_of_different_levels_are_independent(scheme, rng):
    ids = small_scheme(scheme, max_gaps=0).assign(two_level_examples(4_000), rng, training=True).position_ids
    assert (ids[0, :, 0] == ids[1, :, 0]).mean() < 0.03


@over_multilevel
def test_a_level_with_few_groups_uses_distances_up_to_the_whole_range(scheme, rng):
    examples = two_level_examples(3_000, largest=(NUM_POSITION_IDS - 2, 4))
    ids = small_scheme(scheme).assign(examples, rng, training=True).position_ids
    assert (np.ptp(ids, axis=-1).max(axis=1) > 0.95 * NUM_POSITION_IDS).all()


def test_the_coupled_schemes_assign_the_same_ids_on_one_level():
    examples = Addition(unequal=True, zero_padding=False).sample(length=5, size=8, rng=np.random.default_rng(0))
    first, *others = (
        scheme(num_position_ids=99).assign(examples, np.random.default_rng(1), training=True).position_ids
        for scheme in (Coupled, MultiLevel, Predicted)
    )
    assert all(np.array_equal(first, other) for other in others)


@over_training
def test_coupled_rejects_a_second_level(training, rng):
    with pytest.raises(
        UnsupportedTaskError, match=r"2 levels but the scheme coupled supports only one; use the scheme multilevel"
    ):
        Coupled().assign(two_level_examples(1), rng, training=training)


# Both sampling methods: wide ranges are resampled on repeats, narrow ranges are permuted.
@pytest.mark.parametrize(("num_position_ids", "seq"), [(6, 1), (6, 3), (6, 5), (8, 1), (16, 2), (24, 3)])
def test_every_subset_of_the_range_is_equally_likely(num_position_ids, seq, rng):
    possible = comb(num_position_ids, seq)
    ids = sample_sorted_ids(rng, num_position_ids, 60 * possible, seq)
    counts = Counter(map(tuple, ids.tolist()))
    assert len(counts) == possible
    # The chi-square statistic has mean possible - 1 and standard deviation sqrt(2 * (possible - 1)).
    statistic = sum((count - 60) ** 2 / 60 for count in counts.values())
    assert statistic < possible - 1 + 5 * np.sqrt(2 * (possible - 1))


@pytest.mark.parametrize("seq", [1, 50, 511, 513, 4_000, 4_096])
def test_a_subset_is_sorted_and_has_no_repeats(seq, rng):
    ids = sample_sorted_ids(rng, 4_096, 3, seq)
    assert ids.shape == (3, seq)
    assert (np.diff(ids, axis=1) > 0).all()
    assert ids.min() >= 0
    assert ids.max() < 4_096


@over_training
@pytest.mark.parametrize("length", [1, 300])
def test_random_floats_increase_strictly_and_fill_the_same_range_at_every_length(length, training, rng):
    examples = Parity().sample(length=length, size=3_000 // length, rng=rng)
    ids = RandomFloats(num_position_ids=7).assign(examples, rng, training=training).position_ids
    assert (np.diff(ids, axis=-1) > 0).all()
    tenths = np.histogram(ids, bins=10, range=(0.0, 7.0))[0] / ids.size
    np.testing.assert_allclose(tenths, 0.1, atol=0.02)


def test_abacus_shifts_all_numbers_of_an_example_by_one_offset(rng):
    examples = Addition(zero_padding=False, unequal=True).sample(length=6, size=4_000, rng=rng)
    places = examples.step_index
    ids = Abacus(num_position_ids=17).assign(examples, rng, training=True).position_ids[0]
    assert (ids[places == 0] == 0).all()
    offsets = [np.unique((shifted - place)[place > 0]) for shifted, place in zip(ids, places, strict=True)]
    assert all(len(offset) == 1 for offset in offsets)
    counts = np.bincount(np.concatenate(offsets), minlength=17 - places.max())
    # Uniform from 0 to the offset that shifts the largest place to the last ID.
    assert len(counts) == 17 - places.max()
    np.testing.assert_allclose(counts / 4_000, 1 / len(counts), atol=0.03)


@pytest.mark.parametrize("order", ["least", "most"])
def test_abacus_ids_are_the_digits_places_in_writing_order(order):
    examples = Addition(order=order, zero_padding=False).example_from_prompt("957+68")
    ids = Abacus().assign(examples, np.random.default_rng(0), training=False).position_ids[0, 0]
    assert ids.tolist() == [1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4, 0]


@pytest.mark.parametrize(
    "task", [pytest.param(TASK_VARIANTS[n], id=n) for n in TASK_VARIANTS if EXAMPLES[n].step_index is not None]
)
@pytest.mark.parametrize("length", [1, 6])
def test_places_number_the_symbols_of_every_number_and_string_from_1(length, task, rng):
    examples = task.sample(length=max(length, task.min_length), size=30, rng=rng)
    for example, tokens in enumerate(examples.tokens):
        places, expected, place = examples.step_index[example], [], 0
        for index, symbol in enumerate(decode_tokens(task, tokens)):
            # Signs end a number or string; start tokens, carries and products are not symbols of it.
            is_sign = symbol in ("+", "x", "=", ">", "end") or index == examples.prompt_length[example] - 1
            is_product = isinstance(task, Multiplication) and len(symbol) == 2
            is_partial_sum = symbol[0] in "+r" and symbol[1:].isdigit()
            is_symbol = not (is_sign or is_product or is_partial_sum or symbol in (".", "c"))
            place = 0 if is_sign else place + is_symbol
            expected.append(place if is_symbol else 0)
        assert places.tolist() == expected


def test_tasks_without_numbers_and_strings_declare_no_step_index():
    without = (
        IndexHints
        | MultiQueryRecall
        | PlantedCorrelations
        | Recall
        | JSONLTask
        | SparseParity
        | Text
        | VariableAssignment
    )
    assert all((EXAMPLES[name].step_index is None) == isinstance(task, without) for name, task in TASK_VARIANTS.items())


GIVEN = {
    "sequential": (),
    "random_start": ("ID range",),
    "skipwise": ("ID range",),
    "randomized": ("ID range",),
    "random_floats": (),
    "abacus": ("ID range", "digit places"),
    "coupled": ("ID range", "coupling", "response IDs"),
    "multilevel": ("ID range", "coupling", "response IDs"),
    "predicted": ("ID range", "coupling"),
    "discovered": ("ID range",),
}


def test_every_scheme_names_what_it_is_given():
    assert {name: given_knowledge_of_scheme(scheme()) for name, scheme in SCHEMES.items()} == GIVEN


def test_the_scratchpads_of_tasks_are_named():
    given = {name: describe_given_information(task(), None) for name, task in TASKS.items()}
    written = {"parity", "multi_addition", "variable_assignment", "multiplication"}
    assert {given[name] for name in written} == {"scratchpad"}
    assert {given[name] for name in ("copy", "reverse", "addition", "sort", "recall", "text")} == {"nothing"}
    assert describe_given_information(Addition(scratchpad="carry"), Predicted()) == "scratchpad, ID range, coupling"
    assert describe_given_information(IndexHints(), Sequential()) == "scratchpad, index hints"
    assert describe_given_information(IndexHints(task=Addition()), None) == "index hints"


def test_encodings_with_a_factor_for_the_test_length_name_it():
    scaled = {"rotary_linear", "rotary_ntk", "rotary_dynamic_ntk", "yarn"}
    assert {name for name, encoding in ENCODINGS.items() if declared_given(encoding())} == scaled
    for name, encoding in ENCODINGS.items():
        assert ("factor" in {part.name for part in fields(encoding)}) == (name in scaled)
    assert describe_given_information(Sort(), Sequential(), ENCODINGS["yarn"]()) == "length factor"


def test_custom_classes_have_a_default_of_what_they_are_given():
    class CoupledOnly(PositionScheme):
        """Scheme that reads the coupling and has no range."""

        name = "coupled_only"
        needs = "coupling"

    assert given_knowledge_of_scheme(CoupledOnly()) == ("coupling", "response IDs")
    assert describe_given_information(Sort(), None) == "nothing"
