"""Single lines of a job's output that tell how it went: what each of them says.

Wording: torch 2.2 to 2.15 (ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp,
ProcessGroupWrapper.cpp, TCPStore.cpp, socket.cpp, elastic/multiprocessing/api.py),
Slurm 20 to 24, Open MPI 4 and 5, Linux 4 to 6, NVIDIA's driver.
"""

from __future__ import annotations

import re

from distdoctor.postmortem.job_output.called import absent_at_barrier, seconds_waited
from distdoctor.postmortem.job_output.job_words import (
    BarrierTimeout,
    Cancelled,
    Crashed,
    GpuFault,
    OutOfMemory,
    Restarted,
    Said,
    SizesUnlike,
    Spawned,
    Stalled,
    StallWarning,
    StepAborted,
    TaskEnded,
    WatchdogError,
    WatchdogStatus,
    WatchdogTimeout,
    WorkerFailed,
    WorkerStopped,
)

_WHO = (
    r"\[(?:PG (?:ID )?(?P<group>[^\s\]]+)"
    r"(?: PG GUID (?P<guid>[^\s\]]+)| \((?P<name>[^)]{0,100})\))?,? )?"
    r"Rank (?P<rank>\d{1,6})\]"
)

_WATCHDOG = re.compile(
    _WHO + r"\s+Watchdog caught collective operation timeout: "
    r"WorkNCCL\((?:SeqNum=(?P<number>\d{1,18}), )?OpType=(?P<op>\w{1,40})"
    r"(?:, NumelIn=(?P<given>\d{1,18}), NumelOut=(?P<received>\d{1,18}))?"
    r"[^)]{0,400}?(?:Timeout\(ms\)=\d{1,18})?\) ran for (?P<ms>\d{1,15}) milliseconds"
)
_STATUS = re.compile(
    _WHO + r".{0,400}?[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,18}), "
    r"last completed (?:NCCL )?work: (?P<completed>-?\d{1,18})"
)
_WATCHDOG_ERROR = re.compile(
    _WHO + r".{0,200}?watchdog thread terminated with exception: "
    r"(?P<why>(?:NCCL|CUDA) error: .{1,200})"
)
_FAILED = re.compile(
    r"failed \(exitcode: (?P<code>-?\d{1,4})\) local_rank: (?P<local>\d{1,5}) "
    r"\(pid: (?P<pid>\d{1,10})\)"
)
_STOPPING = re.compile(
    r"(?:Sending process (?P<pid>\d{1,10}) closing signal"
    r"|Terminating process (?P<spawned>\d{1,10}) via signal) SIG\w+"
)
_FORCED = re.compile(
    r"Unable to shutdown process (?P<pid>\d{1,10}) via .{0,80}forcefully"
)
_ABORTED = re.compile(
    r"srun: (?:Job step aborted|.{0,60}[Tt]erminating (?:Step|job step))"
)
_SRUN = re.compile(
    r"srun: error: (?P<host>[\w.\[\],-]{1,200}): tasks? (?P<tasks>[\d,\[\]-]{1,400}): "
    r"(?P<how>[A-Z][\w ]{1,60})"
)
_EXITED = re.compile(r"Exited with exit code (?P<code>\d{1,3})")
_MPIRUN = re.compile(
    r"(?:mpirun|mpiexec|prterun|prun|orterun)\S{0,40} noticed that process rank "
    r"(?P<rank>\d{1,6}) with PID (?P<pid>\d{1,10}) on node (?P<host>\S{1,200}) "
    r"exited on signal (?P<signal>\d{1,2})"
)
_MPIS_FIRST = re.compile(  # behind "exited with non-zero status, …"
    r"Process name: \[(?:\[\d+,\d+\],|[\w.-]+@\d+,)(?P<rank>\d{1,6})\]"
)
_HOROVODRUN = re.compile(
    r"Process (?P<rank>\d{1,6}) exit with status code (?P<code>\d+)"
)
_DEEPSPEED = re.compile(
    r"--local[_-]rank=(?P<local>\d{1,5})\b.{0,4000}exits with return code = "
    r"(?P<code>-?\d{1,4})"
)
_STALLED = re.compile(
    r"\s*(?P<rank>\d{1,6})(?P<ended>!?): \[(?P<tensors>[^\]]{0,2000})"
)
_OF_STALL = re.compile(
    r".{0,300}stall_inspector|One or more (?:tensors were submitted|rank)"
    r"|(?:Missing|Stalled) "
    r"|\s*\d{1,6}!?: \[|(?:Terminated|Killed|\^C)\s*$"
    r"|Process \d{1,6} exit with status code|Terminating remaining workers"
)
_BARRIER = re.compile(r"\[Rank 0\]:? (?P<what>Ranks? .{0,300} monitoredBarrier in .*)")
_CRASHED = re.compile(
    r"(?:\[(?P<rank>\d{1,6})\] )?Fatal Python error: (?P<how>Segmentation fault"
    r"|Bus error|Illegal instruction|Floating point exception)"
)
_KERNEL = re.compile(
    r"(?:[Oo]ut of memory|Memory cgroup out of memory): Kill(?:ed)? process "
    r"(?P<pid>\d{1,10})(?:,? \((?P<name>[^)]{0,60})\))?"
)
_SLURMS = re.compile(r"slurmstepd: error: .{0,80}?[Dd]etected \d+ oom[-_ ]kill event")
_CANCELLED = re.compile(
    r"(?:slurmstepd|srun): (?:error: )?\*\*\* (?:JOB|STEP) \S+ ON (?P<host>\S{1,200}) "
    r"CANCELLED AT \S+(?: DUE TO (?P<why>[A-Z][A-Z ]{2,60}?))?(?: \*\*\*|$|,)"
)
_SIGNALLED = re.compile(
    r"Received (?P<number>\d{1,2}) death signal, shutting down workers"
)
"""Source: torch/distributed/elastic/agent/server/api.py."""
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<device>[0-9a-fA-F:.]{1,40})\): (?P<xid>\d{1,4}),? ?"
    r"(?:pid=(?P<pid>\d{1,10}))?(?P<words>.{0,200})"
)
_SPAWNED = re.compile(r"-- Process (?P<number>\d{1,6}) terminated with the following")
_SIZES = re.compile(
    r"op\.preamble\.length <= op\.nbytes\."
    r"(?: (?P<received>\d{1,18}) vs (?P<expected>\d{1,18})\b)?"
)
_RESTARTED = re.compile(
    r"attempts left; will restart worker group|Restarting worker group"
)

