"""Loss of a batch: cross-entropy of the answer tokens and, for PPC, of their IDs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from lengthwise.core.devices import compile_function
from lengthwise.model.decoder import Decoder
from lengthwise.model.position_heads import NextIDDistribution
from lengthwise.model.sequence_groups import join_tokens
from lengthwise.training.batch import Batch
from lengthwise.training.process_group import ONE_PROCESS, ProcessGroup

# Sum of some values, and their number, or these two for each length.
Total = tuple[Float[Tensor, "*length"], Int[Tensor, "*length"]]
# Function that adds all values, or those of each length.
Sum = Callable[[Shaped[Tensor, " query"]], Shaped[Tensor, "*length"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLoss:
    """Loss in nats and accuracies of a batch as scalar tensors; an accuracy without scored tokens is 1."""

    loss: Float[Tensor, ""]
    token_accuracy: Float[Tensor, ""]
    id_accuracy: Float[Tensor, ""]
    ids_in_reach: Float[Tensor, ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTiltedLoss:
    """Tilted empirical risk minimization over lengths (Li et al. 2021, arXiv 2007.01162); it has no state.

    With the share ``p`` of each length in the answer tokens of a step, the mean loss of a step is the sum over lengths
    of ``p * loss``. Its tilted loss is ``log(sum(p * exp(tilt * loss))) / tilt``, which rises from the mean loss
    (``tilt`` near 0) to the largest loss of a length (large ``tilt``). Its gradient is a weighted mean of the gradients
    of the lengths, with weights in proportion to ``p * exp(tilt * loss)``. ``max_length`` is the longest training
    length.
    """

    tilt: float
    max_length: int

    def sum_by_length(
        self, values: Shaped[Tensor, " query"], lengths: Int[Tensor, " query"]
    ) -> Shaped[Tensor, " length"]:
        """Return the sum of the values of each length from 0 to ``max_length``, or the number of true values."""
        values = values.long() if values.dtype == torch.bool else values
        return values.new_zeros(self.max_length + 1).index_add(0, lengths, values)

    def loss(
        self, parts: Float[Tensor, " length"], counts: Int[Tensor, " length"], processes: ProcessGroup
    ) -> Float[Tensor, ""]:
        """Return the tilted loss in nats.

        ``parts`` contains the part of each length in the mean loss of the step, and ``counts`` the number of answer
        tokens of each length in all ``processes``. With several processes, ``parts`` and the result are those of one
        process; the results add up to the tilted loss, and their gradients to its gradient.
        """
        totals = parts.detach().clone()
        processes.all_reduce_sum([totals])
        shares = counts / counts.sum()
        # Lengths without tokens have the weight 0.
        positive_shares = shares.clamp(min=torch.finfo(shares.dtype).tiny)
        scores = shares.log() + self.tilt * totals / positive_shares
        # The gradient of the tilted loss is that of this sum, with constant weights.
        weights = scores.softmax(dim=0) / positive_shares
        weighted = (weights * parts).sum()
        if processes.rank > 0:
            return weighted
        return weighted + scores.logsumexp(dim=0) / self.tilt - (weights * totals).sum()


def compute_answer_loss(
    decoder: Decoder,
    batches: Sequence[Batch],
    id_weight: float,
    input_ids: Sequence[Tensor] | None = None,
    processes: ProcessGroup = ONE_PROCESS,
    tilt: LengthTiltedLoss | None = None,
) -> AnswerLoss:
    """Return the mean token cross-entropy plus, for PPC, ``id_weight`` times the mean ID cross-entropy.

    With a ``tilt``, the loss is tilted toward the lengths with a larger loss.

    The means are over all tokens of the batches, so they do not depend on how the examples are batched. ``input_ids``
    are the IDs that the decoder reads, by default the correct IDs. The ID losses of all levels are added, and an ID is
    correct if it is correct on all levels. The loss ignores IDs that are not among the candidates of the head (an
    increment after a gap); ``ids_in_reach`` is the share of the remaining IDs.

    With several ``processes``, the batches are one process's share. The result is this share's part of each value: the
    sums over the share, divided by the numbers of tokens in all shares. The parts of all processes add up to the value
    of one process with all examples.
    """
    input_ids = [batch.position_ids for batch in batches] if input_ids is None else input_ids
    # Only responses are scored, and each starts after its prompt.
    query_starts = [batch.find_prompt_range()[0] - 1 for batch in batches]
    hidden = decoder.forward_batches(
        [batch.tokens[:, :-1] for batch in batches],
        [ids[:, :, :-1] for ids in input_ids],
        query_starts,
        [batch.places for batch in batches],
    )
    targets = _join([batch.tokens[:, start + 1 :] for batch, start in zip(batches, query_starts, strict=True)])
    scored = _join([batch.token_scored[:, start + 1 :] for batch, start in zip(batches, query_starts, strict=True)])
    add: Sum = Tensor.sum
    if tilt is not None:
        lengths = [
            batch.example_length[:, None].expand(-1, states.shape[1])
            for batch, states in zip(batches, hidden, strict=True)
        ]
        add = partial(tilt.sum_by_length, lengths=_join(lengths))
    token_totals = compile_function(_token_totals) if decoder.compiles_training else _token_totals
    totals = token_totals(decoder, join_tokens(hidden), targets, scored, add)
    if decoder.predicts_ids:
        totals += _id_totals(decoder, batches, hidden, input_ids, add)
    counts = processes.sum_counts([count for _, count in totals])
    numbers = counts if tilt is None else [count.sum() for count in counts]
    loss, token_accuracy, *id_means = [
        total / number.clamp(min=1) for (total, _), number in zip(totals, numbers, strict=True)
    ]
    if not decoder.predicts_ids:
        # One process contributes the constant.
        id_means = [torch.full((), float(processes.rank == 0), device=loss.device)] * 2
    id_accuracy, in_reach, *id_losses = id_means
    for id_loss in id_losses:
        loss = loss + id_weight * id_loss
    if tilt is not None:
        loss = tilt.loss(loss, counts[0], processes)
        token_accuracy, id_accuracy, in_reach = token_accuracy.sum(), id_accuracy.sum(), in_reach.sum()
    return AnswerLoss(loss=loss, token_accuracy=token_accuracy, id_accuracy=id_accuracy, ids_in_reach=in_reach)


def _token_totals(
    decoder: Decoder, hidden: Float[Tensor, "query d_model"], targets: Int[Tensor, " query"], scored: Tensor, add: Sum
) -> list[Total]:
    """Return the totals of the loss and of the correct tokens, over the scored tokens."""
    logits = decoder.token_logits(hidden)
    loss = _total(nn.functional.cross_entropy(logits, targets, reduction="none"), scored, add)
    return [loss, _total((logits.detach().argmax(dim=-1) == targets).float(), scored, add)]


def _id_totals(
    decoder: Decoder, batches: Sequence[Batch], hidden: Sequence[Tensor], input_ids: Sequence[Tensor], add: Sum
) -> list[Total]:
    """Return the totals of the correct IDs, of the IDs in reach, and of the ID loss of each level."""
    values = []
    for batch, states, ids in zip(batches, hidden, input_ids, strict=True):
        query_start = batch.tokens.shape[1] - 1 - states.shape[1]
        targets, id_scored = batch.position_ids[:, :, query_start + 1 :], batch.id_scored[:, query_start + 1 :]
        is_correct = in_reach = torch.ones_like(id_scored)
        levels = []
        for next_ids, target in zip(_predict_ids(decoder, batch, states, ids), targets, strict=True):
            log_probability, is_candidate = next_ids.log_probability(target)
            levels += [-log_probability, id_scored & is_candidate]
            is_correct, in_reach = is_correct & (next_ids.most_likely_ids() == target), in_reach & is_candidate
        values.append([id_scored, is_correct.float(), in_reach.float(), *levels])
    id_scored, is_correct, in_reach, *levels = [_join(parts) for parts in zip(*values, strict=True)]
    losses = [_total(*pair, add) for pair in zip(levels[::2], levels[1::2], strict=True)]
    return [_total(is_correct, id_scored, add), _total(in_reach, id_scored, add), *losses]


def mix_predicted_ids(decoder: Decoder, batches: Sequence[Batch], share: float) -> list[Tensor]:
    """Return the IDs of each batch, (level, batch, seq), with predicted response IDs in its first examples.

    ``share`` is the share of such examples in all batches together. One forward pass per batch predicts these IDs from
    the correct IDs: parallel scheduled sampling (Mihaylova and Martins 2019, arXiv 1906.07651).
    """
    ends = [round(share * total) for total in accumulate(batch.find_example_indexes().stop for batch in batches)]
    counts = [end - start for start, end in pairwise([0, *ends])]
    return [_replace_first_ids(decoder, batch, count) for batch, count in zip(batches, counts, strict=True)]


@torch.no_grad()
def _replace_first_ids(decoder: Decoder, batch: Batch, num_examples: int) -> Int[Tensor, "level batch seq"]:
    places = batch.find_example_indexes()
    # The examples of this share that are among the first of the whole batch.
    sampled_places = range(places.start, num_examples, places.step)
    if not sampled_places:
        return batch.position_ids
    sampled = batch.select_examples(slice(0, len(sampled_places)))
    query_start = sampled.find_prompt_range()[0] - 1
    (hidden,) = decoder.forward_batches(
        [sampled.tokens[:, :-1]], [sampled.position_ids[:, :, :-1]], [query_start], [sampled_places]
    )
    mixed, id_scored = batch.position_ids.clone(), sampled.id_scored[:, query_start + 1 :]
    for level, next_ids in enumerate(_predict_ids(decoder, sampled, hidden, sampled.position_ids)):
        correct = sampled.position_ids[level, :, query_start + 1 :]
        mixed[level, : len(sampled.tokens), query_start + 1 :] = torch.where(
            id_scored, next_ids.most_likely_ids(), correct
        )
    return mixed


def _predict_ids(
    decoder: Decoder, batch: Batch, hidden: Float[Tensor, "batch query d_model"], input_ids: Tensor
) -> list[NextIDDistribution]:
    """Return the predicted IDs of the tokens after ``hidden``, which ends at the second-to-last token."""
    max_prompt_length = None if batch.prompt_range is None else batch.prompt_range[1]
    prompts = decoder.build_prompt_keys(batch.tokens, batch.position_ids, batch.prompt_length, max_prompt_length)
    query_start = batch.tokens.shape[1] - 1 - hidden.shape[1]
    return decoder.next_id_distributions(
        hidden, input_ids[:, :, query_start:-1], batch.tokens[:, query_start + 1 :], prompts
    )


def _join(parts: Sequence[Shaped[Tensor, "_batch _query"]]) -> Shaped[Tensor, " query"]:
    return torch.cat([part.flatten() for part in parts])


def _total(values: Float[Tensor, " query"], where: Bool[Tensor, " query"], add: Sum) -> Total:
    return add(values * where), add(where)
