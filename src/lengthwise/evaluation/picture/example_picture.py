"""Data of a picture: one example with its position IDs, the tokens that each answer needs, and predictions of a run."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Real
from rich.cells import cell_len, chop_cells
from torch import Tensor

from lengthwise.core.errors import DivergedError, SettingError
from lengthwise.core.progress_line import escape_control_characters
from lengthwise.core.randomness import random_stream
from lengthwise.evaluation.exact_match import iter_examples
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.decoder import Decoder
from lengthwise.positions import PositionScheme
from lengthwise.tasks import Task
from lengthwise.tasks.examples import Examples
from lengthwise.training.batch import Batch, to_batch

# Longer sequences have too many links for a readable picture.
MAX_TOKENS = 128
DEPENDS_ON, EQUAL_IDS = "depends_on", "equal IDs"
# Kinds of links: to the token before the answer, to a token with the IDs of that token, and to any other token.
PREVIOUS, COUPLED, FAR = "previous", "coupled", "far"
# Largest width of the text of a token, in columns of a terminal.
MAX_TOKEN_CELLS = 9
CUT = ".."
# Colors of Okabe and Ito, which color-blind people can tell apart; each is light enough for black text.
GROUP_COLORS = ("#56b4e9", "#e69f00", "#2bb58a", "#f0e442", "#dd8fbe", "#bbbbbb")
# Smaller attention weights are not drawn.
MIN_WEIGHT = 0.1
# Decimals of the attention weights.
WEIGHT_DECIMALS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DependencyLink:
    """Earlier token that an answer depends on, and its ID distance from the token before the answer on each level."""

    index: int
    id_distance: tuple[int | float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPrediction:
    """Prediction of a run for one answer, given the correct tokens and IDs before it.

    ``position_ids`` has the predicted ID of the correct token on each level. It is None, as is ``id_correct``, if the
    run predicts no IDs, and at the end token, whose ID is never used. ``attention`` has the weight of each earlier
    token, in the head ``ExamplePicture.attention_head``.
    """

    token: str
    token_correct: bool
    position_ids: tuple[int | float, ...] | None
    id_correct: bool | None
    attention: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureAnswer:
    """Token index of an answer, its links, and the prediction of the run; None without a run."""

    index: int
    links: tuple[DependencyLink, ...]
    prediction: AnswerPrediction | None = None

    def link_kind(self, link: DependencyLink) -> str:
        """Return the kind of a link of this answer: ``PREVIOUS``, ``COUPLED`` or ``FAR``."""
        if link.index == self.index - 1:
            return PREVIOUS
        return FAR if any(link.id_distance) else COUPLED


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAttentionHead:
    """Layer and head (from 0) whose attention a picture shows, with the mean over answers of its largest weight.

    The largest weight is that of a linked token. In a picture without links, it is that of any token before the query.
    """

    layer: int
    head: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamplePicture:
    """One example with its IDs and links.

    ``position_ids`` has one tuple per level, with one ID per token. ``training`` is True for IDs with the random gaps
    and shifts of training. ``links_from`` is ``depends_on`` if the task declares what its answers depend on. Otherwise
    it is ``equal IDs``, and an answer is linked to the tokens with the IDs of the token before the answer.
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
    answers: tuple[PictureAnswer, ...]
    encoding: str | None = None
    attention_head: ShownAttentionHead | None = None

    def color_group_numbers(self) -> list[list[int | None]]:
        """Return a number per level and token: equal for equal IDs, and None for an ID that no other token has."""
        numbers: list[list[int | None]] = []
        for ids in self.position_ids:
            repeated = sorted(position_id for position_id, count in Counter(ids).items() if count > 1)
            ranks = {position_id: rank for rank, position_id in enumerate(repeated)}
            numbers.append([ranks.get(position_id) for position_id in ids])
        return numbers


