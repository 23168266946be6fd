"""Drawing of a picture as SVG, with a title and a description, for light and dark mode."""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from lengthwise.evaluation.picture.labels import MIN_WEIGHT, group_color, token_label
from lengthwise.evaluation.picture.picture import (
    COUPLED,
    FAR,
    PREVIOUS,
    Answer,
    Picture,
    Prediction,
    format_number,
    join_numbers,
    sentences,
)
from lengthwise.evaluation.picture.svg_layout import (
    BOX_HEIGHT,
    COLUMN_GAP,
    ID_HEIGHT,
    INDEX_HEIGHT,
    MARGIN,
    Layout,
    Number,
    label_rows,
)

NAMESPACE = "http://www.w3.org/2000/svg"
# Plain colors instead of CSS variables, which not every program that shows SVG files knows.
STYLE = """
text{font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;text-anchor:middle;fill:#1f2328}
.line{font-family:system-ui,'Segoe UI','DejaVu Sans',sans-serif;text-anchor:start}
.title{font-weight:600}
.small{font-size:11px}
.muted,.small{fill:#59636e}
.group{fill:#000}
.wrong{font-weight:700;fill:#b3261e}
.page{fill:#fff}
.box{fill:#f6f8fa;stroke:#818b98}
.answer{stroke:#1f2328;stroke-width:2}
.id{fill:#fff;stroke:#818b98}
path{fill:none;stroke:#1f2328;stroke-width:1.5}
.far{stroke-dasharray:4 4}
.previous{stroke:#818b98}
.attention{stroke:#0072b2;stroke-opacity:.35}
@media(prefers-color-scheme:dark){
text{fill:#f0f6fc}
.muted,.small{fill:#9198a1}
.group{fill:#000}
.wrong{fill:#ff9d94}
.page,.id{fill:#0d1117}
.box{fill:#151b23}
.answer,path{stroke:#f0f6fc}
.previous{stroke:#656c76}
.attention{stroke:#56b4e9;stroke-opacity:.55}
}
"""
# Width of a character of the sentences, on average.
TEXT_LINE_HEIGHT, TEXT_WIDTH, SAMPLE_WIDTH = 18, 7.8, 34
# Width of the band of attention weight 1.
BAND_WIDTH = 12
# Largest number of bands per answer.
MAX_BANDS = 3
# Distance from the middle of a line of text to its baseline.
BASELINE = 4.5
# Class of each picture, which a later picture may replace.
MARK = "lengthwise-show"
# Characters that XML 1.0 does not allow, after control characters and surrogates are escaped.
NOT_IN_XML = re.compile("[\ufffe\uffff]")


def draw_svg(picture: Picture) -> bytes:
    """Return the SVG file of a picture; the same picture gives the same bytes."""
    layout = Layout(picture=picture, top=MARGIN)
    lines = [line for each in sentences(picture) for line in textwrap.wrap(each, int(layout.width / TEXT_WIDTH))]
    layout = replace(layout, top=MARGIN + TEXT_LINE_HEIGHT * len(lines) + 8)
    entries = list(_legend(picture))
    width, height = layout.width, layout.bottom + MARGIN + TEXT_LINE_HEIGHT * len(entries) + MARGIN
    size = {"width": f"{width:g}", "height": f"{height:g}", "viewBox": f"0 0 {width:g} {height:g}"}
    names = {"class": MARK, "role": "img", "aria-labelledby": "title desc"}
    svg = Element("svg", {"xmlns": NAMESPACE, **size, **names})
    title, *details = sentences(picture)
    _add(svg, "title", title, id="title")
    _add(svg, "desc", ". ".join([*details, *_token_titles(picture)]), id="desc")
    _add(svg, "style", STYLE)
    _add(svg, "rect", **{"class": "page", "width": "100%", "height": "100%"})
    for number, line in enumerate(lines):
        kind = "line title" if number == 0 else "line muted"
        _add_text(svg, line, MARGIN, MARGIN + TEXT_LINE_HEIGHT * (number + 0.5), kind)
    _draw_links(svg, picture, layout)
    _draw_tokens(svg, picture, layout)
    for number, (kind, stroke, text) in enumerate(entries):
        y = layout.bottom + MARGIN + TEXT_LINE_HEIGHT * (number + 0.5)
        _add(svg, "path", d=f"M{MARGIN} {y:g}h{SAMPLE_WIDTH - 8}", **{"class": kind, **stroke})
        _add_text(svg, text, MARGIN + SAMPLE_WIDTH, y, "line muted")
    ElementTree.indent(svg, space="")
    return ElementTree.tostring(svg, encoding="utf-8") + b"\n"


def _add(parent: Element, tag: str, text: str | None = None, **attributes: str) -> Element:
    element = SubElement(parent, tag, attributes)
    element.text = None if text is None else NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)
    return element


def _add_text(parent: Element, text: str, x: Number, y: Number, kind: str = "") -> None:
    _add(parent, "text", text, x=f"{x:g}", y=f"{y + BASELINE:g}", **({"class": kind} if kind else {}))


