"""Runs `distdoctor check` on scripts: from a warm process, or as a user would."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timed_command import run_for

from by_rule.asking import COLLECTIVES
from by_rule.warm import MEETINGS_VARIABLE, TRACE_VARIABLE

WARM = Path(__file__).with_name("warm.py")

_BEGIN = "import sys; exec(compile(open(sys.argv.pop(1)).read(), '<warm>', 'exec'))"
"""A file of the measure's own would be one of the user's in each rank's stack."""

Answer = dict[str, Any]
"""What a run came to: `status`, `seconds` and `report` (empty: there is none).

And `said`, the end of what was printed, where there is no report or that was asked for.
"""


@dataclass(frozen=True, slots=True)
class Order:
    """One run.

    Attributes:
        script: What is checked.
        ranks: How many; None: as many as distdoctor starts.
        arguments: The script's.
        budget_s: As `--budget`.
        options: Further ones of `distdoctor check`.
        folder: Where it runs, with distdoctor's cache in `cache`; None: in a folder of
            its own, which is removed.
        with_output: Whether the answer has all that was printed, as `said`.
    """

    script: Path
    ranks: int | None
    arguments: tuple[str, ...] = ()
    budget_s: float = 60.0
    options: tuple[str, ...] = ()
    folder: Path | None = None
    with_output: bool = False


class Runner:
    """Runs orders with one distdoctor, several at a time.

    Args:
        distdoctor: Its program.
        warm: Start jobs as forks of a process in which torch is loaded.
    """

    def __init__(self, distdoctor: Path, *, warm: bool = True) -> None:
        self.distdoctor = distdoctor
        self._warm = _Warm(distdoctor) if warm else None

    def run(self, order: Order) -> Answer:
        """The report of a run and the exit status of distdoctor."""
        folder = Path(tempfile.mkdtemp(prefix="by-rule-"))
        report, output = folder / "report.json", folder / "said.txt"
        work = order.folder or folder / "work"
        work.mkdir(exist_ok=True)
        arguments = [
            *("check", "--format", "json", "--output", str(report)),
            *("--budget", str(order.budget_s), *order.options),
            *(["-n", str(order.ranks)] if order.ranks is not None else []),
            str(order.script),
            *(["--", *order.arguments] if order.arguments else []),
        ]
        environment = os.environ | {
            "XDG_CACHE_HOME": str((order.folder or folder) / "cache"),
            "TMPDIR": str(folder),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": "",
        }
        limit_s = 4 * order.budget_s + 120
        begun = time.monotonic()
        try:
            if self._warm is not None:
                status = self._warm.run(arguments, work, environment, output, limit_s)
            else:
                command = [str(self.distdoctor), *arguments]
                status = run_for(limit_s, command, work, environment, output)
            seconds = round(time.monotonic() - begun, 2)
            content = json.loads(report.read_text()) if report.exists() else {}
            words = output.read_text(errors="replace") if output.exists() else ""
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        answer: Answer = {"status": status, "seconds": seconds, "report": content}
        if order.with_output:
            return answer | {"said": words}
        return answer | ({} if content else {"said": words[-1500:]})

    def trace(self, order: Order) -> list[dict[str, Any]] | None:
        """Which lines of a script each rank runs, as JSON of `by_rule.bases.Trace`.

        None: it does not end well so.

        Raises:
            RuntimeError: The runner is not warm.
        """
        if self._warm is None:
            raise RuntimeError("only a warm runner can trace")
        assert order.ranks is not None
        folder = Path(tempfile.mkdtemp(prefix="by-rule-"))
        work = folder / "work"
        work.mkdir()
        options = ["--standalone", "--nproc-per-node", str(order.ranks)]
        arguments = ["trace", *options, str(order.script), *order.arguments]
        environment = os.environ | {
            "TMPDIR": str(folder),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": "",
            TRACE_VARIABLE: str(folder),
            MEETINGS_VARIABLE: ",".join(sorted(COLLECTIVES)),
        }
        output = folder / "said.txt"
        try:
            status = self._warm.run(
                arguments, work, environment, output, order.budget_s
            )
            if status != 0:
                return None
            return [
                json.loads((folder / f"{rank}.json").read_text())
                for rank in range(order.ranks)
            ]
        except FileNotFoundError:  # it starts its ranks itself
            return None
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """End what was started."""
        if self._warm is not None:
            self._warm.close()


class _Warm:
    """The warm process, seen from outside."""

    def __init__(self, distdoctor: Path) -> None:
        python = distdoctor.with_name("python")
        needle = subprocess.run(
            [str(python), "-P", "-c", "import distdoctor.probes as p; print(p.NEEDLE)"],
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        self._folder = tempfile.mkdtemp(prefix="by-rule-warm-")
        ours, theirs = socket.socketpair()
        environment = os.environ | {
            "PYTHONPATH": needle,
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "DISTDOCTOR_RUN": self._folder,
            "DISTDOCTOR_DEVICE": "auto",
        }
        self._process = subprocess.Popen(
            [
                str(python),
                "-P",
                "-c",
                _BEGIN,
                str(WARM),
                str(theirs.fileno()),
                str(os.getpid()),
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        self._control, self._answers = ours, ours.makefile("r")
        if "ready" not in self._answers.readline():
            raise RuntimeError("the process that runs are forked from did not start")
        self._lock = threading.Lock()
        self._number = 0
        self._ended: dict[int, int] = {}
        self._news = threading.Condition()
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def run(
        self,
        arguments: Sequence[str],
        work: Path,
        environment: dict[str, str],
        output: Path,
        limit_s: float,
    ) -> int | None:
        with self._lock:
            self._number += 1
            number = self._number
            self._tell(
                {
                    "order": number,
                    "arguments": list(arguments),
                    "directory": str(work),
                    "environment": environment,
                    "said": str(output),
                }
            )
        with self._news:
            if self._news.wait_for(lambda: number in self._ended, limit_s):
                return self._ended.pop(number)
        with self._lock:
            self._tell({"end": number})
        return None

    def _tell(self, order: dict[str, Any]) -> None:
        self._control.sendall((json.dumps(order) + "\n").encode())

    def _listen(self) -> None:
        for line in self._answers:
            answer = json.loads(line)
            with self._news:
                self._ended[answer["order"]] = answer["status"]
                self._news.notify_all()

    def close(self) -> None:
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()
        self._listening.join()  # it reads to the end, which the shutdown has made
        self._answers.close()
        self._control.close()
        shutil.rmtree(self._folder, ignore_errors=True)
