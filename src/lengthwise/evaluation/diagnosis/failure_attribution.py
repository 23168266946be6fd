"""Attribution of failures to causes, from the first errors that interventions on tokens and IDs repair."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from jaxtyping import Bool, Int, Real

from lengthwise.core.randomness import random_stream
from lengthwise.evaluation.diagnosis.failures import FailureBatch, FailureCounts, grade_with_known_end
from lengthwise.evaluation.exact_match import iter_examples
from lengthwise.evaluation.forecast.assumptions import ACCURACY_THRESHOLD
from lengthwise.evaluation.forecast.certificate import DILUTED_ATTENTION, UNTRAINED_IDS
from lengthwise.evaluation.forecast.probed_model import (
    NUM_SUBSAMPLES,
    AnswerQueries,
    ProbedModel,
    build_queries,
    query_without_tokens,
    sample_answers,
    take_first,
)
from lengthwise.evaluation.forecast.subsampling import Subsample, subsample, upweight_distractors
from lengthwise.tasks.examples import Examples

# Block sizes of subsampling, tried in this order until the result fits into the budget.
BLOCK_SIZES = (4, 2, 1)
# Number of examples of the longest training length.
NUM_TRAIN_EXAMPLES = 64
# The cause that replaces ``UNTRAINED_IDS`` if no ID and no distance exceeds the training maximum.
MORE_IDS = "more distinct IDs than in training"
TOKENS_OR_IDS = "the number of tokens and the IDs, each sufficient for the failure"
COMPETING_MATCHES = "competing matches"
ID_ERRORS, END_ERRORS = "wrong predicted IDs", "ending too early or too late"
# A change that repairs at least this fraction of first errors explains the failures.
MAIN_FRACTION = 0.5
UNDECIDED = "undecided between IDs and the number of tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class InterventionResults:
    """Masks of answers that are correct under each intervention, in most subsamples of training size.

    ``subsample_only`` keeps the IDs of the tested length and weights the tokens to represent the full sequence.
    ``fewer_tokens`` sets all weights to 1. ``trained_ids`` replaces the IDs by training IDs in the same order.
    ``both_changes`` does both. ``within_budget`` marks answers whose subsamples do not exceed the training size.
    ``without_competitors`` hides competing tokens of the full sequence (see ``find_competing_tokens``) from the token
    before the answer, and ``without_random`` as many random tokens.
    """

    subsample_only: Bool[np.ndarray, " answers"]
    fewer_tokens: Bool[np.ndarray, " answers"]
    trained_ids: Bool[np.ndarray, " answers"]
    both_changes: Bool[np.ndarray, " answers"]
    within_budget: Bool[np.ndarray, " answers"]
    without_competitors: Bool[np.ndarray, " answers"]
    without_random: Bool[np.ndarray, " answers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interventions:
    """Interventions that reduce sequences to ``budget`` units, as in training, or use the IDs in ``train_ids``.

    A unit is a set of coupled tokens, so that a subsample has the layout of a shorter sequence. Without coupling, or
    with several levels, each token is a unit. ``train_ids[sequence][level]`` has the sorted distinct IDs of one
    training sequence.
    """

    model: ProbedModel
    budget: int
    train_ids: list[list[np.ndarray]]

    def apply(self, queries: AnswerQueries, rng: np.random.Generator) -> InterventionResults:
        """Evaluate the queries under each intervention; those on the number of tokens and IDs share subsamples."""
        subsamples, within_budget = self._subsample(queries, self.budget, rng)
        remapped = self._with_train_ids(queries, subsamples)
        hidden = self._hide_tokens(queries, rng)
        return InterventionResults(
            subsample_only=self._is_correct(queries, subsamples),
            fewer_tokens=self._is_correct(queries, subsamples.unweighted()),
            trained_ids=self._is_correct(remapped, subsamples),
            both_changes=self._is_correct(remapped, subsamples.unweighted()),
            within_budget=within_budget,
            without_competitors=hidden[:, 0],
            without_random=hidden[:, 1],
        )

    def apply_to_batches(
        self, batches: list[AnswerQueries], max_queries: int, report: Callable[[], None]
    ) -> InterventionResults:
        """Evaluate at most ``max_queries`` queries under each intervention; call ``report`` before each batch."""
        results = []
        for batch_index, queries in enumerate(take_first(batches, max_queries)):
            report()
            rng = random_stream(self.model.seed, "diagnosis draws", queries.batch.length, batch_index)
            results.append(self.apply(queries, rng))
        names = [field.name for field in fields(InterventionResults)]
        merged = {name: np.concatenate([getattr(result, name) for result in results]) for name in names}
        return InterventionResults(**merged)

    def measure_retention(self) -> float:
        """Return the fraction of correct answers at the longest training length that stay correct on half the units."""
        model, stays_correct = self.model, []
        length = model.max_train_length
        rng = random_stream(model.seed, "diagnosis home", length)
        for examples, batch in iter_examples(model.task, model.scheme, length, NUM_TRAIN_EXAMPLES, model.seed):
            queries = build_queries(model.task, examples, batch, sample_answers(model.task, batch, rng))
            full_sequences = upweight_distractors(queries.depends_on, queries.last_index, 1.0)
            half_sequences = self._subsample(queries, self.budget // 2, rng)[0].unweighted()
            is_retained = self._is_correct(self._with_train_ids(queries, half_sequences), half_sequences)
            stays_correct += is_retained[model.query(queries, full_sequences).correct].tolist()
        return float(np.mean(stays_correct)) if stays_correct else 0.0

    def _subsample(
        self, queries: AnswerQueries, budget: int, rng: np.random.Generator
    ) -> tuple[Subsample, Bool[np.ndarray, " queries"]]:
        """Return subsamples, and a mask of queries whose subsamples are all within the budget."""
        repeated = queries.select(np.repeat(np.arange(len(queries.answer)), NUM_SUBSAMPLES))
        units = coupling_or_token_index(repeated.examples)
        candidates = []
        for block_size in BLOCK_SIZES:
            subsamples = subsample(repeated.depends_on, repeated.last_index, budget, rng, units, block_size)
            unit_rows = zip(units, subsamples.indices, strict=True)
            num_units = [len(np.unique(unit_ids[indices])) for unit_ids, indices in unit_rows]
            within_budget = np.asarray((np.array(num_units) <= budget).reshape(-1, NUM_SUBSAMPLES).all(axis=1))
            candidates.append((subsamples, within_budget))
        return next((candidate for candidate in candidates if candidate[1].all()), candidates[-1])

    def _hide_tokens(self, queries: AnswerQueries, rng: np.random.Generator) -> Bool[np.ndarray, "queries 2"]:
        """Return masks of correct queries without their competing tokens, and without as many random other tokens."""
        hidden = []
        for row, last in enumerate(queries.last_index.tolist()):
            assert queries.examples.depends_on is not None
            needed = queries.examples.depends_on[row, last + 1]
            tokens = queries.examples.tokens[row, : last + 1]
            competing, others = find_competing_tokens(tokens, needed[needed >= 0])
            # Hidden separators would change the segments.
            competing, others = (np.setdiff1d(indexes, queries.depends_on[row]) for indexes in (competing, others))
            hidden.append((competing, rng.choice(others, size=len(competing), replace=False)))
        return query_without_tokens(self.model.decoder, queries, hidden)

    def _is_correct(self, queries: AnswerQueries, subsamples: Subsample) -> Bool[np.ndarray, " answers"]:
        correct_each = self.model.query(queries, subsamples).correct_each.reshape(-1, NUM_SUBSAMPLES)
        return np.asarray(correct_each.mean(axis=1) > 0.5)

    def _with_train_ids(self, queries: AnswerQueries, subsamples: Subsample) -> AnswerQueries:
        """Return one query per subsample, with training IDs that depend on the tokens of the subsample."""
        query_indices = np.repeat(np.arange(len(queries.answer)), NUM_SUBSAMPLES)
        repeated = queries.select(query_indices)
        ids = repeated.batch.position_ids.numpy().copy()
        for subsample_index, last_index in enumerate(subsamples.last_column):
            token_indices = subsamples.indices[subsample_index, : last_index + 1]
            depends_on = np.append(repeated.depends_on[subsample_index], token_indices[-1])
            distances = np.abs(token_indices[:, None] - depends_on).min(axis=1)
            indices_by_distance = token_indices[distances.argsort(kind="stable")]
            train_ids = self.train_ids[query_indices[subsample_index] % len(self.train_ids)]
            for level_ids, level_train_ids in zip(ids[:, subsample_index], train_ids, strict=True):
                level_ids[:] = remap_ids(level_ids, level_ids[indices_by_distance], level_train_ids)
        return replace(repeated, batch=replace(repeated.batch, position_ids=torch.from_numpy(ids)))


def build_interventions(model: ProbedModel) -> Interventions:
    """Return interventions with the size and the IDs of sequences of the longest training length."""
    length = model.max_train_length
    examples, batch = next(iter_examples(model.task, model.scheme, length, NUM_TRAIN_EXAMPLES, model.seed))
    ids = batch.position_ids.numpy()
    return Interventions(
        model=model,
        budget=min(len(np.unique(units)) for units in coupling_or_token_index(examples)),
        train_ids=[[np.unique(level_ids) for level_ids in ids[:, example]] for example in range(len(examples))],
    )


def find_competing_tokens(
    tokens: Int[np.ndarray, " seq"], needed: Int[np.ndarray, " _"]
) -> tuple[Int[np.ndarray, " _"], Int[np.ndarray, " _"]]:
    """Return the indexes of the tokens that compete with the needed tokens, and of all tokens that are not needed.

    ``tokens`` ends with the token before the answer. A needed token can be found by its neighbor if the neighbor equals
    another needed token or the last token, as in copying: the next symbol follows the symbol that was copied last.
    Other occurrences of the neighbor then compete. Of an occurrence and the token next to it, the later one competes,
    because it can read the other one.
    """
    last = len(tokens) - 1
    read = np.union1d(needed, last)
    is_needed, is_competing = np.zeros((2, len(tokens)), dtype=bool)
    is_needed[read] = True
    for token_index in read[:-1].tolist():
        for side in (-1, 1):
            neighbor = token_index + side
            others = read[(read != token_index) & (read != neighbor)]
            if neighbor < 0 or tokens[neighbor] not in tokens[others]:
                continue
            is_needed[neighbor] = True
            (occurrences,) = np.nonzero(tokens == tokens[neighbor])
            later = occurrences[occurrences != neighbor] + (side < 0)
            is_competing[later[later <= last]] = True
    return np.flatnonzero(is_competing & ~is_needed), np.flatnonzero(~is_needed)


def coupling_or_token_index(examples: Examples) -> Int[np.ndarray, "batch seq"]:
    """Return the unit of each token: its coupling number for a single coupling level, otherwise its token index."""
    coupling = examples.coupling
    if coupling is not None and len(coupling) == 1:
        return coupling[0]
    return np.broadcast_to(np.arange(examples.tokens.shape[1]), examples.tokens.shape)


def remap_ids(
    ids: Real[np.ndarray, " seq"], selected_ids: Real[np.ndarray, " _"], train_ids: Real[np.ndarray, " _"]
) -> Real[np.ndarray, " seq"]:
    """Replace ``selected_ids`` by ``train_ids`` in increasing order, and other IDs like the next lower selected ID.

    If there are more selected IDs than training IDs, only the first of ``selected_ids`` are selected.
    """
    unique_ids, first_indices = np.unique(selected_ids, return_index=True)
    source_ids = np.sort(unique_ids[first_indices.argsort()[: len(train_ids)]])
    return np.asarray(train_ids[(np.searchsorted(source_ids, ids, side="right") - 1).clip(0)])


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCause:
    """Cause of failures, the intervention that removes it, and the fraction of first errors that it repairs.

    ``break_rate`` is the fraction of correct answers at the same length that the intervention makes wrong.
    ``exact_match`` is the exact match of the failed examples under the intervention. Both are None if not measured.
    ``effect`` subtracts the break rate, because noise also repairs errors: with two possible answers, it repairs half
    of the errors and breaks half of the correct answers.
    """

    name: str
    intervention: str
    num_errors: int
    repair_rate: float
    break_rate: float | None = None
    exact_match: float | None = None

    @property
    def effect(self) -> float:
        """Repair rate minus break rate, at least 0."""
        return max(0.0, self.repair_rate - (0.0 if self.break_rate is None else self.break_rate))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsamplingControl:
    """Effect of subsampling without an intervention.

    ``repair_rate`` is the fraction of first errors that become correct. ``retention`` is the fraction of correct
    answers at the longest training length that stay correct on half of the tokens. ``short_fraction`` is the fraction
    of first errors whose subsamples are not longer than a training sequence.
    """

    repair_rate: float
    retention: float
    short_fraction: float


def measure_intervention_causes(
    error_results: InterventionResults,
    correct_results: InterventionResults | None,
    length: int,
    *,
    beyond_training: bool,
) -> Iterator[FailureCause]:
    """Yield one cause per intervention: fewer tokens, training IDs, both together, and no competing tokens.

    ``error_results`` are results on first errors, and ``correct_results`` on correct answers, as a control. The repair
    and break rates exclude answers that the control of an intervention changes: subsampling alone, or hiding random
    tokens instead of competing ones. Fewer tokens are also fewer competing tokens, so they explain no error that hiding
    only the competing tokens repairs. ``beyond_training`` is True if some IDs or distances exceed the largest ones in
    training.
    """
    repair_rates = _changed_fractions(error_results, to_correct=True)
    break_rates: tuple[float | None, ...] = (None,) * len(repair_rates)
    if correct_results is not None:
        break_rates = _changed_fractions(correct_results, to_correct=False)
    interventions_by_cause = {
        DILUTED_ATTENTION: f"as many tokens as in training, IDs of length {length}",
        UNTRAINED_IDS if beyond_training else MORE_IDS: "training IDs, weight of all tokens",
        TOKENS_OR_IDS: "both changes, if neither one is sufficient",
        COMPETING_MATCHES: "competing tokens hidden, if hiding as many random tokens has no effect",
    }
    total = len(error_results.both_changes)
    rates = zip(interventions_by_cause.items(), repair_rates, break_rates, strict=True)
    for (name, change), repair_rate, break_rate in rates:
        yield FailureCause(
            name=name, intervention=change, num_errors=total, repair_rate=repair_rate, break_rate=break_rate
        )


def _changed_fractions(results: InterventionResults, *, to_correct: bool) -> tuple[float, float, float, float]:
    """Return the fraction of answers that each intervention makes correct (or else wrong) and its control does not."""
    control, fewer, ids, both, _, competitors, random_control = (
        getattr(results, field.name) == to_correct for field in fields(results)
    )
    only_competitors = competitors & ~random_control
    fewer, ids, both = (mask & ~control for mask in (fewer & ~only_competitors, ids, both & ~only_competitors))
    return float(fewer.mean()), float(ids.mean()), float((both & ~fewer & ~ids).mean()), float(only_competitors.mean())


def measure_id_and_end_causes(
    model: ProbedModel, failures: list[FailureBatch], counts: FailureCounts
) -> Iterator[FailureCause]:
    """Yield the cause "wrong IDs" if the decoder predicts IDs, and the cause "wrong end" if there are end errors."""
    total = counts.num_failures
    if model.decoder.predicts_ids:
        rate, exact = counts.id / total, sum(int(batch.tokens_correct.sum()) for batch in failures) / total
        yield FailureCause(
            name=ID_ERRORS, intervention="right IDs", num_errors=total, repair_rate=rate, exact_match=exact
        )
    if counts.end_too_early + counts.end_too_late:
        end_token = model.task.vocabulary.index("end")
        mask_pairs = [grade_with_known_end(model.decoder, batch, end_token) for batch in failures]
        rate, exact = (sum(int(mask.sum()) for mask in masks) / total for masks in zip(*mask_pairs, strict=True))
        yield FailureCause(
            name=END_ERRORS, intervention="right ends", num_errors=total, repair_rate=rate, exact_match=exact
        )


def describe_limiting_cause(
    counts: FailureCounts,
    id_and_end_causes: tuple[FailureCause, ...],
    causes: tuple[FailureCause, ...],
    control: SubsamplingControl | None,
) -> str:
    """Return a sentence about the limiting cause; ``control`` is None if there are no interventions."""
    error_kind = _describe_main_error_kind(counts, id_and_end_causes)
    if control is None:
        return f"limited by {error_kind}; the effect of IDs and of the number of tokens is unknown"
    token_rate, id_rate, both_rate, competing_rate = (cause.repair_rate for cause in causes)
    break_rates = [f"{cause.break_rate:.2f}" for cause in causes if cause.break_rate is not None]
    rates_text = (
        f"{token_rate:.2f} of the first errors are right with fewer tokens, {id_rate:.2f} with training IDs, "
        f"{both_rate:.2f} only with both, {competing_rate:.2f} only without competing tokens"
        + (f"; these changes make {', '.join(break_rates)} of the right answers wrong" if break_rates else "")
    )
    # The control of competing matches is not subsampling.
    if control.repair_rate > MAIN_FRACTION > causes[-1].effect:
        return f"limited by {error_kind}; {UNDECIDED}: subsampling alone repairs {control.repair_rate:.2f} of them"
    if sum(cause.effect for cause in causes) >= MAIN_FRACTION:
        return f"limited by {_main_cause(causes)} ({rates_text})"
    if token_rate + id_rate + both_rate + competing_rate >= MAIN_FRACTION:
        return f"limited by {error_kind}; {UNDECIDED}: noise may repair as many errors ({rates_text})"
    if min(control.retention, control.short_fraction) < ACCURACY_THRESHOLD:
        return (
            f"limited by {error_kind}; {UNDECIDED}: {control.short_fraction:.2f} of the first errors fit into a "
            f"training sequence, and subsampling leaves {control.retention:.2f} of the right answers right"
        )
    return f"limited by {error_kind}, and not by IDs, the number of tokens or competing matches ({rates_text})"


def _main_cause(causes: tuple[FailureCause, ...]) -> str:
    token_cause, id_cause, _, competing_cause = causes
    if competing_cause.effect >= MAIN_FRACTION:
        return COMPETING_MATCHES
    if min(token_cause.effect, id_cause.effect) >= MAIN_FRACTION:
        return "the combination of more tokens and IDs not seen in training"
    main_cause = max(causes, key=lambda cause: cause.effect)
    return main_cause.name if main_cause.effect >= MAIN_FRACTION else "several causes"


def _describe_main_error_kind(counts: FailureCounts, id_and_end_causes: tuple[FailureCause, ...]) -> str:
    num_end_errors = counts.end_too_early + counts.end_too_late
    max_count = max(counts.token, counts.id, num_end_errors)
    if max_count == counts.token:
        return f"wrong tokens ({counts.token} of {counts.num_failures} first errors)"
    error_name = ID_ERRORS if max_count == counts.id else END_ERRORS
    cause = next(cause for cause in id_and_end_causes if cause.name == error_name)
    return (
        f"{error_name} ({max_count} of {counts.num_failures} first errors; exact match {cause.exact_match:.2f} "
        f"with {cause.intervention})"
    )
