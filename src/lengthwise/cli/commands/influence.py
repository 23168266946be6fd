"""The verb that measures how many far tokens predictions need."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.cli.flags import WHOLE, Device, Json
from lengthwise.cli.parsing import numbers
from lengthwise.cli.progress import ProgressLine
from lengthwise.cli.terminal import err_console, print_json, print_table, say, tell
from lengthwise.core.errors import SettingError, unknown_name
from lengthwise.core.interruption import StoppedError, catch_interrupts
from lengthwise.hf.language_models import LanguageModel, check_exists, load_language_model
from lengthwise.influence.measures import MEASURES, InfluenceMeasure, Screened
from lengthwise.influence.report.scale_figure import draw_scale
from lengthwise.influence.report.study_report import PAGE, report_study
from lengthwise.influence.report.summary_tables import summary_tables
from lengthwise.influence.settings import CONTROLS, InfluenceSettings
from lengthwise.influence.study import InfluenceStudy, measure_influence, without_copies
from lengthwise.influence.study_parts import check_parts, join_parts, part_folder, part_of
from lengthwise.influence.targets import LONGPPL, Rule
from lengthwise.influence.text_codec import tokenized
from lengthwise.tasks import TokenizedDocument
from lengthwise.tasks.text.documents import read_documents
from lengthwise.tasks.text.text_records import FORM

RULES = ("gap", "longppl")
DEFAULT = InfluenceSettings()


def influence(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run on text, a model's folder or its hub name.")],
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help=f"Files, folders, {FORM}; a run's held-out text if none."),
    ] = None,
    documents: Annotated[
        int | None, typer.Option(**WHOLE, help="The first so many of each TEXT; data sets are then streamed.")
    ] = None,
    near: Annotated[int, typer.Option(**WHOLE, help="Tokens before the target that are always seen.")] = 64,
    far: Annotated[
        int | None,
        typer.Option(
            **WHOLE,
            help="Tokens before these.",
            show_default=f"{DEFAULT.far}, or as many as the model has positions for",
        ),
    ] = None,
    k: Annotated[str, typer.Option("--k", help="Numbers of far tokens.")] = "1,2,4,8,16",
    measure: Annotated[str, typer.Option(help="How they are chosen; see lengthwise list measures.")] = "greedy",
    prefilter: Annotated[
        float | None,
        typer.Option(help="Fraction of far tokens that a gradient preselects for the measure, such as 0.1."),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(help="strict (the model reads those tokens alone), masked (near tokens attend to those alone)."),
    ] = "strict",
    objective: Annotated[
        str,
        typer.Option(
            help="Selection objective: prediction (match the full-context prediction) or target (target loss)."
        ),
    ] = "prediction",
    controls: Annotated[
        str,
        typer.Option(help=f"Choices to compare with: {', '.join(CONTROLS)} (in the same document), or none."),
    ] = "random,other",
    rule: Annotated[
        str, typer.Option(help="Which targets are clear: gap, or longppl (gap over 2, loss below 2).")
    ] = "gap",
    gap: Annotated[
        float | None,
        typer.Option(help="With rule gap: nats that far context gains at least.", show_default=f"{Rule().gap}"),
    ] = None,
    background_fraction: Annotated[
        float, typer.Option(help="Fraction of the remaining targets to measure as well.")
    ] = 0.1,
    targets: Annotated[str, typer.Option(help="How many targets, or all.")] = "500",
    max_document_tokens: Annotated[
        int | None, typer.Option(**WHOLE, help="Split longer texts into pieces of this many tokens.")
    ] = None,
    sink: Annotated[
        int, typer.Option(**WHOLE, help="So many first tokens of each context are never hidden (attention sinks).")
    ] = 0,
    kind: Annotated[str | None, typer.Option(help="Of a run's held-out text, one kind.")] = None,
    compare_model: Annotated[
        list[str] | None, typer.Option(help="Another model to measure on the same texts; repeat the flag for more.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Another tokenizer than the model's own.")] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Of a model of transformers: float32, or bfloat16, float16 for half of the memory."),
    ] = None,
    seed: Annotated[int, typer.Option(**WHOLE, help="Of the targets and of every random choice.")] = 0,
    part: Annotated[
        str, typer.Option(metavar="I/N", help="Measure this part alone: give each process one; the last joins them.")
    ] = "1/1",
    device: Device = "auto",
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")] = Path("runs/influence"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last whole block of targets.")] = False,
    as_json: Json = False,
) -> None:
    """Measure how many far tokens a model's predictions need: loss with near, far + near, and near + k tokens."""
    settings = InfluenceSettings(
        near=near,
        far=DEFAULT.far if far is None else far,
        ks=numbers(k, "--k"),
        measure=_measure(measure, prefilter),
        modes=_names(mode),
        objectives=_names(objective),
        controls=_controls(controls),
        rule=_rule(rule, gap),
        background_fraction=background_fraction,
        num_targets=_number_of(targets),
        max_document_tokens=max_document_tokens,
        sink=sink,
        seed=seed,
    )
    share = part_of(part)
    names = [model, *(compare_model if compare_model is not None else [])]
    for name in names:
        check_exists(name)
    folders = [out] if len(names) == 1 else [out / f"{place}-{Path(name).name}" for place, name in enumerate(names)]
    summaries: list[Mapping[str, Any]] = []
    for name, folder in zip(names, folders, strict=True):
        loaded = load_language_model(name, tokenizer=tokenizer, device=device, dtype=dtype)
        if far is None and len(names) == 1:
            settings = _within_positions(settings, loaded)
        study = InfluenceStudy(
            model=loaded.model,
            codec=loaded.codec,
            texts=_texts(loaded, texts, kind, documents),
            settings=settings,
            part=share,
        )
        summary = _measure_all(study, folder, resume=resume)
        summaries += [] if summary is None else [summary]
    if len(summaries) < len(names):
        return
    parameters = [summary["parameters"] for summary in summaries]
    scale = draw_scale(summaries, parameters, out) if len(summaries) > 1 else None
    if as_json:
        print_json({"folder": str(out), "summaries": summaries})
        return
    for table in (table for summary in summaries for table in summary_tables(summary)):
        print_table(table.title, table.header, table.body)
    shown = f"figure: {scale}" if scale is not None else f"page: {folders[0] / PAGE}"
    for line in (shown, *(summary["answer"]["sentence"] for summary in summaries)):
        tell(line)