_SIGNAL_OF = {
    "Killed": 9,
    "Out Of Memory": 9,
    "Segmentation fault": 11,
    "Aborted": 6,
    "Terminated": 15,
    "Bus error": 7,
    "Floating point exception": 8,
    "Illegal instruction": 4,
}
_BY_SIGNAL = 128
_MOST_TASKS = 100_000

FRAGMENTS = (
    *(b"Traceback (most recent call last)", b"Watchdog caught", b"ast enqueued"),
    *(
        b"(exitcode: ",
        b"exitcode  : ",
        b"closing signal",
        b"srun: error",
        b"slurmstepd",
    ),
    *(b"noticed that process", b"ut of memory: Kill", b"NVRM: Xid", b"-- Process "),
    *(b"gloo::EnforceNotMet", b"failed to pass monitoredBarrier", b"CANCELLED AT"),
    *(b"oom_kill", b"oom-kill", b"restart worker group", b"Unable to shutdown"),
    *(b"Process name: [", b"exit with status code", b"exits with return code"),
    *(b"Missing ranks:", b"Terminating process", b"op.preamble.length"),
    b"death signal",
    *(b"Restarting worker group", b"srun: Job step", b"erminating Step"),
    *(b"Fatal Python error", b"Detected mismatch between", b"DistBackendError"),
)
"""A block without any of these says nothing that is read here."""


