"""Processes that a launcher has started for this program, read from its environment variables without torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from lengthwise.core.errors import SettingError

# The environment variables that torchrun and accelerate launch set for every process.
COUNTS, ADDRESS = ("RANK", "LOCAL_RANK", "WORLD_SIZE"), ("MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchInfo:
    """Number of processes that a launcher has started for this program, and the index of this process.

    ``rank`` is its index among all processes, and ``local_rank`` its index among the processes of this machine.
    """

    rank: int = 0
    local_rank: int = 0
    size: int = 1


def read_launch_info(environment: Mapping[str, str] = os.environ) -> LaunchInfo:
    """Return the launch that ``torchrun`` describes in the environment variables; without it, there is one process.

    Raises ``SettingError`` if a variable is missing or invalid.
    """
    if environment.get("WORLD_SIZE", "1") == "1":
        return LaunchInfo()
    values = {name: environment.get(name, "") for name in (*COUNTS, *ADDRESS)}
    rank, local_rank, size = (int(values[name]) if values[name].isdecimal() else -1 for name in COUNTS)
    if not (0 <= local_rank <= rank < size and all(values[name] for name in ADDRESS)):
        variables = ", ".join(f"{name}={value}" for name, value in values.items())
        raise SettingError(
            f"invalid environment variables {variables}; start several processes with torchrun, or unset WORLD_SIZE"
        )
    return LaunchInfo(rank=rank, local_rank=local_rank, size=size)


def reject_several_processes(function: str) -> None:
    """Raise ``SettingError`` if a launcher has started several processes for a function that uses only one."""
    if (size := read_launch_info().size) > 1:
        raise SettingError(
            f"{function} runs in one process, but a launcher has started {size}; only train uses several"
        )
