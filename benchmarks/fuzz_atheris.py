"""One reader under atheris: what `fuzz.py --engine atheris` starts, with a reader's name and flags of libFuzzer."""

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

# What is measured has to be imported here for the first time.
with atheris.instrument_imports(include=["lengthwise", "attacks.inputs"], enable_loader_override=False):
    from attacks.inputs import READERS, input_of, refused


def main() -> None:
    """Try inputs until the flags or a fault end it; never returns."""
    reader = READERS[sys.argv[1]]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], lambda choices: refused(reader, input_of(reader, choices)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