def meaning_of(text: str) -> Said | None:
    """What a line says of how the job went.

    Args:
        text: The line, without the marks of launchers.

    Returns:
        What it says; None: nothing.
    """
    for fragment, read in _READ:
        if fragment in text and (reported := read(text)) is not None:
            return reported
    return None


def status_of(code: int) -> int:
    """An exit code of Python's subprocess (minus the signal) as a shell counts it.

    Args:
        code: Negative: minus the number of a signal.
    """
    return _BY_SIGNAL - code if code < 0 else code


def _watchdog(text: str) -> Said | None:
    if not (found := _WATCHDOG.search(text)):
        return None
    return WatchdogTimeout(
        group_rank=int(found["rank"]),
        group=_group(found),
        number=int(found["number"] or 0),
        op=found["op"],
        numel_in=int(found["given"] or -1),
        numel_out=int(found["received"] or -1),
        seconds=int(found["ms"]) / 1000,
    )


def _status(text: str) -> Said | None:
    if not (found := _STATUS.search(text)):
        return None
    return WatchdogStatus(
        int(found["rank"]),
        _group(found),
        int(found["enqueued"]),
        int(found["completed"]),
    )


def _watchdog_error(text: str) -> Said | None:
    if not (found := _WATCHDOG_ERROR.search(text)):
        return None
    return WatchdogError(int(found["rank"]), _group(found), found["why"].strip()[:200])


def _group(found: re.Match[str]) -> str:
    """The group's name; that of the whole world has no name of its own: empty."""
    name = (found["group"] or "").strip("()")
    is_world = name in {"", "0"} or found["name"] == "default_pg"
    return "" if is_world else name


def _failed(text: str) -> Said | None:
    if not (found := _FAILED.search(text)):
        return None
    return WorkerFailed(
        int(found["local"]), int(found["pid"]), status_of(int(found["code"]))
    )


def _stopping(text: str) -> Said | None:
    found = _STOPPING.search(text)
    return WorkerStopped(int(found["pid"] or found["spawned"])) if found else None


def _forced(text: str) -> Said | None:
    found = _FORCED.search(text)
    return WorkerStopped(int(found["pid"]), forced=True) if found else None


def _aborted(text: str) -> Said | None:
    return StepAborted() if _ABORTED.search(text) else None


def _srun(text: str) -> Said | None:
    if not (found := _SRUN.search(text)):
        return None
    how = found["how"]
    number = next((n for name, n in _SIGNAL_OF.items() if how.startswith(name)), None)
    if number is None:
        if not (exited := _EXITED.match(how)):
            return None
        status = int(exited["code"])
    else:
        status = _BY_SIGNAL + number
    return TaskEnded(
        _numbers(found["tasks"]),
        status,
        starved=how.startswith("Out Of Memory"),
        host=found["host"],
        stopped=number == _SIGNAL_OF["Terminated"],
    )


def _mpirun(text: str) -> Said | None:
    if not (found := _MPIRUN.search(text)):
        return None
    number = int(found["signal"])
    return TaskEnded((int(found["rank"]),), _BY_SIGNAL + number, host=found["host"])


def _mpis_first(text: str) -> Said | None:
    found = _MPIS_FIRST.search(text)
    return TaskEnded((int(found["rank"]),), 1) if found else None


def _horovodrun(text: str) -> Said | None:
    if not (found := _HOROVODRUN.search(text)):
        return None
    status = int(found["code"])
    return TaskEnded((int(found["rank"]),), status) if status else None


def _deepspeed(text: str) -> Said | None:
    if not (found := _DEEPSPEED.search(text)):
        return None
    return WorkerFailed(int(found["local"]), -1, status_of(int(found["code"])))


def _stalled(text: str) -> Said | None:
    found = stalled_rank(text)
    return found if found is not None and found.ended else None


