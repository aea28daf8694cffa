"""Runs `distdoctor check` many times, and imports torch once.

    python warm.py SOCKET-DESCRIPTOR PARENT

It is started by the interpreter of the distdoctor that is measured, with its probes in
place, and imports what a rank of any job imports. For each order it forks a process
that is `distdoctor check`, its command line included; the jobs which that would start
by torchrun, or as plain Python, are forks as well, and begin with torch loaded. They
end as torchrun lets them: when one rank fails, the others are ended, and the status
is 1. What a job starts itself (`mp.spawn`, workers that are spawned) is started anew
and imports for itself.

An order is a line of JSON with the arguments, the working directory and the
environment; the answer is one with its number and the exit status. With "trace" as
its first argument, the ranks run without distdoctor, and each counts the lines of the
script that it begins.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TORCHRUN = "torch.distributed.run"
TRACE_VARIABLE = "BY_RULE_TRACE"  # the folder for what is counted
MEETINGS_VARIABLE = "BY_RULE_MEETINGS"  # names of collectives, comma-separated

_LOADED = (
    "torch",
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.device_mesh",
    "torch.distributed.checkpoint",
    "torch.distributed.optim",
    "torch.distributed.tensor.parallel",
    "torch.multiprocessing",
    "torch.nn.parallel",
    "torch.utils.data",
    "torch.utils.checkpoint",
    "torch._dynamo",  # the first optimizer of each rank would import it
    "numpy",
    "distdoctor.cli",
    "distdoctor.launch.supervisor",
    "distdoctor.launch.job_watch",
    "distdoctor.judging",
    "distdoctor.report.json",
)

_DDP = "torch/nn/parallel/distributed.py"
_CALLS = "torch/distributed/distributed_c10d.py"

_LOOK_S = 0.1  # how often torchrun looks at its ranks
_KILL_S = 3.0  # from the request to end to the order; torchrun: 30


def main() -> None:
    """Serve until the other end is closed."""
    control, parent = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    warnings.simplefilter("ignore")
    for name in _LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    warnings.resetwarnings()
    with contextlib.suppress(ImportError, AttributeError):
        importlib.import_module("distdoctor.catalogue").every_check()
    _load_probes()
    gc.collect()
    gc.freeze()
    heard = b""
    tell({"ready": os.getpid()}, control)
    running: dict[int, int] = {}
    while os.getppid() == parent:
        ready, _, _ = select.select([control], [], [], 0.02 if running else 1.0)
        for order in list(running):
            pid, status = os.waitpid(running[order], os.WNOHANG)
            if pid:
                del running[order]
                code = os.waitstatus_to_exitcode(status)
                tell({"order": order, "status": code}, control)
        if not ready:
            continue
        data = control.recv(65536)
        if not data:
            break
        *lines, heard = (heard + data).split(b"\n")
        for line in lines:
            _obey(json.loads(line), running, control)
    os._exit(0)


def _obey(given: dict[str, Any], running: dict[int, int], control: Any) -> None:
    if "end" in given:
        if pid := running.get(given["end"]):
            _kill_all(pid)
        return
    pid = os.fork()
    if not pid:
        control.close()
        _check(given)
    running[given["order"]] = pid


def _kill_all(pid: int) -> None:
    """End a process and all that came of it."""
    psutil: Any = importlib.import_module("psutil")
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.Error):
                one.kill()


def tell(message: dict[str, int], control: socket.socket) -> None:
    """A line to the other end."""
    control.sendall((json.dumps(message) + "\n").encode())


def _load_probes() -> None:
    """Import those that are imported late, as far as they need no process group."""
    import distdoctor.probes

    folder = Path(distdoctor.probes.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if "needle" not in parts and parts[-1] != "__init__":
            with contextlib.suppress(Exception):
                importlib.import_module(".".join(("distdoctor.probes", *parts)))


def _check(given: dict[str, Any]) -> None:
    """Be `distdoctor check`; never returns."""
    status = 3
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        os.chdir(given["directory"])
        os.environ.clear()
        os.environ.update(given["environment"])
        _print_to(given["said"])
        if given["arguments"][0] == "trace":
            os.environ["DISTDOCTOR_RUN"] = given["directory"]
            _restore(dict(os.environ))
            os._exit(_as_torchrun(given["arguments"][1:]))
        sys.argv = ["distdoctor", *given["arguments"]]
        _plain_exit()
        tree: Any = importlib.import_module("distdoctor.launch.process_tree")
        tree.GuardedProcess = _started
        importlib.import_module("distdoctor.cli").main()
        status = 0
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(bool(left.code))
    except BaseException:  # noqa: BLE001 - told as a crash is
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _plain_exit() -> None:
    """What supervises is no process of the job: the probes' recorder stays silent."""
    recorder = importlib.import_module("distdoctor.probes.recorder").RECORDER
    recorder.append = lambda *_: None


