"""Memory over hours: training, evaluation, PPC, text and influence again and again in one process.

``python benchmarks/soak.py --minutes 120``. After each round of all verbs the resident memory is read; what is flat is
the line through the rounds from the warm-up on: how much it rises over the whole time, in percent of the memory.
"""

import argparse
import ctypes
import gc
import io
import os
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import torch

from lengthwise.cli import app as cli
from lengthwise.core.provenance import provenance
from lengthwise.experiments.run_folder import append_rows

RESULTS = Path(__file__).parent / "results" / "soak.jsonl"
SENTENCE = "the cat sat on the mat and the dog lay by the door while rain fell on the roof number {} of the town. "
TRAIN = ["--steps", "30", "--batch-size", "16", "--device", "cpu"]
ROUND = [
    ["train", "parity", *TRAIN, "--out", "parity"],
    ["evaluate", "parity", "--lengths", "10,40,160", "--num-examples", "32"],
    ["evaluate", "parity", "--lengths", "10", "--num-examples", "4", "--decode", "free"],
    ["generate", "parity", "--prompt", "0110"],
    ["train", "addition_coupled", *TRAIN, "--out", "addition"],
    ["evaluate", "addition", "--lengths", "5,20", "--num-examples", "32"],
    ["prepare", "texts", "--vocabulary-size", "300", "--out", "corpus"],
    ["train", "language_model", *TRAIN, "--corpus", "corpus", "--train-lengths", "100:100", "--out", "text"],
    [
        "influence",
        "text",
        "texts/0.txt",
        "texts/1.txt",
        "--far",
        "64",
        "--near",
        "8",
        "--targets",
        "8",
        "--out",
        "study",
    ],
    ["export", "parity", "--format", "hf", "--out", "hf"],
]


def memory() -> int:
    """Resident bytes of this process, without what the C library keeps to give out again."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def one_round(folder: Path) -> None:
    """Every verb once, into a folder of its own."""
    folder.mkdir()
    os.chdir(folder)
    Path("texts").mkdir()
    for number in range(8):
        Path(f"texts/{number}.txt").write_text("".join(SENTENCE.format(number * 100 + line) for line in range(40)))
    for arguments in ROUND:
        printed = io.StringIO()
        try:
            with redirect_stdout(printed), redirect_stderr(printed):
                cli.main(arguments)
        except SystemExit as error:
            if error.code:
                raise RuntimeError(f"{arguments} ended with {error.code}: {printed.getvalue()[-2000:]}") from None


def main() -> None:
    """Repeat rounds for so many minutes, and write one row with the memory of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--warm-up", type=float, default=0.1, help="share of the time that is left out")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    started, here, seconds, sizes = time.monotonic(), Path.cwd(), [], []
    while not seconds or seconds[-1] < 60 * asked.minutes:
        with tempfile.TemporaryDirectory() as folder:
            one_round(Path(folder) / "round")
            os.chdir(here)
        seconds.append(time.monotonic() - started)
        sizes.append(memory())
        print(f"{seconds[-1]:.0f} s, round {len(sizes)}: {sizes[-1] / 2**20:.1f} MiB", file=sys.stderr, flush=True)
    late = np.array(seconds) >= asked.warm_up * seconds[-1]
    times, flat = np.array(seconds)[late], np.array(sizes)[late]
    slope, _ = np.polyfit(times, flat, 1) if len(times) > 1 else (0.0, 0.0)
    row = {
        "minutes": round(seconds[-1] / 60, 1),
        "rounds": len(sizes),
        "first_mib": round(float(flat[0]) / 2**20, 1),
        "last_mib": round(float(flat[-1]) / 2**20, 1),
        "rise_percent": round(float(100 * slope * (times[-1] - times[0]) / flat.mean()), 2),
        "sizes_mib": [round(size / 2**20, 1) for size in sizes],
        **provenance(),
    }
    append_rows(RESULTS, [row])
    print({key: value for key, value in row.items() if key != "sizes_mib"})


if __name__ == "__main__":
    main()
