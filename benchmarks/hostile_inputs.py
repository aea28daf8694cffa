"""Inputs that nobody wrote: what jobs leave, changed by chance, knowing its structure.

A case is a folder as a dict: names and contents of files. The seeds are made by the
generators that the tests and the other benchmarks use; `changed` makes a hostile case
of one.
"""

from __future__ import annotations

import bz2
import copy
import gzip
import json
import lzma
import os
import pickle
import pickletools
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import inspector_records
import made_nccl_logs
import profiler_traces
import ras_reports
import recorder_dumps
from recorder_dumps import Simulation, Style
from stack_dumps import faulthandler_text, py_spy_json, py_spy_text

from distdoctor.journal.event_text import event_text
from distdoctor.journal.folder import Manifest
from distdoctor.journal.format import RecordKind
from distdoctor.journal.packed_texts import group_text
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.events import Left, Started
from distdoctor.model.operations import CODE_OF, NO_REDUCE_OP, signature
from distdoctor.postmortem.columns.column_writing import write_columns

Case = dict[str, bytes]

_TESTS = Path(__file__).parent.parent / "tests"
LARGEST = 1 << 20
"""Bytes of a file that a change may make; what seeds have is far less."""

NUMBERS = (
    *("0", "-1", "1", "2", "7", "63", "64", "255", "4096", "65535", "99999", "999999"),
    *("1000000", "9999999", "99999999", "1000000000", "2147483647", "2147483648"),
    *("-2147483648", "4294967295", "9223372036854775807", "9223372036854775808"),
    *("-9223372036854775809", "18446744073709551615", "1" + "0" * 40, "9" * 5000),
    *("NaN", "nan", "Infinity", "-inf", "1e308", "1e400", "0x7f", "007", "1.5", "٣"),
)
TEXTS = (
    *("", " ", "\x1b[31m", "\x1b]0;owned\x07", "\x9b31m", "\x00", "\r", "\n", "\t"),
    *("\u202e", "\ud800", "\U0010ffff", "é", "ñ" * 50, "\u2028", "\ufeff", "%s", "{}"),
    *("../../etc/passwd", "A" * 3000, "[" * 300, "(" * 300, " " * 500, ", " * 200),
    *("{" * 100, '"', "\\", "rank", "[rank1]:", "Rank 3", "-1", "\x7f", "\x08" * 20),
)
_HOSTILE_PICKLES = (
    b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00trueR.",
    b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",
    b"\x80\x02(X\x04\x00\x00\x00trueios\nsystem\n.",
    b"\x80\x02c__builtin__\neval\n(X\x03\x00\x00\x001+1tR.",
    b"\x80\x02X\x01\x00\x00\x00aQ.",
    b"\x80\x02\x82\x01.",
    b"\x80\x02]r\xff\xff\xff\x0f.",  # a memo of gigabytes
    b"\x80\x02]r\xff\xff\xff\x03.",
    b"\x80\x04\x96\xff\xff\xff\xff\x00\x00\x00\x00.",
    b"\x80\x02\x8b\xff\xff\xff\x7f\x01.",
    b"\x80\x02" + b"]" * 20_000 + b"a" * 19_999 + b".",
    b"\x80\x02" + b"(" * 50_000 + b"t" * 50_000 + b".",
    b"\x80\x02]q\x00" + b"(h\x00h\x00h\x00e" * 3 + b"h\x00a.",
    b"\x80\x02}q\x00X\x07\x00\x00\x00entriesq\x01]q\x02"
    + b"h\x02a" * 100
    + b"sX\x09\x00\x00\x00pg_configq\x03}s.",
)


# --- seeds ---


def seeds(kind: str) -> list[Case]:
    """What a job leaves, of one kind of `KINDS`."""
    return list(_SEEDS[kind]())


