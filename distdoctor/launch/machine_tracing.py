"""Checks whether stacks can be taken from ranks: py-spy and the right to trace."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from distdoctor.launch.machine_cures import as_root, started_with
from distdoctor.launch.stacks import find_py_spy
from distdoctor.model.machine_condition import MachineCondition, enough, present

_DEADLINE_S = 10.0
_WITHOUT = "stacks of ranks come by a signal, without local variables"
_SLEEPER = "print(flush=True); import time; time.sleep(30)"


def tracing(contained: bool = False) -> Iterator[MachineCondition]:
    """Results for py-spy, and for tracing a process of our own with it.

    Args:
        contained: This is a container, whose start decides what is permitted.
    """
    py_spy = find_py_spy()
    yield program(py_spy)
    yama = scope(Path("/proc/sys/kernel/yama/ptrace_scope"))
    yield permission(traced(py_spy), yama, contained)


def program(py_spy: str | None) -> MachineCondition:
    """Whether py-spy is installed."""
    cure = "pip install py-spy"
    return present(py_spy, "py-spy", "not installed", _WITHOUT, cure, commands=(cure,))


def traced(py_spy: str | None) -> bool | None:
    """Whether py-spy can trace a process of ours, as it would trace a rank.

    Yama lets a process trace its own children. py-spy is no parent of the ranks, and
    here none of the sleeper's.

    Returns:
        None if there is no py-spy to try with.
    """
    if py_spy is None:
        return None
    sleeper = subprocess.Popen([sys.executable, "-c", _SLEEPER], stdout=subprocess.PIPE)
    try:
        assert sleeper.stdout is not None
        sleeper.stdout.readline()  # it is up
        looked = subprocess.run(
            [py_spy, "dump", "--pid", str(sleeper.pid)],
            capture_output=True,
            timeout=_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    finally:
        sleeper.kill()
        sleeper.communicate()
    return looked.returncode == 0


def scope(file: Path) -> str:
    """Yama's setting: "0" all, "1" parents, "2" root, "3" nobody; "" without Yama."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def permission(
    allowed: bool | None, yama: str, contained: bool = False
) -> MachineCondition:
    """Whether the kernel permits tracing of processes.

    Args:
        allowed: What came of a try; None: there was none.
        yama: See `scope`.
        contained: This is a container.
    """
    found = f"kernel.yama.ptrace_scope is {yama}" if yama else "no Yama"
    if allowed is None:
        cure = "with py-spy installed, look again"
        return enough(False, "ptrace", f"not tried; {found}", _WITHOUT, cure)
    cure = "in a container: start it with --cap-add=SYS_PTRACE"
    commands = [started_with("--cap-add=SYS_PTRACE")] if contained else []
    if yama == "3":
        cure = f"no process may trace until this machine starts anew; {cure}"
    elif yama not in {"", "0"}:
        cure = f"sysctl kernel.yama.ptrace_scope=0; {cure}"
        if not contained:
            commands.append(as_root("sysctl kernel.yama.ptrace_scope=0"))
    result = "a process was traced" if allowed else "refused"
    return enough(
        allowed,
        "ptrace",
        f"{result}; {found}",
        _WITHOUT,
        cure,
        commands=tuple(commands),
    )
