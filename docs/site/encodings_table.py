"""Fill the table of docs/encodings.md from the classes: ``python docs/site/encodings_table.py``."""

import re
from pathlib import Path

from lengthwise.encodings import ENCODINGS, EncodingSize
from lengthwise.encodings.encoding import HOOKS, Encoding

PAGE = Path(__file__).parents[1] / "encodings.md"
SIZE = EncodingSize(d_model=32, num_heads=2, d_head=16)


def fill_table(page: str) -> str:
    """Return the text of the page with one row for each encoding in its first table."""
    rows = []
    for name, settings in ENCODINGS.items():
        encoding = type(settings().build(SIZE))
        hooks = [hook for hook in HOOKS if getattr(encoding, hook) is not getattr(Encoding, hook)]
        real_valued = "yes" if settings.real_valued else "no"
        rows.append(f"| `{name}` | {', '.join(hooks) or 'none'} | {real_valued} | {settings.summary} |\n")
    return re.sub(r"(\|---[-|]+\n)(\|.*\n)+", lambda found: found[1] + "".join(rows), page, count=1)


if __name__ == "__main__":
    PAGE.write_text(fill_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
