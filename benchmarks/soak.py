"""Measure memory over hours of training, evaluation, export and influence in one process.

``python benchmarks/soak.py --minutes 120`` measures the resident memory after each round of commands. It fits a line to
the rounds after the warm-up, and reports the rise of this line in percent of the memory.
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
from lengthwise.core.provenance import collect_provenance
from lengthwise.experiments.run_folder import append_rows

RESULTS = Path(__file__).parent / "results" / "soak.jsonl"
SENTENCE = "the cat sat on the mat and the dog lay by the door while rain fell on the roof number {} of the town. "
TRAIN_OPTIONS = ["--quick", "--steps", "30", "--batch-size", "16", "--device", "cpu"]
STUDY_OPTIONS = ["--far", "64", "--near", "8", "--targets", "8"]
COMMANDS = [
    ["train", "parity", *TRAIN_OPTIONS, "--out", "parity"],
    ["evaluate", "parity", "--lengths", "10,40,160", "--num-examples", "32"],
    ["evaluate", "parity", "--lengths", "10", "--num-examples", "4", "--decode", "free"],
    ["generate", "parity", "--prompt", "0110"],
    ["train", "addition_coupled", *TRAIN_OPTIONS, "--out", "addition"],
    ["evaluate", "addition", "--lengths", "5,20", "--num-examples", "32"],
    ["prepare", "texts", "--vocabulary-size", "300", "--out", "corpus"],
    ["train", "language_model", *TRAIN_OPTIONS, "--corpus", "corpus", "--train-lengths", "100:100", "--out", "text"],
    ["influence", "text", "texts/0.txt", "texts/1.txt", *STUDY_OPTIONS, "--out", "study"],
    ["export", "parity", "--format", "hf", "--out", "hf"],
]


def resident_memory() -> int:
    """Return the resident memory of this process in bytes, without free memory of the C library."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def run_round(folder: Path) -> None:
    """Run every command once in a new folder."""
    folder.mkdir()
    os.chdir(folder)
    Path("texts").mkdir()
    for number in range(8):
        Path(f"texts/{number}.txt").write_text(
            "".join(SENTENCE.format(number * 100 + line) for line in range(40)), encoding="utf-8"
        )
    for arguments in COMMANDS:
        output = io.StringIO()
        try:
            with redirect_stdout(output), redirect_stderr(output):
                cli.main(arguments)
        except SystemExit as error:
            if error.code:
                raise RuntimeError(f"{arguments} exited with {error.code}: {output.getvalue()[-2000:]}") from None


def main() -> None:
    """Repeat rounds until the time limit, and save one row with the memory after each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--warm-up", type=float, default=0.1, help="fraction of the time to ignore")
    options = parser.parse_args()
    torch.set_num_threads(1)
    started, working_folder, times_s, sizes = time.monotonic(), Path.cwd(), [], []
    while not times_s or times_s[-1] < 60 * options.minutes:
        with tempfile.TemporaryDirectory() as folder:
            run_round(Path(folder) / "round")
            os.chdir(working_folder)
        times_s.append(time.monotonic() - started)
        sizes.append(resident_memory())
        print(f"{times_s[-1]:.0f} s, round {len(sizes)}: {sizes[-1] / 2**20:.1f} MiB", file=sys.stderr, flush=True)
    is_measured = np.array(times_s) >= options.warm_up * times_s[-1]
    x, y = np.array(times_s)[is_measured], np.array(sizes)[is_measured]
    slope, _ = np.polyfit(x, y, 1) if len(x) > 1 else (0.0, 0.0)
    row = {
        "minutes": round(times_s[-1] / 60, 1),
        "rounds": len(sizes),
        "first_mib": round(float(y[0]) / 2**20, 1),
        "last_mib": round(float(y[-1]) / 2**20, 1),
        "rise_percent": round(float(100 * slope * (x[-1] - x[0]) / y.mean()), 2),
        "sizes_mib": [round(size / 2**20, 1) for size in sizes],
        **collect_provenance(),
    }
    append_rows(RESULTS, [row])
    print({key: value for key, value in row.items() if key != "sizes_mib"})


if __name__ == "__main__":
    main()
