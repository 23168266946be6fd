"""The verb that measures how many far tokens predictions need."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.choices import numbers
from lengthwise.documents import read_documents
from lengthwise.errors import SettingError, unknown_name
from lengthwise.influence import MEASURES, InfluenceMeasure, Screened
from lengthwise.influence.figures import draw_scale
from lengthwise.influence.settings import CONTROLS, InfluenceSettings
from lengthwise.influence.targets import LONGPPL, Rule
from lengthwise.influence.text_codec import tokenized
from lengthwise.interruption import StoppedError, interruptible
from lengthwise.language_models import load_language_model
from lengthwise.progress import ProgressLine
from lengthwise.study import InfluenceStudy, measure_influence
from lengthwise.study_report import PAGE, report_study
from lengthwise.terminal import err_console, out_console, print_json, print_table
from lengthwise.verbs.flags import WHOLE, Device, Json

RULES = ("gap", "longppl")


def influence(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run on text, a model's folder or its hub name.")],
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]...", help="Files, folders, dataset:NAME[:SPLIT]; a run's held-out text if none."
        ),
    ] = None,
    near: Annotated[int, typer.Option(**WHOLE, help="Tokens before the target that are always seen.")] = 64,
    far: Annotated[int, typer.Option(**WHOLE, help="Tokens before these.")] = 1024,
    k: Annotated[str, typer.Option("--k", help="Numbers of far tokens.")] = "1,2,4,8,16",
    measure: Annotated[str, typer.Option(help="How they are chosen; see lengthwise list measures.")] = "greedy",
    screen: Annotated[
        float | None, typer.Option(help="The share of far tokens that a gradient keeps for the measure, such as 0.1.")
    ] = None,
    mode: Annotated[
        str,
        typer.Option(help="strict (the model reads those tokens alone), masked (near tokens attend to those alone)."),
    ] = "strict",
    knows: Annotated[
        str, typer.Option(help="What a choice is judged by: target (its loss), prediction (that of the whole context).")
    ] = "target",
    controls: Annotated[str, typer.Option(help="random, other (another text's far tokens), none.")] = ",".join(
        CONTROLS
    ),
    rule: Annotated[
        str, typer.Option(help="Which targets are clear: gap, or longppl (gap over 2, loss below 2).")
    ] = "gap",
    gap: Annotated[float, typer.Option(help="With rule gap: nats that far context gains at least.")] = 0.5,
    rest: Annotated[float, typer.Option(help="The share of the other targets that is measured as well.")] = 0.1,
    targets: Annotated[str, typer.Option(help="How many targets, or all.")] = "500",
    piece: Annotated[int | None, typer.Option(**WHOLE, help="Cut longer texts into texts of so many tokens.")] = None,
    kind: Annotated[str | None, typer.Option(help="Of a run's held-out text, one kind.")] = None,
    also: Annotated[
        list[str] | None, typer.Option(help="Another model for the same texts; can be given several times.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Another tokenizer than the model's own.")] = None,
    seed: Annotated[int, typer.Option(**WHOLE, help="Of the targets and of every random choice.")] = 0,
    device: Device = "auto",
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")] = Path("runs/influence"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last whole block of targets.")] = False,
    as_json: Json = False,
) -> None:
    """Measure how many far tokens a model's predictions need: loss with near, far + near, and near + k tokens."""
    settings = InfluenceSettings(
        near=near,
        far=far,
        ks=numbers(k, "--k"),
        measure=_measure(measure, screen),
        modes=_names(mode),
        knows=_names(knows),
        controls=() if controls == "none" else _names(controls),
        rule=_rule(rule, gap),
        rest=rest,
        num_targets=None if targets == "all" else numbers(targets, "--targets")[0],
        piece=piece,
        seed=seed,
    )
    names = [model, *(also if also is not None else [])]
    summaries: list[Mapping[str, Any]] = []
    for place, name in enumerate(names):
        loaded = load_language_model(name, tokenizer=tokenizer, device=device)
        if texts:
            read = list(tokenized(loaded.codec, read_documents(texts), loaded.model.vocabulary_size))
        else:
            read = loaded.held_out(kind)
        study = InfluenceStudy(model=loaded.model, codec=loaded.codec, texts=read, settings=settings)
        folder = out if len(names) == 1 else out / f"{place}-{Path(name).name}"
        with ProgressLine(err_console) as progress, interruptible() as stop:
            if not measure_influence(study, folder, resume=resume, report=progress.measured, stop=stop):
                raise StoppedError(f"stopped and saved in {folder}; give the same command with --resume to go on")
        summaries.append(report_study(study, folder))
    scale = draw_scale(summaries, [summary["parameters"] for summary in summaries], out) if len(names) > 1 else None
    if as_json:
        print_json({"folder": str(out), "summaries": summaries})
        return
    for summary in summaries:
        print_table(heading(summary), *recovery_table(summary))
    shown = out / PAGE if scale is None else scale
    out_console.print(f"page: {shown}" if scale is None else f"figure: {shown}", markup=False, highlight=False)


def _measure(name: str, screen: float | None) -> InfluenceMeasure:
    if name not in MEASURES:
        raise unknown_name("measure", name, MEASURES)
    measure = MEASURES[name]()
    if screen is None:
        return measure
    if isinstance(measure, Screened):
        return replace(measure, share=screen)
    if not measure.exact:
        raise SettingError(
            f"measure '{name}' scores nothing exactly, so there is nothing to screen; leave --screen out"
        )
    return Screened(then=measure, share=screen)


def _rule(name: str, gap: float) -> Rule:
    if name not in RULES:
        raise unknown_name("rule", name, RULES)
    return LONGPPL if name == "longppl" else Rule(gap=gap)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def heading(summary: Mapping[str, Any]) -> str:
    """What the table is about: how many targets, and how many of them need far context."""
    return (
        f"{summary['model']}: {summary['clear']:,} of {summary['targets']:,} targets in {summary['documents']:,} texts "
        "gain clearly from far context; the share of that gain that k far tokens recover, below it the 95% interval"
    )


def recovery_table(summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and body: a row per selection, a column per k."""
    header = ["mode", "knows", "far tokens of", "measure", *(f"k={k}" for k in summary["ks"]), "k for 50 / 80 / 90%"]
    body = []
    for group in summary["groups"]:
        named = [group["mode"], group["knows"], f"{group['from']} text", group["measure"]]
        reached = " / ".join(_smallest(level) for level in group["smallest_k"])
        body.append([*named, *(_estimate(share) for share in group["ratio_of_sums"]), reached])
    return header, body


def _estimate(found: Mapping[str, Any]) -> str:
    if found["value"] is None:
        return "-"
    bounds = "" if found["low"] is None else f"\n{found['low']:.2f}-{found['high']:.2f}"
    return f"{found['value']:.3f}{bounds}"


def _smallest(level: Mapping[str, Any]) -> str:
    if level["beyond"]:
        return "more"
    return "-" if level["k"] is None else str(level["k"])
