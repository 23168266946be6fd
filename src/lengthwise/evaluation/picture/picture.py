"""Data of a picture: one example with its position IDs, and the earlier tokens that each answer depends on."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Real

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import stream
from lengthwise.evaluation.exact_match import iter_examples
from lengthwise.positions import PositionScheme
from lengthwise.tasks import Task
from lengthwise.tasks.examples import Examples
from lengthwise.training.batch import Batch, to_batch

# Longer sequences have too many links for a readable picture.
MAX_TOKENS = 128
SUPPORT, EQUAL_IDS = "support", "equal IDs"
# Kinds of links: to the token before the answer, to a token with the IDs of that token, and to any other token.
PREVIOUS, COUPLED, FAR = "previous", "coupled", "far"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Earlier token that an answer depends on, and its ID distance from the token before the answer on each level."""

    index: int
    id_distance: tuple[int | float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Prediction of a run for one answer, given the correct tokens and IDs before it.

    ``position_ids`` has the predicted ID of the correct token on each level. It is None, as is ``id_correct``, if the
    run predicts no IDs, and at the end token, whose ID is never used. ``attention`` has the weight of each earlier
    token, in the head ``Picture.attention_head``.
    """

    token: str
    token_correct: bool
    position_ids: tuple[int | float, ...] | None
    id_correct: bool | None
    attention: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Token index of an answer, its links, and the prediction of the run; None without a run."""

    index: int
    links: tuple[Link, ...]
    prediction: Prediction | None = None

    def kind(self, link: Link) -> str:
        """Return the kind of a link of this answer: ``PREVIOUS``, ``COUPLED`` or ``FAR``."""
        if link.index == self.index - 1:
            return PREVIOUS
        return FAR if any(link.id_distance) else COUPLED


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionHead:
    """Layer and head (from 0) whose attention a picture shows, with the mean over answers of its largest weight.

    The largest weight is that of a linked token. In a picture without links, it is that of any token before the query.
    """

    layer: int
    head: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One example with its IDs and links.

    ``position_ids`` has one tuple per level, with one ID per token. ``training`` is True for IDs with the random gaps
    and shifts of training. ``links_from`` is ``support`` if the task declares what its answers depend on. Otherwise it
    is ``equal IDs``, and an answer is linked to the tokens with the IDs of the token before the answer.
    """

    task: str
    scheme: str
    length: int
    seed: int
    training: bool
    prompt_length: int
    tokens: tuple[str, ...]
    position_ids: tuple[tuple[int | float, ...], ...]
    links_from: str
    answers: tuple[Answer, ...]
    encoding: str | None = None
    attention_head: AttentionHead | None = None

    def color_numbers(self) -> list[list[int | None]]:
        """Return a number per level and token: equal for equal IDs, and None for an ID that no other token has."""
        numbers: list[list[int | None]] = []
        for ids in self.position_ids:
            counts = Counter(ids)
            ranks = {each: rank for rank, each in enumerate(sorted(each for each in counts if counts[each] > 1))}
            numbers.append([ranks.get(each) for each in ids])
        return numbers


def sample_example(
    task: Task, scheme: PositionScheme, length: int, seed: int, *, training: bool
) -> tuple[Examples, Batch]:
    """Return the first example that evaluation uses with this seed, without fill; ``training`` assigns training IDs.

    Raises ``SettingError`` for an example with more than ``MAX_TOKENS`` tokens.
    """
    examples, batch = next(iter_examples(task, scheme, length, 1, seed))
    if training:
        rng = stream(seed, "picture training IDs", length)
        batch = to_batch(length, examples, scheme.assign(examples, rng, training=True))
    num_tokens = int(examples.response_end[0]) + 1
    if num_tokens > MAX_TOKENS:
        raise SettingError(
            f"the example of length {length} has {num_tokens:,} tokens, and a picture has at most {MAX_TOKENS}; "
            "use a shorter length"
        )
    return examples, batch.map_tensors(lambda tensor: tensor if tensor.dim() == 1 else tensor[..., :num_tokens])


def find_links(
    examples: Examples, position_ids: Real[np.ndarray, "level seq"]
) -> tuple[str, dict[int, tuple[Link, ...]]]:
    """Return the source of the links, and the links of each answer of the first example.

    Links are sorted by ID distance; the token before the answer is last.
    """
    source = EQUAL_IDS if examples.support is None else SUPPORT
    links = {}
    for answer in np.flatnonzero(examples.is_answer[0, : position_ids.shape[1]]).tolist():
        distances = np.abs(position_ids[:, :answer] - position_ids[:, [answer - 1]])
        if examples.support is None:
            indexes = np.flatnonzero(_is_coupled(distances))
        else:
            indexes = np.unique(examples.support[0, answer])
        found = [
            Link(index=index, id_distance=tuple(distances[:, index].tolist()))
            for index in indexes.tolist()
            if index >= 0
        ]
        links[answer] = tuple(
            sorted(found, key=lambda link: (link.index == answer - 1, max(link.id_distance), link.index))
        )
    return source, links


def _is_coupled(distances: Real[np.ndarray, "level keys"]) -> Bool[np.ndarray, " keys"]:
    """Return the mask of tokens before the query whose IDs are those of the query, the last token."""
    is_coupled: Bool[np.ndarray, " keys"] = (distances == 0).all(axis=0)
    is_coupled[-1] = False
    return is_coupled


def sentences(picture: Picture) -> Iterator[str]:
    """Yield sentences that describe a picture: the example, its links, and the predictions of the run."""
    kind = "training" if picture.training else "evaluation"
    yield f"{picture.task}, length {picture.length}, scheme {picture.scheme}, {kind} IDs, seed {picture.seed}"
    links = [link for answer in picture.answers for link in answer.links]
    if picture.links_from == SUPPORT:
        most = max((len(answer.links) for answer in picture.answers), default=0)
        farthest = max((max(link.id_distance) for link in links), default=0)
        yield f"sparsity: an answer needs at most {most} token{'s' * (most != 1)}"
        yield f"locality: the largest ID distance of a needed token is {format_number(farthest)}"
    else:
        yield "the task does not declare which tokens its answers need"
        if links:
            yield "each link leads to a token with the ID of the token before the answer"
    yield from _run_sentences(picture, bool(links))


def _run_sentences(picture: Picture, has_links: bool) -> Iterator[str]:
    head, predictions = picture.attention_head, [answer.prediction for answer in picture.answers if answer.prediction]
    if head is None:
        return
    ids_correct = [each.id_correct for each in predictions if each.id_correct is not None]
    ids = f" and {sum(ids_correct)} of {len(ids_correct)} IDs" if ids_correct else ""
    num_correct = sum(each.token_correct for each in predictions)
    yield f"the run predicts {num_correct} of {len(predictions)} tokens{ids} correctly"
    strongest = "link" if has_links else "earlier token"
    where = f"layer {head.layer}, head {head.head}"
    yield f"attention of {where}: on average {head.weight:.2f} on its strongest {strongest}"


def format_number(number: int | float) -> str:
    """Return an ID or an ID distance as text, with one decimal if it is real-valued."""
    return f"{number:.1f}" if isinstance(number, float) else str(number)


def join_numbers(numbers: Sequence[Any]) -> str:
    """Return IDs or ID distances of all levels as text, separated by commas."""
    return ",".join(map(format_number, numbers))
