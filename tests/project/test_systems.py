"""The package without what only POSIX systems have, as on Windows; docs/systems.md lists the differences."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.project.test_documents import ROOT

# torch and its like use these modules and functions; on Windows they have others.
WITHOUT_POSIX = """
import multiprocessing.spawn, os, signal, subprocess, sys
import matplotlib.pyplot, torch._dynamo, typer
for module in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[module] = None
for name in ("fork", "uname", "sysconf", "getuid", "geteuid", "kill", "killpg", "setsid", "mkfifo", "chown"):
    delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGCHLD", "SIGALRM", "SIGUSR1"):
    delattr(signal, name)
from lengthwise.cli.app import main
for command in (
    "train parity --quick --steps 4 --device cpu --out run",
    "train --quick --resume --steps 8 --out run --device cpu",
    "evaluate run --lengths 4 --num-examples 4 --device cpu",
    "generate run --prompt 0110 --device cpu",
    "couple parity",
    "compare --task parity --rows predicted/rotary --set training.steps=2 --lengths 4 --seeds 1 --workers 1 --out both",
):
    main(command.split())
"""


@pytest.mark.slow
def test_the_commands_need_nothing_that_windows_lacks(tmp_path):
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_POSIX], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert len((tmp_path / "run" / "results.jsonl").read_text(encoding="utf-8").splitlines()) == 1


def test_no_module_imports_what_only_posix_has():
    imports = re.compile(r"^\s*(?:import|from) (?:fcntl|resource|pwd|grp|termios|pty|posix)\b", re.MULTILINE)
    sources = sorted((ROOT / "src").rglob("*.py"))
    assert sources
    assert [path.name for path in sources if imports.search(path.read_text(encoding="utf-8"))] == []


def test_the_workflow_covers_the_supported_versions_and_systems():
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8"))
    matrix = workflow["jobs"]["tests"]["strategy"]["matrix"]
    assert [name.partition("-")[0] for name in matrix["system"]] == ["ubuntu", "macos", "windows"]
    page = (ROOT / "docs/systems.md").read_text(encoding="utf-8")
    assert f"Python {matrix['python'][0]} to {matrix['python'][-1]}" in page
    tools = "\n".join(step.get("run", "") for step in workflow["jobs"]["tests"]["steps"])
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    checks = re.findall(
        r"^\t\$\(BIN\)/(.*)$", makefile[makefile.index("check:") : makefile.index("slow:")], re.MULTILINE
    )
    assert checks
    assert [check for check in checks if check not in tools] == []
    assert Path(ROOT / workflow["jobs"]["tests"]["env"]["PIP_CONSTRAINT"]).is_file()
