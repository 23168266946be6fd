"""Examination of a language model: measures the plan within a time limit, writes each value at once, and resumes."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.nn.modules.module import register_module_forward_pre_hook

from lengthwise.core.errors import RunFolderError, SettingError
from lengthwise.core.files import StrPath, check_output_file, read_file, write_atomically
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.core.json_parsing import parse_json
from lengthwise.core.type_checks import check_arguments
from lengthwise.doctor.conclusions import Findings
from lengthwise.doctor.measurements import LOSS, PUBLISHED, Key, Measurer, Subject
from lengthwise.doctor.page import MARK, render_examination
from lengthwise.doctor.plan import Group, Plan, Speed, list_lengths, longest_candidate, make_plan
from lengthwise.doctor.settings import DoctorSettings
from lengthwise.doctor.windows import sample_blocks
from lengthwise.hf.language_models import LanguageModel
from lengthwise.influence.study import digest_texts
from lengthwise.influence.target_evaluator import StopRequestedError
from lengthwise.tasks import TokenizedDocument

VERSION = 1
VALUES_SUFFIX = ".jsonl"
# Largest share of the time for the pass that measures the speed, if the time were linear in the length.
PILOT_SHARE = 0.05


@dataclass(kw_only=True)
class Examination:
    """State of an examination: its plan, the measured values with their seconds, and the groups left out."""

    measurer: Measurer
    settings: DoctorSettings
    plan: Plan
    speed: Speed
    values: dict[Key, Any]
    seconds: float
    omitted: list[str]

    def findings(self) -> Findings:
        """Return the findings so far."""
        return Findings(
            values=self.values,
            plan=self.plan,
            subject=self.measurer.subject,
            own_tokens=[block.num_own for block in self.measurer.blocks],
            seed=self.settings.seed,
        )

    def groups(self) -> Iterator[Group]:
        """Yield all groups in the order of their importance, which depends on the values so far.

        Before a failure is found, the changes are planned for the longest length.
        """
        plan = self.plan
        yield from (Group(label=f"loss at {length:,} tokens", keys=plan.losses(length)) for length in plan.lengths)
        findings = self.findings()
        is_complete = all(len(findings.losses(length)) for length in plan.lengths)
        failing = findings.fails_at if is_complete else plan.lengths[-1]
        subject = self.measurer.subject
        change_groups = list[Group]()
        if failing is not None:
            change_groups = [plan.change_group(change.name, failing) for change in subject.changes_at(failing)]
        yield from change_groups[:1]
        half, eighth = (
            max((length for length in plan.lengths if part * length <= plan.trained), default=plan.lengths[0])
            for part in (2, 8)
        )
        for change in subject.changes:
            if not change.explains_length:
                yield plan.change_group(change.name, eighth if change.is_placebo else plan.lengths[0])
        bands, needles = plan.band_groups(), list(map(plan.needle_group, plan.lengths))
        yield from (group for group in bands if group.keys[0][2] <= eighth)
        yield from self._cost_groups(findings, eighth)
        yield plan.cache_group()
        yield from self._cost_groups(findings, half)
        yield from (group for group in (*bands, *needles) if group.keys[0][2] <= half)
        yield from change_groups[1:]
        yield from self._cost_groups(findings, plan.lengths[-1])
        yield from (group for group in (*bands, *needles) if group.keys[0][2] > half)

    def _cost_groups(self, findings: Findings, longest: int) -> Iterator[Group]:
        """Yield the losses after the best edit at other lengths, which show its cost."""
        if (best := findings.best_edit()) is None:
            return
        lengths = self.plan.lengths
        for length in dict.fromkeys((lengths[0], lengths[len(lengths) // 2], findings.reference, lengths[-1])):
            if length <= longest:
                yield self.plan.change_group(best["name"], length)

    def next_group(self, skipped: set[str]) -> Group | None:
        """Return the next group that is not complete and not skipped."""
        for group in self.groups():
            if group.label not in skipped and any(key not in self.values for key in group.keys):
                return group
        return None

    def describe_plan(self) -> list[str]:
        """Return lines with the plan, the estimate of its time, and what does not fit."""
        plan, limit = self.plan, 60 * self.settings.minutes
        total, left = self.seconds, list(plan.omitted)
        for group in self.groups():
            seconds = group.seconds(self.speed, self.values)
            if total + seconds <= limit:
                total += seconds
            else:
                left.append(group.label)
        lengths = ", ".join(f"{length:,}" for length in plan.lengths)
        return [
            f"plan: {plan.documents} documents, lengths {lengths} tokens, {plan.num_targets} targets each",
            f"estimated time: {max(1, round(total / 60))} of {self.settings.minutes:g} minutes",
            *([f"left out: {'; '.join(left)}"] if left else []),
        ]


@check_arguments
def examine_model(
    language_model: LanguageModel,
    texts: Sequence[TokenizedDocument],
    out: StrPath,
    *,
    settings: DoctorSettings | None = None,
    resume: bool = False,
    notes: Sequence[str] = (),
    report: Callable[[str, int, int], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
    announce: Callable[[str], None] | None = None,
) -> dict[str, Any] | None:
    """Examine a model on texts and write the page ``out`` (.html); return the content of the JSON file beside it.

    Values are also written one by one to a .jsonl file beside the page; with ``resume``, an earlier examination
    continues. ``notes`` are sentences for the page. ``report`` receives the label of a group of passes and the numbers
    of its measured and of all passes. ``announce`` receives the plan line by line. Returns None if ``stop()``, which
    runs before each layer, returned True. Raises ``SettingError`` if texts are too short or minutes too few, and
    ``RunFolderError`` for the files of another examination.
    """
    out, settings = Path(out), DoctorSettings() if settings is None else settings
    announce = announce or (lambda line: None)
    check_page_file(out, resume=resume)
    with exclusive_lock(out.parent, file=out.with_suffix(".lock")):
        values_file = out.with_suffix(VALUES_SUFFIX)
        subject = Subject.of(language_model, settings)
        longest = longest_candidate(settings, subject, sum(len(text.tokens) for text in texts))
        blocks = sample_blocks(
            texts,
            length=max(longest, list_lengths(settings, subject)[0]),
            num_targets=settings.num_targets(subject.trained),
            number=settings.documents,
            seed=settings.seed,
        )
        measurer = Measurer(subject=subject, blocks=blocks, texts=texts, seed=settings.seed)
        description = describe(subject, texts, settings)

        def check_stop(*args: Any) -> None:
            if stop():
                raise StopRequestedError

        hook = register_module_forward_pre_hook(check_stop)
        try:
            if not values_file.exists():
                _start(measurer, settings, values_file, description, longest, announce)
            examination = _restore(measurer, settings, values_file, description)
            for line in examination.describe_plan():
                announce(line)
            _measure(examination, values_file, report)
        except StopRequestedError:
            return None
        finally:
            hook.remove()
        result = {**description, "notes": list(notes), **summarize(examination)}
        write_atomically(out.with_suffix(".json"), json.dumps(result, indent=2).encode() + b"\n")
        write_atomically(out, render_examination(result).encode())
        return result


def check_page_file(out: Path, *, resume: bool) -> None:
    """Raise an error for a page of another type, for a file of another program, and for values without ``resume``."""
    if out.suffix.lower() != ".html":
        raise SettingError(f"the page {out} does not end in .html; use a name such as doctor.html")
    check_output_file(out, MARK.encode())
    values_file = out.with_suffix(VALUES_SUFFIX)
    if values_file.exists() and not resume:
        raise RunFolderError(f"{values_file} already exists; add --resume to continue it, or choose another --out")


def describe(subject: Subject, texts: Sequence[TokenizedDocument], settings: DoctorSettings) -> dict[str, Any]:
    """Return the description of an examination as JSON values, which a resumed examination must repeat."""
    model = subject.language_model.model
    description: dict[str, Any] = {
        "version": VERSION,
        "model": {"name": model.name, "dtype": model.dtype, "weights": model.weights_digest},
        "trained": subject.trained,
        "texts": {"documents": len(texts), "sha256": digest_texts(texts)},
        "settings": settings.to_dict(),
    }
    return json.loads(json.dumps(description))


def summarize(examination: Examination) -> dict[str, Any]:
    """Return the plan, the boxes and the answers as JSON values."""
    findings = examination.findings()
    boxes = {
        "works": findings.works_box(),
        "needs": findings.needs_box(),
        "why": findings.why_box(),
        "keep": findings.keep_box(),
        "change": findings.change_box(),
    }
    return {
        "plan": asdict(examination.plan),
        "left_out": [*examination.plan.omitted, *examination.omitted],
        "seconds": round(examination.seconds, 1),
        "answers": findings.answers(boxes),
        "boxes": boxes,
    }


def _start(
    measurer: Measurer,
    settings: DoctorSettings,
    values_file: Path,
    description: Mapping[str, Any],
    longest: int,
    announce: Callable[[str], None],
) -> None:
    """Measure a pilot at two lengths, plan, and write both."""
    lengths = list_lengths(settings, measurer.subject)
    rows = dict[int, dict[str, Any]]()

    def measure(length: int) -> None:
        announce(f"measuring the speed at {length:,} tokens")
        start_time, key = time.perf_counter(), (LOSS, 0, length, PUBLISHED)
        rows[length] = {"key": key, "value": measurer.measure(key), "seconds": time.perf_counter() - start_time}

    # The first pass also allocates memory, so its time is replaced.
    measure(lengths[0])
    measure(lengths[0])
    # The time of attention grows with the square of the length, so a long pass predicts it best.
    limit = PILOT_SHARE * 60 * settings.minutes * lengths[0] / rows[lengths[0]]["seconds"]
    longer = min(max(length for length in lengths if length <= max(limit, lengths[1])), longest)
    measure(longer)
    seconds = {length: row["seconds"] for length, row in rows.items()}
    speed = Speed.fit(seconds) if len(seconds) == 2 else Speed(linear=max(seconds.values()) / longer, quadratic=0.0)
    plan = make_plan(settings, measurer.subject, speed, len(measurer.blocks), longest)
    header = {**description, "plan": asdict(plan), "speed": asdict(speed)}
    planned_rows = [row for length, row in rows.items() if length in plan.lengths]
    write_atomically(values_file, b"".join(json.dumps(row).encode() + b"\n" for row in [header, *planned_rows]))


def _restore(
    measurer: Measurer, settings: DoctorSettings, values_file: Path, description: Mapping[str, Any]
) -> Examination:
    """Read the plan and the complete lines of an earlier examination, and remove an incomplete last line."""
    problem = f"{values_file} is damaged or of another program; choose another --out"
    try:
        content = read_file(values_file)
        complete = content[: content.rfind(b"\n") + 1]
        header, *rows = map(parse_json, complete.splitlines())
        plan_fields: Any = {
            name: tuple(value) if isinstance(value, list) else value for name, value in header["plan"].items()
        }
        plan = Plan(**plan_fields)
        values = {tuple(row["key"]): row["value"] for row in rows}
        seconds, speed = sum(float(row["seconds"]) for row in rows), Speed(**header["speed"])
        stored = {name: header[name] for name in description}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise RunFolderError(problem) from None
    # More minutes continue an examination that left something out.
    limitless = {**description, "settings": {**description["settings"], "minutes": None}}
    if {**stored, "settings": {**stored["settings"], "minutes": None}} != limitless:
        different = [name for name in description if stored[name] != description[name]]
        raise RunFolderError(
            f"{values_file} has another {' and '.join(different)}; use the same command, or choose another --out"
        )
    if len(complete) < len(content):
        write_atomically(values_file, complete)
    return Examination(
        measurer=measurer, settings=settings, plan=plan, speed=speed, values=values, seconds=seconds, omitted=[]
    )


def _measure(examination: Examination, values_file: Path, report: Callable[[str, int, int], None] | None) -> None:
    """Measure group by group, and skip groups that do not fit into the remaining time."""
    skipped, values, limit = set[str](), examination.values, 60 * examination.settings.minutes
    # The speed at the first lengths may differ from that at long lengths.
    expected_seconds = measured_seconds = 0.0
    while (group := examination.next_group(skipped)) is not None:
        factor = measured_seconds / expected_seconds if expected_seconds else 1.0
        if examination.seconds + factor * group.seconds(examination.speed, values) > limit:
            skipped.add(group.label)
            examination.omitted.append(f"{group.label} (no time)")
            continue
        for number, key in enumerate(group.keys):
            if report is not None:
                report(group.label, number, len(group.keys))
            if key in values:
                continue
            start_time = time.perf_counter()
            value = examination.measurer.measure(key)
            seconds = time.perf_counter() - start_time
            _append(values_file, {"key": key, "value": value, "seconds": round(seconds, 3)})
            values[key] = value
            examination.seconds += seconds
            expected_seconds += group.passes * examination.speed.seconds(key[2])
            measured_seconds += seconds


def _append(file: Path, row: Mapping[str, Any]) -> None:
    try:
        with file.open("ab") as stream:
            stream.write(json.dumps(row).encode() + b"\n")
    except OSError as error:
        raise RunFolderError(f"cannot write {file} ({error.strerror}); free some space, and add --resume") from None
