"""Kinds of knowledge that a method receives beyond the training data: the column ``told`` of result tables."""

from lengthwise.positions.scheme import PositionScheme
from lengthwise.tasks.task import Task, declared_knowledge

ID_RANGE, COUPLING, RESPONSE_IDS, DIGIT_PLACES = "ID range", "coupling", "response IDs", "digit places"
NOTHING = "nothing"


def describe_knowledge(task: Task | None, scheme: PositionScheme | None, encoding: object = None) -> str:
    """Return the kinds of knowledge of a task, a scheme and an encoding, separated by commas, or "nothing".

    None stands for an unknown task, or for a model with the position IDs of its own library.
    """
    scheme_kinds = () if scheme is None else knowledge_of_scheme(scheme)
    return ", ".join(declared_knowledge(task) + scheme_kinds + declared_knowledge(encoding)) or NOTHING


def knowledge_of_scheme(scheme: PositionScheme) -> tuple[str, ...]:
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
        DIGIT_PLACES: scheme.needs == "places",
    }
    return tuple(kind for kind, is_used in kinds.items() if is_used)
