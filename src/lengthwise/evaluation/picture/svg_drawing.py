"""Drawing of a picture as SVG, with a title and a description, for light and dark mode."""

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from rich.cells import cell_len

from lengthwise.evaluation.picture.example_picture import (
    COUPLED,
    FAR,
    MIN_WEIGHT,
    PREVIOUS,
    AnswerPrediction,
    ExamplePicture,
    describe_picture,
    format_number,
    group_color,
    join_numbers,
    level_labels,
    token_label,
)

# Coordinate or size in pixels.
Number = int | float

MARGIN, LABEL_WIDTH, MAX_WIDTH, MIN_WIDTH = 16, 74, 880, 600
# Width of a character of the tokens, and smallest width of a column.
CHARACTER_WIDTH, MIN_COLUMN_WIDTH, COLUMN_GAP = 8, 38, 6
INDEX_HEIGHT, BOX_HEIGHT, ID_HEIGHT, PREDICTION_HEIGHT = 14, 26, 18, 16
# Space between lines of tokens, and between the tops of the arcs and the space above.
LINE_GAP, ARC_GAP = 34, 6
MAX_ARC_HEIGHT = 56
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


@dataclass(frozen=True, kw_only=True)
class SVGLayout:
    """Lines of tokens below the lines of the title; the prompt and the response start a line each."""

    picture: ExamplePicture

    @cached_property
    def title_lines(self) -> list[str]:
        """Lines of the sentences that describe the picture."""
        max_characters = int(self.width / TEXT_WIDTH)
        return [line for text in describe_picture(self.picture) for line in textwrap.wrap(text, max_characters)]

    @cached_property
    def column_width(self) -> Number:
        """Width of a column with its gap."""
        texts = [token_label(token) for token in self.picture.tokens]
        texts += [format_number(position_id) for ids in self.picture.position_ids for position_id in ids]
        for prediction in (answer.prediction for answer in self.picture.answers):
            if prediction is not None:
                texts += [f"!{token_label(prediction.token)}", f"!{join_numbers(prediction.position_ids or ())}"]
        return max(MIN_COLUMN_WIDTH, CHARACTER_WIDTH * max(map(cell_len, texts)) + 10) + COLUMN_GAP

    @cached_property
    def token_lines(self) -> list[range]:
        """Token indexes of each line."""
        per_line = max(1, int((MAX_WIDTH - 2 * MARGIN - LABEL_WIDTH) // self.column_width))
        start, stop = self.picture.prompt_length, len(self.picture.tokens)
        firsts = [*range(0, start, per_line), *range(start, stop, per_line)]
        return [range(first, min(first + per_line, start if first < start else stop)) for first in firsts]

    @cached_property
    def line_of_token(self) -> list[int]:
        """Number of the line of each token, from 0."""
        return [number for number, line in enumerate(self.token_lines) for _ in line]

    @property
    def width(self) -> Number:
        """Width of the drawing with its margins."""
        return max(MIN_WIDTH, 2 * MARGIN + LABEL_WIDTH + self.column_width * max(map(len, self.token_lines)))

    def line_height(self, number: int) -> Number:
        """Return the height of a line of tokens, without arcs; only the response has predictions."""
        rows = INDEX_HEIGHT + BOX_HEIGHT + ID_HEIGHT * len(self.picture.position_ids)
        is_prompt = self.token_lines[number].start < self.picture.prompt_length
        return rows + (0 if is_prompt or self.picture.attention_head is None else 2 * PREDICTION_HEIGHT)

    @cached_property
    def line_tops(self) -> list[Number]:
        """Vertical coordinate of the index row of each line."""
        arcs = [0.0] * len(self.token_lines)
        for key, answer in self.linked_pairs:
            if self.line_of_token[key] == self.line_of_token[answer]:
                line = self.line_of_token[answer]
                arcs[line] = max(arcs[line], arc_height(answer - key) + ARC_GAP)
        tops: list[Number] = []
        y: Number = MARGIN + TEXT_LINE_HEIGHT * len(self.title_lines) + 8
        for number, height in enumerate(arcs):
            tops.append(y + height)
            y += height + self.line_height(number) + LINE_GAP
        return tops

    @property
    def bottom(self) -> Number:
        """Vertical coordinate below the last line."""
        return self.line_tops[-1] + self.line_height(len(self.token_lines) - 1)

    @cached_property
    def linked_pairs(self) -> list[tuple[int, int]]:
        """Token indexes of each link: the earlier token, and the answer."""
        return [(link.index, answer.index) for answer in self.picture.answers for link in answer.links]

    def left(self, token: int) -> Number:
        """Return the left side of the box of a token."""
        column = token - self.token_lines[self.line_of_token[token]].start
        return MARGIN + LABEL_WIDTH + self.column_width * column

    def center(self, token: int) -> Number:
        """Return the horizontal center of the box of a token."""
        return self.left(token) + (self.column_width - COLUMN_GAP) / 2

    def link_path(self, key: int, answer: int) -> str:
        """Return the SVG path from an earlier token to an answer: an arc on the same line, or a curve between lines."""
        x, end_x = self.center(key), self.center(answer)
        y, end_y = (self.line_tops[self.line_of_token[token]] for token in (key, answer))
        if self.line_of_token[key] == self.line_of_token[answer]:
            return f"M{x:g} {y:g}Q{(x + end_x) / 2:g} {y - 2 * arc_height(answer - key):g} {end_x:g} {end_y:g}"
        y += self.line_height(self.line_of_token[key])
        middle = (y + end_y) / 2
        return f"M{x:g} {y:g}C{x:g} {middle:g} {end_x:g} {middle:g} {end_x:g} {end_y:g}"


def arc_height(num_columns: int) -> Number:
    """Return the height of an arc over this number of columns."""
    return min(MAX_ARC_HEIGHT, round(12 * math.sqrt(num_columns)))


def label_rows(picture: ExamplePicture) -> Sequence[tuple[str, Number]]:
    """Return the labels of the rows below the boxes, with the distance of their centers from the top of a line."""
    y, rows = INDEX_HEIGHT + BOX_HEIGHT, []
    for label in level_labels(picture):
        rows.append((label, y + ID_HEIGHT / 2))
        y += ID_HEIGHT
    if picture.attention_head is not None:
        rows.append(("predicts", y + PREDICTION_HEIGHT / 2))
    if any(answer.prediction is not None and answer.prediction.position_ids for answer in picture.answers):
        rows.append(("its ID", y + 1.5 * PREDICTION_HEIGHT))
    return rows


def draw_svg(picture: ExamplePicture) -> bytes:
    """Return the SVG file of a picture; the same picture gives the same bytes."""
    layout = SVGLayout(picture=picture)
    entries = list(_legend(picture))
    width, height = layout.width, layout.bottom + MARGIN + TEXT_LINE_HEIGHT * len(entries) + MARGIN
    size = {"width": f"{width:g}", "height": f"{height:g}", "viewBox": f"0 0 {width:g} {height:g}"}
    names = {"class": MARK, "role": "img", "aria-labelledby": "title desc"}
    svg = Element("svg", {"xmlns": NAMESPACE, **size, **names})
    title, *details = describe_picture(picture)
    _add(svg, "title", title, id="title")
    _add(svg, "desc", ". ".join([*details, *_token_titles(picture)]), id="desc")
    _add(svg, "style", STYLE)
    _add(svg, "rect", class_="page", width="100%", height="100%")
    for number, line in enumerate(layout.title_lines):
        kind = "line title" if number == 0 else "line muted"
        _add_text(svg, line, MARGIN, MARGIN + TEXT_LINE_HEIGHT * (number + 0.5), kind)
    _draw_links(svg, picture, layout)
    _draw_tokens(svg, picture, layout)
    for number, (kind, stroke, text) in enumerate(entries):
        y = layout.bottom + MARGIN + TEXT_LINE_HEIGHT * (number + 0.5)
        _add(svg, "path", d=f"M{MARGIN} {y:g}h{SAMPLE_WIDTH - 8}", class_=kind, **stroke)
        _add_text(svg, text, MARGIN + SAMPLE_WIDTH, y, "line muted")
    ElementTree.indent(svg, space="")
    return ElementTree.tostring(svg, encoding="utf-8") + b"\n"


def _add(parent: Element, tag: str, text: str | None = None, **attributes: Number | str) -> None:
    """Add an element; a trailing underscore of an attribute is left out."""
    values = {name.rstrip("_"): value if isinstance(value, str) else f"{value:g}" for name, value in attributes.items()}
    text = None if text is None else NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)
    SubElement(parent, tag, values).text = text


def _add_text(parent: Element, text: str, x: Number, y: Number, kind: str = "") -> None:
    _add(parent, "text", text, x=x, y=y + BASELINE, **({"class_": kind} if kind else {}))


def _draw_links(svg: Element, picture: ExamplePicture, layout: SVGLayout) -> None:
    """Draw bands of attention, and the links above them; tokens are drawn later and cover both."""
    for answer in picture.answers:
        # The query reads itself without attention.
        weights = () if answer.prediction is None else answer.prediction.attention[:-1]
        for key, weight in sorted(enumerate(weights), key=lambda pair: -pair[1])[:MAX_BANDS]:
            if weight >= MIN_WEIGHT:
                stroke = f"stroke-width:{BAND_WIDTH * min(weight, 1):g}"
                _add(svg, "path", d=layout.link_path(key, answer.index), class_="attention", style=stroke)
    for answer in picture.answers:
        for kind in (PREVIOUS, FAR, COUPLED):
            keys = [link.index for link in answer.links if answer.link_kind(link) == kind]
            if keys:
                _add(svg, "path", d="".join(layout.link_path(key, answer.index) for key in keys), class_=kind)


def _draw_tokens(svg: Element, picture: ExamplePicture, layout: SVGLayout) -> None:
    colors, answers = picture.color_group_numbers(), {answer.index: answer for answer in picture.answers}
    width, rows, num_levels = layout.column_width - COLUMN_GAP, label_rows(picture), len(picture.position_ids)
    for number, line in enumerate(layout.token_lines):
        top, is_prompt = layout.line_tops[number], line.start < picture.prompt_length
        middle = top + INDEX_HEIGHT + BOX_HEIGHT / 2
        _add_text(svg, "prompt" if is_prompt else "response", MARGIN, middle, "line muted")
        for label, y in rows[:num_levels] if is_prompt else rows:
            _add_text(svg, label, MARGIN, top + y, "line muted")
        for token in line:
            x, center, kind = layout.left(token), layout.center(token), "box answer" if token in answers else "box"
            _add_text(svg, str(token), center, top + INDEX_HEIGHT / 2, "small")
            _add(svg, "rect", rx=4, class_=kind, x=x, y=top + INDEX_HEIGHT, width=width, height=BOX_HEIGHT)
            _add_text(svg, token_label(picture.tokens[token]), center, middle)
            for level, ids in enumerate(picture.position_ids):
                # An ID has the color of its group, or no color if no other token has this ID.
                y, group = top + rows[level][1], colors[level][token]
                style = {} if group is None else {"style": f"fill:{group_color(group)}"}
                top_of_id, height = y - ID_HEIGHT / 2 + 1, ID_HEIGHT - 2
                _add(svg, "rect", x=x, y=top_of_id, rx=3, width=width, height=height, class_="id", **style)
                _add_text(svg, format_number(ids[token]), x + width / 2, y, "" if group is None else "group")
            if token in answers:
                _draw_prediction(svg, answers[token].prediction, center, [top + y for _, y in rows[num_levels:]])


def _draw_prediction(svg: Element, prediction: AnswerPrediction | None, x: Number, ys: list[Number]) -> None:
    """Draw the predicted token and ID, with an exclamation mark if they are wrong."""
    if prediction is None:
        return
    ids = join_numbers(prediction.position_ids or ())
    shown = [(token_label(prediction.token), prediction.token_correct), (ids, prediction.id_correct is not False)]
    # A run that predicts no IDs has no row for them.
    for (text, is_correct), y in zip(shown, ys, strict=False):
        if text:
            _add_text(svg, text if is_correct else f"!{text}", x, y, "" if is_correct else "wrong")


def _token_titles(picture: ExamplePicture) -> Iterator[str]:
    """Yield a description of each token for screen readers."""
    answers = {answer.index: answer for answer in picture.answers}
    for index, token in enumerate(picture.tokens):
        ids = join_numbers([level_ids[index] for level_ids in picture.position_ids])
        title = f"token {index}: {token_label(token)}, ID {ids}"
        if (answer := answers.get(index)) is not None:
            links = [f"{link.index} at ID distance {join_numbers(link.id_distance)}" for link in answer.links]
            title += f"; needs {', '.join(links)}" if links else ""
            if (prediction := answer.prediction) is not None:
                verdict = "correct" if prediction.token_correct else "wrong"
                title += f"; predicts {token_label(prediction.token)}, {verdict}"
        yield title


def _legend(picture: ExamplePicture) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yield class, stroke attributes and meaning of each kind of line in the picture."""
    kinds = {answer.link_kind(link) for answer in picture.answers for link in answer.links}
    meanings = {
        COUPLED: "needed token at ID distance 0 from the token before the answer (coupled)",
        FAR: "needed token at an ID distance above 0 from the token before the answer",
        PREVIOUS: "the token before the answer, which is needed, too",
    }
    yield from ((kind, {}, meaning) for kind, meaning in meanings.items() if kind in kinds)
    if picture.attention_head is not None:
        style = {"style": f"stroke-width:{BAND_WIDTH / 2:g}"}
        yield "attention", style, "attention of the token before the answer; width: weight"
