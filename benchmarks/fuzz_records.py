"""Gives hostile records to `examine`, a million of them, and says what went wrong.

    python benchmarks/fuzz_records.py                          # some, in a minute
    python benchmarks/fuzz_records.py --read 1000000 --judged 20000 --processes 2
    python benchmarks/fuzz_records.py --only judged:4711 --seed 1     # that one again

The inputs are the records in `tests/records`, changed as `hostile_records` does it. On
two levels: "read" is what makes runs of a folder (`read_earlier`, `read_run`), of
records cut short; "judged" is all of `distdoctor examine`, to the report as text, JSON
and SARIF, of whole records.

Wrong is an exception that is none of the house's own, a check that crashed, more than
a second of processor time or five of waiting, a gibibyte beyond what the process had
before, a control character in a report, JSON that is none, the end of the process, and
the verdict well of a record of a sick run in which a file was lost. An input is told by
its level and number, and made again from them. After each fault the process is a new
one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path

from fuzz import TookTooLong, Wrong, the_time_is_up
from hostile_inputs import Case
from hostile_records import Special, changed, place, remove, seeds

from distdoctor.catalogue import every_check, manuals
from distdoctor.errors import DistdoctorError
from distdoctor.examination.examining import examine
from distdoctor.journal.assembly import read_earlier, read_run
from distdoctor.judging import judge
from distdoctor.model.declare import Check
from distdoctor.model.findings import Unknown
from distdoctor.model.manual import Manual
from distdoctor.postmortem.own_nccl_logs import with_nccl_logs
from distdoctor.report import json as machine
from distdoctor.report import sarif, text
from distdoctor.report.schema import Report

SECONDS, WAITING_SECONDS = 1.0, 5.0
BYTES = 1 << 30
ALIKE = {"read": 1, "judged": 3}  # records of one sort that a journal keeps
PARTS = {"read": 3, "judged": 1}  # of a record, each a seed of its own
LEVELS = ("read", "judged")

_FAST = "/dev/shm"  # where files are memory
_AT_ONCE = 500


@dataclass(slots=True)
class Tally:
    """What came of many inputs.

    Attributes:
        inputs: That were given.
        refused: Of these, those of which nothing can be judged.
        verdicts: How often each came out.
        failures: How often each thing went wrong.
        first: Of each, the number of an input, and the traceback.
        slowest: Seconds of processor time that an input took.
    """

    inputs: int = 0
    refused: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    first: dict[str, tuple[str, str]] = field(default_factory=dict)
    slowest: float = 0.0

    def add(self, other: Tally) -> None:
        """Take another's inputs in."""
        self.inputs += other.inputs
        self.refused += other.refused
        self.verdicts += other.verdicts
        self.failures += other.failures
        self.first = other.first | self.first
        self.slowest = max(self.slowest, other.slowest)


