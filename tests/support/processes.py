"""Processes that train together, forked from the test's process so that they start in no time."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

import torch

from lengthwise.training.launch import ADDRESS, COUNTS

TIMEOUT_S = 120


def launch_environment(rank: int, size: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun sets in a process."""
    values = (rank, rank, size, "127.0.0.1", port)
    return {name: str(value) for name, value in zip((*COUNTS, *ADDRESS), values, strict=True)}


def free_port() -> int:
    """Return a port of this machine that no process uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def run_processes(function: Callable[[int], Any], size: int = 2) -> list[int]:
    """Call a function with the rank in several connected processes, and return their exit codes.

    A process exits with code 1 if its function raises an error.
    """
    context, port = multiprocessing.get_context("fork"), free_port()
    processes = [
        context.Process(target=_run, args=(function, rank, launch_environment(rank, size, port)), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(TIMEOUT_S)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert None not in codes, f"processes did not end in {TIMEOUT_S} s: {codes}"
    return [code for code in codes if code is not None]


def _run(function: Callable[[int], Any], rank: int, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    function(rank)
