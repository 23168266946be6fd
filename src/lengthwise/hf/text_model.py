"""Any causal language model of `transformers`, asked in plain text: which tokens of a known answer it gets right."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

from lengthwise.core.errors import ModelError
from lengthwise.evaluation.grading import Graded
from lengthwise.hf.compatibility import check_causal
from lengthwise.hf.model_parts import device_of
from lengthwise.hf.tokenization import HFCodec

# What one forward may hold: tokens that are read, and logits (rows x answer tokens x vocabulary).
FORWARD_TOKENS, FORWARD_LOGITS = 1 << 15, 1 << 27


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A text in tokens: what the model is given, and the answer that is to follow, its newline included."""

    given: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def seq(self) -> int:
        """The number of tokens."""
        return len(self.given) + len(self.answer)


class TextModel:
    """A model as it is, for inference, on its own device and in its own precision.

    Every kind of layer will do, and no position ID is chosen. Raises ``ModelError`` for a model that sees ahead, or
    that predicts position IDs.
    """

    def __init__(self, model: PreTrainedModel, codec: HFCodec, name: str) -> None:
        if getattr(model, "num_position_heads", 0):
            raise ModelError(
                f"{name} predicts position IDs, and a text names none for its prompt: it would be asked under others "
                "than it learned; export it as a run (lengthwise export --format run) where it was one of ours, or "
                "measure it with lengthwise.hf.EvaluateByLength"
            )
        check_causal(name, model)
        self.model, self.codec, self.name = model.eval(), codec, name
        config = model.config.get_text_config()
        self.vocabulary_size = int(config.vocab_size)
        limit = getattr(config, "max_position_embeddings", None)
        self.num_positions = None if limit is None else int(limit)
        self.takes_places = "logits_to_keep" in inspect.signature(model.forward).parameters
        # A model's own settings may punish repetition: a greedy choice is the likeliest token and nothing else.
        model.generation_config = GenerationConfig(do_sample=False, num_beams=1)

    def question(self, context: str, answer: str) -> Question:
        """Tokens of both, cut where the context ends; ``ModelError`` when they lose a symbol.

        The answer's tokens are those that follow the context's own in the tokens of the whole text. A tokenizer that
        merges across that border has the answer tokenized by itself: what is given ends where the context ends, as it
        does for whoever asks the model.
        """
        given, whole = ([*self.codec.start, *self.codec.encode(text)] for text in (context, context + answer))
        follows = whole[: len(given)] == given
        made = Question(given=tuple(given), answer=tuple(whole[len(given) :] if follows else self.codec.encode(answer)))
        read = self.codec.decode((made.given + made.answer)[len(self.codec.start) :])
        # A space before every text is what some tokenizers add, and some leave out.
        if read.strip(" ") != (context + answer).strip(" "):
            lost = _first_difference(read.strip(" "), (context + answer).strip(" "))
            raise ModelError(
                f"the tokenizer of {self.name} does not keep the text: {lost}; "
                "give a model whose tokenizer keeps symbols, spaces and newlines"
            )
        return made

    def check_numbers(self, logits: Float[Tensor, "*places vocab"]) -> None:
        """``ModelError`` for predictions that are no numbers: the likeliest of these would be token 0, and wrong."""
        if bool(logits.isnan().any()):
            raise ModelError(
                f"{self.name} predicts what is no number, as half precision does where it overflows; use another "
                "--dtype, such as float32"
            )

    def graded(self, questions: Sequence[Question], *, decode: str) -> Iterator[Graded]:
        """Batch by batch, in order: which tokens of the answers are right (``forced`` or ``free``).

        Forced, each token follows the right ones before it, one forward per batch. Free, the model writes until a
        newline; text that is right counts as right however it is cut into tokens.
        """
        for batch in self._batches(questions):
            yield self._forced(batch) if decode == "forced" else self._free(batch)

    def _batches(self, questions: Sequence[Question]) -> Iterator[list[Question]]:
        batch: list[Question] = []
        for question in questions:
            wider = [*batch, question]
            seq, first = max(each.seq for each in wider), min(len(each.given) for each in wider)
            kept = (seq - first) * self.vocabulary_size
            if batch and len(wider) * max(seq / FORWARD_TOKENS, kept / FORWARD_LOGITS) > 1:
                yield batch
                wider = [question]
            batch = wider
        if batch:
            yield batch

    @torch.no_grad()
    def _forced(self, batch: list[Question]) -> Graded:
        first, last = min(len(each.given) for each in batch) - 1, max(each.seq for each in batch) - 1
        tokens = torch.zeros(len(batch), last, dtype=torch.int64)
        # Padding stands on the right, where no token of the text can see it.
        mask = torch.zeros_like(tokens)
        for row, question in enumerate(batch):
            tokens[row, : question.seq - 1] = torch.tensor((question.given + question.answer)[:-1])
            mask[row, : question.seq - 1] = 1
        device = device_of(self.model)
        keep: dict[str, Any] = {"logits_to_keep": torch.arange(first, last, device=device)} if self.takes_places else {}
        inner: Any = self.model
        made = inner(input_ids=tokens.to(device), attention_mask=mask.to(device), use_cache=False, **keep)
        logits = made.logits[:, first - last :]
        targets, scored = _answers(batch)
        self.check_numbers(logits)
        written = logits.argmax(dim=-1).cpu()
        return self._compared(batch, written, targets, scored)

    @torch.no_grad()
    def _free(self, batch: list[Question]) -> Graded:
        """Rows of one prompt length are written together: nothing has to be padded."""
        targets, scored = _answers(batch)
        written = torch.full_like(targets, -1)
        text_right = torch.zeros(len(batch), dtype=torch.bool)
        first = min(len(each.given) for each in batch)
        for length in sorted({len(each.given) for each in batch}):
            rows = [row for row, each in enumerate(batch) if len(each.given) == length]
            out = self._write([batch[row] for row in rows])
            for row, line in zip(rows, out, strict=True):
                places = slice(length - first, length - first + len(line))
                written[row, places] = torch.tensor(line)[: written.shape[1] - places.start]
                text_right[row] = self._reads(batch[row], line)
        graded = self._compared(batch, written, targets, scored)
        graded.token_right[text_right] = True
        return graded

    def _write(self, batch: list[Question]) -> list[list[int]]:
        """The tokens written after each prompt, up to the first newline."""
        given = torch.tensor([each.given for each in batch], device=device_of(self.model))
        # No answer is cut into more tokens than it has bytes.
        room = max(len(self.codec.decode(each.answer).encode()) for each in batch)
        if self.num_positions is not None:
            room = min(room, self.num_positions - given.shape[1])
        inner: Any = self.model
        made = inner.generate(
            input_ids=given,
            attention_mask=torch.ones_like(given),
            generation_config=GenerationConfig(do_sample=False, num_beams=1, max_new_tokens=room, pad_token_id=0),
            stopping_criteria=StoppingCriteriaList([_AllLinesEnded(self.codec, given.shape[1])]),
            logits_processor=LogitsProcessorList([_Checked(self)]),
        )
        found = []
        for line in made[:, given.shape[1] :].tolist():
            ends = [place for place, token in enumerate(line) if "\n" in self.codec.token_text(token)]
            found.append(line[: ends[0] + 1] if ends else line)
        return found

    def _reads(self, question: Question, written: list[int]) -> bool:
        """Whether what was written is the answer, as text up to its newline."""
        before = self.codec.decode(question.given)
        wanted, found = (self.codec.decode((*question.given, *end)) for end in (question.answer, written))
        line, newline, _ = found[len(before) :].partition("\n")
        return line + newline == wanted[len(before) :]

    def _compared(
        self,
        batch: list[Question],
        written: Int[Tensor, "batch answer"],
        targets: Int[Tensor, "batch answer"],
        scored: Bool[Tensor, "batch answer"],
    ) -> Graded:
        newlines = [token for token in written.unique().tolist() if token >= 0 and "\n" in self.codec.token_text(token)]
        first = min(len(each.given) for each in batch)
        offset = torch.tensor([len(each.given) - first for each in batch])
        index = torch.arange(targets.shape[1])
        last = offset + torch.tensor([len(each.answer) - 1 for each in batch])
        return Graded(
            token_right=written == targets,
            id_right=torch.ones_like(scored),
            scored=scored,
            id_scored=torch.zeros_like(scored),
            end=(index == last[:, None]) | torch.isin(written, torch.tensor(newlines, dtype=torch.int64)),
            prompt_offset=offset,
        )


