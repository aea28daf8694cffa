"""The format of a journal: a black box per rank's process.

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

import struct
from enum import IntEnum

MAGIC = 0x31_4C_4E_4A_54_53_49_44  # "DISTJNL1"

VERSION = 2

VERSIONS_READ = (1, 2)
"""Version 1 told of a rank's life in another form; see `version_1`."""

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
    ("ordinal", "Q"),  # 1-based among this rank's collectives on the group; 0: P2P
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
    ("nodes", "i"),  # of the autograd graph, see NODES_MODULO
)
"""Of a record that tells of a collective; those of other kinds have other names."""

FIELDS_OF_OTHERS = {
    "message": {"nodes": "tag"},
    "note": {"ordinal": "size", "signature": "begin"},  # in the file of notes, in bytes
    "batch": {"ordinal": "count", "flags": "ended"},
}
"""Names that fields have in records of messages, of `NOTE` and of `BATCH`."""

NODES_MODULO = 1 << 31
"""`nodes` is how many nodes of the autograd graph the thread had made before the call.

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
    LIFE = 11  # anything else; `spec` is an event, see `event_text`
    REISSUE = 12  # refused, and made all the same, because nobody watches any more
    BATCH = 13  # a DataLoader gave its `count`-th batch, or `ended` after it
    HANDED = 20  # its handle was used in another way than to wait
    TOUCHED = 21  # it was not waited for, and (flags) what happened to its tensors
    NOTE = 22  # an observation, which lies in the file of notes


TOUCHED_BY_LINE, TOUCHED_BY_STEP = 1, 2
"""Flags of TOUCHED: changed in place between issue and wait (`site` is that of the
wait); read by an optimizer's step (`site` is the step's)."""


def offset_of(field: str) -> int:
    """Where a field of the header lies, in bytes from the start of the file.

    Args:
        field: A name in `HEADER_FIELDS`.

    Returns:
        The offset.

    Raises:
        KeyError: The header has no such field.
    """
    at = 0
    for name, code in HEADER_FIELDS:
        size = struct.calcsize("<" + code)
        if name == field:
            return at
        at += size
    raise KeyError(field)