def _dumps() -> Iterator[Case]:
    makers: tuple[Callable[[int, int], recorder_dumps.Job], ...] = (
        *(recorder_dumps.ddp, recorder_dumps.fsdp, recorder_dumps.mesh),
        *(recorder_dumps.pipeline, recorder_dumps.ring),
    )
    styles = (
        *(Style(), Style(as_json=True), Style(version="2.1", timing=True)),
        *(Style(version="2.9", frames=False), Style(backend="gloo"), Style(ring=9)),
        Style(active_only=True),
    )
    for number, make in enumerate(makers):
        for style in styles:
            job = make(4, 1)
            for rank in range(number % 2):
                job.steps[rank] = job.steps[rank][:-3]
            tops = recorder_dumps.dumps(job, Simulation(job, number), style)
            with tempfile.TemporaryDirectory() as folder:
                recorder_dumps.write(Path(folder), tops, style)
                case = _case(Path(folder))
            yield dict(list(case.items())[: 2 + number % 3])
    some = recorder_dumps.ddp(2, 1)
    top = recorder_dumps.dumps(some, Simulation(some, 1), Style())[0]
    alike = pickle.dumps(top, protocol=2)
    yield {f"nccl_trace_rank_{rank}": alike for rank in range(14)}
    for content in _HOSTILE_PICKLES:
        yield {"nccl_trace_rank_0": content, "nccl_trace_rank_1": content}


def _stacks() -> Iterator[Case]:

    yield {"fault-rank1.txt": faulthandler_text().encode()}
    for made in (py_spy_text, py_spy_json):
        yield {
            f"stack-rank{rank}.txt": made(rank, stuck=rank == 1).encode()
            for rank in range(3)
        }
    marked = "".join(f"# rank {n}\n{py_spy_text(n)}\n" for n in range(3))
    yield {"all.txt": marked.encode()}
    lines = py_spy_text(1).splitlines()
    yield {
        "teed.txt": "".join(f"[rank{n}]: {x}\n" for x in lines for n in (0, 1)).encode()
    }
    frame = {"file": "/job/t.py", "line": 3, "function": "train"}
    ours = [
        {"rank": n, "pid": 9, "taken_by": "py-spy", "frames": [frame]} for n in (0, 1)
    ]
    yield {"stacks.json": json.dumps(ours).encode()}
    yield {
        "gdb_rank0.txt": b'Thread 1 (Thread 0x7f2 (LWP 40) "python"):\n'
        b"#0  0x00007f23c4bf4117 in ?? () from /lib/libc.so.6\n"
        b"#1  0x00007f22c4bf6a41 in c10d::Work::wait (this=0x1) at Work.cpp:12\n"
        b"Traceback (most recent call first):\n"
        b'  File "/home/me/job/train.py", line 31, in train_step\n'
    }
    yield {
        "pystack_rank1.txt": b"Traceback for thread 400 (python) [Has the GIL] "
        b"(most recent call last):\n"
        b'    (Python) File "/home/me/job/train.py", line 70, in <module>\n'
        b"        main()\n"
        b'    (Python) File "/home/me/job/train.py", line 31, in train_step\n'
    }


_ALSO_PRINTED = (
    "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, "
    "Timeout(ms)=600000) ran for 600123 milliseconds before timing out.\n",
    "Failures:\n  rank      : 3 (local_rank: 3)\n  exitcode  : -9 (pid: 3)\n",
    "srun: error: n1: tasks 0-7: Killed\n",
    "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=5.0.\n",
    "-- Process 2 terminated with the following error:\n",
    "Ranks 1, 2 failed to pass monitoredBarrier in 7 ms\n",
    "Memory cgroup out of memory: Killed process 12 (python) total-vm:1kB\n",
    "mpirun noticed that process rank 1 with PID 5 on node a exited on signal 9\n",
    "Timed out after 61 seconds waiting for clients. 1/4 clients joined.\n",
    "Stalled ops:\nStalled ranks:\n0: [allreduce.x]\n1: [allreduce.y, allreduce.z]\n",
)


