"""The ``influence`` command: measure how many far tokens predictions need."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.cli import options
from lengthwise.cli.terminal import ProgressLine, err_console, print_json, print_line, print_message, print_table
from lengthwise.core.errors import SettingError, unknown_name
from lengthwise.core.interruption import StoppedError, catch_interrupts
from lengthwise.hf.language_models import LanguageModel, check_model_exists, load_language_model
from lengthwise.influence.measures import MEASURES, InfluenceMeasure, Screened
from lengthwise.influence.report.scale_figure import draw_scale
from lengthwise.influence.report.study_report import PAGE_FILE, report_study
from lengthwise.influence.report.summary_tables import summary_tables
from lengthwise.influence.settings import CONTROLS, InfluenceSettings
from lengthwise.influence.study import InfluenceStudy, measure_influence, without_copies
from lengthwise.influence.study_shards import check_parts, join_parts, parse_part, part_folder
from lengthwise.influence.targets import LONGPPL, GapRule
from lengthwise.influence.text_codec import tokenize_documents
from lengthwise.tasks import TokenizedDocument
from lengthwise.tasks.text.documents import read_documents
from lengthwise.tasks.text.text_records import SOURCE_FORMAT

RULES = ("gap", "longppl")
DEFAULT = InfluenceSettings()


def influence(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Run folder, model folder, or model name on the Hugging Face Hub.")
    ],
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]...", help=f"Files, folders or {SOURCE_FORMAT}.", show_default="held-out text of the run"
        ),
    ] = None,
    documents: Annotated[
        int | None, options.integer("Number of documents to read per TEXT; streams data sets.")
    ] = None,
    near: Annotated[int, options.integer("Near tokens before the target, always visible.")] = 64,
    far: Annotated[
        int | None,
        options.integer(
            "Far tokens before the near tokens.", show_default=f"{DEFAULT.far}, or the most the model allows"
        ),
    ] = None,
    k: Annotated[str, typer.Option("--k", help="Numbers of selected far tokens, ascending.")] = "1,2,4,8,16",
    measure: Annotated[str, typer.Option(help="Influence measure; see lengthwise list measures.")] = "greedy",
    prefilter: Annotated[
        float | None, typer.Option(help="Fraction of far tokens to preselect by gradient, such as 0.1.")
    ] = None,
    mode: Annotated[
        str, typer.Option(help="strict (reads only the selected tokens) or masked (near tokens attend only to them).")
    ] = "strict",
    objective: Annotated[
        str, typer.Option(help="What selection approximates: prediction (of the full context) or target (a low loss).")
    ] = "prediction",
    controls: Annotated[
        str, typer.Option(help=f"Control selections: {', '.join(CONTROLS)} (in the same document), or none.")
    ] = "random,other",
    rule: Annotated[
        str, typer.Option(help="Rule for clear targets: gap, or longppl (gap over 2, loss below 2 nats).")
    ] = "gap",
    gap: Annotated[
        float | None,
        typer.Option(help="Minimal gain from far context in nats, for --rule gap.", show_default=f"{GapRule().gap}"),
    ] = None,
    background_fraction: Annotated[float, typer.Option(help="Fraction of other targets to measure.")] = 0.1,
    targets: Annotated[str, typer.Option(help="Number of targets, or all.")] = "500",
    max_document_tokens: Annotated[int | None, options.integer("Split texts into pieces of this many tokens.")] = None,
    sink: Annotated[int, options.integer("Number of initial tokens that stay visible (attention sinks).")] = 0,
    kind: Annotated[str | None, typer.Option(help="Kind of the run's held-out text.")] = None,
    compare_model: Annotated[
        list[str] | None, typer.Option(help="Another model to measure on the same texts; repeat the flag for more.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Tokenizer to use instead of the model's.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Precision of a transformers model: float32, bfloat16 or float16.")
    ] = None,
    seed: Annotated[int, options.integer("Random seed of targets and random selections.")] = 0,
    part: Annotated[
        str, typer.Option(metavar="I/N", help="Part to measure in this process; the last process joins all parts.")
    ] = "1/1",
    device: options.Device = "auto",
    out: Annotated[Path, typer.Option("--out", help="Output folder.")] = Path("runs/influence"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue after the last complete block of targets.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Measure how many far tokens the predictions of a model need, from losses with near, near + k and all tokens."""
    settings = InfluenceSettings(
        near=near,
        far=DEFAULT.far if far is None else far,
        ks=options.parse_integers(k, "--k"),
        measure=_measure(measure, prefilter),
        modes=options.split_names(mode),
        objectives=options.split_names(objective),
        controls=_controls(controls),
        rule=_rule(rule, gap),
        background_fraction=background_fraction,
        num_targets=_num_targets(targets),
        max_document_tokens=max_document_tokens,
        sink=sink,
        seed=seed,
    )
    process_part = parse_part(part)
    names = [model, *(compare_model if compare_model is not None else [])]
    for name in names:
        check_model_exists(name)
    folders = [out] if len(names) == 1 else [out / f"{index}-{Path(name).name}" for index, name in enumerate(names)]
    summaries: list[Mapping[str, Any]] = []
    for name, folder in zip(names, folders, strict=True):
        language_model = load_language_model(name, tokenizer=tokenizer, device=device, dtype=dtype)
        if far is None and len(names) == 1:
            settings = _within_positions(settings, language_model)
        study = InfluenceStudy(
            model=language_model.model,
            codec=language_model.codec,
            texts=_texts(language_model, texts, kind, documents),
            settings=settings,
            part=process_part,
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
    output = f"figure: {scale}" if scale is not None else f"page: {folders[0] / PAGE_FILE}"
    for line in (output, *(summary["answer"]["sentence"] for summary in summaries)):
        print_line(line)


def _within_positions(settings: InfluenceSettings, language_model: LanguageModel) -> InfluenceSettings:
    """Limit the default of ``far`` to the positions of the model."""
    if language_model.model.num_positions is None:
        return settings
    room = language_model.model.num_positions - settings.near - settings.sink - len(language_model.codec.start)
    # A model without room for the largest k raises an error later.
    return replace(settings, far=max(settings.ks[-1], min(settings.far, room)))


def _texts(
    language_model: LanguageModel, texts: list[str] | None, kind: str | None, documents: int | None
) -> list[TokenizedDocument]:
    if not texts:
        return without_copies(language_model.held_out(kind)[:documents])
    if kind is not None:
        raise SettingError(f"--kind {kind} needs the held-out text of a run; leave it out with other texts")
    tokenized = tokenize_documents(
        language_model.codec, read_documents(texts, max_documents=documents), language_model.model.vocabulary_size
    )
    return without_copies(list(tokenized))


def _measure_all(study: InfluenceStudy, out: Path, *, resume: bool) -> dict[str, Any] | None:
    """Measure a study or a part of it; return the summary if all parts are complete."""
    folder = part_folder(out, study.part)
    check_parts(study, out)
    with ProgressLine(err_console) as progress, catch_interrupts() as stop:

        def estimate(least: float, most: float) -> None:
            print_message(f"estimated time: {_duration(least)} to {_duration(most)}")

        if not measure_influence(
            study, folder, resume=resume, report=progress.show_targets, stop=stop, estimate=estimate
        ):
            raise StoppedError(f"stopped and saved in {folder}; repeat the command with --resume to continue")
    if study.part == (1, 1):
        return report_study(study, out)
    if missing := join_parts(study, out):
        index, number = study.part
        others = ", ".join(f"{each}/{number}" for each in missing)
        print_message(f"part {index}/{number} is complete; missing parts: {others}")
        return None
    return report_study(replace(study, part=(1, 1)), out)


def _duration(seconds: float) -> str:
    """Format seconds in the largest unit with a value of at least two."""
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
        raise SettingError(f"measure '{name}' computes no exact scores to prefilter for; leave --prefilter out")
    return Screened(then=measure, share=prefilter)


def _rule(name: str, gap: float | None) -> GapRule:
    if name not in RULES:
        raise unknown_name("rule", name, RULES)
    if name == "longppl" and gap is not None:
        raise SettingError(f"rule longppl has a fixed gap of {LONGPPL.gap} nats; leave --gap {gap} out")
    if name == "longppl":
        return LONGPPL
    return GapRule() if gap is None else GapRule(gap=gap)


def _num_targets(targets: str) -> int | None:
    if targets == "all":
        return None
    values = options.parse_integers(targets, "--targets")
    if len(values) > 1:
        raise SettingError(f"invalid --targets {targets}; use one number, or all")
    return values[0]


def _controls(text: str) -> tuple[str, ...]:
    names = options.split_names(text)
    if "none" in names and names != ("none",):
        raise SettingError(f"--controls {text} combines controls with none; use either")
    return () if names == ("none",) else names
