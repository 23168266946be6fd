"""The layout that copy and reverse share: symbols are read, then written again in some order."""

import numpy as np
from jaxtyping import Int

from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import numbers_of


def read_symbols(prompt: str, num_symbols: int, task: str) -> Int[np.ndarray, "1 length"]:
    """The symbols of a prompt, separated by spaces or, up to ten of them, written without."""
    text = prompt.replace("=", " ").replace(">", " ")
    symbols = text.split() if " " in text.strip() or num_symbols > 10 else list(text.strip())
    allowed = tuple(str(symbol) for symbol in range(num_symbols))
    return numbers_of(symbols, allowed, task, f"symbols from 0 to {num_symbols - 1} such as 0 0 0")[None]


def lay_out(symbols: Int[np.ndarray, "batch length"], num_symbols: int, *, backwards: bool) -> Examples:
    """Prompt, separator, start token, the symbols in the order asked for, end token."""
    size, length = symbols.shape
    column = np.full((size, 1), num_symbols)
    mark, start, end = column, column + 1, column + 2
    index = np.arange(length)
    order = index[::-1] if backwards else index
    # The mark stands where a reader that has read every symbol arrives: after the last one read.
    prompt = [mark, symbols] if backwards else [symbols, mark]
    first_symbol = 1 if backwards else 0
    tokens = np.concatenate([*prompt, start, symbols[:, order], end], axis=1)
    prompt_length = length + 2
    visits = np.append(order + first_symbol, 0 if backwards else length)
    groups = np.concatenate([np.arange(length + 1), visits, [length + 1]]) + 1
    counted = index + 1
    places = np.concatenate([*([[0], counted] if backwards else [counted, [0]]), [0], counted, [0]])
    support = np.full((tokens.shape[1], 1), -1)
    support[prompt_length:, 0] = visits
    return Examples(
        tokens=tokens,
        prompt_length=np.full(size, prompt_length),
        is_answer=np.broadcast_to(np.arange(tokens.shape[1]) >= prompt_length, tokens.shape),
        coupling=np.broadcast_to(groups, (1, *tokens.shape)),
        places=np.broadcast_to(places, tokens.shape),
        support=np.broadcast_to(support, (*tokens.shape, 1)),
    )
