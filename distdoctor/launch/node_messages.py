"""What the head of a job and the supervisors of its nodes say to each other."""

from __future__ import annotations

import msgspec

from distdoctor.journal.folder import StackSample
from distdoctor.journal.record_growth import FilePart, JournalPart, Position

VERSION = 2


class _Message(msgspec.Struct, frozen=True, array_like=True):
    """A message; its class is told by a tag."""


# --- from a node ---


class Hello(_Message, frozen=True, tag="hello"):
    """A node is there, and asks what it needs to know; said until it is answered."""

    version: int
    host: str


class Parts(_Message, frozen=True, tag="parts"):
    """What is new in the node's record."""

    number: int  # of the message, from 1
    parts: list[FilePart | JournalPart]


class ProcessState(msgspec.Struct, frozen=True, array_like=True):
    """How a process of a rank stands."""

    pid: int
    lives: bool
    cpu_s: float = 0.0  # with that of what it started
    traffic: int = 0  # bytes that it has read and written
    restarts: int = 0  # that its launcher has left
    name_server: str = ""  # for which it, or who started it, waits


class Census(_Message, frozen=True, tag="census"):
    """How the processes of the node's ranks stand, behind all parts sent before."""

    at_ns: int
    states: list[ProcessState]
    told_ns: int = 0  # all that ranks had written by then was sent, by its clock


class Asked(_Message, frozen=True, tag="asked"):
    """The node's part of a job that is recorded is about to be ended from outside."""

    at_ns: int  # by the node's clock


class Stacks(_Message, frozen=True, tag="stacks"):
    """The stacks that were asked for."""

    request: int
    samples: list[StackSample]
    remark: str


class Echo(_Message, frozen=True, tag="echo"):
    """The answer to a `Ping`, at once."""

    sent_ns: int
    at_ns: int  # by the node's clock


class Lost(_Message, frozen=True, tag="lost"):
    """Nothing was taken for long: where does the head stand?"""


class Bye(_Message, frozen=True, tag="bye"):
    """The node's ranks have ended, and all that they wrote was sent."""


# --- from the head ---


class Welcome(_Message, frozen=True, tag="welcome"):
    """The node is taken; what its ranks find in their environment."""

    variables: dict[str, str]
    ahead_ns: int  # by how much the node's clock is ahead


class TurnedAway(_Message, frozen=True, tag="refused"):
    """The node is not taken."""

    why: str


class Ping(_Message, frozen=True, tag="ping"):
    """The head lives; it has taken the parts up to a number."""

    sent_ns: int
    taken: int
    pace_s: float = 0.0  # from one message with parts to the next


class Rewind(_Message, frozen=True, tag="rewind"):
    """Parts were lost on the way."""

    positions: list[Position]
    is_all: bool = False  # of other files there is nothing


class StackOrder(_Message, frozen=True, tag="look"):
    """Take the stacks of these ranks: rank and process of each."""

    request: int
    who: list[tuple[int, int]]
    seconds: float


class End(_Message, frozen=True, tag="end"):
    """End all processes of the job, send what is left, and say goodbye."""

    is_done: bool = False  # the head's command has ended by itself, with status 0


FromNode = Hello | Parts | Census | Asked | Stacks | Echo | Lost | Bye

FromHead = Welcome | TurnedAway | Ping | Rewind | StackOrder | End

_OF_NODE = msgspec.msgpack.Decoder(FromNode)
_OF_HEAD = msgspec.msgpack.Decoder(FromHead)
_ENCODER = msgspec.msgpack.Encoder()


def packed(message: FromNode | FromHead) -> bytes:
    """A message as bytes."""
    return _ENCODER.encode(message)


def from_node(data: bytes) -> FromNode:
    """A message of a node.

    Raises:
        ValueError: It is none.
    """
    message: FromNode = _OF_NODE.decode(data)
    return message


def from_head(data: bytes) -> FromHead:
    """A message of the head.

    Raises:
        ValueError: It is none.
    """
    message: FromHead = _OF_HEAD.decode(data)
    return message
