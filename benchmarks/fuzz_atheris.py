"""Fuzz one reader with atheris; started by ``fuzz.py --engine atheris`` with the reader's name and libFuzzer flags."""

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))

# Instrumented modules must be imported here for the first time.
with atheris.instrument_imports(include=["lengthwise", "tests.attacks.inputs"], enable_loader_override=False):
    from tests.attacks.inputs import READERS, input_of, raises_error


def main() -> None:
    """Run inputs until the limit of the flags or the first fault; never returns."""
    reader = READERS[sys.argv[1]]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], lambda choices: raises_error(reader, input_of(reader, choices)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
