"""What there is to say of calls that do not match; the check has the words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distdoctor.analysis.nccl.logged_job import Party
from distdoctor.model.observations.nccl import LoggedMessage


@dataclass(frozen=True, slots=True)
class LoggedDifference:
    """The first call on a communicator that not all ranks made alike.

    Attributes:
        how: "missing", "extra", "swapped" or "unlike": how the odd ranks' calls part.
        odd: Who made another call.
        group: The others.
        usual: The call of the others.
        other: That of the odd ones.
        ordinal: Its number on the communicator, from 1.
        comm: Name of the communicator.
    """

    how: str
    odd: Sequence[Party]
    group: Sequence[Party]
    usual: str
    other: str
    ordinal: int
    comm: str


@dataclass(frozen=True, slots=True)
class LoggedLag:
    """Ranks that have made fewer calls on a communicator than the others.

    Attributes:
        behind: Who.
        comm: Name of the communicator.
        least: Calls of who is behind.
        most: Calls of who is ahead.
        missed: The first call that is missing there.
    """

    behind: Sequence[Party]
    comm: str
    least: int
    most: int
    missed: str


@dataclass(frozen=True, slots=True)
class LoggedMisfit:
    """A send and its receive that do not fit each other.

    Attributes:
        sender: Who sends.
        receiver: Who receives.
        message: What both say of it.
        is_odd: Messages between them were all alike before.
    """

    sender: Party
    receiver: Party
    message: LoggedMessage
    is_odd: bool


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """A call that NCCL refused: who made it, and NCCL's message."""

    parties: Sequence[Party]
    text: str


@dataclass(frozen=True, slots=True)
class OtherSizes:
    """Data of another size than expected, as NCCL noticed it.

    Attributes:
        parties: Who noticed it.
        ranks: Ranks that the message names.
        text: The message.
    """

    parties: Sequence[Party]
    ranks: Sequence[int]
    text: str
