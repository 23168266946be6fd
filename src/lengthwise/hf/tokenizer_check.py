"""Check of a tokenizer file in a process with limits, because its rules run in native code."""

import os
import subprocess
import sys
from pathlib import Path

TOKENIZER_FILE = "tokenizer.json"
# Limits of the process: memory in bytes, processor time and total time in seconds.
MAX_MEMORY, MAX_CPU_SECONDS, MAX_SECONDS = 2 << 30, 30, 120
# Largest number of characters or tokens for each character of the sample.
MAX_EXPANSION = 32
# A slow regular expression needs many repeats of a character, and a rule of replacement its own text.
CHECK = """
import contextlib, json, sys
with contextlib.suppress(ImportError):
    resource = __import__("resource")
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
    resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[3]), int(sys.argv[3])))
from tokenizers import Tokenizer
def replaced(value):
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    texts = [value["String"]] if isinstance(value, dict) and isinstance(value.get("String"), str) else []
    return texts + [text for item in items for text in replaced(item)]
with open(sys.argv[1], "rb") as file:
    content = file.read()
rules = {name: value for name, value in json.loads(content).items() if name != "model"}
tokenizer = Tokenizer.from_buffer(content)
repeats = [chr(code) * 64 for code in range(9, 256) if chr(code).isprintable() or chr(code).isspace()]
mixed = [text[0] + text + "!" for text in repeats]
for text in [
    *repeats, *mixed, *replaced(rules), "The quick brown fox, it's 3.14.", "\u4e1c\u4eac caf\u00e9 \U0001f600"
]:
    normalizer = tokenizer.normalizer
    results = [normalizer.normalize_str(text) if normalizer else ""]
    # A small vocabulary may lack symbols of the sample.
    with contextlib.suppress(Exception):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        results += [ids, tokenizer.decode(ids)]
    if max(map(len, results)) > int(sys.argv[4]) * (len(text) + 1):
        raise ValueError
"""


def check_tokenizer(path: Path) -> None:
    """Raise ``ValueError`` for a file whose rules fail, take too long, or expand a short text; else return."""
    if not path.is_file():
        return
    arguments = [str(path), *map(str, (MAX_MEMORY, MAX_CPU_SECONDS, MAX_EXPANSION))]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    try:
        subprocess.run(
            [sys.executable, "-c", CHECK, *arguments],
            check=True,
            capture_output=True,
            timeout=MAX_SECONDS,
            env=environment,
        )
    except subprocess.SubprocessError:
        raise ValueError(f"{TOKENIZER_FILE} fails, takes too long or expands a short sample of text") from None