class Inputs:
    """The inputs of a level, and what is done with them.

    Args:
        level: "read" or "judged".
        seed: Decides which inputs these are.
        scratch: Folder for the records.
    """

    def __init__(self, level: str, seed: int, scratch: Path) -> None:
        self.level, self._seed = level, seed
        self.pool = seeds(ALIKE[level], parts=PARTS[level])
        self._folders = [scratch / f"{level}-{n}" for n in range(len(self.pool))]
        for folder, case in zip(self._folders, self.pool, strict=True):
            for name, content in case.items():
                place(folder / name, content)
        self.are_sick = [False] * len(self.pool)
        if level == "judged":
            reports = [judge(folder).report for folder in self._folders]
            self.are_sick = [one.verdict == "sick" for one in reports]

    def made(self, number: int) -> tuple[int, Case]:
        """An input: the seed that it was made of, and the case."""
        rng = random.Random(f"{self._seed} {self.level} {number}")
        at = rng.randrange(len(self.pool))
        return at, changed(self.pool[at], rng.choice(self.pool), rng)

    def take(self, number: int, tally: Tally) -> bool:
        """Give an input, and note what comes of it.

        Returns:
            Whether this process may go on.
        """
        try:
            at, case = self.made(number)
        except MemoryError:  # to make one may take more than a process is allowed
            return False
        seed, folder = self.pool[at], self._folders[at]
        names = {*case, *seed}
        other = [name for name in names if case.get(name) is not seed.get(name)]
        for name in other:
            remove(folder / name)
            with suppress(OSError, ValueError):  # no name of a file
                if name in case:
                    place(folder / name, case[name])
        lost = bool(other) and all(
            name not in case or isinstance(case[name], Special) for name in other
        )
        try:
            return self._give(number, folder, tally, lost and self.are_sick[at])
        finally:
            for name in other:
                remove(folder / name)
                if name in seed:
                    place(folder / name, seed[name])

    def _give(self, number: int, folder: Path, tally: Tally, sick: bool) -> bool:
        tally.inputs += 1
        begun = time.process_time()
        what = ""
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        signal.setitimer(signal.ITIMER_REAL, WAITING_SECONDS)
        try:
            verdict = _read(folder) if self.level == "read" else _judged(folder)
            tally.verdicts[verdict] += 1
            if sick and verdict == "well":
                raise Wrong("well, though a file of a sick run is lost")
        except DistdoctorError as error:
            tally.refused += 1
            if not str(error) or len(str(error)) > 2000:
                what = f"refused in {len(str(error))} letters"
        except BaseException as error:  # noqa: BLE001 - that is what is looked for
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            what = _in_a_line(error)
            trace = traceback.format_exc()
            tally.first.setdefault(what, (f"{self.level}:{number}", trace[-3000:]))
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
        tally.slowest = max(tally.slowest, time.process_time() - begun)
        if what:
            tally.failures[what] += 1
            tally.first.setdefault(what, (f"{self.level}:{number}", ""))
        return not what


def _read(folder: Path) -> str:
    read_earlier(folder)
    run = read_run(folder)
    return "of several ranks" if run.world_size > 1 else "of at most one"


def _judged(folder: Path) -> str:
    judgement = judge(folder, str(folder), with_nccl_logs)
    report = judgement.report
    told = text.render(report, judgement.run, verbose=True)
    _require_harmless(told)
    for form in (
        machine.render(report, judgement.run),
        sarif.render([report], _manuals(), Path("/job")),
    ):
        json.loads(form, parse_constant=_no_number)
        _require_harmless(form)
    for verdict in examine(judgement.run, _crashed(report)):
        if isinstance(verdict, Unknown):
            raise Wrong(f"a check crashed\n{verdict.reason}")
    return report.verdict


def _require_harmless(told: str) -> None:
    if not told.replace("\n", "").isprintable():
        odd = {c for c in told if not c.isprintable()} - {"\n"}
        raise Wrong(f"characters {sorted(odd)!r}")


@cache
def _manuals() -> Mapping[str, Manual]:
    return manuals()


def _crashed(report: Report) -> list[Check]:
    return [one for one in every_check() if one.code in report.checks.crashed]


def _no_number(name: str) -> None:
    raise Wrong(f"{name} in JSON")