class _Checked(LogitsProcessor):
    """Leaves logits as they are, and none that is no number."""

    def __init__(self, asked: TextModel) -> None:
        self.asked = asked

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.asked.check_numbers(scores)
        return scores


class _AllLinesEnded(StoppingCriteria):
    """A row is done once it has written a newline."""

    def __init__(self, codec: HFCodec, length: int) -> None:
        self.codec, self.length = codec, length
        self.done: Tensor | None = None

    def __call__(self, input_ids: Any, scores: Any, **also: Any) -> Any:
        ended = ["\n" in self.codec.token_text(token) for token in input_ids[:, -1].tolist()]
        now = torch.tensor(ended, device=input_ids.device)
        self.done = now if self.done is None else self.done | now
        return self.done


def _answers(batch: list[Question]) -> tuple[Int[Tensor, "batch answer"], Bool[Tensor, "batch answer"]]:
    """The answers, each where it stands behind the shortest prompt, and where there is one."""
    first, seq = min(len(each.given) for each in batch), max(each.seq for each in batch)
    targets = torch.full((len(batch), seq - first), -1)
    for row, question in enumerate(batch):
        targets[row, len(question.given) - first : question.seq - first] = torch.tensor(question.answer)
    return targets, targets >= 0


def _first_difference(read: str, text: str) -> str:
    """What came back in place of what, with a little of what is around it."""
    place = next((place for place, (one, other) in enumerate(zip(read, text, strict=False)) if one != other), None)
    place = min(len(read), len(text)) if place is None else place
    around = slice(max(0, place - 4), place + 8)
    return f"{text[around]!r} comes back as {read[around]!r}"
