"""Claim on PPC ablations: heads, ID loss weight, ID range and gaps, scheduled sampling, and kinds of errors."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lengthwise.core.randomness import random_stream
from lengthwise.encodings import Learned
from lengthwise.evaluation.exact_match import EvaluationSettings, iter_examples
from lengthwise.evaluation.forecast.subsampling import subsample
from lengthwise.evaluation.grading import Grades, first_errors, grade
from lengthwise.evaluation.result_rows import Rows, find_given_knowledge
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.reproduction import Claim, SizePreset, Table
from lengthwise.experiments.run import Run
from lengthwise.experiments.run_evaluation import build_probed_model
from lengthwise.positions import Predicted
from lengthwise.tasks import Parity

HEAD_NAMES = ("pointer", "rank", "increment", "class")
LAPTOP_NAMES = (*HEAD_NAMES, "gaps up to 0", "ID of the last bit", "all on own IDs")
LAPTOP_LABELS = tuple(f"parity, {name}" for name in LAPTOP_NAMES)
# Number of examples for free decoding and teacher forcing, and their maximum length.
NUM_DECODED_EXAMPLES, MAX_DECODED_LENGTH = 32, 2000
# Number of answers predicted from subsampled sequences, and approximate number of tokens per subsample.
NUM_SUBSAMPLED_ANSWERS, NUM_SUBSAMPLE_TOKENS = 64, 16


def _build_experiments() -> dict[str, Experiment]:
    evaluation = EvaluationSettings(lengths=(20, 200, 2000, 20_000), num_examples=(512, 512, 64, 4), stop_at_zero=True)
    experiments = _ablations("parity", replace(recipe("parity"), evaluation=evaluation))
    base = experiments["parity, pointer"]
    scheme = base.scheme
    assert isinstance(scheme, Predicted)
    # In a small range, training covers most IDs.
    small_range = replace(scheme, num_position_ids=round(0.1 * scheme.num_position_ids))
    near_evaluation = replace(evaluation, lengths=(20, 200, 2000), num_examples=(512, 512, 64))
    covered = replace(base, scheme=small_range, evaluation=near_evaluation)
    experiments["parity, class, learned IDs to 0.1x"] = _with_class_head(covered)
    # Couple each state with the last bit read, not with the next bit needed.
    last_bit = replace(base, task=Parity(coupling="same"))
    experiments["parity, ID of the last bit"] = last_bit
    experiments["parity, ID of the last bit, no gaps"] = replace(last_bit, scheme=replace(scheme, max_gaps=0))
    evaluation = EvaluationSettings(lengths=(16, 32, 160, 1600), num_examples=(512, 512, 256, 64), stop_at_zero=True)
    variables = replace(recipe("variable_assignment_by_hand"), evaluation=evaluation)
    experiments |= _ablations("variables", variables)
    experiments["variables, class, learned IDs"] = _with_class_head(variables)
    return experiments


def _ablations(name: str, base: Experiment) -> dict[str, Experiment]:
    """Return the ablations of PPC on a task; ``name`` is the start of their labels."""
    experiments = {f"{name}, {head}": replace(base, decoder=replace(base.decoder, head=head)) for head in HEAD_NAMES}
    scheme, training = base.scheme, base.training
    for weight in (0.1, 10.0):
        experiments[f"{name}, ID loss times {weight:g}"] = replace(base, training=replace(training, id_weight=weight))
    for rate, share in ((0.5, "half"), (1.0, "all")):
        experiments[f"{name}, {share} on own IDs"] = replace(base, training=replace(training, scheduled_sampling=rate))
    assert isinstance(scheme, Predicted)
    for gaps in (0, 3):
        experiments[f"{name}, gaps up to {gaps}"] = replace(base, scheme=replace(scheme, max_gaps=gaps))
    for factor in (0.1, 4):
        scaled_scheme = replace(scheme, num_position_ids=round(factor * scheme.num_position_ids))
        experiments[f"{name}, IDs to {factor:g}x"] = replace(base, scheme=scaled_scheme)
    return experiments


def _with_class_head(base: Experiment) -> Experiment:
    """Return the experiment with the class head and learned encoding: the head needs absolute IDs, not rotary."""
    assert isinstance(base.scheme, Predicted)
    encoding = Learned(num_position_ids=base.scheme.num_position_ids)
    return replace(base, encoding=encoding, decoder=replace(base.decoder, head="class"))


def _measure_run(run: Run, rows: Rows) -> Mapping[str, Any]:
    """Compare free decoding with teacher forcing, and predict from few tokens, at the shortest length with an error."""
    experiment = run.experiment
    lengths = {row["length"]: row["exact_match"] for row in rows if row["length"] <= MAX_DECODED_LENGTH}
    length = next((length for length, exact_match in lengths.items() if exact_match < 1), max(lengths))
    end_token, decoding_counts = experiment.task.vocabulary.index("end"), _DecodingCounts()
    for _, batch in iter_examples(experiment.task, experiment.scheme, length, NUM_DECODED_EXAMPLES, 0):
        decoding_counts.add(*(grade(run.decoder, batch, end=end_token, decode=decode) for decode in ("forced", "free")))
    return {"length": length, **decoding_counts.fractions(), **_few_token_answers(run, length)}


def _few_token_answers(run: Run, length: int) -> dict[str, float]:
    """Return the accuracy (token and ID) of answers predicted from ``NUM_SUBSAMPLE_TOKENS`` context tokens.

    The tokens include the support in one case, and as many random tokens instead of it in the other case.
    """
    run.decoder.eval()
    model = build_probed_model(run, seed=0)
    queries = model.sample_answer_queries(length, NUM_SUBSAMPLED_ANSWERS)
    rng, last_index = random_stream(0, "answers read off a few tokens", length), queries.last_index
    others = [
        rng.integers(0, last + 1, len(depends_on))
        for depends_on, last in zip(queries.depends_on, last_index, strict=True)
    ]
    needed_subsample = subsample(queries.depends_on, last_index, NUM_SUBSAMPLE_TOKENS, rng, block_size=1).unweighted()
    other_subsample = subsample(others, last_index, NUM_SUBSAMPLE_TOKENS, rng, block_size=1).unweighted()
    other_queries = replace(queries, depends_on=others)
    return {
        "tokens_before": float(queries.answer.mean()),
        "tokens_read": float((needed_subsample.last_column + 1).mean()),
        "right_of_few": float(model.query(queries, needed_subsample).correct_each.mean()),
        "right_of_others": float(model.query(other_queries, other_subsample).correct_each.mean()),
    }


@dataclass(slots=True)
class _DecodingCounts:
    """Counts of correct examples, and of correct tokens after first errors, with teacher forcing and free decoding."""

    examples: int = 0
    forced_exact: int = 0
    free_exact: int = 0
    same_first_error: int = 0
    later_tokens: int = 0
    forced_later_correct: int = 0
    free_later_correct: int = 0

    def add(self, forced_grades: Grades, free_grades: Grades) -> None:
        """Add a batch; later tokens are those after the first teacher-forced error of an example."""
        forced, free = (
            {row: column for row, column, _ in first_errors(grades)} for grades in (forced_grades, free_grades)
        )
        self.examples += (num_examples := len(forced_grades.scored))
        self.forced_exact += num_examples - len(forced)
        self.free_exact += num_examples - len(free)
        self.same_first_error += sum(forced.get(example) == free.get(example) for example in range(num_examples))
        for example, column in forced.items():
            is_scored = forced_grades.scored[example, column + 1 :]
            self.later_tokens += int(is_scored.sum())
            self.forced_later_correct += int(forced_grades.token_correct[example, column + 1 :][is_scored].sum())
            self.free_later_correct += int(free_grades.token_correct[example, column + 1 :][is_scored].sum())

    def fractions(self) -> dict[str, float | None]:
        """Return the counts as fractions of all examples or of all later tokens (None if there are no later tokens)."""
        later_counts = (self.forced_later_correct, self.free_later_correct)
        forced_later, free_later = (count / self.later_tokens if self.later_tokens else None for count in later_counts)
        return {
            "forced": self.forced_exact / self.examples,
            "free": self.free_exact / self.examples,
            "same_first_error": self.same_first_error / self.examples,
            "forced_later": forced_later,
            "free_later": free_later,
        }


def _build_tables(rows: Rows, measurements: Rows) -> list[Table]:
    return [_first_error_table(rows), _decoding_table(measurements), _few_token_table(measurements)]


def _first_error_table(rows: Rows) -> Table:
    """Return a table that counts the first errors of each kind at the shortest length with an error."""
    body = []
    for label in dict.fromkeys(row["row"] for row in rows):
        label_rows = [row for row in rows if row["row"] == label]
        rows_with_errors = [row for row in label_rows if row["first_error"] is not None]
        if not rows_with_errors:
            body.append([label, find_given_knowledge(label_rows), "-", "0", "0", "0", "0", "1.000"])
            continue
        length = min(row["length"] for row in rows_with_errors)
        failed_rows = [row for row in rows_with_errors if row["length"] == length]
        kind_counts = [str(sum(row["first_error"][kind] for row in failed_rows)) for kind in ("token", "id", "end")]
        length_rows = [row for row in label_rows if row["length"] == length]
        num_examples = sum(row["num_examples"] for row in length_rows)
        num_failed = sum(round((1 - row["exact_match"]) * row["num_examples"]) for row in length_rows)
        token_exact_match = sum(row["exact_tokens"] * row["num_examples"] for row in length_rows) / num_examples
        failed = f"{num_failed} of {num_examples}"
        given, exact_text = find_given_knowledge(label_rows), f"{token_exact_match:.3f}"
        body.append([label, given, f"{length:,}", failed, *kind_counts, exact_text])
    title = "first errors at the shortest length with any error, over all seeds"
    return title, ["row", "given", "length", "failed", "token", "ID", "end", "tokens alone exact"], body


def _decoding_table(measurements: Rows) -> Table:
    body = []
    for measurement in measurements:
        names = ("forced", "free", "same_first_error", "forced_later", "free_later")
        cells = ["-" if measurement[name] is None else f"{measurement[name]:.3f}" for name in names]
        body.append([measurement["row"], str(measurement["seed"]), f"{measurement['length']:,}", *cells])
    header = ["row", "seed", "length", "exact match, forced", "exact match, free", "same first error"]
    later_header = ["accuracy after the first error, forced", "after the first error, free"]
    return f"free decoding and teacher forcing, {NUM_DECODED_EXAMPLES} examples", [*header, *later_header], body


def _few_token_table(measurements: Rows) -> Table:
    body = []
    for measurement in measurements:
        token_counts = (f"{measurement[name]:,.0f}" for name in ("tokens_before", "tokens_read"))
        accuracies = (f"{measurement[name]:.3f}" for name in ("right_of_few", "right_of_others"))
        body.append(
            [measurement["row"], str(measurement["seed"]), f"{measurement['length']:,}", *token_counts, *accuracies]
        )
    title = f"accuracy (token and ID) of {NUM_SUBSAMPLED_ANSWERS} answers predicted from few tokens of the context"
    header = [
        "row",
        "seed",
        "length",
        "tokens in the context",
        "tokens read",
        "needed tokens read",
        "other tokens read",
    ]
    return title, header, body


CLAIM = Claim(
    summary="PPC ablations: heads, ID loss weight, ID range and gaps, scheduled sampling, and kinds of errors",
    paper="section 5.2, and a reviewer's questions about it",
    experiments=_build_experiments,
    laptop=SizePreset(num_seeds=1, labels=LAPTOP_LABELS, max_length=2000),
    measure=_measure_run,
    tables=_build_tables,
)
