"""Interface of position schemes, which assign one or more IDs to every token, and the knowledge that they use."""

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int, Real

from lengthwise.core.errors import PositionRangeError, SettingError, UnsupportedTaskError
from lengthwise.core.type_checks import check_at_least, check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import Task, declared_given

# Schemes that read no declaration of a task, and therefore support every task.
UNIVERSAL_SCHEME_NAMES = "sequential, random_start, skipwise, randomized, random_floats or discovered"
# Kinds of knowledge that a method receives beyond the training data: the column ``given`` of result tables.
ID_RANGE, COUPLING, RESPONSE_IDS, DIGIT_PLACES = "ID range", "coupling", "response IDs", "digit places"
NOTHING = "nothing"
# Each gap takes time and memory in every batch.
MAX_GAPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Position IDs of a batch, and masks of the answer tokens and response IDs that count for the accuracy."""

    position_ids: Real[np.ndarray, "level batch seq"]
    token_scored: Bool[np.ndarray, "batch seq"]
    id_scored: Bool[np.ndarray, "batch seq"]


@runtime_checkable
class PositionScheme(Protocol):
    """Rule that assigns IDs to every token, on one or more levels.

    ``needs`` is the optional field of ``Examples`` that the scheme requires (``"coupling"``, ``"places"`` or None).
    ``real_valued``: IDs are real numbers. ``predicts_ids``: the decoder learns to predict the response IDs.
    ``random_at_evaluation``: evaluation IDs are random and below ``num_position_ids``, as in training. A subclass must
    set ``name``, and the other class variables if they differ from these defaults.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    needs: ClassVar[str | None] = None
    real_valued: ClassVar[bool] = False
    predicts_ids: ClassVar[bool] = False
    random_at_evaluation: ClassVar[bool] = False

    @property
    def num_position_ids(self) -> int | None:
        """Upper limit of the training IDs, exclusive; ``None`` if only the sequence length limits them."""
        return None

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """Return IDs for a batch; raise ``UnsupportedTaskError`` or ``PositionRangeError`` for unsuitable examples."""


@runtime_checkable
class SchemeWithLevels(Protocol):
    """Protocol for a scheme that knows its number of ID levels without an example."""

    @property
    def num_levels(self) -> int:
        """Number of ID levels of all examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedIDScheme(PositionScheme):
    """Abstract scheme with training IDs below ``num_position_ids``, which must be at least 1."""

    num_position_ids: int = 20_480

    def __post_init__(self) -> None:
        check_types(self)
        check_at_least(self, 1, "num_position_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomGapScheme(BoundedIDScheme):
    """Abstract scheme that adds random gaps between groups of tokens in training (PoSE, Zhu et al. 2024).

    At evaluation, the IDs have no gaps. With ``max_gaps=0``, training only adds a random shift to each level.
    """

    max_gaps: int = 3

    def __post_init__(self) -> None:
        BoundedIDScheme.__post_init__(self)
        if not 0 <= self.max_gaps <= MAX_GAPS:
            raise SettingError(f"max_gaps {self.max_gaps} is out of range; use 0 (no gaps) to {MAX_GAPS}")

    def ids_before_gaps(self, examples: Examples) -> Int[np.ndarray, "level batch seq"]:
        """Return the IDs without gaps: by default, all levels of the task's coupling."""
        return require_coupling(examples)

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """Return the group IDs; training adds random gaps and a random shift."""
        ids = self.ids_before_gaps(examples)
        if training:
            ids = insert_gaps(ids, rng, num_position_ids=self.num_position_ids, max_gaps=self.max_gaps)
        return make_assignment(examples, ids)


def make_assignment(examples: Examples, position_ids: Real[np.ndarray, "level batch seq"]) -> Assignment:
    """Return an assignment that scores all answer tokens and all response IDs except the ID of the end token."""
    id_scored = np.zeros_like(examples.is_answer)
    id_scored[:, :-1] = examples.is_answer[:, :-1] & examples.is_answer[:, 1:]
    return Assignment(position_ids=position_ids, token_scored=examples.is_answer, id_scored=id_scored)


def token_indexes(examples: Examples) -> Int[np.ndarray, "level batch seq"]:
    """Return the token indexes 0, 1, 2, ... as IDs on one level."""
    batch_size, seq_length = examples.tokens.shape
    return np.broadcast_to(np.arange(seq_length), (1, batch_size, seq_length))


