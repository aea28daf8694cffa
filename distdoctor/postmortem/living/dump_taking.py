"""Takes the stacks of many processes at once by py-spy, each with a time limit.

Nothing is written to the processes: py-spy holds each still for some hundredths of a
second and reads its memory. A stopped one is read as it stands. Where py-spy may not,
or cannot, a rank's own worker server is asked, if it has one.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from distdoctor.launch.machine_tracing import scope
from distdoctor.launch.stacks import find_py_spy
from distdoctor.postmortem.living.worker_servers import WorkerServers
from distdoctor.postmortem.stacks.py_spy_dumps import of_json
from distdoctor.postmortem.stacks.thread_stacks import ProcessStacks

_DEADLINE_S = 10.0  # measured: 0.06 s; a busy machine is slower
_NATIVE_DEADLINE_S = 30.0  # measured: 0.5 to 2 s, for the symbols of torch
_AT_ONCE = 8
_LARGEST_DUMP = 64 * 1024 * 1024

REFUSED = "the kernel refuses to let py-spy read it (ptrace)"
NO_PY_SPY = "py-spy is not installed: pip install py-spy"


@dataclass(slots=True)
class Dumps:
    """The stacks of processes at about one moment.

    Attributes:
        stacks: By process number.
        refusals: By process number, why it has no stacks, in words.
    """

    stacks: dict[int, ProcessStacks] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)


def take(
    pids: Iterable[int],
    *,
    stopped: Iterable[int] = (),
    native: bool = False,
    servers: WorkerServers | None = None,
) -> Dumps:
    """Take the stacks of processes, several at a time.

    Args:
        pids: Which.
        stopped: Those of them that are stopped by a signal, or debugged.
        native: With native functions; it takes longer.
        servers: Whom to ask where py-spy is refused.

    Returns:
        What came of it.
    """
    found = Dumps()
    py_spy = find_py_spy()
    listed = list(dict.fromkeys(pids))
    still = set(stopped)

    def dump(pid: int) -> tuple[ProcessStacks | None, str]:
        stacks, why = None, NO_PY_SPY
        if py_spy is not None:
            stacks, why = _dump(py_spy, pid, pid not in still, native)
        if stacks is None and servers is not None and pid not in still:
            stacks = servers.stacks(pid)
        return stacks, why

    with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(listed)))) as pool:
        results = pool.map(dump, listed)
        for pid, (stacks, why) in zip(listed, results, strict=True):
            if stacks is not None:
                found.stacks[pid] = stacks
            else:
                found.refusals[pid] = why
    return found


def _dump(
    py_spy: str, pid: int, blocking: bool, native: bool
) -> tuple[ProcessStacks | None, str]:
    """A process's stacks; else without holding it still; else why there are none."""
    why = ""
    if blocking and native:
        stacks, why = _asked(py_spy, pid, ["--native"], _NATIVE_DEADLINE_S)
        if stacks is not None:
            return stacks, ""
    for options in [[], ["--nonblocking"]] if blocking else [["--nonblocking"]]:
        stacks, why = _asked(py_spy, pid, options, _DEADLINE_S)
        if stacks is not None:
            return stacks, ""
        if why == REFUSED:
            break
    return None, why


def _asked(
    py_spy: str, pid: int, options: list[str], deadline_s: float
) -> tuple[ProcessStacks | None, str]:
    command = [py_spy, "dump", "--json", "--locals", *options, "--pid", str(pid)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"py-spy did not answer within {deadline_s:.0f} s"
    except OSError as error:
        return None, f"py-spy cannot be started: {error.strerror}"
    if done.returncode == 0 and len(done.stdout) <= _LARGEST_DUMP:
        stacks = of_json(done.stdout)
        if len(stacks) == 1:
            return stacks[0], ""
        return None, "py-spy's answer cannot be read"
    errors = done.stderr.decode(errors="replace")
    if "ermission" in errors or "not permitted" in errors:
        return None, REFUSED
    if not Path(f"/proc/{pid}").exists():
        return None, "it has ended"
    first = next(iter(errors.strip().splitlines()), "it said nothing")
    causes = [line.strip() for line in errors.splitlines() if line.startswith("    ")]
    return None, f"py-spy: {causes[0] if causes else first}"[:200]


def cure() -> str:
    """What to set so that stacks of other processes may be read, in one sentence."""
    yama = scope(Path("/proc/sys/kernel/yama/ptrace_scope"))
    ways = ["run it with sudo", "in a container: start it with --cap-add SYS_PTRACE"]
    if yama not in {"", "0"}:
        ways.insert(0, "sysctl kernel.yama.ptrace_scope=0")
    return f"to permit it: {', or '.join(ways)}"
