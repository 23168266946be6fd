"""The ``influence`` command, which measures the number of far tokens that predictions need."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from lengthwise.cli import options
from lengthwise.cli.terminal import print_json, print_line, print_message, print_table
from lengthwise.core.errors import SettingError, unknown_name
from lengthwise.core.interruption import StoppedError, catch_interrupts
from lengthwise.core.progress_line import ProgressLine, err_console
from lengthwise.hf.language_models import LanguageModel, check_model_exists, load_language_model
from lengthwise.influence.measures import MEASURES, InfluenceMeasure, Screened
from lengthwise.influence.report.scale_figure import draw_scale
from lengthwise.influence.report.study_report import PAGE_FILE, report_study
from lengthwise.influence.report.summary_tables import summary_tables
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.study import InfluenceStudy, measure_influence, without_copies
from lengthwise.influence.study_shards import check_parts, join_parts, parse_part, part_folder
from lengthwise.influence.targets import LONGPPL_RULE, GapRule
from lengthwise.influence.text_codec import tokenize_documents
from lengthwise.tasks import TokenizedDocument
from lengthwise.tasks.text.documents import read_documents
from lengthwise.tasks.text.text_records import SOURCE_FORMAT

RULES = ("gap", "longppl")
DEFAULT_SETTINGS = InfluenceSettings()


def influence(
    model: Annotated[
        str, Argument(metavar="MODEL", help="Run folder, model folder or model name on the Hugging Face Hub.")
    ],
    texts: Annotated[
        list[str] | None,
        Argument(
            metavar="[TEXT]...", help=f"Files, folders or {SOURCE_FORMAT}.", show_default="held-out text of the run"
        ),
    ] = None,
    documents: Annotated[int | None, options.integer("Maximum number of documents per TEXT.")] = None,
    near: Annotated[int, options.integer("Number of near tokens, which directly precede the target.")] = 64,
    far: Annotated[
        int | None,
        options.integer(
            "Number of far tokens, which precede the near tokens.",
            show_default=f"{DEFAULT_SETTINGS.far}, or fewer for a model with fewer positions",
        ),
    ] = None,
    k: Annotated[str, Option("--k", help="Numbers k of far tokens to select, in increasing order.")] = "1,2,4,8,16",
    measure: Annotated[str, Option(help="Influence measure; see lengthwise list measures.")] = "greedy",
    prefilter: Annotated[
        float | None, Option(help="Fraction of far tokens to preselect by gradient, such as 0.1.")
    ] = None,
    mode: Annotated[
        str,
        Option(
            help="Treatment of far tokens that are not selected: strict (removed from the input), masked (invisible to "
            "the near tokens) or strict,masked (both)."
        ),
    ] = "strict",
    objective: Annotated[
        str,
        Option(
            help="Objective of the selection: prediction (match the prediction from all tokens), target (minimize the "
            "loss of the target token) or prediction,target (both)."
        ),
    ] = "prediction",
    controls: Annotated[
        str,
        Option(
            help="Control selections: random (random far tokens), other (far tokens of another text), elsewhere (far "
            "tokens from elsewhere in the same document), or none."
        ),
    ] = "random,other",
    rule: Annotated[
        str,
        Option(
            help="Rule that decides whether a target has a clear gain from far tokens: gap (gain above --gap), or "
            "longppl (gain above 2 nats and loss below 2 nats)."
        ),
    ] = "gap",
    gap: Annotated[
        float | None,
        Option(
            help="Gain from far tokens, in nats, that a target must exceed for --rule gap.",
            show_default=f"{GapRule().gap}",
        ),
    ] = None,
    background_fraction: Annotated[
        float,
        Option(help="Fraction of the targets without a clear gain that are also measured with selected far tokens."),
    ] = 0.1,
    targets: Annotated[str, Option(help="Number of target tokens, or all.")] = "500",
    max_document_tokens: Annotated[
        int | None, options.integer("Maximum number of tokens per document; longer documents are split.")
    ] = None,
    sink: Annotated[int, options.integer("Number of initial tokens that stay visible as attention sinks.")] = 0,
    kind: Annotated[str | None, Option(help="Kind of held-out text to measure. Only for run folders.")] = None,
    compare_model: Annotated[
        list[str] | None, Option(help="Another model to measure on the same texts; repeat the flag for more models.")
    ] = None,
    tokenizer: Annotated[
        str | None, Option(help="Folder or name of a tokenizer that replaces the tokenizer of the model.")
    ] = None,
    dtype: Annotated[
        str | None, Option(help="Data type of a transformers model: float32, bfloat16 or float16.")
    ] = None,
    seed: Annotated[int, options.integer("Random seed for targets and random selections.")] = 0,
    part: Annotated[
        str, Option(metavar="I/N", help="Part I of N to measure in this process; the last process joins all parts.")
    ] = "1/1",
    device: options.DeviceName = "auto",
    out: Annotated[Path, Option("--out", help="Output folder.")] = Path("runs/influence"),
    resume: Annotated[bool, Option("--resume", help="Continue after the last complete block of targets.")] = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Measure the number of far tokens that a model needs to predict the next token.

    The command compares predictions from three contexts: near tokens; near tokens and k selected far tokens; near
    tokens and all far tokens.
    """
    settings = InfluenceSettings(
        near=near,
        far=DEFAULT_SETTINGS.far if far is None else far,
        ks=options.parse_integers(k, "--k"),
        measure=_build_measure(measure, prefilter),
        modes=options.split_names(mode),
        objectives=options.split_names(objective),
        controls=_parse_controls(controls),
        rule=_parse_gap_rule(rule, gap),
        background_fraction=background_fraction,
        num_targets=_parse_num_targets(targets),
        max_document_tokens=max_document_tokens,
        sink=sink,
        seed=seed,
    )
    shard = parse_part(part)
    model_names = [model, *(compare_model or [])]
    for name in model_names:
        check_model_exists(name)
    subfolders = [out / f"{index}-{Path(name).name}" for index, name in enumerate(model_names)]
    folders = [out] if len(model_names) == 1 else subfolders
    summaries: list[Mapping[str, Any]] = []
    for name, folder in zip(model_names, folders, strict=True):
        loaded = load_language_model(name, tokenizer=tokenizer, device=device, dtype=dtype)
        if far is None and len(model_names) == 1:
            settings = _limit_far(settings, loaded)
        tokenized = _load_documents(loaded, texts, kind, documents)
        study = InfluenceStudy(model=loaded.model, codec=loaded.codec, texts=tokenized, settings=settings, part=shard)
        summary = _run_study(study, folder, resume=resume)
        summaries += [] if summary is None else [summary]
    if len(summaries) < len(model_names):
        return
    parameters = [summary["parameters"] for summary in summaries]
    scale_figure = draw_scale(summaries, parameters, out) if len(summaries) > 1 else None
    if as_json:
        print_json({"folder": str(out), "summaries": summaries})
        return
    for table in (table for summary in summaries for table in summary_tables(summary)):
        print_table(table.title, table.header, table.body)
    file_line = f"figure: {scale_figure}" if scale_figure is not None else f"page: {folders[0] / PAGE_FILE}"
    for output_line in (file_line, *(summary["answer"]["sentence"] for summary in summaries)):
        print_line(output_line)


