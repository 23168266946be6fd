"""Fuzz one reader with atheris; ``fuzz.py --engine atheris`` runs this script with a reader and libFuzzer flags."""

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))

# Instrumented modules must be imported here for the first time.
with atheris.instrument_imports(include=["lengthwise", "tests.attacks.inputs"], enable_loader_override=False):
    from tests.attacks.inputs import READERS, input_of, raises_error


def main() -> None:
    """Run inputs until the first fault or the limit set by the flags, then exit the process."""
    reader = READERS[sys.argv[1]]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], lambda choices: raises_error(reader, input_of(reader, choices)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
