"""JSON from files that anyone may have written: any damage is a ``ValueError``."""

import json
from typing import Any

KINDS = {dict: "an object", list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false"}


def parse_json(content: str | bytes, kind: type[Any] = dict) -> Any:
    """Return what JSON text holds: a dict, a list, or with ``object`` any of its kinds.

    ``ValueError`` when it is no JSON, holds another kind, is nested too deeply, or has a text that is not Unicode: such
    a text can neither be printed nor saved.
    """
    try:
        found = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, kind):
        raise ValueError(f"it holds {KINDS.get(type(found), 'null')}, not {KINDS[kind]}")
    # In bytes, half a character can only come from an escape.
    if isinstance(content, str) or b"\\u" in content:
        json.dumps(found, ensure_ascii=False).encode()
    return found


def finite(document: Any) -> Any:
    """Return a document of JSON values with null for every number that is infinite or none: JSON has no such."""
    return json.loads(json.dumps(document), parse_constant=lambda name: None)
