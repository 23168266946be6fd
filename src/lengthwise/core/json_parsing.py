"""Parsing of JSON from untrusted files; invalid content raises ``ValueError``."""

import json
from typing import Any

TYPE_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
}

# Recursive functions would exceed the recursion limit on deeper documents.
MAX_DEPTH = 50
# Largest size of a document in bytes, also of a text to prepare; values in memory are many times larger.
MAX_BYTES = 1 << 27
TOO_LARGE = f"it has more than {MAX_BYTES:,} bytes"
TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"


def parse_json(content: str | bytes, expected_type: type[Any] = dict) -> Any:
    """Parse JSON and check its type: ``expected_type`` is dict, list, or object for any JSON value.

    Raises ``ValueError`` for invalid JSON, a value of another type, nesting that is too deep, a document that is too
    large, or a string that is not valid Unicode and therefore cannot be printed or saved.
    """
    if len(content) > MAX_BYTES:
        raise ValueError(TOO_LARGE)
    try:
        document = json.loads(content)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    check_nesting_depth(document)
    if not isinstance(document, expected_type):
        raise ValueError(f"it is {TYPE_NAMES.get(type(document), 'null')}, not {TYPE_NAMES[expected_type]}")
    # In bytes, only an escape sequence can contain a lone surrogate.
    if isinstance(content, str) or b"\\u" in content:
        json.dumps(document, ensure_ascii=False).encode()
    return document


def check_nesting_depth(document: Any) -> None:
    """Raise ``ValueError`` for nested lists and objects that are too deep for recursive functions."""
    values = [document]
    for _ in range(MAX_DEPTH):
        containers = [value for value in values if isinstance(value, dict | list)]
        values = [value for item in containers for value in (item.values() if isinstance(item, dict) else item)]
        if not values:
            return
    raise ValueError(TOO_DEEP)


def non_finite_to_null(document: Any) -> Any:
    """Return a copy of a JSON document with null instead of NaN and infinity, which JSON does not support."""
    return json.loads(json.dumps(document), parse_constant=lambda name: None)
