"""The ``influence`` command, which measures the number of far tokens that predictions need."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from lengthwise.cli import options
from lengthwise.cli.terminal import print_json, print_line, print_message, print_table
from lengthwise.core.defaults import CLEAR_GAP, FAR_TOKENS, SOURCE_FORMAT


def influence(
    model: options.ModelName,
    texts: Annotated[
        list[str] | None,
        Argument(
            metavar="[TEXT]...", help=f"Files, folders or {SOURCE_FORMAT}.", show_default="held-out text of the run"
        ),
    ] = None,
    documents: Annotated[int | None, options.integer_option("Maximum number of documents per TEXT.")] = None,
    near: Annotated[int, options.integer_option("Number of near tokens, which directly precede the target.")] = 64,
    far: Annotated[
        int | None,
        options.integer_option(
            "Number of far tokens, which precede the near tokens.",
            show_default=f"{FAR_TOKENS}, or fewer for a model with fewer positions",
        ),
    ] = None,
    k: Annotated[str, Option("--k", help="Numbers k of units to select, in increasing order.")] = "1,2,4,8,16",
    unit: Annotated[
        str, Option(help="Unit of far tokens that is selected as a whole: token, word, sentence, or span:N.")
    ] = "span:8",
    measure: Annotated[str, Option(help="Influence measure; see lengthwise list measures.")] = "proposed",
    prefilter: Annotated[
        float | None, Option(help="Fraction of far tokens to preselect by gradient, such as 0.1.")
    ] = None,
    mode: Annotated[
        str,
        Option(
            help="Treatment of far tokens that are not selected: strict (removed from the input), masked (invisible to "
            "the near tokens), decode (invisible to the last token), or several of them."
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
            help="Control selections: random or nearest (random or the nearest units), other (units of another text), "
            "elsewhere (units from elsewhere in the same document), or none."
        ),
    ] = "random,nearest,other",
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
            show_default=f"{CLEAR_GAP}",
        ),
    ] = None,
    searched: Annotated[
        int,
        options.integer_option("Number of targets to search for units, drawn by the divergence that far tokens cause."),
    ] = 200,
    minutes: Annotated[
        float | None,
        options.number_option("Time limit in minutes; fewer targets are searched if needed.", "a number such as 20"),
    ] = None,
    targets: Annotated[str, Option(help="Number of target tokens, or all.")] = "500",
    max_document_tokens: Annotated[
        int | None, options.integer_option("Maximum number of tokens per document; longer documents are split.")
    ] = None,
    sink: Annotated[
        int | None,
        options.integer_option(
            "Number of initial tokens that stay visible as attention sinks.",
            show_default="(4 in modes masked and decode, else 0)",
        ),
    ] = None,
    kind: Annotated[str | None, Option(help="Kind of held-out text to measure. Only for run folders.")] = None,
    compare_model: Annotated[
        list[str] | None, Option(help="Another model to measure on the same texts; repeat the flag for more models.")
    ] = None,
    tokenizer: options.TokenizerName = None,
    dtype: options.DataType = None,
    seed: Annotated[int, options.integer_option("Random seed for targets and random selections.")] = 0,
    part: Annotated[
        str, Option(metavar="I/N", help="Part I of N to measure in this process; the last process joins all parts.")
    ] = "1/1",
    device: options.DeviceName = "auto",
    out: options.OutputFolder = Path("runs/influence"),
    resume: Annotated[bool, Option("--resume", help="Continue after the last complete block of targets.")] = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Measure the number of far tokens that a model needs to predict the next token.

    It compares three contexts: near tokens, near and k selected far tokens, and all tokens.
    """
    from lengthwise.cli import influence_options
    from lengthwise.hf.language_models import check_model_exists, load_language_model
    from lengthwise.influence.report.figures import plot_model_sizes
    from lengthwise.influence.report.study_report import PAGE_FILE
    from lengthwise.influence.report.summary import summary_tables
    from lengthwise.influence.settings import InfluenceSettings
    from lengthwise.influence.study import InfluenceStudy, parse_study_part

    settings = InfluenceSettings(
        near=near,
        far=FAR_TOKENS if far is None else far,
        ks=options.parse_integers(k, "--k"),
        unit=unit,
        measure=influence_options.build_measure(measure, prefilter),
        modes=options.split_names(mode),
        objectives=options.split_names(objective),
        controls=influence_options.parse_controls(controls),
        rule=influence_options.parse_clear_gain_rule(rule, gap),
        searched=searched,
        num_targets=influence_options.parse_num_targets(targets),
        max_document_tokens=max_document_tokens,
        sink=sink,
        seed=seed,
    )
    shard = parse_study_part(part)
    model_names = [model, *(compare_model or [])]
    for name in model_names:
        check_model_exists(name)
    subfolders = [out / f"{index}-{Path(name).name}" for index, name in enumerate(model_names)]
    folders = [out] if len(model_names) == 1 else subfolders
    summaries: list[Mapping[str, Any]] = []
    for name, folder in zip(model_names, folders, strict=True):
        print_message(f"loading {name}")
        loaded = load_language_model(name, tokenizer=tokenizer, device=device, dtype=dtype)
        if far is None and len(model_names) == 1:
            settings = influence_options.limit_far_tokens(settings, loaded)
        tokenized = influence_options.load_documents(loaded, texts, kind, documents)
        study = InfluenceStudy(model=loaded.model, codec=loaded.codec, texts=tokenized, settings=settings, part=shard)
        summary = influence_options.run_study(study, folder, resume=resume, minutes=minutes)
        summaries += [] if summary is None else [summary]
    if len(summaries) < len(model_names):
        return
    parameters = [summary["parameters"] for summary in summaries]
    scale_figure = plot_model_sizes(summaries, parameters, out) if len(summaries) > 1 else None
    if as_json:
        print_json({"folder": str(out), "summaries": summaries})
        return
    for table in (table for measured in summaries for table in summary_tables(measured)):
        print_table(*table)
    print_line(f"page: {folders[0] / PAGE_FILE}" if scale_figure is None else f"figure: {scale_figure}")
    for measured in summaries:
        print_line(measured["answer"]["sentence"])
