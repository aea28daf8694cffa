"""Gives hostile inputs to all that reads what a job left, and says what went wrong.

    python benchmarks/fuzz.py                     # all targets, a minute each
    python benchmarks/fuzz.py --target output --seconds 600 --processes 2

Wrong is an exception that nobody caught, more than `SECONDS` of processor time, more
than `MEGABYTES` beyond what the process had, something imported, run or started by
what a file holds, a check that crashed, and a character in a report that could control
a terminal. What failed is made small and put into a folder as it would be found.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Any

import hostile_inputs
from click.testing import CliRunner
from hostile_inputs import Case, changed, packed, seeds

from distdoctor.cli import app
from distdoctor.errors import DistdoctorError
from distdoctor.postmortem.evidence_run import run_of
from distdoctor.postmortem.flight_recorder import recorder_reader as flight_recorder
from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.job_output import output_files
from distdoctor.postmortem.leavings import HEAD_BYTES, Leaving
from distdoctor.postmortem.nccl_inspector import inspector_reader
from distdoctor.postmortem.nccl_logs import nccl_reader
from distdoctor.postmortem.nccl_ras import ras_reader
from distdoctor.postmortem.own_records import read_record
from distdoctor.postmortem.profiler_traces import profiler_reader
from distdoctor.postmortem.readers import Reader
from distdoctor.postmortem.recognising import READERS, gather
from distdoctor.postmortem.stacks import stack_reader

SECONDS = 2.0
MEGABYTES = 200

_FORBIDDEN: tuple[str, ...]
_FORBIDDEN = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec")
_FORBIDDEN += ("os.posix_spawn", "os.fork", "socket.connect")


class TookTooLong(BaseException):
    """Nobody catches it but the fuzzer."""


class Wrong(Exception):
    """An input did what none may do."""


class InMemory(Leaving):
    """A file that lies nowhere."""

    __slots__ = ("content",)
    content: bytes

    def __init__(self, path: str, content: bytes) -> None:
        """Take what would be in it."""
        super().__init__(path, len(content))
        object.__setattr__(self, "content", content)

    @property
    def is_packed(self) -> bool:
        """Never."""
        return False

    def open(self) -> IO[bytes]:
        """Open it."""
        return io.BytesIO(self.content)


# --- targets ---

_FAST = "/dev/shm"  # where files are memory


def _reader(reader: Reader) -> Callable[[Case], None]:
    def give(case: Case) -> None:
        evidence = Evidence()
        leavings = [InMemory(f"/job/{name}", one) for name, one in case.items()]
        for leaving in leavings:
            for each in READERS:
                each.recognises(leaving.name, leaving.content[:HEAD_BYTES])
        reader.read(leavings, evidence)
        run_of(evidence)

    return give


def _in_a_folder(case: Case) -> Path:
    folder = Path(tempfile.mkdtemp(dir=_FAST if Path(_FAST).is_dir() else None))
    for name, content in case.items():
        try:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except (OSError, ValueError):
            continue  # no name of a file
    return folder


def _record(case: Case) -> None:
    folder = _in_a_folder(case)
    try:
        read_record(folder)
    except DistdoctorError:
        pass
    finally:
        shutil.rmtree(folder)


def _columns(case: Case) -> None:
    folder = _in_a_folder(case)
    try:
        run_of(gather([str(folder)]))
    finally:
        shutil.rmtree(folder)


_STATUS = {0, 1, 2, 4}


def _command(name: str) -> Callable[[Case], None]:
    """The whole path, to the text on the terminal."""

    def give(case: Case) -> None:
        folder = _in_a_folder(case)
        form = ("text", "json", "text", "sarif")[sum(map(len, case.values())) % 4]
        try:
            arguments = [name, str(folder), "--format", form, "--verbose"]
            result = CliRunner().invoke(app, arguments)
        finally:
            shutil.rmtree(folder)
        raised = result.exception
        if isinstance(raised, DistdoctorError):
            return  # its message is all that is printed
        if raised is not None and not isinstance(raised, SystemExit):
            raise raised
        if result.exit_code not in _STATUS:
            raise Wrong(f"exit status {result.exit_code}: {result.output[-1500:]}")
        stated = result.output
        if odd := {c for c in stated if not c.isprintable() and c != "\n"}:
            raise Wrong(f"characters {odd!r}")
        if form != "text" and result.exit_code in {0, 1, 4}:
            json.loads(result.stdout, parse_constant=_no_number)

    return give


def _no_number(name: str) -> None:
    raise Wrong(f"{name} in JSON")


@dataclass(frozen=True, slots=True)
class Target:
    """What is given inputs.

    Attributes:
        kinds: Of seeds.
        give: Gives it a case.
        packs: Files may be packed.
    """

    kinds: tuple[str, ...]
    give: Callable[[Case], None]
    packs: bool = False


TARGETS = {
    "dumps": Target(("dumps",), _reader(flight_recorder.READER)),
    "stacks": Target(("stacks",), _reader(stack_reader.READER)),
    "output": Target(("output", "stacks"), _reader(output_files.READER)),
    "nccl": Target(("nccl", "output"), _reader(nccl_reader.READER)),
    "ras": Target(("ras",), _reader(ras_reader.READER)),
    "inspector": Target(("inspector", "output"), _reader(inspector_reader.READER)),
    "traces": Target(("traces",), _reader(profiler_reader.READER)),
    "columns": Target(("columns",), _columns),
    "record": Target(("record",), _record),
    "autopsy": Target(hostile_inputs.KINDS, _command("autopsy"), packs=True),
    "examine": Target(("traces",), _command("examine"), packs=True),
    "nccl-command": Target(("nccl", "output"), _command("nccl"), packs=True),
}


# --- one input ---

_forbidden: list[str] = []
_watching = False


def audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what no input may cause; for `sys.addaudithook`."""
    if _watching and event.startswith(_FORBIDDEN):
        _forbidden.append(f"{event} {arguments!r}"[:200])


