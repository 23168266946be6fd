"""JSON from files that anyone may have written: any damage is a ``ValueError``."""

import json
from typing import Any

KINDS = {dict: "an object", list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false"}

# Deeper than anything that is written here; what is deeper ends in the recursion limit of whoever reads it.
DEEPEST = 50
TOO_DEEP = f"it is nested more than {DEEPEST} deep"


def parse_json(content: str | bytes, kind: type[Any] = dict) -> Any:
    """Return what JSON text holds: a dict, a list, or with ``object`` any of its kinds.

    ``ValueError`` when it is no JSON, holds another kind, is nested too deeply, or has a text that is not Unicode: such
    a text can neither be printed nor saved.
    """
    try:
        found = json.loads(content)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    _check_depth(found)
    if not isinstance(found, kind):
        raise ValueError(f"it holds {KINDS.get(type(found), 'null')}, not {KINDS[kind]}")
    # In bytes, half a character can only come from an escape.
    if isinstance(content, str) or b"\\u" in content:
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _check_depth(found: Any) -> None:
    level = [found]
    for _ in range(DEEPEST):
        wholes = [part for part in level if isinstance(part, dict | list)]
        level = [part for whole in wholes for part in (whole.values() if isinstance(whole, dict) else whole)]
        if not level:
            return
    raise ValueError(TOO_DEEP)


def non_finite_to_null(document: Any) -> Any:
    """Return a document of JSON values with null for every number that is infinite or none: JSON has no such."""
    return json.loads(json.dumps(document), parse_constant=lambda name: None)