def _print_to(name: str) -> None:
    file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)


def _started(command: Sequence[str], **named: Any) -> Any:
    """A guarded process, as the process tree starts it: known jobs are forked."""
    guarded: Any = importlib.import_module("distdoctor.launch.guarded_process")
    program = [word for word in command if word != "-P"]
    play: Any = None
    if program[:1] == [sys.executable]:
        if program[1:3] == ["-m", TORCHRUN]:
            play, words = _as_torchrun, program[3:]
        elif program[1].endswith(".py") and "multi_command" not in program[1]:
            play, words = _as_python, program[1:]
    if play is None:
        return guarded.GuardedProcess(command, **named)

    class Forked(guarded.GuardedProcess):  # type: ignore[misc]
        """A forked job: a child of this process, as one whose guard is gone."""

        def __init__(self) -> None:
            psutil: Any = importlib.import_module("psutil")
            self._mark = named["mark"], named["environment"][named["mark"]]
            self._adopts, self._others = True, set(psutil.Process().children())
            importlib.import_module("distdoctor.launch.orphan_guard").adopt_orphans(
                True
            )
            self._control, theirs = socket.socketpair()
            self._control.setblocking(False)
            theirs.close()  # it says nothing, as one that has ended
            self.returncode = self.stdin = self.stdout = self.stderr = None
            names = ("stdin", "stdout", "stderr")
            streams: list[Any] = [named.get(name) for name in names]
            for at, name in ((1, "stdout"), (2, "stderr")):
                if streams[at] == subprocess.PIPE:
                    ours, streams[at] = os.pipe()
                    setattr(self, name, os.fdopen(ours, "rb"))
            self.pid = os.fork()
            if not self.pid:
                _become(play, words, named, streams)
            for at, name in ((1, "stdout"), (2, "stderr")):
                if getattr(self, name) is not None:
                    os.close(streams[at])
            self._guard, self.guard_pid = _Gone(), os.getpid()
            self._roots = [psutil.Process(self.pid)]

    return Forked()


class _Gone:
    """A guard that has ended."""

    def poll(self) -> int:
        """Its exit status."""
        return 0

    def wait(self, _: float | None = None) -> int:
        """Its exit status."""
        return 0

    def kill(self) -> None:
        """Do nothing."""


def _become(
    play: Any, words: list[str], named: dict[str, Any], streams: Sequence[Any]
) -> None:
    """In the child: the program a job begins with; never returns."""
    status = 70
    try:
        os.setsid()
        os.chdir(named["directory"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        for theirs, ours in enumerate(streams):
            os.dup2(nothing if ours in {None, subprocess.DEVNULL} else ours, theirs)
        # What `check` no longer needs would close its descriptors when it is collected
        # here: by their numbers, which belong to files of the job by then.
        gc.freeze()
        os.closerange(3, 256)
        _restore(named["environment"])
        status = play(words)
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(bool(left.code))
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status or 0)


def _restore(environment: Mapping[str, str]) -> None:
    """A new process with probes, as if it were just started with this environment."""
    os.environ.clear()
    os.environ.update(environment)
    recorder = importlib.import_module("distdoctor.probes.recorder").RECORDER
    recorder.__dict__.pop("append", None)
    recorder.folder = Path(environment["DISTDOCTOR_RUN"])
    for stream in ("stdout", "stderr"):
        # Unbuffered, as PYTHONUNBUFFERED would have them.
        number = 1 if stream == "stdout" else 2
        setattr(sys, stream, open(number, "w", buffering=1, closefd=False))  # noqa: SIM115
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(ImportError):  # as each process begins
        backup = importlib.import_module("distdoctor.probes.comparison.file_backup")
        backup.keep_files()
    _bring_in()
    _forget()


def _bring_in() -> None:
    """Put in place probes that only some runs have, and that need torch."""
    with contextlib.suppress(ImportError, AttributeError):
        registry = importlib.import_module("distdoctor.probes.registry")
        for entry in registry.ENTRIES:
            late = entry.stage > registry.TORCH or entry in registry._active
            if not late and entry.is_wanted():
                registry._bring_in(entry)


def _forget() -> None:
    """What forks know too much: notes of probes, and the state of numpy's generator."""
    settings = importlib.import_module("distdoctor.probes.rendezvous.address_variables")
    with contextlib.suppress(AttributeError):
        settings._given.clear()
        names = [name for name in settings._NAMES if name in os.environ]
        settings._given.update((name, os.environ[name]) for name in names)
        settings._written.clear()
    with contextlib.suppress(ImportError, AttributeError):
        files = importlib.import_module("distdoctor.probes.checkpoints.files_written")
        files.FILES.reset()  # `check` has locked its record
    with contextlib.suppress(ImportError, AttributeError):
        random = importlib.import_module("numpy.random")
        random.mtrand._rand._bit_generator.state = random.MT19937().state


def _as_python(words: list[str]) -> int:
    """Be `python script arguments`."""
    _run(words)
    return 0


def _as_torchrun(words: list[str]) -> int:
    """Be torchrun on one node."""
    os.environ.pop("DISTDOCTOR_LAUNCHER", None)
    size, at = 1, 0
    while words[at].startswith("-"):
        if words[at] == "--nproc-per-node":
            size = int(words[at + 1])
        at += 1 if words[at] == "--standalone" else 2
    import torch.distributed

    # As torchrun's agent: a port that is only looked up may be taken meanwhile.
    store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )
    living = {}
    for rank in range(size):
        pid = os.fork()
        if not pid:
            _rank(rank, size, store.port, words[at:])
        living[pid] = rank
    while living:
        # Not `wait`: it is `waitpid` that launchers ask, and probes hear.
        pid, status = os.waitpid(-1, 0)
        living.pop(pid, None)
        if code := os.waitstatus_to_exitcode(status):
            time.sleep(_LOOK_S)
            _end(living)
            print(f"rank failed: exit code {code}", file=sys.stderr)
            return 1
    return 0


