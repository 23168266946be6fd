"""PPC in the open: which head, which weight of the ID loss, which IDs, and whether right IDs in training hurt."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lengthwise.core.randomness import stream
from lengthwise.encodings import Learned
from lengthwise.evaluation.exact_match import EvaluationSettings, drawn
from lengthwise.evaluation.forecast.subsampling import thin
from lengthwise.evaluation.grading import Graded, first_errors, grade
from lengthwise.evaluation.tables_and_figures import Rows
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.reproductions.claim import Claim, Size, Table
from lengthwise.experiments.run import Run
from lengthwise.experiments.run_analysis import probed_model_of
from lengthwise.positions import Predicted
from lengthwise.tasks import Parity

HEADS = ("pointer", "rank", "increment", "class")
# Sequences decoded freely, beside the same ones with right tokens and IDs before each choice.
DECODED, DECODED_TO = 32, 2000
# Answers that are asked with most tokens left out: about so many stay.
ASKED, READ = 64, 16


def _experiments() -> dict[str, Experiment]:
    tests = EvaluationSettings(lengths=(20, 200, 2000, 20_000), num_examples=(512, 512, 64, 4), until_none=True)
    rows = _changed("parity", replace(recipe("parity"), evaluation=tests))
    base = rows["parity, pointer"]
    scheme = base.scheme
    assert isinstance(scheme, Predicted)
    # Few enough that training shows most of them.
    few = replace(scheme, num_position_ids=round(0.1 * scheme.num_position_ids))
    near = replace(tests, lengths=(20, 200, 2000), num_examples=(512, 512, 64))
    rows["parity, class, learned IDs to 0.1x"] = _with_classes(replace(base, scheme=few, evaluation=near))
    # The ID of the bit that was read last, not of the one that is needed next.
    same = replace(base, task=Parity(coupling="same"))
    rows["parity, ID of the last bit"] = same
    rows["parity, ID of the last bit, no gaps"] = replace(same, scheme=replace(scheme, max_gaps=0))
    tests = EvaluationSettings(lengths=(16, 32, 160, 1600), num_examples=(512, 512, 256, 64), until_none=True)
    variables = replace(recipe("variable_assignment"), evaluation=tests)
    rows |= _changed("variables", variables)
    rows["variables, class, learned IDs"] = _with_classes(variables)
    return rows


def _changed(name: str, base: Experiment) -> dict[str, Experiment]:
    """What is asked of both tasks."""
    rows = {f"{name}, {head}": replace(base, decoder=replace(base.decoder, head=head)) for head in HEADS}
    for weight in (0.1, 10.0):
        rows[f"{name}, ID loss times {weight:g}"] = replace(base, training=replace(base.training, id_weight=weight))
    for share, said in ((0.5, "half"), (1.0, "all")):
        rows[f"{name}, {said} on own IDs"] = replace(base, training=replace(base.training, own_ids=share))
    scheme = base.scheme
    assert isinstance(scheme, Predicted)
    for gaps in (0, 3):
        rows[f"{name}, gaps up to {gaps}"] = replace(base, scheme=replace(scheme, max_gaps=gaps))
    for factor in (0.1, 4):
        around = replace(scheme, num_position_ids=round(factor * scheme.num_position_ids))
        rows[f"{name}, IDs to {factor:g}x"] = replace(base, scheme=around)
    return rows


def _with_classes(base: Experiment) -> Experiment:
    """A class is an ID by itself: it needs an encoding that tells IDs, where rotary tells how far apart they are."""
    assert isinstance(base.scheme, Predicted)
    return replace(
        base,
        encoding=Learned(num_position_ids=base.scheme.num_position_ids),
        decoder=replace(base.decoder, head="class"),
    )


def _read(run: Run, rows: Rows) -> Mapping[str, Any]:
    """Free decoding beside teacher forcing where a run begins to fail, and what its answers are read off there."""
    experiment = run.experiment
    lengths = {row["length"]: row["exact_match"] for row in rows if row["length"] <= DECODED_TO}
    length = next((length for length, exact in lengths.items() if exact < 1), max(lengths))
    end, found = experiment.task.vocabulary.index("end"), _Beside()
    for _, batch in drawn(experiment.task, experiment.scheme, length, DECODED, 0):
        found.add(*(grade(run.decoder, batch, end=end, decode=decode) for decode in ("forced", "free")))
    return {"length": length, **found.shares(), **_read_off(run, length)}


def _read_off(run: Run, length: int) -> dict[str, float]:
    """Answers, token and ID, of a decoder that reads little of what comes before: what is needed, or as much else."""
    run.decoder.eval()
    subject = probed_model_of(run, seed=0)
    questions = subject.questions(length, ASKED)
    rng, before = stream(0, "answers read off a few tokens", length), questions.answer - 1
    others = [rng.integers(0, last + 1, len(each)) for each, last in zip(questions.needed, before, strict=True)]
    read = thin(questions.needed, before, READ, rng, stretch=1).alone()
    instead = thin(others, before, READ, rng, stretch=1).alone()
    elsewhere = replace(questions, needed=others)
    return {
        "tokens_before": float(questions.answer.mean()),
        "tokens_read": float((read.last + 1).mean()),
        "right_of_few": float(subject.ask(questions, read).single.mean()),
        "right_of_others": float(subject.ask(elsewhere, instead).single.mean()),
    }


@dataclass(slots=True)
class _Beside:
    """What teacher-forced and free decoding of the same examples come to."""

    examples: int = 0
    forced: int = 0
    free: int = 0
    same: int = 0
    later: int = 0
    forced_later: int = 0
    free_later: int = 0

    def add(self, forced: Graded, free: Graded) -> None:
        """Of each failed example, the tokens behind the first error count for what is right later."""
        errors, own_errors = ({row: column for row, column, _ in first_errors(graded)} for graded in (forced, free))
        self.examples += len(forced.scored)
        self.forced += len(forced.scored) - len(errors)
        self.free += len(free.scored) - len(own_errors)
        self.same += sum(errors.get(row) == own_errors.get(row) for row in range(len(forced.scored)))
        for row, column in errors.items():
            scored = forced.scored[row, column + 1 :]
            self.later += int(scored.sum())
            self.forced_later += int(forced.token_right[row, column + 1 :][scored].sum())
            self.free_later += int(free.token_right[row, column + 1 :][scored].sum())

    def shares(self) -> dict[str, float | None]:
        """Of the examples, and of the tokens behind first errors; None where there are none."""
        of_later = (self.forced_later, self.free_later)
        forced_later, free_later = (right / self.later if self.later else None for right in of_later)
        return {
            "forced": self.forced / self.examples,
            "free": self.free / self.examples,
            "same_first_error": self.same / self.examples,
            "forced_later": forced_later,
            "free_later": free_later,
        }


def _tables(rows: Rows, readings: Rows) -> list[Table]:
    return [_failures(rows), _decoding(readings), _few(readings)]


def _failures(rows: Rows) -> Table:
    """Which kind of error comes first, at the shortest length where a row fails at all."""
    body = []
    for label in dict.fromkeys(row["row"] for row in rows):
        own = [row for row in rows if row["row"] == label]
        failing = [row for row in own if row["first_error"] is not None]
        if not failing:
            body.append([label, "-", "0", "0", "0", "0", "1.000"])
            continue
        length = min(row["length"] for row in failing)
        there = [row for row in failing if row["length"] == length]
        kinds = [str(sum(row["first_error"][kind] for row in there)) for kind in ("token", "id", "end")]
        at = [row for row in own if row["length"] == length]
        examples = sum(row["num_examples"] for row in at)
        failed = sum(round((1 - row["exact_match"]) * row["num_examples"]) for row in at)
        tokens = sum(row["exact_tokens"] * row["num_examples"] for row in at) / examples
        body.append([label, f"{length:,}", f"{failed} of {examples}", *kinds, f"{tokens:.3f}"])
    title = "what goes wrong first, at the shortest length where anything does, over all seeds"
    return title, ["row", "length", "failed", "token", "ID", "end", "tokens alone exact"], body


def _decoding(readings: Rows) -> Table:
    body = []
    for reading in readings:
        names = ("forced", "free", "same_first_error", "forced_later", "free_later")
        shown = ["-" if reading[name] is None else f"{reading[name]:.3f}" for name in names]
        body.append([reading["row"], str(reading["seed"]), f"{reading['length']:,}", *shown])
    header = ["row", "seed", "length", "exact, right tokens before", "exact, own tokens before", "same first error"]
    later = ["right behind the first error, right tokens before", "own tokens before"]
    return f"free decoding beside teacher forcing, {DECODED} examples", [*header, *later], body


def _few(readings: Rows) -> Table:
    body = []
    for reading in readings:
        sizes = (f"{reading[name]:,.0f}" for name in ("tokens_before", "tokens_read"))
        shares = (f"{reading[name]:.3f}" for name in ("right_of_few", "right_of_others"))
        body.append([reading["row"], str(reading["seed"]), f"{reading['length']:,}", *sizes, *shares])
    title = f"{ASKED} answers, token and ID, of a decoder that reads few of the tokens before them"
    header = ["row", "seed", "length", "tokens before", "read", "right, needed ones read", "right, as many others read"]
    return title, header, body


PPC = Claim(
    name="ppc",
    summary="PPC taken apart: heads, weight of the ID loss, which IDs and gaps, own IDs in training, kinds of errors",
    paper="section 5.2, and a reviewer's questions about it",
    experiments=_experiments,
    laptop=Size(
        num_seeds=1,
        rows=tuple(f"parity, {what}" for what in (*HEADS, "gaps up to 0", "ID of the last bit", "all on own IDs")),
        longest=2000,
    ),
    read=_read,
    tables=_tables,
)
