"""A run: what every rank did, and what nobody saw.

Calls are kept as columns, because 16,384 ranks × 1,000 calls must fit; `Run.call` makes
an event object of the few that a check looks at. All other events are few, and are
kept as objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from distdoctor.model.class_index import ClassIndex
from distdoctor.model.column_copies import ColumnCopies
from distdoctor.model.events import (
    SETUP,
    STORE,
    WORLD,
    Call,
    Event,
    Failure,
    Place,
    State,
    Tensor,
)
from distdoctor.model.layers import LAYER_SHIFT, LAYERS, layer_of
from distdoctor.model.named_calls import NameCounter, is_by_name
from distdoctor.model.named_matching import with_names_matched
from distdoctor.model.operations import (
    ASYNCHRONOUS,
    BATCHED,
    CODE_OF,
    FAILING,
    NO_REDUCE_OP,
    OPERATIONS,
    REDUCE_OPS,
    SETUP_CODES,
    UNUSED,
    signature,
)
from distdoctor.model.outside_view import LeftFile, ProcessView, StackBranch

CALLS = np.dtype(
    [
        ("signature", "<u8"),
        ("ordinal", "<i8"),
        ("enter_ns", "<i8"),  # monotonic clock, in dumps its host's; 0: not known
        ("wait_ns", "<i8"),  # since when a thread of its rank waited for it
        ("complete_ns", "<i8"),
        ("rank", "<i4"),
        ("group", "<i4"),  # index into Run.groups
        ("site", "<i4"),  # index into Run.sites
        ("callers", "<i4"),  # index into Run.callers
        ("spec", "<i4"),  # index into Run.specs
        ("peer", "<i4"),  # the root where there is one; -1: none
        ("tag", "<i4"),  # of calls matched by name, what can meet has the same; else 0
        ("nodes", "<i4"),  # autograd nodes its thread had made, modulo 2**31
        ("thread", "<i4"),
        ("op", "u1"),
        ("reduce_op", "u1"),
        ("state", "u1"),
        ("flags", "u1"),
    ]
)
"""Columns of the calls, ordered by rank and then as the rank made them."""

PROVED_DEFAULT = "the default group"
"""Name of the group of calls that stacks tell of, where they tell that it is that one;
other such calls are told as of "world", and may be of any group."""

STACK = "stack"
"""In `Run.evidence`: stacks of ranks that somebody has taken from outside."""

Rows = NDArray[np.signedinteger[Any]]
"""Positions in `Run.calls`."""

AnyEvent = TypeVar("AnyEvent")


@dataclass(frozen=True, slots=True)
class Group:
    """A process group; its name is unique in the run."""

    name: str
    ranks: tuple[int, ...]  # global ranks by group rank


@dataclass(frozen=True, slots=True)
class DeviceCalls:
    """Open collectives that devices were given: a group's first, and those given up.

    Attributes:
        rows: Positions in `Run.calls`, ascending: by rank, and then as given.
        begun: Whether the device was seen to have begun each, shape (rows,).
    """

    rows: Rows = field(default_factory=lambda: np.empty(0, np.int64))
    begun: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))


@dataclass(frozen=True, slots=True)
class Spec:
    """The tensors of a call, how all-to-all splits them, what the call names.

    A set-up call names ranks, an address or keys; one of Horovod its tensor.
    """

    tensors: tuple[Tensor, ...] = ()
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of a rank's stack at the end of the run."""

    place: Place
    integers: Mapping[str, int] = field(default_factory=dict)  # local variables