def _in_a_line(error: BaseException) -> str:
    """What went wrong, the same for the same fault."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if "/distdoctor/" in one.filename] or frames
    where = f"{Path(ours[-1].filename).name} {ours[-1].name}"
    if isinstance(error, TookTooLong):
        return f"too long in {where}"
    if isinstance(error, Wrong):
        lines = [line.strip() for line in str(error).splitlines()]
        files = [line for line in lines if line.startswith("File ")]
        return " | ".join([lines[0][:90], *files[-1:], *lines[1:][-1:]])[:300]
    return f"{type(error).__name__} at {where}:{ours[-1].lineno} {str(error)[:60]}"


# --- many inputs ---


def _work(inputs: Inputs, numbers: range, told: Connection) -> None:
    """Give inputs until one does harm; a fault must not take the machine down."""
    signal.signal(signal.SIGVTALRM, the_time_is_up)
    signal.signal(signal.SIGALRM, the_time_is_up)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + BYTES, size + BYTES))
    for first in range(numbers.start, numbers.stop, _AT_ONCE):
        tally = Tally()
        for number in range(first, min(first + _AT_ONCE, numbers.stop)):
            told.send(number)
            if not inputs.take(number, tally):
                told.send(tally)
                return
        told.send(tally)


class _Worker:
    """A process that takes a part of the inputs, again and again a new one."""

    def __init__(self, inputs: Inputs, numbers: range) -> None:
        self._inputs, self._left = inputs, numbers
        self.at = numbers.start
        self._start()

    def _start(self) -> None:
        context = get_context("fork")
        self.told, other = context.Pipe(duplex=False)
        arguments = (self._inputs, self._left, other)
        self._process = context.Process(target=_work, args=arguments)
        self._process.start()
        other.close()

    def heard(self) -> Tally | None:
        """What it has to say; None: nothing of interest."""
        try:
            said = self.told.recv()
        except EOFError:
            said = None
        if said is None:
            return self._ended()
        if isinstance(said, Tally):
            return said
        self.at = said
        return None

    def _ended(self) -> Tally | None:
        """Another process takes what is left, if this one has met a fault."""
        self._process.join()
        status = self._process.exitcode
        self.told.close()
        self._left = range(self.at + 1, self._left.stop)
        if len(self._left):
            self._start()
        if not status:
            return None
        number = f"{self._inputs.level}:{self.at}"
        what = f"the process ended with {status}"
        return Tally(1, 0, Counter(), Counter([what]), {what: (number, "")})

    @property
    def is_over(self) -> bool:
        """Whether it has done its part."""
        return self.told.closed


def fuzz_level(level: str, count: int, seed: int, processes: int) -> Iterator[Tally]:
    """Give inputs of a level.

    Yields:
        What came of some more of them.
    """
    fast = _FAST if Path(_FAST).is_dir() else None
    parts = -(-count // processes)
    with tempfile.TemporaryDirectory(dir=fast) as scratch:
        workers = []
        for n in range(processes):
            folder = Path(scratch) / str(n)
            inputs = Inputs(level, seed, folder)
            numbers = range(n * parts, min((n + 1) * parts, count))
            if len(numbers):
                workers.append(_Worker(inputs, numbers))
        while workers:
            for ready in wait([one.told for one in workers]):
                worker = next(one for one in workers if one.told is ready)
                tally = worker.heard()
                if worker.is_over:
                    workers.remove(worker)
                if tally is not None:
                    yield tally


def _again(only: str, seed: int) -> None:
    """Give one input in this process, keep it, and show what comes of it."""
    level, number = only.split(":")
    kept = Path(tempfile.mkdtemp(prefix="hostile-"))
    inputs = Inputs(level, seed, kept / "seeds")
    at, case = inputs.made(int(number))
    for name, content in case.items():
        with suppress(OSError, ValueError):
            place(kept / "case" / name, content)
    other = [name for name in case if case[name] is not inputs.pool[at].get(name)]
    missing = [name for name in inputs.pool[at] if name not in case]
    print(f"{kept / 'case'}: changed {other}, missing {missing}", flush=True)
    signal.signal(signal.SIGVTALRM, the_time_is_up)
    signal.signal(signal.SIGALRM, the_time_is_up)
    tally = Tally()
    inputs.take(int(number), tally)
    print(tally)
    for _, trace in tally.first.values():
        print(trace)
    shutil.rmtree(kept / "seeds")


def main() -> None:
    """Give inputs, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--read", type=int, default=10_000)
    parser.add_argument("--judged", type=int, default=500)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="an input, such as read:17")
    options = parser.parse_args()
    every_check()
    if options.only:
        _again(options.only, options.seed)
        return
    failed = 0
    for level, count in zip(LEVELS, (options.read, options.judged), strict=True):
        whole, begun, stated = Tally(), time.monotonic(), time.monotonic()
        for tally in fuzz_level(level, count, options.seed, options.processes):
            for what in tally.first.keys() - whole.first.keys():
                number, trace = tally.first[what]
                print(f"{number}: {what}\n{trace}", flush=True)
            whole.add(tally)
            if time.monotonic() - stated > 60:
                stated = time.monotonic()
                print(f"{level}: {whole.inputs:,} so far", flush=True)
        seconds = time.monotonic() - begun
        print(
            f"{level}: {whole.inputs:,} inputs, {whole.inputs / seconds:,.0f}/s, "
            f"{whole.refused:,} refused, {dict(whole.verdicts)}, "
            f"{sum(whole.failures.values()):,} failed in {len(whole.failures)} ways; "
            f"slowest {whole.slowest:.2f} s (seed {options.seed})"
        )
        for what, often in whole.failures.most_common():
            print(f"    {often:,} × {whole.first[what][0]}: {what}", flush=True)
        failed += sum(whole.failures.values())
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
