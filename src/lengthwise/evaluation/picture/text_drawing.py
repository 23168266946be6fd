"""Drawing of a picture for a terminal: rows of columns, one column per token."""

import textwrap
from collections.abc import Iterator, Sequence
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
    """Label of a row and one cell per token; an empty cell has no text."""

    label: str
    cells: list[Text]

    def has_text(self, columns: Sequence[int]) -> bool:
        """Return True if a cell in these columns has text."""
        return any(self.cells[column].plain for column in columns)


def draw_text(picture: ExamplePicture, width: int) -> Iterator[Text]:
    """Yield the lines of a drawing that is at most ``width`` columns wide, if a label and one token fit into it."""
    for sentence in describe_picture(picture):
        yield from map(Text, textwrap.wrap(sentence, width))
    rows = list(_rows(picture))
    label_width = max(cell_len(row.label) for row in rows) + 1
    cell_width = max(cell_len(cell.plain) for row in rows for cell in row.cells) + 1
    per_line = max(1, (width - label_width) // cell_width)
    num_tokens = len(picture.tokens)
    parts = {"prompt": range(picture.prompt_length), "response": range(picture.prompt_length, num_tokens)}
    for name, part in parts.items():
        for start in range(part.start, part.stop, per_line):
            columns = range(start, min(start + per_line, part.stop))
            yield Text(f"\n{name}" if start == part.start else f"\n{name}, continued")
            for row in rows:
                if row.has_text(columns):
                    yield _line(row, columns, label_width, cell_width)
    yield Text()
    for line in _legend(rows):
        yield from map(Text, textwrap.wrap(line, width, subsequent_indent="  "))


def _line(row: LabeledRow, columns: Sequence[int], label_width: int, cell_width: int) -> Text:
    line = Text.assemble((row.label.ljust(label_width), LABEL_STYLE))
    for column in columns:
        cell = row.cells[column]
        line.append(" " * (cell_width - cell_len(cell.plain)))
        line.append_text(cell)
    line.rstrip()
    return line


def _rows(picture: ExamplePicture) -> Iterator[LabeledRow]:
    answers = {answer.index: answer for answer in picture.answers}
    indexes = range(len(picture.tokens))
    yield LabeledRow("index", [Text(str(index)) for index in indexes])
    yield LabeledRow(
        "token", [Text(token_label(picture.tokens[i]), ANSWER_STYLE if i in answers else "") for i in indexes]
    )
    for label, ids, numbers in zip(
        level_labels(picture), picture.position_ids, picture.color_group_numbers(), strict=True
    ):
        yield LabeledRow(
            label, [_id_cell(position_id, number) for position_id, number in zip(ids, numbers, strict=True)]
        )
    most = max((len(answer.links) for answer in picture.answers), default=0)
    for rank in range(min(most, MAX_LINKS)):
        linked = {i: answer for i, answer in answers.items() if rank < len(answer.links)}
        yield LabeledRow("needs", [Text(str(linked[i].links[rank].index) if i in linked else "") for i in indexes])
        yield LabeledRow("distance", [Text(_distance_label(linked[i], rank) if i in linked else "") for i in indexes])
    more = {i: len(answer.links) - MAX_LINKS for i, answer in answers.items()}
    yield LabeledRow("more", [Text(f"+{more[i]}" if more.get(i, 0) > 0 else "") for i in indexes])
    if picture.attention_head is not None:
        yield from _run_rows(answers, indexes)


def _distance_label(answer: PictureAnswer, rank: int) -> str:
    link = answer.links[rank]
    return "-" if answer.link_kind(link) == PREVIOUS else join_numbers(link.id_distance)


def _id_cell(position_id: int | float, number: int | None) -> Text:
    return Text(format_number(position_id), "" if number is None else f"#000000 on {group_color(number)}")


def _run_rows(answers: dict[int, PictureAnswer], indexes: range) -> Iterator[LabeledRow]:
    predictions = {i: answer.prediction for i, answer in answers.items() if answer.prediction is not None}
    attended = {
        i: sorted(enumerate(prediction.attention), key=lambda pair: -pair[1])[:MAX_ATTENDED]
        for i, prediction in predictions.items()
    }
    for rank in range(MAX_ATTENDED):
        seen = {i: pairs[rank] for i, pairs in attended.items() if rank < len(pairs) and pairs[rank][1] >= MIN_WEIGHT}
        yield LabeledRow("attends", [Text(str(seen[i][0]) if i in seen else "") for i in indexes])
        yield LabeledRow("weight", [Text(f"{seen[i][1]:.2f}" if i in seen else "") for i in indexes])
    tokens = {i: (token_label(prediction.token), prediction.token_correct) for i, prediction in predictions.items()}
    ids = {
        i: (join_numbers(prediction.position_ids), bool(prediction.id_correct))
        for i, prediction in predictions.items()
        if prediction.position_ids is not None
    }
    for label, shown in (("predicts", tokens), ("its ID", ids)):
        yield LabeledRow(label, [Text(*_marked(*shown[i])) if i in shown else Text() for i in indexes])


def _marked(text: str, is_correct: bool) -> tuple[str, str]:
    """Return the text and the style of a prediction, with an exclamation mark if it is wrong."""
    return (text, "") if is_correct else (f"!{text}", WRONG_STYLE)


def _legend(rows: Sequence[LabeledRow]) -> Iterator[str]:
    meanings = {
        "needs": "needs: index of a token that the answer depends on",
        "distance": "distance: ID distance of that token from the token before the answer (-: that token)",
        "attends": "attends: index of a token with much attention from the token before the answer",
        "predicts": "predicts: token and ID that the run predicts; ! marks a wrong one",
    }
    labels = {row.label for row in rows if row.has_text(range(len(row.cells)))}
    return (meaning for label, meaning in meanings.items() if label in labels)