def _output() -> Iterator[Case]:
    printed = _TESTS / "unit" / "postmortem" / "job_output" / "printed"
    for path in sorted(printed.iterdir()):
        yield {path.name: path.read_bytes()}
        lines = path.read_text().splitlines(keepends=True)
        yield {
            f"attempt_0/{n}/stderr.log": "".join(lines[n::2]).encode() for n in (0, 1)
        }
    for text in _ALSO_PRINTED:
        yield {"job.log": text.encode(), "slurm-7.out": text.encode() * 3}
    error = {"message": "E: x", "extraInfo": {"py_callstack": "a", "timestamp": "7"}}
    raised = json.dumps({"message": error}).encode()
    yield {f"attempt_0/{n}/error.json": raised for n in (0, 1)}


def _nccl() -> Iterator[Case]:
    for number, (_, made) in enumerate(made_nccl_logs.every()):
        if number % 5 == 0 and len(made.text) < 30_000:
            yield {"nccl.log": made.text.encode()}


def _ras() -> Iterator[Case]:
    late = ras_reports.communicator(
        8,
        {3: {"AllReduce": 639}},
        {5: ras_reports.DEAD, 6: ras_reports.SILENT},
    )
    part = ras_reports.communicator(2, processes=(2, 3), digest="0xbeef")
    text = ras_reports.report(late, part)
    yield {"status.json": text}
    later = ras_reports.report(late, part, second=5)
    yield {"looks.json": text + later, "more.json": text}
    yield {"status.txt": ras_reports.TEXT}
    yield {"status.txt": ras_reports.TEXT, "status.json": text}


def _inspector() -> Iterator[Case]:
    for ranks, late in ((2, 1), (4, 0), (4, -1)):
        yield {
            f"node{rank}-pid{100 + rank}.log": b"".join(
                inspector_records.record(
                    rank, n, 20_000 if rank == late else 60_000, size=ranks
                )
                for n in range(24)
            )
            for rank in range(ranks)
        }


def _traces() -> Iterator[Case]:
    for backend, late in (("nccl", 1), ("nccl", -1), ("gloo", 0)):
        yield {
            f"host_{rank}.{rank}.pt.trace.json": profiler_traces.trace(
                rank,
                [(9_000, 2_000 if rank == late else 12_000), (22_000, 900)],
                [(0, 8_500), (10_000, 3_000)],
                backend=backend,
            )
            for rank in range(2)
        }
    plain = json.loads(profiler_traces.trace(0, [(1, 9)], steps=(-1, -1, -1)))
    yield {"rank-0.json": json.dumps(plain).encode()}