def _limit_far(settings: InfluenceSettings, language_model: LanguageModel) -> InfluenceSettings:
    if language_model.model.num_positions is None:
        return settings
    max_far = language_model.model.num_positions - settings.near - settings.sink - len(language_model.codec.start)
    # If the model has too few positions for the largest k, a later check raises an error.
    return replace(settings, far=max(settings.ks[-1], min(settings.far, max_far)))


def _load_documents(
    language_model: LanguageModel, texts: list[str] | None, kind: str | None, documents: int | None
) -> list[TokenizedDocument]:
    if not texts:
        return without_copies(language_model.held_out(kind)[:documents])
    if kind is not None:
        raise SettingError(f"--kind {kind} applies only to the held-out text of a run; leave out --kind or TEXT")
    records = read_documents(texts, max_documents=documents)
    tokenized = tokenize_documents(language_model.codec, records, language_model.model.vocabulary_size)
    return without_copies(list(tokenized))


def _run_study(study: InfluenceStudy, out: Path, *, resume: bool) -> dict[str, Any] | None:
    """Run a study or one part of it; return the summary, or None if other parts are not complete."""
    folder = part_folder(out, study.part)
    check_parts(study, out)
    with ProgressLine(err_console) as progress, catch_interrupts() as should_stop:

        def print_estimate(min_seconds: float, max_seconds: float) -> None:
            print_message(f"estimated time: {_format_duration(min_seconds)} to {_format_duration(max_seconds)}")

        if not measure_influence(
            study, folder, resume=resume, report=progress.show_targets, stop=should_stop, estimate=print_estimate
        ):
            raise StoppedError(f"stopped and saved in {folder}; repeat the command with --resume to continue")
    if study.part == (1, 1):
        return report_study(study, out)
    if missing_parts := join_parts(study, out):
        part_index, num_parts = study.part
        missing_labels = ", ".join(f"{missing}/{num_parts}" for missing in missing_parts)
        print_message(f"part {part_index}/{num_parts} is complete; missing parts: {missing_labels}")
        return None
    return report_study(replace(study, part=(1, 1)), out)


def _format_duration(seconds: float) -> str:
    """Format a duration in the largest unit that gives a value of at least 2, such as ``2 hours`` for 7200 seconds."""
    units = (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1))
    unit_name, unit_seconds = next((unit for unit in units if seconds >= 2 * unit[1]), units[-1])
    return f"{max(1, round(seconds / unit_seconds)):,} {unit_name}"


def _build_measure(name: str, prefilter: float | None) -> InfluenceMeasure:
    if name not in MEASURES:
        raise unknown_name("measure", name, MEASURES)
    measure = MEASURES[name]()
    if prefilter is None:
        return measure
    if isinstance(measure, Screened):
        return replace(measure, share=prefilter)
    if not measure.exact:
        raise SettingError(
            f"measure '{name}' computes no exact scores, so it has no far tokens to preselect; leave out --prefilter"
        )
    return Screened(then=measure, share=prefilter)


def _parse_gap_rule(name: str, gap: float | None) -> GapRule:
    if name not in RULES:
        raise unknown_name("rule", name, RULES)
    if name == "gap":
        return GapRule() if gap is None else GapRule(gap=gap)
    if gap is not None:
        raise SettingError(f"rule longppl has a fixed gap of {LONGPPL_RULE.gap} nats; leave out --gap {gap}")
    return LONGPPL_RULE


def _parse_num_targets(targets: str) -> int | None:
    if targets == "all":
        return None
    numbers = options.parse_integers(targets, "--targets")
    if len(numbers) > 1:
        raise SettingError(f"invalid --targets {targets}; use one whole number, or all")
    return numbers[0]


def _parse_controls(controls: str) -> tuple[str, ...]:
    control_names = options.split_names(controls)
    if "none" in control_names and control_names != ("none",):
        raise SettingError(f"--controls {controls} combines none with other controls; use none alone, or leave it out")
    return () if control_names == ("none",) else control_names
