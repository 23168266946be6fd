"""Selection of the compute device, and checks of the available memory."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.core.errors import DeviceError, SettingError, unknown_name_error

DEVICES = ("auto", "cpu", "cuda")
# Number of tokens per forward pass on a CPU, and maximum number on an accelerator.
NUM_CPU_TOKENS, MAX_NUM_TOKENS = 1 << 11, 1 << 16
# Narrower models train on one thread: several threads would mostly wait for each other (benchmarks/speed.md).
WIDE_MODEL = 256
# Assumptions of the memory estimate: the sequence length, and the number of activations per token and unit of width.
ASSUMED_LENGTH, ACTIVATIONS_PER_UNIT = 4096, 20
# Memory limit of a container in bytes.
CONTAINER_LIMIT_FILE = Path("/sys/fs/cgroup/memory.max")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def pick_device(name: str = "auto") -> torch.device:
    """Return the device with this name; ``auto`` selects CUDA if it is available."""
    if name not in DEVICES:
        raise unknown_name_error("device", name, DEVICES)
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("torch cannot use device 'cuda' on this machine; use --device cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def cache_outside_traces(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Cache the results of a function, except while ``torch.export`` or ``torch.compile`` traces it.

    The tensors of a trace are valid only in it, and ``torch.compile`` warns about cached functions.
    """
    cached = cast(Callable[Arguments, Result], lru_cache(maxsize=256)(function))

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return (function if torch.compiler.is_compiling() else cached)(*args, **kwargs)

    return call


@cache_outside_traces
def constant_tensor(values: tuple[int, ...], device: torch.device) -> Int[Tensor, " value"]:
    """Return a tensor of whole numbers that nobody may change; each is copied to a GPU only once."""
    # A tensor from inference mode would be invalid in a later backward pass.
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.int64, device=device)


@cache
def compile_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function compiled by ``torch.compile``; all callers share its compiled forms."""
    function_compiled: Callable[..., Any] = torch.compile(function)
    return function_compiled


def num_training_threads(d_model: int, threads: int | None = None) -> int:
    """Return the number of CPU threads for training: ``threads``, or one for a model narrower than ``WIDE_MODEL``.

    Wider models and a set ``OMP_NUM_THREADS`` use the number that torch has chosen.
    """
    if threads is not None and threads < 1:
        raise SettingError(f"invalid number of threads {threads}; use at least 1")
    is_chosen = d_model >= WIDE_MODEL or "OMP_NUM_THREADS" in os.environ
    return threads or (torch.get_num_threads() if is_chosen else 1)


@contextmanager
def limit_cpu_threads(threads: int) -> Iterator[None]:
    """Let torch use this number of CPU threads, and restore the number on exit."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def max_tokens_per_forward(device: torch.device, d_model: int, num_heads: int) -> int:
    """Return the maximum number of tokens per forward pass: constant on a CPU, estimated on CUDA.

    On CUDA, the tokens should fit into half of the free memory. The estimate assumes float32 and a model of width
    ``d_model`` with ``num_heads`` heads per layer. Callers halve the number if memory runs out.
    """
    if device.type != "cuda":
        return NUM_CPU_TOKENS
    free_bytes, _ = torch.cuda.mem_get_info(device)
    bytes_per_token = 4 * (2 * num_heads * ASSUMED_LENGTH + ACTIVATIONS_PER_UNIT * d_model)
    return max(NUM_CPU_TOKENS, min(MAX_NUM_TOKENS, free_bytes // (2 * bytes_per_token)))


def check_memory(num_bytes: int, purpose: str, solution: str) -> None:
    """Raise ``SettingError`` if an allocation needs more memory than the machine has; call this before allocating."""
    memory = machine_memory()
    if memory is not None and num_bytes > memory:
        needed_gib = f"{num_bytes / 2**30:,.0f}" if num_bytes < 2**60 else "over a billion"
        raise SettingError(
            f"{purpose} needs at least {needed_gib} GiB, but the machine has {memory / 2**30:,.0f} GiB; {solution}"
        )


@cache
def machine_memory() -> int | None:
    """Return the memory of this machine or container in bytes, or None if it is unknown."""
    try:
        total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    try:
        return min(total_bytes, int(CONTAINER_LIMIT_FILE.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return total_bytes