@dataclass(frozen=True, slots=True)
class Quiet:
    """That no rank had moved for some time when the run was ended.

    Attributes:
        seconds: For how long.
        longest_before: The longest such time that had ended by itself, in seconds.
        idle: Ranks that used next to no processor time in it.
        name_server: For which a process of the job waited meanwhile; empty: for none.
    """

    seconds: float
    longest_before: float = 0.0
    idle: Set[int] = frozenset()
    name_server: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One execution of a job.

    Within a rank, the order of calls and events is the order in which it wrote them.
    There is no order *between* ranks: a check may only reason with what the
    collectives themselves order.

    Args:
        world_size: Number of ranks, seen and unseen.
        groups: Every process group that a seen rank used.
        calls: The calls; see `CALLS`.
        sites: Lines of the user's source that calls came from; the first is None.
        callers: The lines by which calls came to their sites, innermost first; the
            first has none.
        specs: What the calls moved.
        life: By rank, the other events, each with the number of the rank's calls
            before it.
        unseen: Why, in words for the reader, a rank has no journal.
        unrecorded: Why no call is known of a rank of which other things are, where
            the calls of others are known.
        simulated: Ranks that were to run alone, without the others; none if all ran.
        partial: Why part of a rank's journal is missing.
        faltered: Ranks with a probe that went wrong: anything may be missing between
            what they wrote, not only at its beginning or its end.
        unwatched: Why no probe looked for events of a kind; that none are in the
            journals then means nothing.
        stacks: By rank, user frames at the end of the run, innermost first; by
            negative numbers those of processes that never became ranks.
        sources: Text of the user's files by name as in `Place.file`.
        steps: By rank, optimizer steps done.
        stopped: Why distdoctor ended the run; empty if it ended by itself.
        quiet: How the ranks stood when distdoctor ended the run.
        closed: No process is left that could still become a rank.
        starved: That the kernel ended processes for want of memory; empty: it did not.
        cancelled: Who ended the job from outside, in words; empty: nobody, as far as is
            known.
        exit_code: Of the command, if it ended by itself.
        outside: Exceptions that ended processes which never had a rank.
        last_words: The last line that the job printed.
        substituted: What took the place of CUDA: names in `model.substitutes`.
        clusters: Addresses of clusters of Ray on which the job had its workers, and
            which were there before it: those workers have no probes.
        groups_apart: Groups of Ray's workers that trained beside the one that was
            watched.
        set_aside: What was found and could not be used, and why, in words.
        unread: Files of the record that could not be read, or not all of them, and why.
        reached: By position of a group and rank, the ordinal of the last collective of
            ranks of whose calls on it none is among `calls`; -1: nobody knows it.
        pauses: By rank, the longest time between two of its calls in ns, where `calls`
            has not all of them.
        on_devices: Of open calls that recorders kept, those that devices were given.
        calls_from: What tells of the calls: "run" are our probes, which saw every call
            and the threads that waited; "dump" are rings that torch itself kept.
        stack_tree: The merged stacks of all ranks, where somebody has taken them.
        processes: What was seen of the ranks' processes from outside.
        files: What was found of a job that nobody watched, read or not.
        evidence: What tells of the run, as reports name it: "run" are our own probes;
            "dump", "log" and "stack" is what a job left that nobody watched, "status"
            what it tells of itself while it runs.
    """

    world_size: int
    groups: tuple[Group, ...] = ()
    calls: NDArray[Any] = field(default_factory=lambda: np.empty(0, CALLS))
    sites: Sequence[Place | None] = (None,)
    callers: Sequence[tuple[Place, ...]] = ((),)
    specs: Sequence[Spec] = (Spec(),)
    life: Mapping[int, Sequence[tuple[int, Event]]] = field(default_factory=dict)
    unseen: Mapping[int, str] = field(default_factory=dict)
    unrecorded: Mapping[int, str] = field(default_factory=dict)
    simulated: Set[int] = frozenset()
    partial: Mapping[int, str] = field(default_factory=dict)
    faltered: Set[int] = frozenset()
    unwatched: Mapping[type, str] = field(default_factory=dict)
    stacks: Mapping[int, Sequence[Frame]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    steps: Mapping[int, int] = field(default_factory=dict)
    stopped: str = ""
    quiet: Quiet | None = None
    closed: bool = False
    starved: str = ""
    cancelled: str = ""
    exit_code: int | None = None
    outside: Sequence[Failure] = ()
    last_words: str = ""
    substituted: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    groups_apart: int = 0
    set_aside: tuple[tuple[str, str], ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    reached: Mapping[tuple[int, int], int] = field(default_factory=dict)
    pauses: Mapping[int, int] = field(default_factory=dict)
    on_devices: DeviceCalls = field(default_factory=DeviceCalls)
    calls_from: str = "run"
    stack_tree: tuple[StackBranch, ...] = ()
    processes: tuple[ProcessView, ...] = ()
    files: tuple[LeftFile, ...] = ()
    evidence: tuple[str, ...] = ("run",)
    memory: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    """What analyses concluded already, by their names."""
    _events_of: dict[Any, Mapping[int, Sequence[tuple[int, Any]]]] = field(
        default_factory=dict, init=False, repr=False
    )
    """By class, or tuple of such, as far as asked for, and rank; see `told`."""
    _alone: dict[type, Mapping[int, list[Any]]] = field(
        default_factory=dict, init=False, repr=False
    )
    """By class, as far as asked for, and rank; see `of`."""

    @classmethod
    def of_events(
        cls,
        events: Mapping[int, Sequence[Event]],
        unseen: Mapping[int, str] | None = None,
        members: Mapping[str, Sequence[int]] | None = None,
        **rest: Any,
    ) -> Run:
        """The run in which each rank did just these things, in this order.

        Args:
            events: By rank.
            unseen: As in `Run`.
            members: Ranks of groups; by default "world" has all ranks, and any other
                group the ranks that use it.
            rest: Further fields of `Run`.

        Returns:
            The run, with its calls as columns.
        """
        return _Builder(events, unseen or {}, members or {}).run(**rest)

    @property
    def seen(self) -> list[int]:
        """Ranks with a journal, ascending; all who ask share the list."""
        if "seen" not in self.memory:
            ranks = range(self.world_size)
            self.memory["seen"] = [rank for rank in ranks if rank not in self.unseen]
        seen: list[int] = self.memory["seen"]
        return seen

    def has_seen(self, ranks: Iterable[int]) -> bool:
        """Whether all of these ranks have a journal; costs as much as these are.

        Args:
            ranks: Global ranks; one outside of the job counts as not seen.

        Returns:
            Whether none of them is missing.
        """
        return all(
            0 <= rank < self.world_size and rank not in self.unseen for rank in ranks
        )

    @property
    def missing(self) -> list[int]:
        """Ranks that should have been seen and were not, ascending; shared as well."""
        if "missing" not in self.memory:
            unseen = self.unseen.keys()
            expected = unseen & self.simulated if self.simulated else unseen
            self.memory["missing"] = sorted(expected)
        missing: list[int] = self.memory["missing"]
        return missing

    @property
    def bounds(self) -> list[int]:
        """Where in `calls` each rank's begin, and, last, how many there are; shared."""
        if "bounds" not in self.memory:
            ranks = np.arange(self.world_size + 1, dtype=CALLS["rank"])
            begins = np.searchsorted(self.calls["rank"], ranks)
            self.memory["bounds"] = begins.tolist()
        bounds: list[int] = self.memory["bounds"]
        return bounds

    def rows_of(self, rank: int) -> range:
        """Positions in `calls` of one rank's calls, in order.

        Args:
            rank: A global rank of the run, seen or not.

        Returns:
            The positions, empty for a rank that was not seen.

        Raises:
            IndexError: The run has no such rank.
        """
        bounds = self.bounds
        return range(bounds[rank], bounds[rank + 1])

    def rows_on(self, rank: int, group: int) -> Rows:
        """Positions in `calls` of one rank's calls on one group, in order.

        Args:
            rank: A global rank of the run.
            group: The position of the group in `groups`.

        Returns:
            The positions, shape (calls,), int64, ascending.
        """
        mine = self.rows_of(rank)
        used = self.column("group")[mine.start : mine.stop] == group
        return mine.start + np.flatnonzero(used)

    def column(self, name: str) -> NDArray[Any]:
        """One column of `calls` by itself, which is read many times as fast.

        Args:
            name: A field of `CALLS`.

        Returns:
            Shape (calls,), of the field's type or a smaller one: widen it before it
            is reckoned with. All who ask share it.
        """
        if "columns" not in self.memory:
            tables = {
                "group": len(self.groups),
                "site": len(self.sites),
                "callers": len(self.callers),
                "spec": len(self.specs),
            }
            self.memory["columns"] = ColumnCopies(self.calls, tables)
        columns: ColumnCopies = self.memory["columns"]
        return columns.column(name)

    def values(self, name: str, rows: Rows) -> NDArray[Any]:
        """What a column of `calls` has at some positions; see `column`.

        Args:
            name: A field of `CALLS`.
            rows: The positions, ascending, each once.

        Returns:
            Shape (rows,).
        """
        column = self.column(name)
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
            return column[rows[0] : rows[-1] + 1]  # they follow each other: no copy
        return column[rows]

    def with_op(self, *codes: int) -> Rows:
        """Positions in `calls` of the calls of some operations.

        Args:
            *codes: Positions of operations in `OPERATIONS`.

        Returns:
            The positions, shape (calls,), int64, ascending: by rank, then in order.
        """
        return self._where("op", codes)

    def with_state(self, *states: State) -> Rows:
        """Positions in `calls` of the calls that had come so far.

        Args:
            *states: How far the calls had come when their rank's journal ends.

        Returns:
            The positions, shape (calls,), int64, ascending: by rank, then in order.
        """
        return self._where("state", states)

    def _where(self, column: str, values: Iterable[int]) -> Rows:
        return np.flatnonzero(self._among(column, values))

    def _among(self, column: str, values: Iterable[int]) -> NDArray[np.bool_]:
        wanted = np.zeros(256, dtype=np.bool_)
        wanted[list(values)] = True
        among: NDArray[np.bool_] = wanted[self.column(column)]
        return among

    def call(self, row: int) -> Call:
        """One call as an event.

        Args:
            row: Its position in `calls`.

        Returns:
            The call, with the names of its operation, its group and its reduce op.

        Raises:
            IndexError: There is no such position.
        """
        record = self.calls[row]
        operation = OPERATIONS[record["op"]]
        spec = self.specs[record["spec"]]
        peer = int(record["peer"])
        reduce_op = int(record["reduce_op"])
        return Call(
            rank=int(record["rank"]),
            op=operation.name,
            group=self.groups[record["group"]].name,
            ordinal=int(record["ordinal"]),
            tensors=spec.tensors,
            reduce_op=REDUCE_OPS[reduce_op] if reduce_op < len(REDUCE_OPS) else None,
            root=self._root(peer) if operation.is_rooted else None,
            peer=peer if operation.is_point_to_point and peer >= 0 else None,
            tag=int(record["tag"]),
            splits=spec.splits,
            names=spec.names,
            asynchronous=bool(record["flags"] & ASYNCHRONOUS),
            state=State(int(record["state"])),
            place=self.sites[record["site"]],
            callers=self.callers[record["callers"]],
            thread=int(record["thread"]),
            failing=bool(record["flags"] & FAILING),
            batched=bool(record["flags"] & BATCHED),
            layer=layer_of(int(record["flags"])),
            unused=bool(record["flags"] & UNUSED),
        )

    def _root(self, peer: int) -> int | None:
        """The root of a call; what a job left rarely tells it."""
        return peer if peer >= 0 or "run" in self.evidence else None

    def events(self, rank: int) -> Iterator[Event]:
        """All a rank did, in order.

        Args:
            rank: A global rank of the run.

        Yields:
            Calls and other events, in the order in which the rank wrote them; none of a
            rank that was not seen.
        """
        life = list(self.life.get(rank, ()))
        for position, row in enumerate(self.rows_of(rank)):
            while life and life[0][0] <= position:
                yield life.pop(0)[1]
            yield self.call(row)
        yield from (event for _, event in life)

    def of(self, kind: type[AnyEvent], rank: int) -> list[AnyEvent]:
        """The events of one kind other than calls on one rank, in order.

        Args:
            kind: A class of events; its subclasses count as well.
            rank: A global rank of the run.

        Returns:
            The events, empty if there are none or the rank was not seen.
        """
        # Asked for a hundred kinds, of thousands of ranks that have none.
        found = self._alone.get(kind)
        told = (self._without_positions(kind) if found is None else found).get(rank)
        return [*told] if told else []

    def told(
        self, kind: type[AnyEvent], *kinds: type[AnyEvent], rank: int
    ) -> Sequence[tuple[int, AnyEvent]]:
        """What `life` has of some kinds on one rank; costs as much as these are.

        Args:
            kind: A class of events; its subclasses count as well.
            *kinds: More of them.
            rank: A global rank of the run.

        Returns:
            In order, each event with the number of the rank's calls before it; all who
            ask share it. Empty if there are none or the rank was not seen.
        """
        key = (kind, *kinds) if kinds else kind
        found = self._events_of.get(key)
        return (self._by_rank(key) if found is None else found).get(rank, ())

    def has(self, kind: type) -> bool:
        """Whether any rank has an event of this kind; setting up is no call.

        Args:
            kind: A class of events; `Call` asks for operations other than those of
                setting up.

        Returns:
            Whether there is one, on any rank.
        """
        if kind is Call:
            if "has calls" not in self.memory:
                others = set(range(len(OPERATIONS))) - set(SETUP_CODES)
                self.memory["has calls"] = bool(self._among("op", others).any())
            return bool(self.memory["has calls"])
        return any(issubclass(one, kind) for one in self._index().classes)

    def _by_rank(self, key: Any) -> Mapping[int, Sequence[tuple[int, Any]]]:
        """By rank that has some, what it told of a kind, or of those in a tuple.

        Each event is looked at once, to learn of which class it is.
        """
        found = self._events_of.get(key)
        if found is None:
            index = self._index()
            among = [one for one in index.classes if issubclass(one, key)]
            found = index.of(among)
            self._events_of[key] = found
        return found

    def _without_positions(self, kind: type) -> Mapping[int, list[Any]]:
        """By rank that has some, what it told of a kind, for `of`."""
        event = itemgetter(1)
        found = {
            rank: list(map(event, told)) for rank, told in self._by_rank(kind).items()
        }
        self._alone[kind] = found
        return found

    def _index(self) -> ClassIndex:
        if "of class" not in self.memory:
            self.memory["of class"] = ClassIndex(self.life)
        index: ClassIndex = self.memory["of class"]
        return index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Run):
            return NotImplemented
        ranks = tuple(range(self.world_size))  # these need not be said:
        everyone = {Group(name, ranks) for name in (WORLD, SETUP, STORE)}
        return (
            (self.world_size, self.closed, self.exit_code, dict(self.unseen))
            == (other.world_size, other.closed, other.exit_code, dict(other.unseen))
            and {*self.groups} - everyone == {*other.groups} - everyone
        ) and all(
            list(self.events(rank)) == list(other.events(rank))
            for rank in range(self.world_size)
        )

    __hash__ = None  # type: ignore[assignment] # a run is large; nothing hashes it