def _within_positions(settings: InfluenceSettings, loaded: LanguageModel) -> InfluenceSettings:
    """The default of far, or what the model's positions leave of it."""
    if loaded.model.num_positions is None:
        return settings
    room = loaded.model.num_positions - settings.near - settings.sink - len(loaded.codec.start)
    # A model without room for the largest k is refused with the number that it has.
    return replace(settings, far=max(settings.ks[-1], min(settings.far, room)))


def _texts(
    loaded: LanguageModel, texts: list[str] | None, kind: str | None, documents: int | None
) -> list[TokenizedDocument]:
    if not texts:
        return without_copies(loaded.held_out(kind)[:documents])
    if kind is not None:
        raise SettingError(f"--kind {kind} is a kind of a run's held-out text; leave it out where texts are named")
    read = tokenized(loaded.codec, read_documents(texts, most=documents), loaded.model.vocabulary_size)
    return without_copies(list(read))


def _measure_all(study: InfluenceStudy, out: Path, *, resume: bool) -> dict[str, Any] | None:
    """Measure a study or a part of one; return its summary once no part is missing."""
    folder = part_folder(out, study.part)
    check_parts(study, out)
    with ProgressLine(err_console) as progress, catch_interrupts() as stop:

        def estimate(least: float, most: float) -> None:
            say(f"this takes about {_duration(least)} to {_duration(most)}")

        if not measure_influence(study, folder, resume=resume, report=progress.measured, stop=stop, estimate=estimate):
            raise StoppedError(f"stopped and saved in {folder}; give the same command with --resume to go on")
    if study.part == (1, 1):
        return report_study(study, out)
    if missing := join_parts(study, out):
        place, number = study.part
        others = ", ".join(f"{each}/{number}" for each in missing)
        say(f"part {place}/{number} is measured; not yet measured: {others}")
        return None
    return report_study(replace(study, part=(1, 1)), out)


def _duration(seconds: float) -> str:
    """In the largest unit of which there are two."""
    unit, size = next(
        (each for each in (("days", 86400), ("hours", 3600), ("minutes", 60)) if seconds >= 2 * each[1]), ("seconds", 1)
    )
    return f"{max(1, round(seconds / size)):,} {unit}"


def _measure(name: str, prefilter: float | None) -> InfluenceMeasure:
    if name not in MEASURES:
        raise unknown_name("measure", name, MEASURES)
    measure = MEASURES[name]()
    if prefilter is None:
        return measure
    if isinstance(measure, Screened):
        return replace(measure, share=prefilter)
    if not measure.exact:
        raise SettingError(
            f"measure '{name}' scores nothing exactly, so there is nothing to prefilter; leave --prefilter out"
        )
    return Screened(then=measure, share=prefilter)


def _rule(name: str, gap: float | None) -> Rule:
    if name not in RULES:
        raise unknown_name("rule", name, RULES)
    if name == "longppl" and gap is not None:
        raise SettingError(f"rule longppl has a gap of its own, {LONGPPL.gap} nats; leave --gap {gap} out")
    if name == "longppl":
        return LONGPPL
    return Rule() if gap is None else Rule(gap=gap)


def _number_of(targets: str) -> int | None:
    if targets == "all":
        return None
    found = numbers(targets, "--targets")
    if len(found) > 1:
        raise SettingError(f"--targets {targets} is no number of targets; use one, or all")
    return found[0]


def _controls(text: str) -> tuple[str, ...]:
    named = _names(text)
    if "none" in named and named != ("none",):
        raise SettingError(f"--controls {text} names controls and none; use either")
    return () if named == ("none",) else named


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))
