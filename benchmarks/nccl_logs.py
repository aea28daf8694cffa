"""How fast NCCL's logs are read: ours, a plain parser, and grep, on the same file.

    python benchmarks/nccl_logs.py [--mebibytes 1024] [--rounds 3] [--folder DIR]

The plain parser does `re.match` on each line with one expression for the prefix and one
for each kind of line that it reads, as a first script would. Two logs are read: one of
calls alone (NCCL_DEBUG_SUBSYS=COLL), and one in which NCCL's lines stand among output.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from made_nccl_logs import Maker

from distdoctor.postmortem.leavings import Leaving
from distdoctor.postmortem.nccl_logs.log_pieces import read_all
from distdoctor.postmortem.nccl_logs.piece_facts import Piece

_PREFIX = re.compile(
    r"(?P<pre>.*?)(?P<host>[^\s:\[\]()<>]+):(?P<pid>\d+):(?P<tid>\d+) "
    r"(?:\[(?P<dev>-?\d+)\] )?(?:(?P<ms>\d+\.\d+) )?(?:(?P<src>\S+:\d+) )?"
    r"(?:\((?P<func>[^)]*)\) )?NCCL (?P<level>WARN|INFO|TRACE|CALL) (?P<msg>.*)"
)
_CALL = re.compile(
    r"(?P<op>\w+): opCount (?P<n>[0-9a-f]+) sendbuff (?P<send>\S+) "
    r"recvbuff (?P<recv>\S+) count (?P<count>\d+) "
    r"datatype (?P<dtype>\d+) op (?P<reduce>\d+) root (?P<root>\d+) "
    r"comm (?P<comm>0x[0-9a-f]+) \[nranks=(?P<size>\d+)\] stream (?P<stream>\S+)"
)
_INIT = re.compile(
    r"(?:\w+ )?comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) nranks (?P<size>\d+) "
    r"cudaDev (?P<dev>\d+)(?: nvmlDev (?P<nvml>\d+))?(?: busId (?P<bus>\w+))?"
    r"(?: commId (?P<id>\w+))? - (?P<what>.*)"
)
_CHANNEL = re.compile(
    r"Channel (?P<n>\S+) : (?P<a>\d+)\[\w+\] -> (?P<b>\d+)\[\w+\](?P<via>.*)"
)
_SETTING = re.compile(r"(?P<name>NCCL_\w+) set (?:by environment )?to (?P<value>.*)")


def plain(path: Path) -> int:
    """Read a log line by line by `re.match`; the number of lines."""
    calls: Counter[tuple[str, ...]] = Counter()
    others: list[dict[str, str]] = []
    number = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            number += 1
            prefix = _PREFIX.match(line)
            if prefix is None:
                continue
            message = prefix["msg"]
            for kind in (_CALL, _INIT, _CHANNEL, _SETTING):
                if found := kind.match(message):
                    reported = found.groupdict()
                    if kind is _CALL:
                        key = (
                            reported["comm"],
                            reported["op"],
                            reported["count"],
                            reported["dtype"],
                        )
                        calls[key] += 1
                    else:
                        others.append(reported)
                    break
    return number


def _write(path: Path, mebibytes: int, among_output: bool) -> int:
    """Write a log; the number of its lines."""
    maker = Maker("2.21.5", "none", hosts=8, per_host=8)
    maker.start()
    maker.init()
    lines = 0
    with path.open("w") as file:
        while file.tell() < mebibytes << 20:
            text = maker.text()
            maker.out.clear()
            # Drawn once and written often: the reader cannot know.
            for _ in range(40 if lines else 1):
                if file.tell() < mebibytes << 20:
                    file.write(text)
                    lines += text.count("\n")
            maker.steps(12)
            if among_output:
                for n in range(24_000):
                    loss = 1 / (n + 1)
                    maker.say(f"step {n:8d} | loss {loss:.6f} | lr 3.0e-04 | 412 ms")
    return lines


def _grep(path: Path) -> str:
    """Count NCCL's lines with the fastest tool there is; its name."""
    tool = shutil.which("rg") or shutil.which("grep") or "grep"
    subprocess.run([tool, "-c", "NCCL", str(path)], check=False, capture_output=True)
    return Path(tool).name


def _busy() -> float:
    """Seconds of processors that this process and those it waited for have used."""
    return sum(
        one.ru_utime + one.ru_stime
        for one in map(
            resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
    )


def _part(path: Path, mebibytes: int) -> Path:
    """The beginning of a log: the plain parser need not read all of it."""
    part = path.with_suffix(".part")
    with path.open("rb") as file, part.open("wb") as out:
        out.write(file.read(mebibytes << 20))
        out.write(file.readline())
    return part


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds that something takes: by the clock, and of all processors."""
    start, busy = time.perf_counter(), _busy()
    work()
    return time.perf_counter() - start, _busy() - busy


def measure(path: Path, lines: int, mebibytes: int, rounds: int) -> None:
    """Time all three in turn, print the best of each side by side."""
    tool = _grep(path)  # so that the file is in memory
    part = _part(path, min(64, mebibytes))
    plain_lines = 0
    found: list[Piece] = []

    def read_plainly() -> None:
        nonlocal plain_lines
        plain_lines = plain(part)

    def read() -> None:
        found[:] = [read_all([Leaving(str(path), path.stat().st_size)]).piece]

    times = [
        [_timed(work) for work in (read, read_plainly, lambda: _grep(path))]
        for _ in range(rounds)
    ]
    best = [tuple(map(min, zip(*one, strict=True))) for one in zip(*times, strict=True)]
    (ours_s, ours_cpu), (plain_s, plain_cpu), (grep_s, grep_cpu) = best
    (piece,) = found
    assert piece.lines == lines, (piece.lines, lines)
    calls = sum(one.count for one in piece.processes.values())
    print(
        f"{path.name}: {lines:,} lines, {path.stat().st_size / 2**30:.2f} GiB, "
        f"{calls:,} calls; the best of {rounds}, {os.cpu_count()} processors\n"
        f"  ours            {ours_s:6.2f} s  {lines / ours_s:12,.0f} lines/s by the "
        f"clock, {lines / ours_cpu:12,.0f} by processor time\n"
        f"  re.match        {plain_s:6.2f} s  {plain_lines / plain_s:12,.0f} lines/s "
        f"by the clock, {plain_lines / plain_cpu:12,.0f} by processor time "
        f"(on {plain_lines:,} lines)\n"
        f"  {tool} -c NCCL    {grep_s:6.2f} s by the clock, {grep_cpu:.2f} s by "
        "processor time\n"
        f"  ours / re.match: {lines / ours_s / (plain_lines / plain_s):.1f} by the "
        f"clock, {lines / ours_cpu / (plain_lines / plain_cpu):.1f} by processor time\n"
        f"  ours / {tool}, in time: {ours_s / grep_s:.1f} by the clock, "
        f"{ours_cpu / grep_cpu:.1f} by processor time",
        flush=True,
    )


def main() -> None:
    """Make the logs and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for name, among_output in (("calls.log", False), ("output.log", True)):
            path = Path(folder) / name
            lines = _write(path, given.mebibytes, among_output)
            measure(path, lines, given.mebibytes, given.rounds)
            path.unlink()


if __name__ == "__main__":
    main()
