"""What one look at a running job tells, as values: `distdoctor.watch/1`.

The screen, the plain text and the JSON are all made of it. Texts in it are the job's
own, and may hold anything: whoever shows them makes them harmless.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

SCHEMA = "distdoctor.watch/1"


class RankDoing(StrEnum):
    """What a rank does, in one word or two."""

    OWN_CODE = "own code"  # in no call of communication
    IN_CALL = "in call"  # it has made a call, and does not have back control
    WAITING = "waiting"  # for a call to complete
    BACKWARD = "in backward"  # its end, where calls made meanwhile are waited for
    REFUSED = "refused"  # its call was stopped before it was issued
    LEFT = "left"  # it destroyed its process group
    ENDED = "ended"  # in order
    DIED = "died"  # by a signal, with another status than 0, or without a word
    UNHEARD = "unheard"  # nothing is known of it, or nothing any more
    STANDING = "standing"  # in the same functions of its own at several looks
    STOPPED = "stopped"  # by a signal, or by a debugger
    UNREADABLE = "unreadable"  # its stack, or its journal


BLOCKED = frozenset(
    {RankDoing.IN_CALL, RankDoing.WAITING, RankDoing.BACKWARD, RankDoing.REFUSED}
)
"""Of a rank that cannot go on by itself, for now."""

OVER = frozenset({RankDoing.ENDED, RankDoing.DIED})
"""Of a rank whose process has ended."""


class JobState(StrEnum):
    """How a job stands."""

    STARTING = "starting"  # no rank has come yet
    RUNNING = "running"
    OVER = "over"
    BROKEN_OFF = "broken off"  # distdoctor was killed; ranks may live on
    REMOVED = "removed"  # the record is gone


class WatchedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of communication, as the rank made it."""

    op: str  # name of the function users call; empty: in none, or not known
    group: str = ""
    ordinal: int = 0  # among the rank's collectives on the group; 0: of no order
    place: str = ""  # file:line of the user's
    function: str = ""


class WatchedRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank at one look. What is not known is null."""

    rank: int
    doing: RankDoing
    detail: str = ""  # of how it ended, or why nothing is known, in words
    since_s: float | None = None  # for how long it has been doing that
    call: WatchedCall | None = None  # that it is in, or its last one
    steps: int | None = None  # of its optimizers
    calls: int | None = None  # of communication
    steps_per_s: float | None = None
    calls_per_s: float | None = None
    memory_bytes: int | None = None  # resident
    pid: int | None = None  # on its machine
    host: str = ""


class WatchedWait(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that wait now, in one call, and the ranks that have not come to it."""

    ranks: list[int]
    call: WatchedCall
    on: list[int]  # empty: all have come, or that is not known
    unlike: list[int] = []  # ranks that stand in another call of that number
    any_of: bool = False  # one of these is enough
    since_s: float | None = None  # of the one that has waited for the longest


class WatchProof(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of which it is proved that they can never go on."""

    ranks: list[int]
    gone: list[int] = []  # ranks that will make no further call


class WatchedJob(msgspec.Struct, frozen=True, kw_only=True):
    """The job."""

    name: str  # its script, as reports call it
    state: JobState
    by: str = ""  # check | record; empty: distdoctor did not start it
    folder: str = ""  # of its record
    run: int = 1  # of several: a second one for --twice, or a restart of all ranks
    ranks: int = 0  # of the job, as far as is known
    alive: int = 0
    elapsed_s: float | None = None
    budget_s: float | None = None
    stopped: str = ""  # why distdoctor ended it; see `stopped` of the record
    exit_code: int | None = None
    verdict: str = ""  # sick | well | unknown; empty: none so far
    last_words: str = ""  # the last line that it printed, once it is over


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One look. Fields may be added, and none is ever renamed or removed."""

    schema: str = SCHEMA
    job: WatchedJob
    ranks: list[WatchedRank]
    waits: list[WatchedWait] = []  # of half a second and more
    proof: WatchProof | None = None  # null: nothing is proved
    remarks: list[str] = []  # what could not be seen, in sentences
    look_s: float = 0.0  # how long this look took
    every_s: float = 0.0  # from one look to the next, at least
