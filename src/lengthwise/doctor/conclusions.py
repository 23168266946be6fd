"""Conclusions from the measurements: five boxes with one sentence each, and answers to three questions.

Every interval has a level of 95% over documents. A conclusion that the intervals do not support is "cannot tell".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from lengthwise.doctor.cache_budget import EXACT, NUM_FIRST, NUM_NEAR, SELECTIONS
from lengthwise.doctor.changes import DROPPED, RESTORED
from lengthwise.doctor.measurements import BAND, CACHE, LOSS, NEEDLE, PUBLISHED, Key, Subject
from lengthwise.doctor.needles import CHANCE, DEPTHS
from lengthwise.doctor.plan import Plan
from lengthwise.influence.report.bootstrap import (
    NO_LIMITS,
    DocumentBootstrap,
    ratio_of_sums,
    smallest_k,
    undefined_estimates,
)

NUM_RESAMPLES = 2000
# Difference in loss (nats) that does not matter, and the largest upper bound of a difference that is called absent.
MARGIN, MAX_UNCERTAINTY = 0.02, 0.1
WORSE, SAME, UNCLEAR, MISSING = "worse", "not worse", "cannot tell", "not measured"
FEWER = "fewer needles"
LEVELS = (0.9, 0.95)
NO_TIME = "the time was over; use more --minutes"
Estimate = dict[str, Any]
Box = dict[str, Any]


def format_estimate(estimate: Estimate, digits: int = 2, sign: bool = False) -> str:
    """Return a value with its interval, such as ``0.85 [0.70, 1.00]``."""
    if estimate["value"] is None:
        return f"unknown ({estimate['reason']})"
    value = f"{estimate['value']:{'+' if sign else ''}.{digits}f}"
    if estimate["low"] is None:
        return f"{value} (no interval: {estimate['reason'].partition(', ')[0]})"
    return f"{value} [{estimate['low']:.{digits}f}, {estimate['high']:.{digits}f}]"


def judge_loss_increase(estimate: Estimate) -> str:
    """Return if an increase of the loss is clear (``WORSE``), absent (``SAME``) or neither."""
    if estimate["value"] is None:
        return MISSING
    if estimate["low"] is None:
        return UNCLEAR
    if estimate["low"] > MARGIN:
        return WORSE
    return SAME if estimate["value"] <= MARGIN and estimate["high"] <= MAX_UNCERTAINTY else UNCLEAR


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Measured values, and estimates over the documents that have all values of an estimate."""

    values: Mapping[Key, Any]
    plan: Plan
    subject: Subject
    own_tokens: Sequence[int]
    seed: int

    def losses(self, length: int, change: str = PUBLISHED) -> dict[int, float]:
        """Return the losses by document."""
        return self._values_by_document(LOSS, length, change)

    def estimate(
        self,
        first: Mapping[int, float],
        second: Mapping[int, float] | None = None,
        whole: Mapping[int, float] | None = None,
    ) -> Estimate:
        """Estimate the sum of ``first - second`` (default: 0 each), divided by the sum of ``whole`` (default: 1 each).

        The sums are over the documents with all values.
        """
        second = dict.fromkeys(first, 0.0) if second is None else second
        whole = dict.fromkeys(first, 1.0) if whole is None else whole
        rows = [
            (first[index] - second[index], whole[index])
            for index in sorted(first.keys() & second.keys() & whole.keys())
        ]
        if not rows:
            return {**undefined_estimates(1, "not measured")[0], "documents": 0}
        bootstrap = DocumentBootstrap(seed=self.seed, num_resamples=NUM_RESAMPLES)
        result = bootstrap(ratio_of_sums(np.array(rows)), len(rows), "nothing is lost", limits=NO_LIMITS)[0]
        return {**result, "documents": len(rows)}

    def difference(self, first: tuple[int, str], second: tuple[int, str]) -> Estimate:
        """Estimate the loss with the first length and change minus that with the second."""
        return self.estimate(self.losses(*first), self.losses(*second))

    @cached_property
    def length_rows(self) -> list[dict[str, Any]]:
        """Loss at each length, and its increase over the longest length that is at most half of it."""
        rows = []
        for length in self.plan.lengths:
            half = max((shorter for shorter in self.plan.lengths if 2 * shorter <= length), default=None)
            row: dict[str, Any] = {"length": length, "half": half, "loss": self.estimate(self.losses(length))}
            if half is not None:
                row["increase"] = self.difference((length, PUBLISHED), (half, PUBLISHED))
                row["verdict"] = judge_loss_increase(row["increase"])
                if row["verdict"] != WORSE and self._finds_less(length, half):
                    row["verdict"] = FEWER
            rows.append(row)
        return rows

    def needles(self, length: int) -> dict[int, float]:
        """Return the share of needles that the model finds, by document."""
        return {index: sum(found) / len(found) for index, found in self._values_by_document(NEEDLE, length).items()}

    def _values_by_document(self, kind: str, *details: Any) -> dict[int, Any]:
        """Return the values of one kind by document, without impossible measurements, which are None."""
        found = {index: self.values.get((kind, index, *details)) for index in range(self.plan.documents)}
        return {index: value for index, value in found.items() if value is not None}

    def _finds_less(self, length: int, half: int) -> bool:
        """Return True if the model finds clearly fewer needles than at half the length, where it finds them."""
        at_half = self.estimate(self.needles(half))
        if at_half["low"] is None or at_half["low"] <= CHANCE:
            return False
        lost = self.estimate(self.needles(half), self.needles(length))
        return lost["low"] is not None and lost["low"] > 0

    def needle_rows(self) -> list[dict[str, Any]]:
        """Share of found needles by length, and by depth."""
        rows = []
        for length in self.plan.lengths:
            if found := self._values_by_document(NEEDLE, length):
                share, by_depth = self.estimate(self.needles(length)), np.mean(list(found.values()), axis=0).tolist()
                rows.append({"length": length, "share": share, "by_depth": by_depth})
        return rows

    @property
    def works_to(self) -> int | None:
        """Longest length up to which no length is worse than half of it, or None."""
        longest = None
        for row in self.length_rows:
            if "verdict" not in row:
                continue
            if row["verdict"] != SAME:
                break
            longest = row["length"]
        return longest

    @property
    def no_failure_to(self) -> int | None:
        """Longest length before the first clear failure, which can be unclear itself, or None."""
        longest = None
        for row in self.length_rows:
            if row.get("verdict") in (WORSE, FEWER):
                break
            longest = row["length"] if "verdict" in row else None
        return longest

    @property
    def fails_at(self) -> int | None:
        """Shortest length that is clearly worse than half of it, or None."""
        return next((row["length"] for row in self.length_rows if row.get("verdict") == WORSE), None)

    @property
    def reference(self) -> int:
        """Longest length without a failure, which the lost nats refer to: the last one shorter than ``fails_at``."""
        fails_at = self.fails_at
        lengths = [length for length in self.plan.lengths if fails_at is None or length < fails_at]
        return max((length for length in lengths if self.losses(length)), default=self.plan.lengths[0])

    def works_box(self) -> Box:
        """Return the box "Works to N tokens"."""
        works_to, fails_at, plan = self.works_to, self.fails_at, self.plan
        measured = [row["length"] for row in self.length_rows if row["loss"]["documents"]]
        unclear = next((row for row in self.length_rows if row.get("verdict") in (UNCLEAR, MISSING)), None)
        fewer = next((row for row in self.length_rows if row.get("verdict") == FEWER), None)
        works = None if works_to is None else f"It works to {works_to:,} tokens"
        start = works or "It fails at the shortest lengths"
        if self.no_failure_to != works_to:
            start = f"Nothing fails clearly up to {self.no_failure_to:,} tokens"
        if fails_at is not None:
            row = next(row for row in self.length_rows if row["length"] == fails_at)
            sentence = (
                f"{start}; at {fails_at:,} tokens the loss is {format_estimate(row['increase'], sign=True)} nats above "
                f"that at {row['half']:,} tokens."
            )
            if unclear is not None and unclear["length"] < fails_at:
                sentence += f" At {unclear['length']:,} tokens, we cannot tell."
            if fewer is not None and fewer["length"] < fails_at:
                sentence += f" At {fewer['length']:,} tokens, it finds fewer needles than at {fewer['half']:,} tokens."
        elif works_to is not None and works_to == max(measured):
            sentence = f"{works}, the longest length that was measured."
        elif fewer is not None:
            sentence = (
                f"{start}; at {fewer['length']:,} tokens it finds fewer needles than at {fewer['half']:,} tokens."
            )
        else:
            reason = "no length was measured"
            if unclear is not None:
                increase = format_estimate(unclear["increase"], sign=True)
                reason = f"at {unclear['length']:,} tokens, the loss changes by {increase}"
            sentence = f"{f'{works}; beyond, we' if works else 'We'} cannot tell: {reason}."
        longest = plan.lengths[-1]
        joined = sum(own < longest for own in self.own_tokens[: plan.documents])
        joined_note = (
            f"{joined} documents are shorter than {longest:,} tokens; their context starts with other documents."
        )
        return {
            "title": "Works to N tokens",
            "sentence": sentence,
            "works_to": works_to,
            "fails_at": fails_at,
            "trained": plan.trained,
            "rows": self.length_rows,
            # Paired differences have narrower intervals than losses, which differ from document to document.
            "reference": self.reference,
            "changes": [
                {"length": row["length"], **self.difference((row["length"], PUBLISHED), (self.reference, PUBLISHED))}
                for row in self.length_rows
            ],
            "needles": self.needle_rows(),
            "depths": DEPTHS,
            "header": ["tokens", "loss", "minus loss at half", "verdict", "documents"],
            "table": [
                [
                    f"{row['length']:,}",
                    format_estimate(row["loss"], 3),
                    format_estimate(row["increase"], 3, sign=True) if "increase" in row else "-",
                    row.get("verdict", "-"),
                    str(row["loss"]["documents"]),
                ]
                for row in self.length_rows
            ],
            "notes": [
                f"All lengths predict the same {plan.num_targets:,} consecutive tokens, one block in each of "
                f"{plan.documents} documents, without a stride; they are the last tokens that the model reads.",
                f"An increase below {MARGIN} nats is ignored.",
                f"Needles: {len(DEPTHS)} passwords at several depths of one text; each answer competes with the other "
                f"passwords (chance: {CHANCE:.2f})."
                if self.needle_rows()
                else "Needles were not measured.",
                *([joined_note] if joined else []),
            ],
        }

    @cached_property
    def gains_of_changes(self) -> list[dict[str, Any]]:
        """Gain of each measured change at the failing length, largest first, and the share of the loss it recovers."""
        length = self.fails_at
        if length is None:
            return []
        failing, reference = self.losses(length), self.losses(self.reference)
        lost = {index: failing[index] - reference[index] for index in failing.keys() & reference.keys()}
        rows = [
            {
                "name": change.name,
                "cause": change.cause,
                "lines": change.lines(),
                "gain": self.estimate(failing, losses),
                "share": self.estimate(failing, losses, lost),
                "left": self.estimate(losses, reference),
            }
            for change in self.subject.changes
            if change.explains_length and (losses := self.losses(length, change.name))
        ]
        return sorted(rows, key=lambda row: -row["gain"]["value"])

    @cached_property
    def fault(self) -> dict[str, Any] | None:
        """Change that helps clearly at the shortest length already, with the largest gain, or None."""
        length, found = self.plan.lengths[0], list[dict[str, Any]]()
        for change in self.subject.changes:
            gain = self.difference((length, PUBLISHED), (length, change.name))
            if change.everywhere and judge_loss_increase(gain) == WORSE:
                found.append({"name": change.name, "cause": change.cause, "lines": change.lines(), "gain": gain})
        return max(found, key=lambda row: row["gain"]["value"], default=None)

    def why_box(self) -> Box:
        """Return the box "Why it stops"; a fault at all lengths comes first."""
        box = self._length_box()
        if (fault := self.fault) is None:
            return box
        sentence = (
            f"At all lengths, {fault['cause']}: with {fault['name']}, the loss at {self.plan.lengths[0]:,} tokens is "
            f"{format_estimate(fault['gain'])} nats lower. {box['sentence']}"
        )
        return {**box, "sentence": sentence, "cause": fault["cause"], "fault": fault}

    def _length_box(self) -> Box:
        """Return the box with the causes that depend on the length."""
        length, box = self.fails_at, {"title": "Why it stops", "rows": self.gains_of_changes}
        placebo = self._placebo()
        notes = [*self.subject.impossible, *placebo["notes"]]
        if length is None:
            unclear = [row for row in self.length_rows if row.get("verdict") in (UNCLEAR, MISSING)]
            sentence = "Cannot tell: no length fails clearly." if unclear else "Nothing fails at the measured lengths."
            return {**box, "sentence": sentence, "cause": None, "placebo": placebo, "notes": notes}
        lost = self.difference((length, PUBLISHED), (self.reference, PUBLISHED))
        helpful = [row for row in self.gains_of_changes if judge_loss_increase(row["gain"]) == WORSE]
        measured = [row["name"] for row in self.gains_of_changes]
        missing = [change.name for change in self.subject.changes_at(length) if change.name not in measured]
        best = rival = None
        if not self.gains_of_changes:
            sentence = f"Not measured: {NO_TIME}."
        elif not helpful:
            sentence = f"Cannot tell: none of {len(self.gains_of_changes)} changes recovers the lost nats clearly."
        else:
            best, rival = self._explain(helpful)
            sentence = (
                f"Most likely, {best['cause']}: {best['name']} recovers {format_estimate(best['share'])} of the "
                f"{format_estimate(lost)} nats lost at {length:,} tokens."
            )
            if not any(row["cause"] != best["cause"] for row in self.gains_of_changes) and missing:
                sentence += " No change with another cause was measured."
        if best is not None and rival is not None:
            sentence = f"Cannot tell: {best['name']} and {rival} have other causes, but similar gains."
        if missing:
            notes.append(f"Not measured ({NO_TIME}): {', '.join(missing)}.")
        notes.append(
            f"Plain truncation to the last {self.reference:,} tokens recovers all lost nats, because they are the "
            "difference from that loss."
        )
        return {
            **box,
            "sentence": sentence,
            "cause": None if best is None or rival is not None else best["cause"],
            "lost": lost,
            "placebo": placebo,
            "missing": missing,
            "header": ["change", "gain (nats)", "share of the loss", "minus loss after truncation"],
            "table": [
                [
                    row["name"],
                    format_estimate(row["gain"], 3, sign=True),
                    format_estimate(row["share"]),
                    format_estimate(row["left"], 3, sign=True),
                ]
                for row in self.gains_of_changes
            ],
            "notes": notes,
        }

    def _explain(self, helpful: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], str | None]:
        """Return the row of the change that explains the failure, and the name of a rival with another cause, if any.

        Some changes do what others do, and more: every edit also computes the rotary angles again, and without the
        middle there are no far tokens at all, whatever disturbs the model there. So the change that does less explains
        the failure, unless the other one is clearly better or, for the middle, the failure remains.
        """
        restored = next((row for row in helpful if row["name"] == RESTORED), None)
        dropped = next((row for row in helpful if row["name"] == DROPPED), None)
        edits = [row for row in helpful if row is not dropped]
        if restored is not None:
            edits = [row for row in edits if row is restored or self._is_better(row, restored)]
        if not edits:
            return helpful[0], None
        rivals = (row["name"] for row in edits[1:] if row["cause"] != edits[0]["cause"])
        rival = next((name for name in rivals if not self._is_better(edits[0], {"name": name})), None)
        if dropped is None or rival is not None:
            return edits[0], rival
        # An edit has a cost at short lengths too, so the rest of the increase counts.
        shares = (edits[0]["share"], self._removed_increase(edits[0]["name"]))
        if any(share["low"] is not None and share["low"] > 0.5 for share in shares):
            return edits[0], None
        is_better = all(share["high"] is not None and share["high"] < 0.5 for share in shares)
        return (dropped, None) if is_better else (dropped, edits[0]["name"])

    def _is_better(self, row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Return True if the loss with one change is clearly lower than with another at the failing length."""
        assert self.fails_at is not None
        lead = self.difference((self.fails_at, other["name"]), (self.fails_at, row["name"]))
        return lead["low"] is not None and lead["low"] > 0

    def _removed_increase(self, name: str) -> Estimate:
        """Estimate the share of the increase from the reference to the failing length that a change removes."""
        assert self.fails_at is not None
        lost, left = (
            {index: long[index] - short[index] for index in long.keys() & short.keys()}
            for long, short in (
                (self.losses(self.fails_at, change), self.losses(self.reference, change))
                for change in (PUBLISHED, name)
            )
        )
        return self.estimate(lost, left, lost)

    def _placebo(self) -> dict[str, Any]:
        """Return the effect of the placebo, which should be 0, at its longest measured length."""
        for change in self.subject.changes:
            for length in reversed(self.plan.lengths):
                if change.is_placebo and self.losses(length, change.name):
                    effect = self.difference((length, change.name), (length, PUBLISHED))
                    note = (
                        f"Placebo ({change.name} at {length:,} tokens, which should do nothing): the loss changes by "
                        f"{format_estimate(effect, 3, sign=True)} nats."
                    )
                    return {"effect": effect, "length": length, "notes": [note]}
        return {"effect": None, "length": None, "notes": ["The placebo was not measured."]}

    def best_edit(self) -> dict[str, Any] | None:
        """Return the row of the edit of the configuration with the largest clear gain, or None."""
        rows = (row for row in self.gains_of_changes if row["lines"] and judge_loss_increase(row["gain"]) == WORSE)
        return next(rows, None)

    def change_box(self) -> Box:
        """Return the box "What to change"; other edits wait until a fault at all lengths is repaired."""
        box, fault = self._edit_box(), self.fault
        if fault is None:
            return box
        edit = f"Set {fault['name']}" if fault["lines"] else f"Put {fault['name']} before each input"
        sentence = f"{edit}, and examine the model again."
        return {"title": box["title"], "sentence": sentence, "lines": fault["lines"], "rows": [], "notes": []}

    def _edit_box(self) -> Box:
        """Return the box with the edits of the configuration."""
        box: Box = {"title": "What to change", "lines": [], "rows": [], "notes": []}
        best, no_failure_to, fails_at = self.best_edit(), self.no_failure_to, self.fails_at
        if any(row["name"] == RESTORED and judge_loss_increase(row["gain"]) == WORSE for row in self.gains_of_changes):
            sentence = "Load the model again with the rotary angles of its configuration, and examine it again."
            return {**box, "sentence": sentence}
        if fails_at is None:
            sentence = "Change nothing." if self.works_to == max(self.plan.lengths) else "Cannot tell; change nothing."
            return {**box, "sentence": sentence}
        limit = "do not use long inputs" if no_failure_to is None else f"limit the input to {no_failure_to:,} tokens"
        if best is None:
            not_measured = f"edits were not measured: {NO_TIME}"
            why = "no edit of its configuration helps clearly" if self.gains_of_changes else not_measured
            return {**box, "sentence": f"Change nothing; {limit} ({why})."}
        rows: list[dict[str, Any]] = [
            {"length": length, "effect": self.difference((length, best["name"]), (length, PUBLISHED))}
            for length in self.plan.lengths
            if self.losses(length, best["name"])
        ]
        costs = [row for row in rows if row["length"] < fails_at]
        cost = max(costs, key=lambda row: row["effect"]["value"], default=None)
        cost_text = "; its cost at shorter lengths was not measured"
        if cost is not None:
            effect = format_estimate(cost["effect"], 3, sign=True)
            cost_text = f"; at {cost['length']:,} tokens, the loss changes by {effect}"
        sentence = (
            f"Change nothing and {limit}; only for longer inputs, set {best['name']}, which lowers the loss at "
            f"{fails_at:,} tokens by {format_estimate(best['gain'])} nats{cost_text}."
        )
        truncation = best["left"]
        if judge_loss_increase(truncation) == WORSE:
            box["notes"].append(
                f"With {best['name']}, the loss at {fails_at:,} tokens is still {format_estimate(truncation)} nats "
                f"above that of the last {self.reference:,} tokens alone, so truncation is better for these texts."
            )
        return {
            **box,
            "sentence": sentence,
            "name": best["name"],
            "lines": best["lines"],
            "rows": rows,
            "header": ["tokens", "loss after the change minus loss as published"],
            "table": [[f"{row['length']:,}", format_estimate(row["effect"], 3, sign=True)] for row in rows],
        }

    def needs_box(self) -> Box:
        """Return the box "Do these texts need it?"."""
        rows = []
        for near, length in pairwise(self.plan.lengths):
            own = {index: loss for index, loss in self.losses(length).items() if self.own_tokens[index] >= length}
            row: dict[str, Any] = {"from": near, "to": length}
            for source in ("other", "elsewhere"):
                row[source] = self.estimate(self._values_by_document(BAND, length, near, source), own)
            if row["other"]["documents"]:
                rows.append(row)
        box: Box = {"title": "Do these texts need it?", "rows": rows, "needed_to": None, "notes": []}
        short = sum(own < self.plan.trained for own in self.own_tokens)
        if 2 * short > len(self.own_tokens):
            box["notes"].append(
                f"{short} of {len(self.own_tokens)} documents are shorter than the trained context of "
                f"{self.plan.trained:,} tokens."
            )
        if not rows:
            return {**box, "sentence": f"Not measured: the documents are too short, or {NO_TIME}."}
        # A band without a clear gain ends the useful context only if no later band has one.
        gains = [judge_loss_increase(row["other"]) for row in rows]
        useful = [row for row, gain in zip(rows, gains, strict=True) if gain == WORSE]
        unclear = [row for row, gain in zip(rows, gains, strict=True) if gain == UNCLEAR]
        end = useful[-1]["to"] if useful else rows[0]["from"]
        box["needed_to"] = None if unclear and unclear[-1]["from"] >= end else end
        measured = rows[-1]["to"]
        if box["needed_to"] is None:
            rest = [row for row in rows if row["from"] >= end]
            # Few documents give no interval.
            most = max(rest, key=lambda row: math.inf if row["other"]["high"] is None else row["other"]["high"])
            gain, place = format_estimate(most["other"], 3), f"{most['from']:,} to {most['to']:,} tokens"
            limit = f"own text {place} away gains {gain} nats over another text"
            if (high := most["other"]["high"]) is not None:
                limit = f"own text gains at most {high:.2f} nats over another text at each distance ({place}: {gain})"
            start = f"They gain up to {end:,} tokens; beyond" if useful else f"Beyond {end:,} tokens"
            sentence = f"{start}, we cannot tell: {limit}."
        elif end == measured:
            sentence = (
                f"Yes, to the longest distance that was measured: text from {rows[-1]['from']:,} to {end:,} tokens "
                f"away gains {format_estimate(rows[-1]['other'], 3)} nats over another text."
            )
        else:
            largest = max(row["other"]["high"] for row in rows if row["from"] >= end)
            sentence = (
                f"They need {'about' if useful else 'at most'} {end:,} tokens: own text beyond gains at most "
                f"{max(0.0, largest):.2f} nats over another text."
            )
        return {
            **box,
            "sentence": sentence,
            "header": ["tokens away", "gain over another text", "gain over elsewhere in the document", "documents"],
            "table": [
                [
                    f"{row['from']:,} to {row['to']:,}",
                    format_estimate(row["other"], 3, sign=True),
                    format_estimate(row["elsewhere"], 3, sign=True),
                    str(row["other"]["documents"]),
                ]
                for row in rows
            ],
        }

    def keep_box(self) -> Box:
        """Return the box "What to keep"."""
        found = [value for key, value in sorted(self.values.items()) if key[0] == CACHE and value is not None]
        box: Box = {"title": "What to keep", "rows": [], "notes": []}
        if not found:
            return {**box, "sentence": f"Not measured: the context is too short, or {NO_TIME}."}
        tokens, bootstrap = found[0]["tokens"], DocumentBootstrap(seed=self.seed, num_resamples=NUM_RESAMPLES)
        nothing = np.array([each["nothing"] for each in found])
        rows = []
        for name in SELECTIONS:
            gains = nothing[:, None] - np.array([each["divergences"][name] for each in found])
            statistic = ratio_of_sums(np.concatenate([gains, nothing[:, None]], axis=1))
            shares = bootstrap(statistic, len(found), "far tokens have no effect", limits=NO_LIMITS)
            budgets = smallest_k(statistic, tokens, LEVELS, len(found), "far tokens have no effect", bootstrap)
            rows.append({"selection": name, "shares": shares, "budgets": budgets})
        exact, *others = rows

        def budget(row: Mapping[str, Any], level: int) -> str:
            entry = row["budgets"][level]
            if entry["beyond"]:
                return f"over {tokens[-1]:,}"
            if entry["k"] is None:
                return "unknown"
            interval = f"{entry['low'] or '-'} to {entry['high'] or f'over {tokens[-1]}'}"
            return f"{entry['k']:,} ({'no interval' if entry['reason'] else interval})"

        rest = "; ".join(f"{row['selection']} {budget(row, 0)}" for row in others)
        sentence = (
            f"Of {found[0]['far']:,} far tokens, the {EXACT} needs {budget(exact, 0)} for 90% of their effect; {rest}."
        )
        notes = [
            f"Every selection also keeps the first {NUM_FIRST} and the last {NUM_NEAR} tokens. The target of a text "
            "is the one that far tokens change most. All heads keep the same tokens.",
            "Attention is that of the last token, averaged over layers and heads.",
        ]
        if len(found) < self.plan.documents:
            notes.append(f"Measured for {len(found)} of {self.plan.documents} documents.")
        return {
            **box,
            "sentence": sentence,
            "far": found[0]["far"],
            "tokens": tokens,
            "rows": rows,
            "header": ["selection", *(f"far tokens for {level:.0%}" for level in LEVELS)],
            "table": [[row["selection"], *(budget(row, level) for level in range(len(LEVELS)))] for row in rows],
            "notes": notes,
        }

    def answers(self, boxes: Mapping[str, Box]) -> list[dict[str, str]]:
        """Return the answers to the questions of a user, for the first screen."""
        works, fails = self.works_to, self.fails_at
        asked = 2 * self.plan.trained
        max_length = self.subject.max_length
        if max_length is not None and max_length < asked:
            feed = f"No, it has only {max_length:,} positions."
        elif fails is not None and fails <= asked:
            feed = "No."
        else:
            feed = "Yes." if works is not None and works >= asked else "Not measured or unclear."
        feed = f"{feed} {boxes['works']['sentence']}"
        return [
            {"question": f"Can I feed it {asked:,} tokens (twice its trained context)?", "answer": feed},
            {"question": "Do my texts need long context?", "answer": boxes["needs"]["sentence"]},
            {"question": "What do I set?", "answer": boxes["change"]["sentence"]},
        ]