def _record() -> Iterator[Case]:
    for waits, ended in ((False, True), (True, True), (True, False)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for rank in range(2):
                _journal(folder, rank, 3 - (waits and rank), waits=waits)
            more = {"exit_code": 0} if ended else {}
            manifest = {"distdoctor": "0.1.0", "launch": ["t.py"], "directory": "/job"}
            Manifest(**manifest, **more)  # type: ignore[arg-type]
            made = {"schema": "distdoctor.record/1", **manifest, **more}
            case = _case(folder) | {"run.json": json.dumps(made).encode()}
            frame = {"file": "t.py", "line": 7, "function": "train"}
            sample = {"rank": 0, "pid": 9, "seconds": 1.0, "frames": [frame]}
            case["stacks.json"] = json.dumps([sample, sample]).encode()
            case["exits.jsonl"] = b'{"pid": 9, "code": -9}\n'
            yield case


def _journal(folder: Path, rank: int, calls: int, *, waits: bool) -> None:
    writer, me = JournalWriter(folder, rank, 2, 8 * 1024), os.getpid()
    world = group_text("0", "default_pg", 0, (0, 1))
    for joined in (False, True):
        started = event_text(Started(world_size=2, joined=joined))
        writer.put(RecordKind.LIFE, me, spec=writer.intern(started))
    code = CODE_OF["barrier"]
    for n in range(1, calls + 1):
        what = signature(code, NO_REDUCE_OP, -1, (), ())
        place = writer.intern("/job/t.py\n7\ntrain")
        group = writer.intern(world)
        writer.put(
            *(RecordKind.ENTER, me, n, n, group, what, code, NO_REDUCE_OP),
            *(0, place, 0, -1, 0),
        )
        writer.put(RecordKind.RETURN, me, n)
        writer.put(RecordKind.WAIT, me, n)
        if n < calls or not waits:
            writer.put(RecordKind.WOKE, me, n)
            writer.step()
    if not waits:
        writer.put(RecordKind.LIFE, me, spec=writer.intern(event_text(Left())))
        writer.end()


def _columns() -> Iterator[Case]:
    for make in (recorder_dumps.ddp, recorder_dumps.mesh):
        job = make(4, 1)
        job.steps[1] = job.steps[1][:-3]
        with tempfile.TemporaryDirectory() as folder:
            dumps, columns = Path(folder, "dumps"), Path(folder, "columns")
            dumps.mkdir()
            tops = recorder_dumps.dumps(job, Simulation(job, 1), Style())
            recorder_dumps.write(dumps, tops, Style())
            write_columns([str(dumps)], columns)
            yield _case(columns)


_SEEDS: dict[str, Callable[[], Iterator[Case]]] = {
    "dumps": _dumps,
    "stacks": _stacks,
    "output": _output,
    "nccl": _nccl,
    "ras": _ras,
    "inspector": _inspector,
    "traces": _traces,
    "columns": _columns,
    "record": _record,
}
KINDS = tuple(_SEEDS)


def _case(folder: Path) -> Case:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# --- changes ---


def changed(case: Case, other: Case, rng: random.Random) -> Case:
    """A hostile case.

    Args:
        case: A seed, or what was made of one.
        other: Another one, from which parts may come.
        rng: Decides.
    """
    made = dict(case)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        name = rng.choice(list(made))
        content = made[name]
        for _ in range(rng.choice((1, 1, 2, 3, 8))):
            how = rng.choice(_ways(content))
            try:
                content = how(content, rng.choice(list(other.values())), rng)
            except (ValueError, TypeError, RecursionError, OverflowError):
                continue  # this way does not fit such content any more
            content = content[: 2 * LARGEST]
        most = LARGEST if rng.random() < 0.02 else len(case[name]) + 8192
        made[name] = content[:most]
    if rng.random() < 0.1:
        _rename(made, rng)
    return made


def packed(case: Case, rng: random.Random) -> Case:
    """The case with some of its files packed, and some of these damaged."""
    made: Case = {}
    for name, content in case.items():
        ending, pack = rng.choice(_PACKERS)
        data = pack(content[:200_000])
        if rng.random() < 0.5:
            data = as_bytes(data, data, rng)
        made[name + ending] = data
    return made


_PACKERS: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    (".gz", lambda data: gzip.compress(data, 1)),
    (".bz2", lambda data: bz2.compress(data, 1)),
    (".xz", lambda data: lzma.compress(data, preset=0)),
    ("", lambda data: data),
)


def _rename(made: Case, rng: random.Random) -> None:
    name = rng.choice(list(made))
    number = rng.choice([one for one in NUMBERS if len(one) < 50])
    new = re.sub(r"\d+(?=\D*$)", number, name, count=1).strip("/. ") or "x"
    made[new] = made.pop(name)


Way = Callable[[bytes, bytes, random.Random], bytes]


def _ways(content: bytes) -> tuple[Way, ...]:
    if content[:1] == b"\x80":
        return (
            as_bytes,
            as_cut,
            as_splice,
            _opcodes,
            _opcodes,
            as_values,
            as_values,
            as_values,
        )
    if content.lstrip()[:1] in (b"{", b"["):
        return (as_bytes, as_cut, as_splice, as_tokens, as_values, as_values, as_values)
    if b"\0" in content[:64]:
        return (as_bytes, as_bytes, as_cut, as_splice, _words)
    return (
        as_bytes,
        as_cut,
        as_splice,
        _lines,
        _lines,
        as_tokens,
        as_tokens,
        as_numbers,
        _long,
    )


def as_bytes(data: bytes, _: bytes, rng: random.Random) -> bytes:
    """Bytes come, go and change."""
    made = bytearray(data)
    for _n in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(made) + 1)
        how = rng.randrange(4)
        if how == 0:
            made[at:at] = rng.randbytes(rng.choice((1, 2, 8)))
        elif how == 1:
            del made[at : at + rng.choice((1, 2, 8, 64))]
        elif how == 2 and at < len(made):
            made[at] ^= 1 << rng.randrange(8)
        elif at < len(made):
            made[at] = rng.choice((0, 0xFF, 0x80, 0x7F, 0x1B, 0x0A, 0x20))
    return bytes(made)


