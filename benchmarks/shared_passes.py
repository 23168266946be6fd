"""Causal model whose callers in several threads share forward passes: small passes leave a GPU idle."""

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import DynamicCache

from lengthwise.evaluation.language_model import (
    Batch,
    BatchIDs,
    LogGates,
    LogProbs,
    Near,
    NearIDs,
    ScoreFunction,
    WindowIDs,
    WindowTokens,
)
from lengthwise.hf.causal_lm import CausalLM, ReadOnlyCacheLayer
from lengthwise.hf.model_inputs import additive_mask
from lengthwise.hf.model_parts import device_of

T = TypeVar("T")
# Sequences share a pass if their lengths are equal after rounding up to a multiple of this.
LENGTH_STEP = 32
# A gradient keeps the activations of all layers, which takes the memory of this many passes without it.
GRADIENT_COST = 8
# Maximum number of log-probabilities of a pass per token of ``forward_tokens``.
LOG_PROBS_PER_TOKEN = 1 << 12


@dataclass(eq=False)
class _Request:
    """Call of a thread, which waits for its result."""

    inputs: tuple[Any, ...]
    result: Any = None
    error: BaseException | None = None
    done: bool = False


@dataclass
class _Queue:
    """Waiting calls by kind, and the number of threads that are not waiting. ``changed`` guards both."""

    run: dict[Hashable, Callable[[list[tuple[Any, ...]]], list[Any]]] = field(default_factory=dict)
    requests: dict[Hashable, list[_Request]] = field(default_factory=lambda: defaultdict(list))
    changed: threading.Condition = field(default_factory=threading.Condition)
    running: int = 0
    members: threading.local = field(default_factory=threading.local)

    @property
    def is_member(self) -> bool:
        """True in a thread of ``run_together``."""
        return getattr(self.members, "joined", False)

    def call(self, kind: Hashable, run: Callable[[list[tuple[Any, ...]]], list[Any]], *inputs: Any) -> Any:
        """Return the result of ``run`` for these inputs, computed together with waiting calls of the same kind."""
        request = _Request(inputs)
        with self.changed:
            self.run[kind] = run
            self.requests[kind].append(request)
            self.running -= 1
            while not request.done:
                if self.running == 0:
                    self._run_largest_group()
                else:
                    self.changed.wait()
        if request.error is not None:
            raise request.error
        return request.result

    def leave(self) -> None:
        """Subtract a thread that ends; if all others wait, it computes for one of them."""
        with self.changed:
            self.running -= 1
            while self.running == 0 and any(self.requests.values()):
                self._run_largest_group()

    def _run_largest_group(self) -> None:
        """Compute the calls of the most frequent kind, while all other threads wait."""
        kind = max(self.requests, key=lambda each: len(self.requests[each]))
        group = self.requests.pop(kind)
        try:
            results = self.run.pop(kind)([request.inputs for request in group])
            for request, result in zip(group, results, strict=True):
                request.result = result
        except BaseException as error:
            for request in group:
                request.error = error
        for request in group:
            request.done = True
        self.running += len(group)
        self.changed.notify_all()


