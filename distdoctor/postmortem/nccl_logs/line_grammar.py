"""The form of the lines that NCCL and RCCL print, from NCCL 2.4 to 2.30."""

from __future__ import annotations

import re
from datetime import datetime

MARK = b"NCCL "
"""Every line that NCCL prints with a prefix has it, and few others do."""

PREFIX = re.compile(
    rb"(?:(?<![^\s:\[\]()<>/|])|(?<=INFO)|(?<=WARN))"
    rb"(?P<host>[^\s:\[\]()<>/|]{1,1024}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) "
    rb"(?:\[(?P<dev>-?\d{1,4})\] )?(?:\d[\d.]* )?(?:(?P<src>[^\s\[]\S*:\d+) )?"
    rb"(?:\([^)]{0,200}\) )?NCCL (?P<level>INFO|WARN|TRACE|CALL|ABORT) ?"
)
"""Where a line of NCCL begins, wherever a launcher or another line stands before it.

A name that may begin anywhere is only looked for where it does begin, here and below:
else a long word takes time by the square of its length.
"""

CALL = re.compile(
    rb"(?P<op>[A-Z]\w{1,60}): opCount [0-9a-f]+ sendbuff \S+ recvbuff \S+ "
    rb"(?:size \d+ )?count (?P<count>\d{1,20}) datatype (?P<dtype>-?\d{1,9}) "
    rb"op (?P<reduce>-?\d{1,9}) root (?P<root>-?\d{1,9}) "
    rb"comm (?P<comm>0x[0-9a-f]+)(?= \[)"
)
"""A call of a collective, or of a send or a receive."""

CALL_END = re.compile(rb"comm (0x[0-9a-f]+) \[nranks=\d+\]")
"""The end of such a line, which may be all that is left of it."""

INIT = re.compile(
    rb"(?:\[Rank \d+\] )?(?:(?P<func>nccl\w+) )?comm (?P<comm>0x[0-9a-f]+) "
    rb"rank (?P<rank>\d{1,7}) nranks (?P<nranks>\d{1,7}) cudaDev (?P<dev>-?\d{1,9})"
    rb"(?: nvmlDev (?P<nvml>-?\d+))?(?: busId (?P<bus>[0-9a-f]+))?"
    rb"(?: parent (?P<parent>0x[0-9a-f]+))?(?: (?:split|child)Count (?P<count>-?\d+))?"
    rb"(?: color (?P<color>-?\d+))?(?: key -?\d+)?(?: commId (?P<id>0x[0-9a-f]+))?"
    rb" ?- (?P<what>Init START|Init COMPLETE|Destroy COMPLETE|Abort COMPLETE"
    rb"|Abort START|Revoke START|Revoke COMPLETE)"
)
"""The beginning and the end of a communicator's life."""

CHANNEL = re.compile(
    rb"(?:Channel|Ring) (?P<n>\d+)(?:/\d+)? : (?P<a>\d{1,9})(?:\[[0-9a-f]+\])? -> "
    rb"(?P<b>\d{1,9})(?:\[[0-9a-f]+\])?(?: \[(?P<way>send|receive)\])? "
    rb"via (?P<via>\S.*)"
)
"""The transport of one edge of a ring or a tree."""

SETTING = re.compile(
    rb"(?P<name>NCCL_[A-Z0-9_]+|RCCL_[A-Z0-9_]+) set (?:by environment )?to "
    rb"(?P<value>.*)$"
)
"""A variable of the environment that NCCL took notice of; a dot may follow."""

INTERFACE = re.compile(
    rb"(?:\[\d+\])?(?<![^\s:<\[\]])(?P<name>[^\s:<\[\]]{1,255})"
    rb":(?P<address>[0-9a-fA-F.:%\w]{1,255})<\d+>"
)
"""A network interface and its address."""

VERSION = re.compile(rb"(?<![\w/])[NR]CCL version (?P<version>\d+\.\d+(?:\.\d+)*)")
STATUS = re.compile(
    rb"(?<!\S)\S+:\d{1,9} (?:\([^)]{0,200}\) )?-> (?P<status>\d{1,9})\b"
)
PEER = re.compile(rb"(?<![\w.:%-])(?P<peer>[\w.:%-]{0,255}[\w%])<\d+>")
ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")

LAUNCHER_RANK = re.compile(
    rb"(?:\[(?:prterun-[^\]\s]{0,255}@)?\d+,(\d{1,6})\]<std(?:out|err)>"
    rb"|\[(\d{1,6})\]<std(?:out|err)>|^ *(\d{1,6}): )"
)
"""The world rank, if a launcher puts it before each line."""

TORCH_RANK = re.compile(rb"\[rank(\d{1,6})\]:")

_STAMP = re.compile(
    rb"(\d{4})[-/](\d\d)[-/](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6})\d*)?"
)

DTYPES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "bfloat16", "float8_e4m3", "float8_e5m2"),
)
REDUCE_OPS = ("sum", "prod", "max", "min", "avg")

REDUCING = frozenset({"AllReduce", "ReduceScatter", "Reduce"})
ROOTED = frozenset({"Broadcast", "Reduce", "Gather", "Scatter"})
PAIRWISE = frozenset({"Send", "Recv", "PutSignal", "Signal", "WaitSignal"})


def text_of(some: bytes) -> str:
    """Bytes of a log as text, whatever they are.

    Args:
        some: Bytes.
    """
    return some.decode("utf-8", "replace")


def stamp_of(text: bytes) -> float:
    """The time of the first time stamp in a text, in seconds; 0.0: it has none.

    Args:
        text: What stands before a line of NCCL.
    """
    found = _STAMP.search(text)
    if not found:
        return 0.0
    *whole, part = found.groups()
    try:
        moment = datetime(*map(int, whole))  # type: ignore[arg-type]
        return moment.timestamp() + float(b"0." + (part or b"0"))
    except (ValueError, OverflowError):
        return 0.0


def call_in_words(op: str, count: str, dtype: str, reduce: str, root: str) -> str:
    """A call as reports tell it; equal calls have equal words.

    >>> call_in_words("AllReduce", "1024", "7", "0", "0")
    'AllReduce(1024 float32, sum)'

    Args:
        op: The operation.
        count: Elements.
        dtype: NCCL's number of the data type.
        reduce: NCCL's number of the reduce op; what is made by users has any.
        root: The root's rank, where the operation has one.
    """
    number = int(dtype)
    name = DTYPES[number] if 0 <= number < len(DTYPES) else f"datatype {dtype}"
    words = f"{count} {name}"
    if op in REDUCING:
        code = int(reduce)
        words += f", {REDUCE_OPS[code]}" if 0 <= code < len(REDUCE_OPS) else ", own op"
    if op in {"Send", "Recv"}:
        words += f", peer {root}"
    if op in ROOTED:
        words += f", root {root}"
    return f"{op}({words})"
