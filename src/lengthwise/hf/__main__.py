"""Entry point of ``python -m lengthwise.hf PROGRAM ...``: start another program with the model types of this library.

PROGRAM is a command of an installed package, such as ``lm_eval`` or ``transformers``, or a Python file.
"""

import argparse
import runpy
import sys
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

MODEL_CLASSES = {"lengthwise_model": "LengthwiseForCausalLM", "predictive_model": "PredictivePositionModel"}


def main() -> None:
    """Run the program as the main program of this process, in which the model types are registered."""
    parser = argparse.ArgumentParser(prog="python -m lengthwise.hf", description=__doc__)
    parser.add_argument("program", help="a command of an installed Python package, or a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    arguments = parser.parse_args()
    program = arguments.program
    commands = list(entry_points(group="console_scripts", name=program))
    if not commands and not Path(program).is_file():
        parser.error(f"{program} is neither a command of an installed Python package nor a file")
    if find_spec("transformers") is None:
        parser.error("transformers is not installed; run pip install 'lengthwise[hf]'")
    # Some programs, such as ``transformers serve``, take the class of a model from this module by its name.
    transformers = import_module("transformers")
    for module, name in MODEL_CLASSES.items():
        setattr(transformers, name, getattr(import_module(f"lengthwise.hf.{module}"), name))
    sys.argv = [program, *arguments.arguments]
    if commands:
        sys.exit(commands[0].load()())
    sys.path[0] = str(Path(program).parent)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
