"""Journals: a black box per rank's process, readable while it lives and afterwards.

A journal is a memory-mapped file of fixed size:

    header     one page of `HEADER_BYTES`, see `HEADER_FIELDS`
    strings    an append-only area: each a 2-byte length and UTF-8 bytes; a string's
               number is its position in the area counted from 1, 0 means none;
               one that holds several texts has them as `joined` puts them
    ring       `capacity` records of `RECORD_BYTES`, see `RECORD_FIELDS`

Record number i lies in slot i % capacity. The writer zeroes the slot's `commit`, writes
the rest, sets `commit` to i + 1 and then the header's `head`; a reader that finds
another `commit` than it expects has met a record that is being written, was torn, or
has been overwritten. All numbers are little-endian. A call is written before it is
made: when the job hangs, the record is already there, and what is missing is its end.

Only the standard library is used here and in `writer`, for they run inside the job.
The three words are each written by one aligned store. The order of stores is kept by
x86; on other processors a reader may meet a torn
record that looks whole for some nanoseconds, which the second look in `reader` finds.
"""

from __future__ import annotations

import re
import signal
import struct
from enum import IntEnum
from functools import lru_cache

MAGIC = 0x31_4C_4E_4A_54_53_49_44  # "DISTJNL1"

VERSION = 1

HEADER_BYTES = 4096

HEADER_FIELDS = (
    ("magic", "Q"),
    ("version", "I"),
    ("rank", "i"),  # -1: the process never had a rank
    ("world_size", "i"),  # 0: not known yet
    ("incarnation", "I"),  # how many processes had this rank before
    ("pid", "I"),
    ("lost", "I"),  # events a probe could not write
    ("capacity", "Q"),
    ("strings_bytes", "Q"),
    ("head", "Q"),  # records written so far
    ("strings_tail", "Q"),  # bytes used of the strings
    ("ended", "I"),  # 1: the interpreter ran its exit handlers
    ("steps", "I"),  # optimizer steps done
    ("started_ns", "Q"),  # monotonic clock
    ("blind", "I"),  # 1: a call was not even counted; those after it say nothing
    ("faults", "I"),  # of those lost, by a fault of a probe and not for want of space
)

RECORD_FIELDS = (
    ("commit", "Q"),  # record number + 1; 0: being written
    ("time_ns", "Q"),  # monotonic clock
    ("ordinal", "Q"),  # 1-based among this rank's collectives on the group
    ("signature", "Q"),  # distdoctor.model.operations.signature; 0: not seen
    ("kind", "B"),  # Kind
    ("op", "B"),  # position in distdoctor.model.operations.OPERATIONS
    ("reduce_op", "B"),  # position in REDUCE_OPS, or one of its codes
    ("flags", "B"),  # bits of distdoctor.model.operations, and model.layers
    ("thread", "I"),  # operating system's number
    ("call", "I"),  # number of the call in this process, from 1
    ("group", "I"),  # string: see group_text
    ("site", "I"),  # string: file, line and function; of calls, those of callers too
    ("spec", "I"),  # string: see spec_text; for life, JSON
    ("peer", "i"),  # group rank of root or peer; -1: none
    ("detail", "i"),  # point-to-point: the tag; collectives: see NODES_MODULO
)

NODES_MODULO = 1 << 31
"""A collective's `detail` is how many nodes of the autograd graph its thread had made.

Two calls with more nodes between them have a forward pass between them. The count is
kept modulo this number.
"""

RECORD = struct.Struct("<" + "".join(code for _, code in RECORD_FIELDS))
HEADER = struct.Struct("<" + "".join(code for _, code in HEADER_FIELDS))
RECORD_BYTES = RECORD.size

DEFAULT_BYTES = 64 * 1024 * 1024
STRINGS_BYTES = 4 * 1024 * 1024


class RecordKind(IntEnum):
    """What a record tells. Numbers are never used again."""

    ENTER = 1  # a call is about to be made
    RETURN = 2  # the backend took it
    RAISE = 3  # it raised
    WAIT = 4  # a thread starts to wait for it
    WOKE = 5  # it is complete, and the thread goes on
    WAIT_RAISE = 6  # waiting for it raised
    REFUSE = 7  # stopped before it was issued
    BACKWARD_WAIT = 8  # autograd is done; a wait for what was issued in it may follow
    BACKWARD_WOKE = 9  # and is over
    THREAD_END = 10
    LIFE = 11  # anything else; `spec` is JSON with a "what"
    REISSUE = 12  # refused, and made all the same, because nobody watches any more
    BATCH = 13  # a DataLoader gave its `ordinal`-th batch, or (flags 1) ended after it
    HANDED = 20  # its handle was used in another way than to wait
    TOUCHED = 21  # it was not waited for, and (flags) what happened to its tensors
    NOTE = 22  # an observation: `signature` and `ordinal` are its begin and its size


TOUCHED_BY_LINE, TOUCHED_BY_STEP = 1, 2
"""Flags of TOUCHED: changed in place between issue and wait (`site` is that of the
wait); read by an optimizer's step (`site` is the step's)."""


def offset_of(field: str) -> int:
    """Where a field of the header lies, in bytes from the start of the file."""
    at = 0
    for name, code in HEADER_FIELDS:
        size = struct.calcsize("<" + code)
        if name == field:
            return at
        at += size
    raise KeyError(field)


_MOST_MEMBERS = 1 << 20  # a damaged text may name any number


FOLDER_VARIABLE = "DISTDOCTOR_RUN"
"""Environment variable that names the record folder; without it, no probe starts."""

SIZE_VARIABLE = "DISTDOCTOR_JOURNAL_BYTES"
"""Environment variable with the size of a journal."""