def _end(living: Mapping[int, int]) -> None:
    """Ask these processes to end; later order it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in living:
            os.kill(pid, number)
        end, left = time.monotonic() + _KILL_S, set(living)
        while left and time.monotonic() < end:
            left -= {pid for pid in left if os.waitpid(pid, os.WNOHANG)[0]}
            time.sleep(0.01)
        living = dict.fromkeys(left, 0)


def _rank(rank: int, size: int, port: int, words: list[str]) -> None:
    """Be one rank of it, as a process that its launcher has just started.

    Never returns.
    """
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    _forget()
    boot = importlib.import_module("distdoctor.probes.boot")
    for name in ("_take_output", "_open_if_ranked"):
        if (begins := getattr(boot, name, None)) is not None:
            begins()
    status = 1
    try:
        _run(words)
        status = 0
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(bool(left.code))
    except BaseException:  # noqa: BLE001 - as the interpreter would
        sys.excepthook(*sys.exc_info())
    _leave(status)


def _run(words: list[str]) -> None:
    sys.argv = words
    sys.path[0] = str(Path(words[0]).parent.absolute())
    if folder := os.environ.get(TRACE_VARIABLE):
        _trace(os.path.abspath(words[0]), Path(folder))  # noqa: PTH100
    runpy.run_path(words[0], run_name="__main__")


def _trace(script: str, folder: Path) -> None:
    """Count the lines of the script that this process begins; told when it ends.

    Of lines from which ranks meet, in a collective or in a DDP forward, it tells too.
    """
    import atexit

    import torch.distributed as dist

    counts: dict[int, int] = {}
    grouped: list[int] = []
    meeting: set[int] = set()
    own = {script, sys.argv[0]}
    collectives = frozenset(os.environ[MEETINGS_VARIABLE].split(","))

    def line(frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            number = frame.f_lineno
            if number not in counts:
                counts[number] = 0
                if dist.is_initialized():
                    grouped.append(number)
            counts[number] += 1
        return line

    def call(frame: Any, *_: Any) -> Any:
        code = frame.f_code
        if code.co_filename in own:
            return line
        if code.co_filename.endswith(_DDP):
            if code.co_name == "forward":
                meet(frame)
        elif code.co_filename.endswith(_CALLS) and code.co_name in collectives:
            meet(frame)
        return None

    def meet(frame: Any) -> None:
        while frame is not None:
            if frame.f_code.co_filename in own:
                meeting.add(frame.f_lineno)
            frame = frame.f_back

    def tell_counts() -> None:
        sys.settrace(None)
        content = {"counts": counts, "grouped": grouped, "meeting": sorted(meeting)}
        rank = os.environ.get("RANK", "0")
        (folder / f"{rank}.json").write_text(json.dumps(content))

    atexit.register(tell_counts)
    sys.settrace(call)


def _leave(status: int) -> None:
    """As an interpreter does at the end of its program: exit handlers, then nothing."""
    import atexit
    import threading

    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    importlib.import_module("posix")._exit(status)


if __name__ == "__main__":
    main()
