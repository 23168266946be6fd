"""Self-contained HTML pages: a template with the style that all pages share, which loads no other file."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lengthwise.core.progress_line import escape_control_characters

SHARED_STYLE = Path(__file__).parent / "page.css"


def render_page(template: Path, *, scripts: Sequence[str] = (), **values: Any) -> str:
    """Render a template with ``css``, ``script``, their digests for the content security policy, and ``values``.

    ``css`` is the shared style and then the file of the template that ends in .css; ``script`` is its file that ends in
    .js. ``script_digests`` also has the digests of other ``scripts``. Texts are escaped, also control characters.
    Raises ``ValueError`` for a number in JSON that is not finite.
    """
    css = "".join(path.read_text(encoding="utf-8") for path in (SHARED_STYLE, template.with_suffix(".css")))
    script = template.with_suffix(".js").read_text(encoding="utf-8")
    environment = Environment(
        loader=FileSystemLoader(template.parent), autoescape=True, undefined=StrictUndefined, finalize=_printable
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment.get_template(template.name).render(
        css=css,
        css_digest=_digest(css),
        script=script,
        script_digests=list(map(_digest, (script, *scripts))),
        **values,
    )


def _printable(value: Any) -> Any:
    """Return a value of the template without control characters and bytes that are not UTF-8, as in the terminal."""
    return escape_control_characters(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