class SharedPasses(CausalLM):
    """Copy of a ``CausalLM`` that computes the calls of the threads of ``run_together`` in common forward passes.

    A pass starts when all threads wait, and has the calls of the most frequent kind. Shorter sequences are padded on
    the left, and padding is hidden. Calls from other threads are computed at once and alone. A thread must not hold a
    lock that another needs while it calls the model. Results differ from separate passes by rounding. They are wrong
    for a model whose rotary angles depend on the largest ID of a call (dynamic NTK), beyond its trained context.
    """

    def __init__(self, model: CausalLM) -> None:
        self.__dict__.update(model.__dict__)
        self._queue = _Queue()

    def run_together(self, jobs: Sequence[Callable[[], T]], num_threads: int) -> list[T]:
        """Run the jobs in at most ``num_threads`` threads, and return their results in order.

        Raises the first error after all threads have ended; no job starts after an error.
        """
        queue, remaining, lock = self._queue, iter(enumerate(jobs)), threading.Lock()
        results, errors = dict[int, T](), list[BaseException]()

        def work() -> None:
            queue.members.joined = True
            try:
                while not errors:
                    with lock:
                        index, job = next(remaining, (-1, None))
                    if job is None:
                        break
                    results[index] = job()
            except BaseException as error:
                errors.append(error)
            finally:
                queue.leave()

        threads = [threading.Thread(target=work, daemon=True) for _ in range(min(num_threads, len(jobs)))]
        queue.running += len(threads)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return [results[index] for index in range(len(jobs))]

    def log_probs(self, tokens: Batch, position_ids: BatchIDs, states: DynamicCache | None = None) -> LogProbs:
        """Return the log-probabilities of the token after each sequence."""
        if not self._queue.is_member:
            return super().log_probs(tokens, position_ids, states)
        if states is not None:
            alone = super().log_probs
            return self._queue.call(
                object(), lambda group: [alone(*inputs) for inputs in group], tokens, position_ids, states
            )
        return self._queue.call(("log_probs", length_group(tokens.shape[1])), self._log_probs, tokens, position_ids)

    # Shapes differ between the calls of a group, so the annotations of groups have none.
    @torch.no_grad()
    def _log_probs(self, group: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        seq = max(tokens.shape[1] for tokens, _ in group)
        tokens, ids, masks = (
            torch.cat(parts)
            for parts in zip(
                *((pad(t, seq), pad(i, seq), causal_rows(t.shape[1], seq, len(t))) for t, i in group), strict=True
            )
        )
        most = min(self.forward_tokens // seq, LOG_PROBS_PER_TOKEN * self.forward_tokens // self.vocabulary_size)
        chunks = [slice(start, start + max(1, most)) for start in range(0, len(tokens), max(1, most))]
        logits = torch.cat(
            [self._forward(tokens[each], ids[each], self._mask(masks[each])).logits[:, 0] for each in chunks]
        )
        return list(logits.float().log_softmax(dim=-1).split([len(tokens) for tokens, _ in group]))

    def last_log_probs(self, tokens: WindowTokens, position_ids: WindowIDs, num_last: int) -> LogProbs:
        """Return the log-probabilities of the token after each of the last ``num_last`` tokens."""
        if not self._queue.is_member:
            return super().last_log_probs(tokens, position_ids, num_last)
        alone = super().last_log_probs
        return self._queue.call(
            object(), lambda group: [alone(*inputs) for inputs in group], tokens, position_ids, num_last
        )

    def prefill(
        self,
        tokens: WindowTokens,
        position_ids: WindowIDs,
        num_prefix: int,
        mask: Bool[Tensor, "seq seq"] | None = None,
    ) -> DynamicCache:
        """Return the keys and values of the first ``num_prefix`` tokens."""
        if not self._queue.is_member or num_prefix == 0:
            return super().prefill(tokens, position_ids, num_prefix, mask)
        kind = ("prefill", len(tokens), num_prefix, mask is None)
        return self._queue.call(kind, self._prefill, tokens, position_ids, num_prefix, mask)

    @torch.no_grad()
    def _prefill(self, group: list[tuple[Tensor, Tensor, int, Tensor | None]]) -> list[DynamicCache]:
        found = list[DynamicCache]()
        for part in split(group, max(1, self.forward_tokens // len(group[0][0]))):
            tokens, ids, num_prefix, masks = zip(*part, strict=True)
            cache, stacked = DynamicCache(), torch.stack(ids)
            mask = self._causal_mask(stacked) if masks[0] is None else self._mask(torch.stack(masks))
            self._forward(torch.stack(tokens), stacked, mask, cache=cache)
            found += split_cache(cache, num_prefix[0])
        return found

    def extend_states(
        self,
        states: DynamicCache,
        tokens: WindowTokens,
        position_ids: WindowIDs,
        visibility_mask: Bool[Tensor, " states"],
    ) -> DynamicCache:
        """Return the keys and values of the states and of ``tokens``."""
        if not self._queue.is_member:
            return super().extend_states(states, tokens, position_ids, visibility_mask)
        kind = ("extend_states", states.get_seq_length(), len(tokens))
        return self._queue.call(kind, self._extend_states, states, tokens, position_ids, visibility_mask)

    @torch.no_grad()
    def _extend_states(self, group: list[tuple[DynamicCache, Tensor, Tensor, Tensor]]) -> list[DynamicCache]:
        found = list[DynamicCache]()
        num_states, seq = group[0][0].get_seq_length(), len(group[0][1])
        own = torch.ones(seq, seq, dtype=torch.bool).tril()
        for part in split(group, max(1, self.forward_tokens // (num_states + seq))):
            states, tokens, ids, visible = zip(*part, strict=True)
            masks = [torch.cat([each.expand(seq, -1), own], dim=1) for each in visible]
            cache = join_caches(states, read_only=False)
            self._forward(torch.stack(tokens), torch.stack(ids), self._mask(torch.stack(masks)), cache=cache)
            found += split_cache(cache, num_states + seq)
        return found

    def log_probs_with_mask(
        self,
        states: DynamicCache,
        near_tokens: Near,
        position_ids: NearIDs,
        visibility_masks: Bool[Tensor, "batch states"],
    ) -> LogProbs:
        """Return the log-probabilities of the token after ``near_tokens``, for each row of ``visibility_masks``."""
        if not self._queue.is_member:
            return super().log_probs_with_mask(states, near_tokens, position_ids, visibility_masks)
        kind = (
            "log_probs_with_mask",
            states.get_seq_length(),
            len(near_tokens),
            self.pack_shape(len(near_tokens), len(visibility_masks)),
        )
        return self._queue.call(kind, self._log_probs_with_mask, states, near_tokens, position_ids, visibility_masks)

    @torch.no_grad()
    def _log_probs_with_mask(self, group: list[tuple[DynamicCache, Tensor, Tensor, Tensor]]) -> list[Tensor]:
        found, seq = list[Tensor](), len(group[0][1])
        num_packs, num_copies = self.pack_shape(seq, len(group[0][3]))
        size = num_packs * (group[0][0].get_seq_length() + num_copies * seq)
        for part in split(group, max(1, self.forward_tokens // size)):
            packs = [self.pack(near, ids, masks) for _, near, ids, masks in part]
            tokens, ids, masks = (torch.cat(each) for each in zip(*packs, strict=True))
            logits = self._forward(
                tokens,
                ids,
                self._mask(masks),
                logit_indexes=torch.arange(seq - 1, num_copies * seq, seq),
                cache=join_caches([inputs[0] for inputs in part], copies=num_packs),
            ).logits
            each = logits.float().log_softmax(dim=-1).split([num_packs] * len(part))
            found += [rows.flatten(0, 1)[: len(inputs[3])] for rows, inputs in zip(each, part, strict=True)]
        return found

    def attention_gate_gradient(
        self,
        states: DynamicCache,
        near_tokens: Near,
        position_ids: NearIDs,
        log_gates: LogGates,
        objective: ScoreFunction,
    ) -> LogGates:
        """Return the gradient of ``objective`` with respect to ``log_gates``."""
        if not self._queue.is_member:
            return super().attention_gate_gradient(states, near_tokens, position_ids, log_gates, objective)
        kind = ("gradient", states.get_seq_length(), length_group(len(near_tokens)))
        gates = log_gates.expand(len(near_tokens), -1)
        gradient = self._queue.call(kind, self._gradients, states, near_tokens, position_ids, gates, objective)
        return gradient if log_gates.ndim == 2 else gradient.sum(dim=0)

    def _gradients(self, group: list[tuple[DynamicCache, Tensor, Tensor, Tensor, ScoreFunction]]) -> list[Tensor]:
        found, device = list[Tensor](), device_of(self.model)
        num_states, seq = group[0][0].get_seq_length(), max(len(inputs[1]) for inputs in group)
        for part in split(group, max(1, self.forward_tokens // (num_states + GRADIENT_COST * seq))):
            lengths = [len(inputs[1]) for inputs in part]
            tokens = torch.stack([pad(inputs[1], seq) for inputs in part])
            ids = torch.stack([pad(inputs[2], seq) for inputs in part])
            masks = [
                torch.cat(
                    [(torch.arange(seq) >= seq - length)[:, None].expand(-1, num_states), causal_rows(length, seq)[0]],
                    dim=1,
                )
                for length in lengths
            ]
            pads = [torch.nn.functional.pad(inputs[3], (0, 0, seq - len(inputs[3]), 0)) for inputs in part]
            gates = torch.stack(pads).to(device).requires_grad_()
            with torch.enable_grad():
                mask = self._mask(torch.stack(masks))
                mask = mask + torch.nn.functional.pad(gates, (0, seq))[:, None].to(mask.dtype)
                cache = join_caches([inputs[0] for inputs in part])
                log_probs = self._forward(tokens, ids, mask, cache=cache).logits[:, 0].float().log_softmax(dim=-1)
                objectives = [inputs[4](row) for inputs, row in zip(part, log_probs, strict=True)]
                gradients = torch.autograd.grad(torch.stack(objectives).sum(), gates)[0]
            found += [each[seq - length :] for each, length in zip(gradients, lengths, strict=True)]
        return found

    def _mask(self, mask: Bool[Tensor, "rows query key"]) -> Float[Tensor, "rows 1 query key"]:
        return additive_mask(mask[:, None].to(device_of(self.model)), self.model.dtype)


def split(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield runs of at most ``size`` values."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def length_group(length: int) -> int:
    """Return the number of the group of a length; groups end at the multiples of ``LENGTH_STEP``."""
    return -(-length // LENGTH_STEP)


def pad(values: Tensor, seq: int) -> Tensor:
    """Pad the last axis on the left to ``seq`` values."""
    return torch.nn.functional.pad(values, (seq - values.shape[-1], 0))


def causal_rows(length: int, seq: int, rows: int = 1) -> Bool[Tensor, "rows seq seq"]:
    """Return causal masks in which padding on the left is hidden, but attends to itself."""
    mask = torch.ones(seq, seq, dtype=torch.bool).tril()
    mask[:, : seq - length] = False
    mask.fill_diagonal_(True)
    return mask.expand(rows, -1, -1)


def split_cache(cache: DynamicCache, num_tokens: int) -> Iterator[DynamicCache]:
    """Yield the first ``num_tokens`` keys and values of each row as a cache with fixed contents."""
    layers: list[Any] = list(cache.layers)
    for row in range(len(layers[0].keys)):
        each = DynamicCache()
        each.layers = [ReadOnlyCacheLayer.from_layer(layer, num_tokens, slice(row, row + 1)) for layer in layers]
        yield each


def join_caches(caches: Sequence[DynamicCache], *, copies: int = 1, read_only: bool = True) -> DynamicCache:
    """Return a cache with one row per cache, or ``copies`` rows each."""
    joined = DynamicCache()
    for index in range(len(caches[0].layers)):
        rows: list[Any] = [cache.layers[index] for cache in caches for _ in range(copies)]
        joined.update(torch.cat([row.keys for row in rows]), torch.cat([row.values for row in rows]), index)
    if read_only:
        layers: list[Any] = list(joined.layers)
        joined.layers = [ReadOnlyCacheLayer.from_layer(layer, layer.keys.shape[-2]) for layer in layers]
    return joined
