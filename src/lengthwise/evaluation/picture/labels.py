"""Short texts and colors that both drawings of a picture use."""

from rich.cells import cell_len, chop_cells

from lengthwise.core.progress_line import escape
from lengthwise.evaluation.picture.picture import Picture

# Largest width of the text of a token, in columns of a terminal.
MAX_TOKEN_CELLS = 9
CUT = ".."
# Colors of Okabe and Ito, which color-blind people can tell apart; each is light enough for black text.
GROUP_COLORS = ("#56b4e9", "#e69f00", "#2bb58a", "#f0e442", "#dd8fbe", "#bbbbbb")
# Smaller attention weights are not drawn.
MIN_WEIGHT = 0.1


def token_label(token: str) -> str:
    """Return the text of a token on one line: escaped, in quotes if spaces matter, and cut if it is long."""
    text = escape(token).replace("\n", "\\n")
    text = text if text and text.split() == [text] else f"'{text}'"
    if cell_len(text) <= MAX_TOKEN_CELLS:
        return text
    return chop_cells(text, MAX_TOKEN_CELLS - len(CUT))[0] + CUT


def level_labels(picture: Picture) -> list[str]:
    """Return the names of the ID levels."""
    num_levels = len(picture.position_ids)
    return ["ID"] if num_levels == 1 else [f"ID {level + 1}" for level in range(num_levels)]


def group_color(number: int) -> str:
    """Return the color of a group of tokens with equal IDs; neighboring groups have different colors."""
    return GROUP_COLORS[number % len(GROUP_COLORS)]
