"""Drawing of a picture for a terminal: rows of columns, one column per token."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from lengthwise.evaluation.picture.example_picture import (
    MIN_WEIGHT,
    PREVIOUS,
    ExamplePicture,
    PictureAnswer,
    describe_picture,
    format_number,
    group_color,
    join_numbers,
    level_labels,
    token_label,
)

# Largest number of links per answer, and of tokens that get attention.
MAX_LINKS, MAX_ATTENDED = 4, 2
ANSWER_STYLE, LABEL_STYLE, WRONG_STYLE = "bold", "dim", "bold reverse"


@dataclass(frozen=True, slots=True)
class LabeledRow:
    """Label of a row, and its cells by token index; a token without a cell has no text."""

    label: str
    cells: Mapping[int, Text]


def draw_text(picture: ExamplePicture, width: int) -> Iterator[Text]:
    """Yield the lines of a drawing that is at most ``width`` columns wide, if a label and one token fit into it."""
    for sentence in describe_picture(picture):
        yield from map(Text, textwrap.wrap(sentence, width))
    rows = list(_rows(picture))
    label_width = max(cell_len(row.label) for row in rows) + 1
    cell_width = max(cell_len(cell.plain) for row in rows for cell in row.cells.values()) + 1
    per_line = max(1, (width - label_width) // cell_width)
    num_tokens = len(picture.tokens)
    parts = {"prompt": range(picture.prompt_length), "response": range(picture.prompt_length, num_tokens)}
    for name, part in parts.items():
        for start in range(part.start, part.stop, per_line):
            columns = range(start, min(start + per_line, part.stop))
            yield Text(f"\n{name}" if start == part.start else f"\n{name}, continued")
            for row in rows:
                if not row.cells.keys().isdisjoint(columns):
                    yield _line(row, columns, label_width, cell_width)
    yield Text()
    for line in _legend(rows):
        yield from map(Text, textwrap.wrap(line, width, subsequent_indent="  "))


def _line(row: LabeledRow, columns: Sequence[int], label_width: int, cell_width: int) -> Text:
    line = Text.assemble((row.label.ljust(label_width), LABEL_STYLE))
    for column in columns:
        cell = row.cells.get(column, Text())
        line.append(" " * (cell_width - cell_len(cell.plain)))
        line.append_text(cell)
    line.rstrip()
    return line


def _rows(picture: ExamplePicture) -> Iterator[LabeledRow]:
    answers = {answer.index: answer for answer in picture.answers}
    yield LabeledRow("index", {index: Text(str(index)) for index in range(len(picture.tokens))})
    styles = dict.fromkeys(answers, ANSWER_STYLE)
    tokens = enumerate(map(token_label, picture.tokens))
    yield LabeledRow("token", {index: Text(label, styles.get(index, "")) for index, label in tokens})
    groups = picture.color_group_numbers()
    for label, ids, numbers in zip(level_labels(picture), picture.position_ids, groups, strict=True):
        colors = ["" if number is None else f"#000000 on {group_color(number)}" for number in numbers]
        yield LabeledRow(label, dict(enumerate(map(Text, map(format_number, ids), colors))))
    most = max((len(answer.links) for answer in picture.answers), default=0)
    for rank in range(min(most, MAX_LINKS)):
        links = {index: answer.links[rank] for index, answer in answers.items() if rank < len(answer.links)}
        yield LabeledRow("needs", {index: Text(str(link.index)) for index, link in links.items()})
        distances = {index: join_numbers(link.id_distance) for index, link in links.items()}
        distances |= {index: "-" for index, link in links.items() if answers[index].link_kind(link) == PREVIOUS}
        yield LabeledRow("distance", {index: Text(distance) for index, distance in distances.items()})
    more = {index: len(answer.links) - MAX_LINKS for index, answer in answers.items()}
    yield LabeledRow("more", {index: Text(f"+{number}") for index, number in more.items() if number > 0})
    if picture.attention_head is not None:
        yield from _run_rows(answers)


def _run_rows(answers: Mapping[int, PictureAnswer]) -> Iterator[LabeledRow]:
    predictions = {index: answer.prediction for index, answer in answers.items() if answer.prediction is not None}
    attended = {
        index: sorted(enumerate(prediction.attention), key=lambda pair: -pair[1])[:MAX_ATTENDED]
        for index, prediction in predictions.items()
    }
    for rank in range(MAX_ATTENDED):
        seen = {i: pairs[rank] for i, pairs in attended.items() if rank < len(pairs) and pairs[rank][1] >= MIN_WEIGHT}
        yield LabeledRow("attends", {index: Text(str(key)) for index, (key, _) in seen.items()})
        yield LabeledRow("weight", {index: Text(f"{weight:.2f}") for index, (_, weight) in seen.items()})
    tokens, ids = {}, {}
    for index, prediction in predictions.items():
        tokens[index] = _prediction_cell(token_label(prediction.token), prediction.token_correct)
        if prediction.position_ids is not None:
            ids[index] = _prediction_cell(join_numbers(prediction.position_ids), bool(prediction.id_correct))
    yield LabeledRow("predicts", tokens)
    yield LabeledRow("its ID", ids)


def _prediction_cell(text: str, is_correct: bool) -> Text:
    """Return the cell of a prediction, with an exclamation mark if it is wrong."""
    return Text(text) if is_correct else Text(f"!{text}", WRONG_STYLE)


def _legend(rows: Sequence[LabeledRow]) -> Iterator[str]:
    meanings = {
        "needs": "needs: index of a token that the answer depends on",
        "distance": "distance: ID distance of that token from the token before the answer (-: that token)",
        "attends": "attends: index of a token with much attention from the token before the answer",
        "predicts": "predicts: token and ID that the run predicts; ! marks a wrong one",
    }
    labels = {row.label for row in rows if row.cells}
    return (meaning for label, meaning in meanings.items() if label in labels)
