"""Coordinates of the tokens and links of a picture, in pixels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.cells import cell_len

from lengthwise.evaluation.picture.labels import level_labels, token_label
from lengthwise.evaluation.picture.picture import Picture, format_number, join_numbers

# Coordinate or size in pixels.
Number = int | float
MARGIN, LABEL_WIDTH, MAX_WIDTH, MIN_WIDTH = 16, 74, 880, 600
# Width of a character of the tokens, and smallest width of a column.
CHARACTER_WIDTH, MIN_COLUMN_WIDTH, COLUMN_GAP = 8, 38, 6
INDEX_HEIGHT, BOX_HEIGHT, ID_HEIGHT, PREDICTION_HEIGHT = 14, 26, 18, 16
# Space between lines of tokens, and between the tops of the arcs and the space above.
LINE_GAP, ARC_GAP = 34, 6
MAX_ARC_HEIGHT = 56


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Lines of tokens; the prompt and the response start a line each. ``top`` is the space for the title."""

    picture: Picture
    top: Number

    @cached_property
    def column_width(self) -> Number:
        """Width of a column with its gap."""
        texts = [token_label(token) for token in self.picture.tokens]
        texts += [format_number(each) for ids in self.picture.position_ids for each in ids]
        for answer in self.picture.answers:
            if answer.prediction is not None:
                texts += [
                    f"!{token_label(answer.prediction.token)}",
                    f"!{join_numbers(answer.prediction.position_ids or ())}",
                ]
        return max(MIN_COLUMN_WIDTH, CHARACTER_WIDTH * max(map(cell_len, texts)) + 10) + COLUMN_GAP

    @cached_property
    def lines(self) -> list[range]:
        """Token indexes of each line."""
        per_line = max(1, int((MAX_WIDTH - 2 * MARGIN - LABEL_WIDTH) // self.column_width))
        start, stop = self.picture.prompt_length, len(self.picture.tokens)
        firsts = [*range(0, start, per_line), *range(start, stop, per_line)]
        return [range(first, min(first + per_line, start if first < start else stop)) for first in firsts]

    @cached_property
    def line_of(self) -> list[int]:
        """Number of the line of each token, from 0."""
        return [number for number, line in enumerate(self.lines) for _ in line]

    @property
    def width(self) -> Number:
        """Width of the drawing with its margins."""
        return max(MIN_WIDTH, 2 * MARGIN + LABEL_WIDTH + self.column_width * max(map(len, self.lines)))

    def line_height(self, number: int) -> Number:
        """Return the height of a line of tokens, without arcs; only the response has predictions."""
        rows = INDEX_HEIGHT + BOX_HEIGHT + ID_HEIGHT * len(self.picture.position_ids)
        is_prompt = self.lines[number].start < self.picture.prompt_length
        return rows + (0 if is_prompt or self.picture.attention_head is None else 2 * PREDICTION_HEIGHT)

    @cached_property
    def line_tops(self) -> list[Number]:
        """Vertical coordinate of the index row of each line."""
        arcs = [0.0] * len(self.lines)
        for key, answer in self.pairs:
            if self.line_of[key] == self.line_of[answer]:
                line = self.line_of[answer]
                arcs[line] = max(arcs[line], arc_height(answer - key) + ARC_GAP)
        tops, y = [], self.top
        for number, height in enumerate(arcs):
            tops.append(y + height)
            y += height + self.line_height(number) + LINE_GAP
        return tops

    @property
    def bottom(self) -> Number:
        """Vertical coordinate below the last line."""
        return self.line_tops[-1] + self.line_height(len(self.lines) - 1)

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Token indexes of each link: the earlier token, and the answer."""
        return [(link.index, answer.index) for answer in self.picture.answers for link in answer.links]

    def left(self, token: int) -> Number:
        """Return the left side of the box of a token."""
        column = token - self.lines[self.line_of[token]].start
        return MARGIN + LABEL_WIDTH + self.column_width * column

    def center(self, token: int) -> Number:
        """Return the horizontal center of the box of a token."""
        return self.left(token) + (self.column_width - COLUMN_GAP) / 2

    def path(self, key: int, answer: int) -> str:
        """Return the SVG path from an earlier token to an answer: an arc on the same line, or a curve between lines."""
        x, end_x = self.center(key), self.center(answer)
        y, end_y = (self.line_tops[self.line_of[token]] for token in (key, answer))
        if self.line_of[key] == self.line_of[answer]:
            return f"M{x:g} {y:g}Q{(x + end_x) / 2:g} {y - 2 * arc_height(answer - key):g} {end_x:g} {end_y:g}"
        y += self.line_height(self.line_of[key])
        middle = (y + end_y) / 2
        return f"M{x:g} {y:g}C{x:g} {middle:g} {end_x:g} {middle:g} {end_x:g} {end_y:g}"


def arc_height(num_columns: int) -> Number:
    """Return the height of an arc over this number of columns."""
    return min(MAX_ARC_HEIGHT, round(12 * math.sqrt(num_columns)))


def label_rows(picture: Picture) -> Sequence[tuple[str, Number]]:
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