def as_cut(data: bytes, _: bytes, rng: random.Random) -> bytes:
    """The beginning, or the end."""
    at = rng.randrange(len(data) + 1)
    return data[:at] if rng.random() < 0.7 else data[at:]


def as_splice(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """A part of another comes in."""
    at, where = rng.randrange(len(data) + 1), rng.randrange(len(other) + 1)
    part = other[where : where + rng.choice((16, 256, 4096, 65_536))]
    return data[:at] + part + data[at:]


def _words(data: bytes, _: bytes, rng: random.Random) -> bytes:
    """Numbers of four or eight bytes, where binary formats have them."""
    size = rng.choice((4, 8))
    at = rng.randrange(max(len(data) // 8, 1)) * 8
    if rng.random() < 0.7:
        at %= 1024
    value = rng.choice((0, 1, -1, 2**31 - 1, -(2**31), 10**6, 10**9, 77))
    return data[:at] + value.to_bytes(size, "little", signed=True) + data[at + size :]


def _lines(data: bytes, other: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    at = rng.randrange(len(lines))
    how = rng.randrange(6)
    if how == 0:
        del lines[at : at + rng.choice((1, 1, 5, 50))]
    elif how == 1:
        lines[at:at] = [one[:500] for one in lines[at : at + 3]] * rng.choice(
            (1, 2, 20, 300)
        )
    elif how == 2:
        to = rng.randrange(len(lines))
        lines[at], lines[to] = lines[to], lines[at]
    elif how == 3:
        theirs = other.splitlines(keepends=True) or [b""]
        where = rng.randrange(len(theirs))
        lines[at:at] = theirs[where : where + rng.choice((1, 3, 20))]
    elif how == 4:
        lines[at] = lines[at].rstrip(b"\n")
    else:
        lines[at] = rng.choice((b"[rank3]: ", b"7: ", b"\x1b[1m")) + lines[at]
    return b"".join(lines)


_TOKEN = re.compile(rb"[A-Za-z_]+|\d+|[^\sA-Za-z_\d]|\s+")


def as_tokens(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """A word, a number or a sign becomes another."""
    at = rng.randrange(max(len(data), 1))
    found = _TOKEN.search(data, at)
    if found is None:
        return data
    how = rng.randrange(4)
    if how == 0:
        new = rng.choice(TEXTS).encode("utf-8", "surrogatepass")
    elif how == 1:
        theirs = _TOKEN.search(other, rng.randrange(max(len(other), 1)))
        new = theirs[0] if theirs else b""
    elif how == 2:
        new = found[0][:100] * rng.choice((0, 2, 100, 2000))
    else:
        new = rng.choice(NUMBERS).encode()
    return data[: found.start()] + new + data[found.end() :]


def as_numbers(data: bytes, _: bytes, rng: random.Random) -> bytes:
    """A number in a text becomes another."""
    places = [m.span() for m in re.finditer(rb"\d+", data[:65_536])]
    if not places:
        return data
    start, end = rng.choice(places)
    new = rng.choice(NUMBERS).encode()
    if rng.random() < 0.3:  # everywhere
        return data[: 1 << 18].replace(data[start:end], new[:40])
    return data[:start] + new + data[end:]


def _long(data: bytes, _: bytes, rng: random.Random) -> bytes:
    """One token again and again: what slow expressions choke on."""
    if rng.random() < 0.8:
        return data
    found = _TOKEN.search(data, rng.randrange(max(len(data), 1)))
    if found is None:
        return data
    end = rng.choice((found.end(), min(found.end() + 9, len(data))))
    part = data[found.start() : end]
    new = part * (rng.choice((5_000, 20_000, 200_000)) // max(len(part), 1))
    return data[: found.start()] + new + data[end:]


def _opcodes(data: bytes, other: bytes, rng: random.Random) -> bytes:
    places = _places(data)
    if len(places) < 2:
        return as_bytes(data, other, rng)
    n = rng.randrange(len(places) - 1)
    start, end = places[n], places[n + 1]
    how = rng.randrange(5)
    if how == 0:
        return data[:start] + data[end:]
    if how == 1:
        return data[:end] + data[start:end] * rng.choice((1, 10, 1000)) + data[end:]
    if how == 2:
        theirs = _places(other)
        if len(theirs) < 2:
            return data
        m = rng.randrange(len(theirs) - 1)
        return data[:start] + other[theirs[m] : theirs[m + 1]] + data[end:]
    if how == 3:
        code = rng.choice(pickletools.opcodes).code.encode("latin-1")
        return data[:start] + code + data[start + 1 :]
    attack = rng.choice(_HOSTILE_PICKLES)[2:-1]
    return data[:start] + attack + data[start:]


def _places(data: bytes) -> list[int]:
    found = []
    try:
        for _, _, at in pickletools.genops(data):
            found.append(at or 0)
    except Exception:  # noqa: BLE001 - damaged: as far as it goes
        pass
    return found


def as_values(data: bytes, _: bytes, rng: random.Random) -> bytes:
    """A value anywhere in the tree of a pickle or of JSON becomes another."""
    is_pickle = data[:1] == b"\x80"
    if is_pickle and any(data == one or one[2:-1] in data for one in _HOSTILE_PICKLES):
        raise ValueError("not to be loaded here")
    if is_pickle and any(op.name in _CALLS for op, _, _ in pickletools.genops(data)):
        raise ValueError("not to be loaded here")
    top: Any = _plain(data) if is_pickle else json.loads(data)
    top = copy.deepcopy(top)
    for _n in range(rng.choice((1, 1, 3))):
        _change_in(top, rng)
    if is_pickle:
        return pickle.dumps(top, protocol=rng.choice((2, 2, 4, 5)))
    return json.dumps(top).encode()


_CALLS = frozenset(
    {"GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "REDUCE", "BUILD", "NEWOBJ", "NEWOBJ_EX"}
    | {"EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "LONG_BINPUT", "BYTEARRAY8"}
)


def _plain(data: bytes) -> Any:
    from distdoctor.postmortem.flight_recorder.unpickling import load

    try:
        return load(data)
    except Exception as error:
        raise ValueError(str(error)) from error


def _change_in(top: Any, rng: random.Random) -> None:
    node = top
    while True:
        if isinstance(node, dict) and node:
            key: Any = rng.choice(list(node))
        elif isinstance(node, list) and node:
            key = rng.randrange(len(node))
        else:
            return
        inner = node[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.85:
            node = inner
            continue
        break
    how = rng.randrange(8)
    if how == 0:
        del node[key]
    elif how == 1 and isinstance(node, list):
        node[key:key] = [inner] * rng.choice((1, 5, 300))
    elif how == 2 and isinstance(node, dict):
        node[rng.choice((rng.choice(TEXTS), rng.choice(NUMBERS)))] = inner
    elif isinstance(inner, str) and how < 6:
        at = rng.randrange(len(inner) + 1)
        if re.search(r"\d", inner) and rng.random() < 0.7:
            node[key] = re.sub(r"\d+", rng.choice(NUMBERS), inner, count=1)
        else:
            node[key] = inner[:at] + rng.choice(TEXTS) + inner[at:]
    else:
        node[key] = copy.deepcopy(rng.choice(_VALUES))


def _deep(depth: int) -> Any:
    made: Any = []
    for _ in range(depth):
        made = [made]
    return made


_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, -(2**31), 2**63 - 1, 2**63, -(2**63) - 1),
    *(10**6, 10**9, 10**40, 0.5, float("nan"), float("inf"), 1e308, "", "x", [], {}),
    *(*TEXTS, "A" * 10_000, [0, 10**9], "[0, 999999999]", "[0, -1]", [[[]]], _deep(90)),
    *({"x": 1}, [None] * 50, [2**62] * 70, list(range(5000)), _deep(300)),
)
