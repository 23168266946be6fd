"""Train on a JSONL file without a coupling, and test on a longer file.

Each record of the file has the events of a door, and its states. The package finds which tokens an answer needs.
In its output, `prompt first +1 +0` is the event at the place of the answer, and `answer 1` is the previous answer.
Run `python examples/own_file.py`; `--quick` checks in seconds that it works, without good results.
"""

import argparse
import json
import random
from dataclasses import replace

import lengthwise as lw
from lengthwise.tasks import JSONLTask

# The next state for each state and event; other events change nothing.
DOOR = {
    ("closed", "open"): "opened",
    ("opened", "close"): "closed",
    ("closed", "lock"): "locked",
    ("locked", "unlock"): "closed",
}


def write_records(name: str, lengths: range, count: int, draw: random.Random) -> None:
    """Write ``count`` records of each length, each with events as the prompt and states as the response."""
    with open(name, "w", encoding="utf-8") as file:
        for length in [length for length in lengths for _ in range(count)]:
            state, states = "closed", []
            events = draw.choices(["open", "close", "lock", "unlock"], k=length)
            for event in events:
                states.append(state := DOOR.get((state, event), state))
            file.write(json.dumps({"prompt": events, "response": states}) + "\n")


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="train for a few steps only")
parser.add_argument("--seed", type=int, default=0, help="seed of the weights and the records")
parser.add_argument("--out", default="runs/own_file", help="folder of the run")
options = parser.parse_args()
draw = random.Random(options.seed)
write_records("short_logs.jsonl", range(1, 21), 100, draw)
write_records("long_logs.jsonl", range(50, 201, 50), 32, draw)

found = lw.find_coupling(JSONLTask(file="short_logs.jsonl"))
print(f"Number of tokens that a state depends on: {found.num_tokens}")
for answers, locators in found.phases:
    print(f"  {answers}: {'; '.join(locators)}")

experiment = replace(lw.experiment("short_logs.jsonl", "discovered"), seed=options.seed)
run = lw.train(lw.quick_version(experiment) if options.quick else experiment, options.out)
long_run = lw.load_run(run.folder, overrides={"task": JSONLTask(file="long_logs.jsonl")})
settings = lw.EvaluationSettings(lengths=(50, 100, 200), num_examples=(4,) if options.quick else (32,))
for row in lw.evaluate(long_run, settings):
    print(f"{row['length']:>4} events: {row['exact_match']:.0%} of the logs are exact")
