"""Runs a job under a supervisor in a subprocess, for callers that have children.

The supervisor takes leave of every child of its process and adopts orphans, which is
right for the command line and wrong inside of somebody's program, such as pytest. So it
runs in a process of its own here, and ends itself and the job when its parent is gone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from distdoctor.errors import LaunchRefused
from distdoctor.launch.audience import JobProgress, Surface
from distdoctor.launch.interruption import signals_interrupt
from distdoctor.launch.job import leave_allocation
from distdoctor.launch.supervisor import Plan, supervise

_REFUSED = 2
_POLL_S = 0.2
_ENDING_S = 20.0  # for the supervisor to end the job; its guard does so otherwise
_MARGIN_S = 180.0  # besides the budget: start, stacks of all ranks, end


@dataclass(frozen=True, slots=True)
class Output:
    """The captured output of a job."""

    stdout: str
    stderr: str


def supervise_in_subprocess(
    plan: Plan, *, own: bool, environment: Mapping[str, str] = os.environ
) -> Output:
    """Run a job to its end, as `supervise` does, in a subprocess.

    Whatever ends the wait, also an exception such as KeyboardInterrupt, ends the job.

    Args:
        plan: What to run.
        own: The command is ours; see `Job`.
        environment: What the job inherits.

    Raises:
        LaunchRefused: It could not be started.
        RuntimeError: The supervisor failed, or did not come back.
    """
    request = {"plan": asdict(plan), "own": own, "parent": os.getpid()}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "distdoctor.launch.subprocess_runner"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        cwd=plan.directory,
        start_new_session=True,  # Ctrl-C is for us, and we pass it on
    )
    try:
        out, err = process.communicate(
            json.dumps(request, default=str).encode(), plan.budget_s + _MARGIN_S
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(
            f"the supervisor of {plan.script} did not come back within "
            f"{plan.budget_s + _MARGIN_S:.0f} s"
        ) from error
    finally:
        _end(process)
    output = Output(out.decode(errors="replace"), err.decode(errors="replace"))
    if process.returncode == _REFUSED:
        raise LaunchRefused(output.stderr.strip())
    if process.returncode:
        raise RuntimeError(
            f"the supervisor of {plan.script} ended with {process.returncode}; this "
            f"says nothing about the job\n{output.stderr}"
        )
    return output


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.communicate(timeout=_ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


class _Passing:
    """An audience that writes the job's output through, unchanged."""

    surface = Surface()  # two pipes, which are read apart

    def output(self, stream: str, text: bytes) -> None:
        """Write some of the job's output."""
        target: IO[bytes] = (sys.stdout if stream == "stdout" else sys.stderr).buffer
        target.write(text)
        target.flush()

    def unfinished(self, lines: list[bytes]) -> None:
        """Ignore what is not ended."""

    def progress(self, progress: JobProgress) -> None:
        """Ignore the progress."""


def _main() -> int:
    request = json.load(sys.stdin)
    threading.Thread(target=_follow, args=(request["parent"],), daemon=True).start()
    plan = request["plan"]
    paths = {name: Path(plan[name]) for name in ("directory", "folder")}
    if request["own"]:
        leave_allocation()
    try:
        with signals_interrupt():
            supervise(Plan(**{**plan, **paths}), _Passing())
    except LaunchRefused as error:
        sys.stderr.write(f"{error}\n")
        return _REFUSED
    return 0


def _follow(parent: int) -> None:
    """End when the parent has ended, however it did."""
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(_main())