def require_coupling(examples: Examples) -> Int[np.ndarray, "level batch seq"]:
    """Return the task's coupling; raise ``UnsupportedTaskError`` if it declares none."""
    if examples.coupling is None:
        more = "" if examples.step_index is None else ", or abacus, which counts digits"
        raise UnsupportedTaskError(f"this task declares no coupling; use the scheme {UNIVERSAL_SCHEME_NAMES}{more}")
    return examples.coupling


def require_step_index(examples: Examples) -> Int[np.ndarray, "batch seq"]:
    """Return the task's ``step_index``; raise ``UnsupportedTaskError`` if it declares none."""
    if examples.step_index is None:
        more = "" if examples.coupling is None else ", or multilevel or predicted, which use its coupling"
        raise UnsupportedTaskError(f"this task declares no step_index; use the scheme {UNIVERSAL_SCHEME_NAMES}{more}")
    return examples.step_index


def largest_id_shift(position_ids: Int[np.ndarray, "*level batch seq"], num_position_ids: int) -> int:
    """Return the largest shift that keeps all IDs in range; raise ``PositionRangeError`` for an ID out of range."""
    largest_id = int(position_ids.max())
    max_shift = num_position_ids - 1 - largest_id
    if max_shift < 0:
        raise PositionRangeError(
            f"the sequence has ID {largest_id} but the largest ID of the scheme is {num_position_ids - 1}; "
            f"set num_position_ids to at least {largest_id + 1}"
        )
    return max_shift


def insert_gaps(
    group_ids: Int[np.ndarray, "level batch seq"], rng: np.random.Generator, *, num_position_ids: int, max_gaps: int
) -> Int[np.ndarray, "level batch seq"]:
    """Insert 0 to ``max_gaps`` random gaps between the groups of each sequence, then add a random shift.

    Tokens of one group keep equal IDs, and levels are independent. The size of each gap is a uniform random fraction of
    the unused IDs. If the sizes exceed the unused IDs in total, they are scaled down. The shift uses the remaining IDs.
    Distances can have any size up to the full range, and all IDs are below ``num_position_ids``.
    """
    num_levels, batch_size, _ = group_ids.shape
    num_unused_ids = np.array([largest_id_shift(level_ids, num_position_ids) for level_ids in group_ids])[:, None, None]
    gaps_shape = (num_levels, batch_size, max_gaps)
    has_gap = np.arange(max_gaps) < rng.integers(0, max_gaps + 1, size=(num_levels, batch_size, 1))
    fractions = np.where(has_gap, rng.random(gaps_shape), 0.0)
    gap_sizes = fractions / np.maximum(fractions.sum(axis=-1, keepdims=True), 1.0) * num_unused_ids
    gap_starts = (rng.random(gaps_shape) * group_ids.max(axis=-1)[..., None]).astype(np.int64) + 1
    ids = group_ids.copy()
    for gap in range(max_gaps):
        ids += np.where(group_ids >= gap_starts[..., [gap]], gap_sizes[..., [gap]].astype(np.int64), 0)
    max_shifts = num_position_ids - 1 - ids.max(axis=-1, keepdims=True)
    return ids + (rng.random((num_levels, batch_size, 1)) * (max_shifts + 1)).astype(np.int64)


def describe_given_information(task: Task | None, scheme: PositionScheme | None, encoding: object = None) -> str:
    """Return the kinds of knowledge of a task, a scheme and an encoding, separated by commas, or "nothing".

    None stands for an unknown task, or for a model with the position IDs of its own library.
    """
    scheme_kinds = () if scheme is None else given_knowledge_of_scheme(scheme)
    return ", ".join(declared_given(task) + scheme_kinds + declared_given(encoding)) or NOTHING


def given_knowledge_of_scheme(scheme: PositionScheme) -> tuple[str, ...]:
    """Return the kinds of knowledge that a scheme uses; custom schemes need no declaration.

    ``ID range``: the range of the training IDs, which must cover the longest test. ``coupling``: the task's coupling,
    in training and for the test prompts. ``response IDs``: evaluation also provides the IDs of the correct response.
    ``digit places``: the place of each token in its number or string.
    """
    kinds = {
        # Real-valued IDs fit any number of tokens into the same range.
        ID_RANGE: scheme.num_position_ids is not None and not scheme.real_valued,
        COUPLING: scheme.needs == "coupling",
        RESPONSE_IDS: scheme.needs == "coupling" and not scheme.predicts_ids,
        DIGIT_PLACES: scheme.needs == "step_index",
    }
    return tuple(kind for kind, is_used in kinds.items() if is_used)