def stalled_rank(text: str) -> Stalled | None:
    """The rank that a line of the stall inspector's list of missing ranks names.

    Args:
        text: A line behind "Missing ranks:", which may be of somebody else.
    """
    found = _STALLED.match(text)
    if found is None:
        return None
    ended, tensors = bool(found["ended"]), found["tensors"].strip()
    return Stalled(int(found["rank"]), ended, tensors)


def is_of_stall(text: str) -> bool:
    """Whether a line is part of the stall inspector's warning, or of ending the job.

    Args:
        text: The line.
    """
    return _OF_STALL.match(text) is not None


def _barrier(text: str) -> Said | None:
    if not (found := _BARRIER.search(text)):
        return None
    absent = absent_at_barrier(found["what"])
    return BarrierTimeout(absent, seconds_waited(found["what"])) if absent else None


def _crashed(text: str) -> Said | None:
    found = _CRASHED.match(text)
    if found is None:
        return None
    return Crashed(_BY_SIGNAL + _SIGNAL_OF[found["how"]], int(found["rank"] or -1))


def _numbers(text: str) -> tuple[int, ...]:
    """Tasks as Slurm writes them: `0-3,7`."""
    numbers: list[int] = []
    for part in text.strip("[]").split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            return ()
        if dash and int(last) - int(first) > _MOST_TASKS:
            return ()
        numbers += range(int(first), int(last if dash else first) + 1)
    return tuple(numbers)


def _kernel(text: str) -> Said | None:
    if not (found := _KERNEL.search(text)):
        return None
    return OutOfMemory(int(found["pid"]), found[0])


def _slurms(text: str) -> Said | None:
    return OutOfMemory(-1, text[:200]) if _SLURMS.search(text) else None


def _cancelled(text: str) -> Said | None:
    if not (found := _CANCELLED.search(text)):
        return None
    return Cancelled((found["why"] or "a request").strip().lower(), found["host"])


def _signalled(text: str) -> Said | None:
    if not (found := _SIGNALLED.search(text)):
        return None
    return Cancelled(f"it got signal {found['number']}", by="its launcher")


def _xid(text: str) -> Said | None:
    if not (found := _XID.search(text)):
        return None
    return GpuFault(
        found["device"],
        int(found["xid"]),
        found["words"].strip(" ,"),
        int(found["pid"] or -1),
    )


def _spawned(text: str) -> Said | None:
    found = _SPAWNED.search(text)
    return Spawned(int(found["number"])) if found else None


def _sizes(text: str) -> Said | None:
    if not (found := _SIZES.search(text)):
        return None
    return SizesUnlike(
        text.strip()[:400],
        int(found["received"] or -1),
        int(found["expected"] or -1),
    )


def _restarted(text: str) -> Said | None:
    return Restarted() if _RESTARTED.search(text) else None


_READ = (
    ("Watchdog caught", _watchdog),
    ("ast enqueued", _status),
    ("watchdog thread terminated with exception: ", _watchdog_error),
    ("(exitcode: ", _failed),
    ("closing signal", _stopping),
    ("Terminating process", _stopping),
    ("Unable to shutdown process", _forced),
    ("srun: ", _aborted),
    ("srun: error", _srun),
    ("noticed that process", _mpirun),
    ("Process name: [", _mpis_first),
    ("exit with status code", _horovodrun),
    ("exits with return code", _deepspeed),
    ("!: [", _stalled),
    ("Missing ranks:", lambda _: StallWarning()),
    ("failed to pass monitoredBarrier", _barrier),
    ("Fatal Python error", _crashed),
    ("ut of memory: Kill", _kernel),
    ("oom", _slurms),
    ("CANCELLED AT", _cancelled),
    ("death signal", _signalled),
    ("NVRM: Xid", _xid),
    ("-- Process ", _spawned),
    ("op.preamble.length", _sizes),
    ("restart", _restarted),
    ("Restarting worker", _restarted),
)
