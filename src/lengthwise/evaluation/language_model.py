"""Interface of a causal language model and of its tokenizer, and a check that a model computes what it promises."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from lengthwise.core.errors import ModelError
from lengthwise.tasks import TokenizedDocument
from lengthwise.tasks.text.documents import Document
from lengthwise.tasks.text.tokenizer import Tokenizer

# Tokens of a window, of sequences of equal length, and of the near tokens; each with its position IDs, which have one
# array per level if the model has several levels.
WindowTokens = Int[Tensor, " seq"]
WindowIDs = Real[Tensor, "*level seq"]
Batch = Int[Tensor, "batch seq"]
BatchIDs = Real[Tensor, "batch *level seq"]
Near = Int[Tensor, " near"]
NearIDs = Real[Tensor, "*level near"]
LogProbs = Float[Tensor, "batch vocab"]
StateValues = Float[Tensor, " states"]
LogGates = Float[Tensor, "*query states"]
# Function of the log-probabilities of one prediction, such as its loss.
ScoreFunction = Callable[[Float[Tensor, " vocab"]], Float[Tensor, ""]]

# Errors that a model may raise if it expects masks, caches or IDs in a different format.
CALL_ERRORS = (TypeError, ValueError, RuntimeError, LookupError, AttributeError, ArithmeticError)
# Number of most likely tokens to compare in addition to the target; rounding has the least effect on them.
TOP_TOKENS = 10
DEFAULT_ADVICE = "choose another model"


@runtime_checkable
class NextTokenModel(Protocol):
    """Causal model that takes position IDs and can hide single far tokens from the near tokens.

    ``num_positions`` is the exclusive upper bound of IDs, or None without a bound. ``trained_distance`` is the largest
    ID distance in training, or None if it is unknown. ``dtype`` is the name of the precision.
    ``forward_tokens`` is the approximate number of tokens per forward pass. ``states`` is the cache that ``prefill``
    returns; only the model uses its contents.
    """

    name: str
    vocabulary_size: int
    num_positions: int | None
    trained_distance: int | float | None
    num_parameters: int
    dtype: str
    forward_tokens: int

    @property
    def weights_digest(self) -> str:
        """Digest that identifies the weights."""

    def assign_position_ids(self, tokens: WindowTokens) -> WindowIDs:
        """Return the position IDs of all tokens of a window, hidden tokens included.

        The IDs of a token may depend on it and on earlier tokens, for example on the number of their lines. The IDs of
        most models are the token indexes.
        """

    def log_probs(self, tokens: Batch, position_ids: BatchIDs, states: Any = None) -> LogProbs:
        """Return the log-probabilities (nats) of the token after each of several independent sequences.

        If ``states`` is given, each sequence follows the prefix tokens that produced these states.
        """

    def last_log_probs(self, tokens: WindowTokens, position_ids: WindowIDs, num_last: int) -> LogProbs:
        """Return the log-probabilities (nats) of the token after each of the last ``num_last`` tokens."""

    def log_probs_without_cache(
        self, tokens: WindowTokens, mask: Bool[Tensor, "seq seq"] | None = None
    ) -> Float[Tensor, " vocab"]:
        """Return the log-probabilities of the token after the sequence, from one forward pass without a cache.

        ``mask`` (query, key) is True if the query attends to the key. With a mask, the model also gets the IDs of
        ``assign_position_ids``. Without a mask, a model whose own IDs are token indexes gets no IDs. Checks compare all
        other methods with this method.
        """

    def rounding_tolerance(self, tokens: WindowTokens) -> float:
        """Return the largest difference (nats) in a log-probability that rounding can cause."""

    def prefill(
        self,
        tokens: WindowTokens,
        position_ids: WindowIDs,
        num_prefix: int,
        mask: Bool[Tensor, "seq seq"] | None = None,
    ) -> Any:
        """Return the states of the first ``num_prefix`` tokens; ``mask`` (query, key) limits the attention.

        Pass the remaining tokens too, because rotary angles may depend on the largest ID of a call.
        """

    def extend_states(
        self, states: Any, tokens: WindowTokens, position_ids: WindowIDs, visibility_mask: Bool[Tensor, " states"]
    ) -> Any:
        """Return the states followed by those of ``tokens``, which attend to the visible states and to each other."""

    def log_probs_with_mask(
        self, states: Any, near_tokens: Near, position_ids: NearIDs, visibility_masks: Bool[Tensor, "batch states"]
    ) -> LogProbs:
        """Return the log-probabilities of the token after ``near_tokens`` for each of ``visibility_masks``.

        A mask is True for the states to which the near tokens attend.
        """

    def attention_gate_gradient(
        self, states: Any, near_tokens: Near, position_ids: NearIDs, log_gates: LogGates, objective: ScoreFunction
    ) -> LogGates:
        """Return the gradient of ``objective`` with respect to ``log_gates``.

        Every layer adds ``log_gates`` to the attention scores from the near tokens to the states. Gates can differ
        between the near tokens, and a gate of minus infinity hides a state.
        """

    def attention_weights(self, states: Any, near_tokens: Near, position_ids: NearIDs) -> StateValues:
        """Return the attention weights from the last near token to each state, averaged over layers and heads."""


@runtime_checkable
class ModelTokenizer(Protocol):
    """Tokenizer of a model. ``start`` contains the start token, or is empty for a tokenizer without one."""

    name: str
    start: tuple[int, ...]

    def encode(self, text: str) -> Sequence[int]:
        """Return the token IDs of a text, without the start token."""

    def token_text(self, token: int) -> str:
        """Return the text of a single token."""


class BytePairTokenizerAdapter:
    """Adapter for the byte-pair tokenizer of this package, which has no start token."""

    start: tuple[int, ...] = ()

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.name = tokenizer, tokenizer.name

    def encode(self, text: str) -> Sequence[int]:
        """Return the token IDs of a text."""
        return self.tokenizer.encode(text)

    def token_text(self, token: int) -> str:
        """Return the text of a single token; the end token has an empty text."""
        return self.tokenizer.pieces[token].decode("utf-8", "replace")


def tokenize_documents(
    codec: ModelTokenizer, documents: Iterable[Document], vocabulary_size: int
) -> Iterator[TokenizedDocument]:
    """Yield each document as token IDs. Raises ``ModelError`` if an ID is outside the vocabulary of the model."""
    for document in documents:
        tokens = np.asarray(codec.encode(document.text), dtype=np.int32)
        check_token_ids(codec.name, int(tokens.max(initial=0)), vocabulary_size)
        yield TokenizedDocument(name=document.name, tokens=tokens)


def check_token_ids(codec_name: str, largest: int, vocabulary_size: int) -> None:
    """Raise ``ModelError`` if the largest token ID of a text is outside the vocabulary of the model."""
    if largest >= vocabulary_size:
        raise ModelError(
            f"tokenizer {codec_name} produces token ID {largest}, but the model has {vocabulary_size} tokens; use the "
            "tokenizer that the model was trained with"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionDeviation:
    """Largest difference (``nats``) between predictions that should be equal.

    ``description`` and ``advice`` are parts of the error message for a difference above the rounding tolerance.
    """

    description: str
    nats: float
    advice: str = DEFAULT_ADVICE


def check_exact_hiding(model: NextTokenModel) -> None:
    """Raise ``ModelError`` if hidden tokens have an effect in a short sequence with gaps between its position IDs."""
    tokens = torch.arange(1, 9) % model.vocabulary_size
    problem = f"{model.name} cannot be measured exactly"
    check_deviations(model, tokens, problem, lambda: _short_text_deviations(model, tokens))


def check_deviations(
    model: NextTokenModel, tokens: WindowTokens, problem: str, deviations: Callable[[], Iterator[PredictionDeviation]]
) -> None:
    """Raise ``ModelError`` for a deviation larger than the rounding error of the model on ``tokens``.

    Also raises it if the model fails with one of ``CALL_ERRORS``. The message starts with ``problem``.
    """
    try:
        tolerance = model.rounding_tolerance(tokens)
        for deviation in deviations():
            # The comparison is also false for NaN.
            if not deviation.nats <= tolerance:
                size = f" ({deviation.nats:.2g} nats; rounding can cause {tolerance:.2g})"
                size = size if math.isfinite(deviation.nats) else ""
                raise ModelError(f"{problem}: {deviation.description}{size}; {deviation.advice}")
    except torch.OutOfMemoryError:
        raise
    except CALL_ERRORS as error:
        raise ModelError(
            f"{model.name} does not accept position IDs, a mask and a cache together "
            f"({type(error).__name__}: {first_line(error)}); {DEFAULT_ADVICE}"
        ) from error


def _short_text_deviations(model: NextTokenModel, tokens: Int[Tensor, "8"]) -> Iterator[PredictionDeviation]:
    # All levels have the same IDs.
    ids = torch.tensor([0, 1, 2, 3, 5, 6, 8, 9]).expand(model.assign_position_ids(tokens).shape)
    near_slice = slice(5, 8)
    states = model.prefill(tokens, ids, 5)

    def predict_in_one_pass(indices: list[int]) -> Tensor:
        return model.log_probs(tokens[None, indices], ids[None, ..., indices])[0]

    def predict_with_mask(visibility_masks: Tensor) -> Tensor:
        return model.log_probs_with_mask(states, tokens[near_slice], ids[..., near_slice], visibility_masks)

    all_visible_mask, none_visible_mask = torch.ones(1, 5, dtype=torch.bool), torch.zeros(1, 5, dtype=torch.bool)
    first_two_visible_mask = torch.tensor([[True, True, False, False, False]])
    batch = predict_with_mask(torch.cat([all_visible_mask, none_visible_mask, first_two_visible_mask]))
    # Other hidden tokens between the visible tokens and the near tokens.
    other_tokens = tokens.clone()
    other_tokens[2:5] = (tokens[2:5] + 1) % model.vocabulary_size
    other_states = model.prefill(other_tokens, ids, 5)
    other = model.log_probs_with_mask(other_states, tokens[near_slice], ids[..., near_slice], first_two_visible_mask)
    for description, log_probs, expected_log_probs in (
        ("hidden tokens change the prediction", batch[1], predict_in_one_pass([5, 6, 7])),
        ("hidden tokens change the prediction", batch[2], other[0]),
        ("predictions after cached tokens differ from one pass", batch[0], predict_in_one_pass(list(range(8)))),
        ("queries of one batch change each other", batch[2], predict_with_mask(first_two_visible_mask)[0]),
    ):
        yield PredictionDeviation(description=description, nats=max_log_prob_difference(log_probs, expected_log_probs))


def max_log_prob_difference(
    log_probs: Float[Tensor, " vocab"], expected: Float[Tensor, " vocab"], target: int | None = None
) -> float:
    """Return the largest difference (nats) between two predictions, for the target and the most likely tokens."""
    tokens = expected.topk(min(TOP_TOKENS, len(expected))).indices
    if target is not None:
        tokens = torch.cat([tokens, tokens.new_tensor([target])])
    log_probs, expected = log_probs[tokens].double(), expected[tokens].double()
    # The difference of equal infinities is 0, not NaN.
    return float(torch.where(log_probs == expected, 0.0, (log_probs - expected).abs()).max())


def first_line(error: Exception) -> str:
    """Return the first line of an error message, at most 160 characters."""
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else "no message"