class _Builder:
    """Turns events into columns."""

    def __init__(
        self,
        events: Mapping[int, Sequence[Event]],
        unseen: Mapping[int, str],
        members: Mapping[str, Sequence[int]],
    ) -> None:
        ranks = sorted([*events, *unseen])
        if ranks != list(range(len(ranks))):
            raise ValueError(f"ranks must be 0..n-1, each once; got {ranks}")
        self._events, self._unseen, self._members = events, unseen, members
        self._sites: dict[Place | None, int] = {None: 0}
        self._callers: dict[tuple[Place, ...], int] = {(): 0}
        self._specs: dict[Spec, int] = {Spec(): 0}
        self._groups: dict[str, int] = {}
        self._users: dict[str, set[int]] = {}

    def run(self, **rest: Any) -> Run:
        records: list[tuple[object, ...]] = []
        life: dict[int, list[tuple[int, Event]]] = {}
        for rank in sorted(self._events):
            count = 0
            life[rank] = []
            ordinals: dict[str, int] = {}
            counter = NameCounter()
            for event in self._events[rank]:
                if isinstance(event, Call):
                    records.append(self._record(event, ordinals, counter))
                    count += 1
                else:
                    life[rank].append((count, event))
        size = len(self._events) + len(self._unseen)
        for name in self._members:
            self._index(self._groups, name)
        groups = tuple(Group(name, self._ranks(name, size)) for name in self._groups)
        calls = np.array(records, CALLS) if records else np.empty(0, CALLS)
        specs = list(self._specs)
        return Run(
            world_size=size,
            groups=with_names_matched(calls, groups, specs, self._unseen.keys()),
            calls=calls,
            sites=list(self._sites),
            callers=list(self._callers),
            specs=specs,
            life=life,
            unseen=dict(self._unseen),
            **rest,
        )

    def _ranks(self, name: str, size: int) -> tuple[int, ...]:
        if name in self._members:
            return tuple(self._members[name])
        everyone = name in {WORLD, SETUP, STORE}
        return tuple(range(size) if everyone else sorted(self._users[name]))

    @staticmethod
    def _index(table: dict[Any, int], key: object) -> int:
        return table.setdefault(key, len(table))

    def _record(
        self, call: Call, ordinals: dict[str, int], counter: NameCounter
    ) -> tuple[object, ...]:
        op = CODE_OF[call.op]
        operation = OPERATIONS[op]
        ordinal = call.ordinal
        if is_by_name(call.group):
            name = "".join(call.names[:1])
            ordinal = counter.numbered(call.group, call.op, name)
        elif operation.is_collective:
            ordinals[call.group] = n = ordinals.get(call.group, 0) + 1
            ordinal = ordinal or n
        self._users.setdefault(call.group, set()).add(call.rank)
        reduce_op = NO_REDUCE_OP
        if call.reduce_op is not None:
            reduce_op = REDUCE_OPS.index(call.reduce_op)
        root = -1 if call.root is None else call.root
        peer = root if call.peer is None else call.peer
        dtypes = tuple(tensor.dtype for tensor in call.tensors)
        numels = tuple(tensor.numel for tensor in call.tensors)
        flags = ASYNCHRONOUS * call.asynchronous | FAILING * call.failing
        flags |= BATCHED * call.batched
        flags |= LAYERS.index(call.layer) << LAYER_SHIFT
        flags |= UNUSED * call.unused
        return (
            signature(op, reduce_op, root, dtypes, numels, call.names),
            ordinal,
            *(call.entered_ms * 1_000_000, 0, 0),
            call.rank,
            self._index(self._groups, call.group),
            self._index(self._sites, call.place),
            self._index(self._callers, call.callers),
            self._index(self._specs, Spec(call.tensors, call.splits, call.names)),
            peer,
            call.tag,
            0,
            call.thread,
            op,
            reduce_op,
            int(call.state),
            flags,
        )


def ranges(ranks: Iterable[int]) -> str:
    """Ranks as people write them.

    >>> ranges([0, 1, 2, 5])
    '{0-2,5}'
    >>> ranges([3])
    '3'

    Args:
        ranks: Ranks in any order, each as often as may be.

    Returns:
        A single rank as its number, anything else in braces.
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return (
        words[0]
        if len(words) == 1 and "-" not in words[0]
        else f"{{{','.join(words)}}}"
    )


def named(ranks: Iterable[int]) -> str:
    """Ranks with their noun.

    >>> named([3]), named([0, 1])
    ('rank 3', 'ranks {0-1}')

    Args:
        ranks: Ranks in any order, each as often as may be.

    Returns:
        "rank" or "ranks" before what `ranges` says.
    """
    listed = sorted(set(ranks))
    return f"rank{'s' if len(listed) != 1 else ''} {ranges(listed)}"
