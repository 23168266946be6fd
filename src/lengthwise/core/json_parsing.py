"""Parsing of JSON from untrusted files; any damage raises ``ValueError``."""

import json
from typing import Any

KINDS = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number", bool: "true or false"}

# Deeper documents would exceed the recursion limit later.
MAX_DEPTH = 50
TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"


def parse_json(content: str | bytes, kind: type[Any] = dict) -> Any:
    """Parse JSON into a dict, a list, or with ``object`` into any JSON value.

    Raises ``ValueError`` for invalid JSON, another type, nesting that is too deep, or a string that is not valid
    Unicode, which could not be printed or saved.
    """
    try:
        document = json.loads(content)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    _check_depth(document)
    if not isinstance(document, kind):
        raise ValueError(f"it is {KINDS.get(type(document), 'null')}, not {KINDS[kind]}")
    # In bytes, a lone surrogate can only come from an escape.
    if isinstance(content, str) or b"\\u" in content:
        json.dumps(document, ensure_ascii=False).encode()
    return document


def _check_depth(document: Any) -> None:
    level = [document]
    for _ in range(MAX_DEPTH):
        containers = [part for part in level if isinstance(part, dict | list)]
        level = [part for each in containers for part in (each.values() if isinstance(each, dict) else each)]
        if not level:
            return
    raise ValueError(TOO_DEEP)


def non_finite_to_null(document: Any) -> Any:
    """Return a copy of a JSON document with null for NaN and infinity, which JSON does not have."""
    return json.loads(json.dumps(document), parse_constant=lambda name: None)