def the_time_is_up(*_: object) -> None:
    """Ends what takes too long; for `signal`."""
    raise TookTooLong


def _megabytes(name: str) -> float:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    return 0.0


def failure(give: Callable[[Case], None], case: Case) -> tuple[str, str, float]:
    """Give a case, and watch.

    Args:
        give: Of a target.
        case: The input.

    Returns:
        What went wrong in a line, which is the same for the same fault (empty:
        nothing), the traceback, and the megabytes that it took at most.
    """
    global _watching
    _forbidden.clear()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    base = _megabytes("VmRSS")
    signal.setitimer(signal.ITIMER_VIRTUAL, 2 * SECONDS)
    begun = time.process_time()
    what = trace = ""
    _watching = True
    try:
        give(case)
    except TookTooLong as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f for f in frames if "/distdoctor/" in f.filename] or frames
        what = f"too long in {Path(ours[-1].filename).name} {ours[-1].name}"
        trace = traceback.format_exc()
    except BaseException as error:  # noqa: BLE001 - that is what is looked for
        frames = traceback.extract_tb(error.__traceback__)
        last = frames[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        stated = str(error)[:60] if isinstance(error, Wrong) else ""
        what = f"{type(error).__name__} at {where} {stated}"
        trace = traceback.format_exc()
        if isinstance(error, Wrong) and "crash" in str(error):
            what = f"crashed check: {str(error)[-400:]}"
    finally:
        _watching = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    seconds = time.process_time() - begun
    more = _megabytes("VmHWM") - base
    if not what and seconds > SECONDS:
        what = f"too long, but came to an end: {seconds:.1f} s"
    if more > MEGABYTES:
        what = f"{what} memory".strip()
        trace += f"\n{more:.0f} MB"
    if _forbidden:
        what, trace = f"forbidden: {_forbidden[0].split()[0]}", str(_forbidden)
    return what, trace, more


def smaller(give: Callable[[Case], None], case: Case, what: str) -> Case:
    """A part of a case that goes wrong in the same way, found within 20 s."""
    until = time.monotonic() + 20

    def same(one: Case) -> bool:
        kind = what.split(":")[0]
        return failure(give, one)[0].split(":")[0] == kind

    for name in list(case):
        rest = {key: value for key, value in case.items() if key != name}
        if rest and same(rest):
            case = rest
    for name in list(case):
        size = len(case[name]) // 2
        while size and time.monotonic() < until:
            at = 0
            while at < len(case[name]) and time.monotonic() < until:
                shorter = case[name][:at] + case[name][at + size :]
                if same(case | {name: shorter}):
                    case = case | {name: shorter}
                else:
                    at += size
            size //= 2
    return case


# --- many inputs ---


@dataclass(slots=True)
class Tally:
    """What came of many inputs.

    Attributes:
        inputs: That were given.
        seconds: That it took.
        failures: How often each thing went wrong.
        most_megabytes: That an input took.
    """

    inputs: int = 0
    seconds: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    most_megabytes: float = 0.0

    def take(self, name: str, case: Case, saved: str) -> None:
        """Give a case to a target, and note what came of it."""
        target = TARGETS[name]
        what, trace, more = failure(target.give, case)
        self.inputs += 1
        self.most_megabytes = max(self.most_megabytes, more)
        if what:
            self.failures[what] += 1
            if saved and self.failures[what] == 1:
                _save(Path(saved) / name, target, case, what, trace)

    def add(self, other: Tally) -> None:
        """Take another process's inputs in."""
        self.inputs += other.inputs
        self.seconds = max(self.seconds, other.seconds)
        self.failures += other.failures
        self.most_megabytes = max(self.most_megabytes, other.most_megabytes)


def fuzz(
    name: str, seed: int, seconds: float, inputs: int = 1 << 40, saved: str = ""
) -> Tally:
    """Give inputs to a target in this process.

    Args:
        name: Of the target.
        seed: Decides which inputs these are.
        seconds: After which it ends.
        inputs: After which it ends.
        saved: Folder for what failed; none: nothing is kept.
    """
    target, rng, tally = TARGETS[name], random.Random(seed), Tally()
    signal.signal(signal.SIGVTALRM, the_time_is_up)
    pool = [case for kind in target.kinds for case in seeds(kind)]
    for case in rng.sample(pool, min(len(pool), 5)):
        failure(target.give, case)  # what is loaded late is loaded now
    made: list[Case] = []
    begun = time.monotonic()
    while tally.inputs < inputs and time.monotonic() - begun < seconds:
        source = made if made and rng.random() < 0.2 else pool
        case = changed(rng.choice(source), rng.choice(pool), rng)
        if rng.random() < 0.02 and sum(map(len, case.values())) < 65_536:
            made = [*made[-200:], case]  # changes upon changes
        if target.packs and rng.random() < 0.1:
            case = packed(case, rng)
        tally.take(name, case, saved)
    tally.seconds = time.monotonic() - begun
    return tally


def _save(folder: Path, target: Target, case: Case, what: str, trace: str) -> None:
    case = smaller(target.give, case, what)
    number = hashlib.sha256(repr((what, case)).encode()).hexdigest()[:12]
    place = folder / number
    for name, content in case.items():
        path = place / "case" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (place / "what.txt").write_text(f"{what}\n\n{trace}", errors="replace")


def _work(arguments: tuple[str, int, float, str]) -> Tally:
    name, seed, seconds, saved = arguments
    sys.addaudithook(audit)
    limit = 4 << 30  # a fault must not take the machine down
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return fuzz(name, seed, seconds, saved=saved)


def main() -> None:
    """Give inputs to the targets, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", action="append", choices=list(TARGETS))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9)
    parser.add_argument("--save", default="fuzz-failures")
    options = parser.parse_args()
    wrong = total = 0
    for name in options.target or TARGETS:
        tasks = [
            (name, options.seed + n, options.seconds, options.save)
            for n in range(options.processes)
        ]
        whole = Tally()
        with get_context("spawn").Pool(options.processes) as workers:
            for one in workers.imap_unordered(_work, tasks):
                whole.add(one)
        rate = whole.inputs / max(whole.seconds, 1e-9)
        print(
            f"{name}: {whole.inputs:,} inputs, {rate:,.0f}/s, "
            f"{sum(whole.failures.values()):,} failed in {len(whole.failures)} ways, "
            f"at most {whole.most_megabytes:.0f} MB more (seed {options.seed})",
            flush=True,
        )
        for what, often in whole.failures.most_common():
            print(f"    {often:,} × {what}", flush=True)
        total += whole.inputs
        wrong += sum(whole.failures.values())
    print(f"all: {total:,} inputs, {wrong:,} failed")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
