"""Functions that convert the options of the ``influence`` command to the parts of a study, and run the study."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lengthwise.cli import options
from lengthwise.cli.terminal import print_message
from lengthwise.core.errors import SettingError, unknown_name_error
from lengthwise.core.interruption import StoppedError, catch_interrupts
from lengthwise.core.progress_line import ProgressLine, err_console
from lengthwise.evaluation.language_model import tokenize_documents
from lengthwise.hf.language_models import LanguageModel
from lengthwise.influence.measures import MEASURES, InfluenceMeasure, PrefilteredMeasure
from lengthwise.influence.report.study_report import report_study
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.study import (
    InfluenceStudy,
    check_study_parts,
    drop_duplicate_texts,
    join_study_parts,
    measure_influence,
    part_folder,
)
from lengthwise.influence.targets import LONGPPL_RULE, ClearGainSelection
from lengthwise.tasks import TokenizedDocument
from lengthwise.tasks.text.documents import read_documents

RULES = ("gap", "longppl")


def limit_far_tokens(settings: InfluenceSettings, language_model: LanguageModel) -> InfluenceSettings:
    """Return the settings with at most as many far tokens as the model has positions for."""
    if language_model.model.num_positions is None:
        return settings
    max_far = (
        language_model.model.num_positions - settings.near - settings.num_sink_tokens - len(language_model.codec.start)
    )
    # A model with too few positions for one far token raises an error later.
    return replace(settings, far=max(1, min(settings.far, max_far)))


def load_documents(
    language_model: LanguageModel, texts: list[str] | None, kind: str | None, documents: int | None
) -> list[TokenizedDocument]:
    """Return documents without copies: at most ``documents`` per text, or the held-out text of a run."""
    if not texts:
        return drop_duplicate_texts(language_model.held_out_documents(kind)[:documents])
    if kind is not None:
        raise SettingError(f"--kind {kind} applies only to the held-out text of a run; leave out --kind or TEXT")
    records = read_documents(texts, max_documents=documents)
    tokenized = tokenize_documents(language_model.codec, records, language_model.model.vocabulary_size)
    return drop_duplicate_texts(list(tokenized))


def run_study(study: InfluenceStudy, out: Path, *, resume: bool, minutes: float | None = None) -> dict[str, Any] | None:
    """Run a study or one part of it; return the summary, or None if other parts are not complete."""
    folder = part_folder(out, study.part)
    check_study_parts(study, out)
    with ProgressLine(err_console) as progress, catch_interrupts() as should_stop:
        if not measure_influence(
            study,
            folder,
            resume=resume,
            minutes=minutes,
            report=partial(progress.show_count, "targets"),
            stop=should_stop,
            announce=print_message,
            estimate=lambda seconds: print_message(f"estimated time: {format_duration(seconds)}"),
        ):
            raise StoppedError(f"stopped and saved in {folder}; repeat the command with --resume to continue")
    if study.part == (1, 1):
        return report_study(study, out)
    if missing_parts := join_study_parts(study, out):
        part_index, num_parts = study.part
        missing_labels = ", ".join(f"{missing}/{num_parts}" for missing in missing_parts)
        print_message(f"part {part_index}/{num_parts} is complete; missing parts: {missing_labels}")
        return None
    return report_study(replace(study, part=(1, 1)), out)


def format_duration(seconds: float) -> str:
    """Format a duration in the largest unit that gives a value of at least 2, such as ``2 hours`` for 7200 seconds."""
    units = (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1))
    unit_name, unit_seconds = next((unit for unit in units if seconds >= 2 * unit[1]), units[-1])
    value = max(1, round(seconds / unit_seconds))
    return f"{value:,} {unit_name}" if value > 1 else "1 second"


def build_measure(name: str, prefilter: float | None) -> InfluenceMeasure:
    """Return the influence measure with this name, with a preselection of far tokens if ``prefilter`` is set."""
    if name not in MEASURES:
        raise unknown_name_error("measure", name, MEASURES)
    measure = MEASURES[name]()
    if prefilter is None:
        return measure
    if isinstance(measure, PrefilteredMeasure):
        return replace(measure, share=prefilter)
    if not measure.exact:
        raise SettingError(
            f"measure '{name}' computes no exact scores, so it has no far tokens to preselect; leave out --prefilter"
        )
    return PrefilteredMeasure(then=measure, share=prefilter)


def parse_clear_gain_rule(name: str, gap: float | None) -> ClearGainSelection:
    """Return the rule for a clear gain with this name; ``gap`` is in nats."""
    if name not in RULES:
        raise unknown_name_error("rule", name, RULES)
    if name == "gap":
        return ClearGainSelection() if gap is None else ClearGainSelection(gap=gap)
    if gap is not None:
        raise SettingError(f"rule longppl has a fixed gap of {LONGPPL_RULE.gap} nats; leave out --gap {gap}")
    return LONGPPL_RULE


def parse_num_targets(targets: str) -> int | None:
    """Parse the number of targets; ``all`` gives None."""
    if targets == "all":
        return None
    numbers = options.parse_integers(targets, "--targets")
    if len(numbers) > 1:
        raise SettingError(f"invalid --targets {targets}; use one whole number, or all")
    return numbers[0]


def parse_controls(controls: str) -> tuple[str, ...]:
    """Parse the names of control selections; ``none`` gives no names."""
    control_names = options.split_names(controls)
    if "none" in control_names and control_names != ("none",):
        raise SettingError(f"--controls {controls} combines none with other controls; use none alone, or leave it out")
    return () if control_names == ("none",) else control_names