def _draw_links(svg: Element, picture: Picture, layout: Layout) -> None:
    """Draw bands of attention, and the links above them; tokens are drawn later and cover both."""
    for answer in picture.answers:
        # The query reads itself without attention.
        weights = () if answer.prediction is None else answer.prediction.attention[:-1]
        for key, weight in sorted(enumerate(weights), key=lambda pair: -pair[1])[:MAX_BANDS]:
            if weight >= MIN_WEIGHT:
                stroke = {"style": f"stroke-width:{BAND_WIDTH * min(weight, 1):g}"}
                _add(svg, "path", d=layout.path(key, answer.index), **{"class": "attention", **stroke})
    for answer in picture.answers:
        for kind in (PREVIOUS, FAR, COUPLED):
            paths = [layout.path(link.index, answer.index) for link in answer.links if answer.kind(link) == kind]
            if paths:
                _add(svg, "path", d="".join(paths), **{"class": kind})


def _draw_tokens(svg: Element, picture: Picture, layout: Layout) -> None:
    colors, answers = picture.color_numbers(), {answer.index: answer for answer in picture.answers}
    box_width = layout.column_width - COLUMN_GAP
    for number, line in enumerate(layout.lines):
        top, is_prompt = layout.line_tops[number], line.start < picture.prompt_length
        _add_text(svg, "prompt" if is_prompt else "response", MARGIN, top + INDEX_HEIGHT + BOX_HEIGHT / 2, "line muted")
        rows = label_rows(picture)
        for label, y in rows[: len(picture.position_ids)] if is_prompt else rows:
            _add_text(svg, label, MARGIN, top + y, "line muted")
        for token in line:
            x, center = layout.left(token), layout.center(token)
            _add_text(svg, str(token), center, top + INDEX_HEIGHT / 2, "small")
            place = {
                "x": f"{x:g}",
                "y": f"{top + INDEX_HEIGHT:g}",
                "width": f"{box_width:g}",
                "height": f"{BOX_HEIGHT}",
            }
            _add(svg, "rect", rx="4", **{"class": "box answer" if token in answers else "box", **place})
            _add_text(svg, token_label(picture.tokens[token]), center, top + INDEX_HEIGHT + BOX_HEIGHT / 2)
            for level, ids in enumerate(picture.position_ids):
                _draw_id(svg, format_number(ids[token]), colors[level][token], (x, top + rows[level][1]), box_width)
            if token in answers:
                _draw_prediction(
                    svg, answers[token].prediction, center, [top + y for _, y in rows[len(picture.position_ids) :]]
                )


def _draw_id(svg: Element, text: str, number: int | None, place: tuple[Number, Number], width: Number) -> None:
    """Draw an ID in the color of its group, or without a color if no other token has this ID."""
    x, y = place
    color = {"class": "id"} if number is None else {"class": "id", "style": f"fill:{group_color(number)}"}
    size = {"width": f"{width:g}", "height": f"{ID_HEIGHT - 2}"}
    _add(svg, "rect", x=f"{x:g}", y=f"{y - ID_HEIGHT / 2 + 1:g}", rx="3", **size, **color)
    _add_text(svg, text, x + width / 2, y, "" if number is None else "group")


def _draw_prediction(svg: Element, prediction: Prediction | None, x: Number, ys: list[Number]) -> None:
    """Draw the predicted token and ID, with an exclamation mark if they are wrong."""
    if prediction is None:
        return
    ids = join_numbers(prediction.position_ids or ())
    shown = [(token_label(prediction.token), prediction.token_correct), (ids, prediction.id_correct is not False)]
    # A run that predicts no IDs has no row for them.
    for (text, is_correct), y in zip(shown, ys, strict=False):
        if text:
            _add_text(svg, text if is_correct else f"!{text}", x, y, "" if is_correct else "wrong")


def _token_titles(picture: Picture) -> list[str]:
    """Return a description of each token for screen readers."""
    answers = {answer.index: answer for answer in picture.answers}
    titles = []
    for index, token in enumerate(picture.tokens):
        ids = join_numbers([level_ids[index] for level_ids in picture.position_ids])
        title = f"token {index}: {token_label(token)}, ID {ids}"
        titles.append(title + (_answer_title(answers[index]) if index in answers else ""))
    return titles


def _answer_title(answer: Answer) -> str:
    links = [f"{link.index} at ID distance {join_numbers(link.id_distance)}" for link in answer.links]
    title = f"; needs {', '.join(links)}" if links else ""
    if answer.prediction is None:
        return title
    is_correct = answer.prediction.token_correct
    return f"{title}; predicts {token_label(answer.prediction.token)}, {'correct' if is_correct else 'wrong'}"


def _legend(picture: Picture) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yield class, stroke attributes and meaning of each kind of line in the picture."""
    kinds = {answer.kind(link) for answer in picture.answers for link in answer.links}
    meanings = {
        COUPLED: "needed token at ID distance 0 from the token before the answer (coupled)",
        FAR: "needed token at an ID distance above 0 from the token before the answer",
        PREVIOUS: "the token before the answer, which is needed, too",
    }
    yield from ((kind, {}, meaning) for kind, meaning in meanings.items() if kind in kinds)
    if picture.attention_head is not None:
        yield (
            "attention",
            {"style": f"stroke-width:{BAND_WIDTH / 2:g}"},
            "attention of the token before the answer; width: weight",
        )