def sample_example(
    task: Task, scheme: PositionScheme, length: int, seed: int, *, training: bool
) -> tuple[Examples, Batch]:
    """Return the first example that evaluation uses with this seed, without fill; ``training`` assigns training IDs.

    Raises ``SettingError`` for an example with more than ``MAX_TOKENS`` tokens.
    """
    examples, batch = next(iter_examples(task, scheme, length, 1, seed))
    if training:
        rng = random_stream(seed, "picture training IDs", length)
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
) -> tuple[str, dict[int, tuple[DependencyLink, ...]]]:
    """Return the source of the links, and the links of each answer of the first example.

    Links are sorted by ID distance; the token before the answer is last.
    """
    source = EQUAL_IDS if examples.depends_on is None else DEPENDS_ON
    links = {}
    for answer in np.flatnonzero(examples.is_answer[0, : position_ids.shape[1]]).tolist():
        distances = np.abs(position_ids[:, :answer] - position_ids[:, [answer - 1]])
        if examples.depends_on is None:
            # Earlier tokens with the IDs of the query, which is the last token.
            indexes = np.flatnonzero((distances[:, :-1] == 0).all(axis=0))
        else:
            indexes = np.unique(examples.depends_on[0, answer])
        found = [
            DependencyLink(index=index, id_distance=tuple(distances[:, index].tolist()))
            for index in indexes.tolist()
            if index >= 0
        ]
        links[answer] = tuple(
            sorted(found, key=lambda link: (link.index == answer - 1, max(link.id_distance), link.index))
        )
    return source, links


@torch.no_grad()
def predict_answers(
    decoder: Decoder, batch: Batch, links: Mapping[int, Sequence[DependencyLink]], vocabulary: Sequence[str]
) -> tuple[ShownAttentionHead, dict[int, AnswerPrediction]]:
    """Return the prediction of each answer of a batch of one example, with teacher forcing, and the head to show.

    ``links`` has the links of each answer. Raises ``DivergedError`` if the predictions of the decoder are NaN.
    """
    batch = batch.to(decoder.embedding.device)
    layers: list[Float[Tensor, "1 heads query key"]] = []
    hooks = AttentionHooks(on_weights=layers.append)
    first_query, ids = int(batch.prompt_length[0]) - 1, batch.position_ids
    hidden, _ = decoder(batch.tokens[:, :-1], ids[:, :, :-1], hooks=hooks)
    hidden = hidden[:, first_query:]
    logits, targets = decoder.token_logits(hidden), batch.tokens[:, first_query + 1 :]
    if bool(logits.isnan().any()):
        # The argmax over NaN would be token 0.
        raise DivergedError("the predictions of the decoder are NaN; train the run again, or load it in float32")
    predicted_tokens, predicted_ids = logits.argmax(dim=-1)[0].tolist(), None
    if decoder.predicts_ids:
        prompts = decoder.build_prompt_keys(batch.tokens, ids, batch.prompt_length)
        predicted_ids = decoder.most_likely_ids(hidden, ids[:, :, first_query:-1], targets, prompts)[:, 0].T.tolist()
    weights = torch.cat(layers).cpu()
    head = _select_head(weights, links)
    predictions = {}
    for answer in links:
        column, token = answer - first_query - 1, int(batch.tokens[0, answer])
        has_id = predicted_ids is not None and bool(batch.id_scored[0, answer])
        answer_ids = tuple(predicted_ids[column]) if predicted_ids is not None and has_id else None
        predictions[answer] = AnswerPrediction(
            token=vocabulary[predicted_tokens[column]],
            token_correct=predicted_tokens[column] == token,
            position_ids=answer_ids,
            id_correct=None if answer_ids is None else answer_ids == tuple(ids[:, 0, answer].tolist()),
            attention=tuple(
                round(weight, WEIGHT_DECIMALS)
                for weight in weights[head.layer, head.head, answer - 1, :answer].tolist()
            ),
        )
    return head, predictions