SUPERVISOR_VARIABLE = "DISTDOCTOR_SUPERVISOR"
"""Environment variable with the supervisor's process number."""

BUDGET_VARIABLE = "DISTDOCTOR_BUDGET_NS"
"""Environment variable with begin and end of the budget, as `begin-end`.

They are times of the monotonic clock. It is set where passes over loaders may be
shortened to keep to them.
"""

OWNER_VARIABLE = "DISTDOCTOR_OWNER"
"""Environment variable with the process that plays the rank named in RANK."""

PORTS_VARIABLE = "DISTDOCTOR_PORTS"
"""Environment variable of a job on one machine, whose ranks may meet at other ports.

"own": distdoctor chose how to start it; "given": the user did.
"""

PORTS_FOLDER = "ports"
"""Folder, in that of the record, of the ports that stand for those of the script."""

SIMULATION_VARIABLE = "DISTDOCTOR_SIMULATE"
"""Environment variable of a process that plays a rank of a job without the others.

"common": ranks of a group get the same values for what all of them would receive;
"varied": other values, to see which calls change with them.
"""

DEVICE_VARIABLE = "DISTDOCTOR_DEVICE"
"""What stands in for GPUs: "cpu", or "auto": the CPU where there are none."""

RANKS_VARIABLE = "DISTDOCTOR_RANKS"
"""How many GPUs a script is to find that starts its own ranks."""

VALUES_FOLDER = "values"
"""Folder, in that of the record, of what simulated ranks agreed on."""

EXITS_FILE = "exits.jsonl"
"""Ends of processes as their parents saw them: lines of JSON, `pid` and `status`."""

SUBSTITUTES_FILE = "substitutes.jsonl"
"""What took the place of CUDA in each process: lines of JSON, `pid` and `kind`."""

TRACE_VARIABLE = "DISTDOCTOR_TRACE"
"""Set where two runs are to be compared: fingerprints are written at each step."""

PAUSE_VARIABLE = "DISTDOCTOR_PAUSE"
"""After so many steps of optimizers a rank goes no further, until it is ended.

It counts one step more then, to tell that it stands.
"""

KEEP_VARIABLE = "DISTDOCTOR_KEEP"
"""Folder for copies of the files that the job is about to change; see `keeping`."""

KEPT_FILE = "kept.jsonl"
"""In that folder, what was there before: lines of JSON, `path`, `was` and `link`."""

COMPARISON_FILE = "comparison.json"
"""How another run of the job differed from this one."""

STREAMS_FILE = "streams.jsonl"
"""What loaders' workers drew: lines of JSON, `by`, `pid`, `site` and `drawn`."""

CHILDREN_FILE = "children.jsonl"
"""Calls in forked processes: lines of JSON, `by`, `pid`, `site`, `op`, `worker`."""

LOSSES_FILE = "losses.jsonl"
"""First error of a probe in each process: a line of JSON each, `pid`, `rank`, `why`."""

STACK_SIGNAL_FROM_LAST = 2
"""Offset below SIGRTMAX of the signal that makes a rank write its stacks."""

STACKS_AS_SHELL = 128 + signal.SIGRTMAX - STACK_SIGNAL_FROM_LAST
"""Exit status, as a shell tells it, of a process that this signal has ended."""


def journal_name(rank: int, incarnation: int) -> str:
    """Name of the journal of the n-th process (from 0) that plays a rank, or none."""
    player = "unranked" if rank < 0 else f"rank-{rank}"
    return f"{player}.{incarnation}.journal"


OFTEN = 1000
"""So often, at most, one process sees a group of the same name and ranks."""


def group_text(
    name: str, description: str, generation: int, ranks: tuple[int, ...]
) -> str:
    """A group as one string: what torch calls it, which ranks are in it, in order.

    Args:
        name: torch's name; equal on all members.
        description: torch's description; may be empty.
        generation: How often this process has seen such a group before, and `OFTEN`
            for each process that played its rank before it.
        ranks: Global ranks by group rank.
    """
    return joined(name, description, str(generation), _as_text(ranks))


def joined(*parts: str) -> str:
    """Texts as one, for `parted`: each on a line, whatever characters are in it."""
    return "\n".join(_SPECIAL.sub(_escaped, part) for part in parts)


def parted(text: str) -> list[str]:
    """The texts that `joined` made one of."""
    return [_ESCAPE.sub(_unescaped, part) for part in text.split("\n")]


_SPECIAL = re.compile(r"[\\\n\ud800-\udfff]")
"""What would end a line, and what UTF-8 cannot tell: names of files may hold it."""

_ESCAPE = re.compile(r"\\(?:(n|\\)|u(d[89a-f][0-9a-f]{2}))")


def _escaped(match: re.Match[str]) -> str:
    return {"\n": r"\n", "\\": r"\\"}.get(match[0]) or f"\\u{ord(match[0]):04x}"


def _unescaped(match: re.Match[str]) -> str:
    if match[2]:
        return chr(int(match[2], 16))
    return "\n" if match[1] == "n" else "\\"


def _as_text(ranks: tuple[int, ...]) -> str:
    """Ranks in their order, runs of them as `first-last`: 16,384 must fit a string."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


@lru_cache(maxsize=65_536)
def members_of(group: str) -> tuple[int, ...]:
    """Global ranks by group rank, from a group's text.

    >>> members_of(group_text("0", "", 0, (0, 1, 2, 7)))
    (0, 1, 2, 7)
    """
    members: list[int] = []
    for part in filter(None, group.split("\n")[3:4]):
        for run in filter(None, part.split(",")):
            first, _, last = run.partition("-")
            end = int(last or first) + 1
            members += range(int(first), min(end, int(first) + _MOST_MEMBERS))
    return tuple(members)