def _select_head(
    weights: Float[Tensor, "layers heads query key"], links: Mapping[int, Sequence[DependencyLink]]
) -> ShownAttentionHead:
    """Return the head with the largest mean over answers of the largest weight on a linked token.

    The query itself does not count, because the decoder reads it without attention.
    """
    masks = torch.zeros(weights.shape[2:], dtype=torch.bool)
    for answer, answer_links in links.items():
        masks[answer - 1, [link.index for link in answer_links]] = True
    masks = masks.tril(-1)
    if not masks.any():
        # All keys before the query of each answer.
        masks[[answer - 1 for answer in links]] = True
        masks = masks.tril(-1)
    peaks = (weights * masks)[:, :, masks.any(dim=-1)].amax(dim=-1)
    # Without links and earlier tokens, all heads are equally good.
    means = peaks.mean(dim=-1).nan_to_num()
    layer, head = divmod(int(means.argmax()), means.shape[1])
    return ShownAttentionHead(layer=layer, head=head, weight=round(float(means[layer, head]), WEIGHT_DECIMALS))


def describe_picture(picture: ExamplePicture) -> Iterator[str]:
    """Yield sentences that describe a picture: the example, its links, and the predictions of the run."""
    kind = "training" if picture.training else "evaluation"
    yield f"{picture.task}, length {picture.length}, scheme {picture.scheme}, {kind} IDs, seed {picture.seed}"
    links = [link for answer in picture.answers for link in answer.links]
    if picture.links_from == DEPENDS_ON:
        most = max((len(answer.links) for answer in picture.answers), default=0)
        farthest = max((max(link.id_distance) for link in links), default=0)
        yield f"sparsity: an answer needs at most {most} token{'s' * (most != 1)}"
        yield f"locality: the largest ID distance of a needed token is {format_number(farthest)}"
    else:
        yield "the task does not declare which tokens its answers need"
        if links:
            yield "each link leads to a token with the ID of the token before the answer"
    head, predictions = picture.attention_head, [answer.prediction for answer in picture.answers if answer.prediction]
    if head is None:
        return
    ids_correct = [prediction.id_correct for prediction in predictions if prediction.id_correct is not None]
    ids = f" and {sum(ids_correct)} of {len(ids_correct)} IDs" if ids_correct else ""
    num_correct = sum(prediction.token_correct for prediction in predictions)
    yield f"the run predicts {num_correct} of {len(predictions)} tokens{ids} correctly"
    strongest = "link" if links else "earlier token"
    where = f"layer {head.layer}, head {head.head}"
    yield f"attention of {where}: on average {head.weight:.2f} on its strongest {strongest}"


def format_number(number: int | float) -> str:
    """Return an ID or an ID distance as text, with one decimal if it is real-valued."""
    return f"{number:.1f}" if isinstance(number, float) else str(number)


def join_numbers(numbers: Sequence[Any]) -> str:
    """Return IDs or ID distances of all levels as text, separated by commas."""
    return ",".join(map(format_number, numbers))


def token_label(token: str) -> str:
    """Return the text of a token on one line: escaped, in quotes if spaces matter, and cut if it is long."""
    text = escape_control_characters(token).replace("\n", "\\n")
    text = text if text and text.split() == [text] else f"'{text}'"
    if cell_len(text) <= MAX_TOKEN_CELLS:
        return text
    return chop_cells(text, MAX_TOKEN_CELLS - len(CUT))[0] + CUT


def level_labels(picture: ExamplePicture) -> list[str]:
    """Return the names of the ID levels."""
    num_levels = len(picture.position_ids)
    return ["ID"] if num_levels == 1 else [f"ID {level + 1}" for level in range(num_levels)]


def group_color(number: int) -> str:
    """Return the color of a group of tokens with equal IDs; neighboring groups have different colors."""
    return GROUP_COLORS[number % len(GROUP_COLORS)]
