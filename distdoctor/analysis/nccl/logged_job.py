"""A job as NCCL's log shows it: rank by rank, and as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from distdoctor.analysis.memoize import memoize
from distdoctor.model.events import Event, Place
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.failures import TimedOut
from distdoctor.model.observations.nccl import (
    Communicator,
    ComplaintKind,
    LoggedCalls,
    LoggedMessage,
    NcclComplaint,
    NcclProcess,
)
from distdoctor.model.run import Run, named

_SIGNS = (ComplaintKind.EXCEPTION, ComplaintKind.WAITING)
_MOST_EXHIBITS = 64
_MOST_HOSTS = 8


@dataclass(slots=True)
class Party:
    """A rank, or a process of which the log does not tell which rank it is.

    Attributes:
        key: Its number in the run; negative where the rank is not known.
        host: Its host; empty: not known.
        process: What it said of itself.
        communicators: That it took part in.
        complaints: Messages of errors.
        calls: Where its calls differ from others'.
        messages: Sends that do not fit their receives.
    """

    key: int
    host: str = ""
    process: NcclProcess | None = None
    communicators: list[Communicator] = field(default_factory=list)
    complaints: list[NcclComplaint] = field(default_factory=list)
    calls: list[LoggedCalls] = field(default_factory=list)
    messages: list[LoggedMessage] = field(default_factory=list)

    @property
    def is_ranked(self) -> bool:
        """Whether its rank is known."""
        return self.key >= 0

    def of(self, *kinds: ComplaintKind) -> list[NcclComplaint]:
        """Its complaints of some kinds, in order.

        Args:
            kinds: Kinds.
        """
        return [one for one in self.complaints if one.kind in kinds]


@dataclass(slots=True)
class LoggedJob:
    """All parties, and what is known of the whole.

    Attributes:
        run: The run.
        parties: By key.
        failed: The log shows that the job failed, or waited in vain.
        aborted: Communicators were torn down; some frameworks always do.
    """

    run: Run
    parties: dict[int, Party]
    failed: bool = False
    aborted: bool = False

    @property
    def hosts(self) -> list[str]:
        """Names of hosts, in order."""
        return sorted({one.host for one in self.parties.values() if one.host})

    def on(self, *hosts: str) -> list[Party]:
        """Parties on some hosts.

        Args:
            hosts: Names.
        """
        return [one for one in self.parties.values() if one.host in hosts]

    def complaints(
        self, *kinds: ComplaintKind
    ) -> Iterator[tuple[Party, NcclComplaint]]:
        """Complaints of some kinds that the job did not get over, in order.

        Args:
            kinds: Kinds.
        """
        found = [
            (party, one)
            for party in self.parties.values()
            for one in party.of(*kinds)
            if not one.harmless
        ]
        found.sort(key=lambda pair: (pair[1].order, pair[0].key))
        yield from found

    def members_of(self, name: str) -> dict[int, Party]:
        """Parties of a communicator, by their ranks in it.

        Args:
            name: As in `Communicator.comm`.
        """
        return {
            one.member: party
            for party in self.parties.values()
            for one in party.communicators
            if one.comm == name
        }

    @property
    def made_none(self) -> bool:
        """Whether no rank has completed a communicator, or even begun one."""
        parties = self.parties.values()
        return not any(one.complete for p in parties for one in p.communicators)

    @property
    def communicators(self) -> dict[str, list[tuple[Party, Communicator]]]:
        """By name, the members of each communicator."""
        found: dict[str, list[tuple[Party, Communicator]]] = {}
        for party in self.parties.values():
            for one in party.communicators:
                found.setdefault(one.comm, []).append((party, one))
        return found


@memoize
def job_of(run: Run) -> LoggedJob:
    """The job of a run.

    Args:
        run: The run that is judged.
    """
    parties: dict[int, Party] = {}
    failed = aborted = False
    for key in sorted(run.life):
        told = run.told(
            NcclProcess,
            Communicator,
            NcclComplaint,
            LoggedCalls,
            LoggedMessage,
            TimedOut,
            rank=key,
        )
        if not told:
            continue
        party = Party(key)
        for _, event in told:
            if isinstance(event, NcclProcess):
                party.process, party.host = event, event.host
            elif isinstance(event, Communicator):
                party.communicators.append(event)
                party.host = party.host or event.host
                aborted |= event.aborted
            elif isinstance(event, NcclComplaint):
                party.complaints.append(event)
                party.host = party.host or event.host
                is_sign = bool(event.status) or event.kind in _SIGNS
                failed |= is_sign and not event.harmless
            elif isinstance(event, LoggedCalls):
                party.calls.append(event)
            elif isinstance(event, LoggedMessage):
                party.messages.append(event)
            elif isinstance(event, TimedOut):
                failed = True
        is_of_nccl = party.process or party.communicators or party.complaints
        if is_of_nccl or party.calls:
            parties[key] = party
    return LoggedJob(run, parties, failed, aborted)


class Wording(NamedTuple):
    """What a check says of facts.

    Attributes:
        message: A sentence, with the figures seen.
        cure: What to do about just this.
    """

    message: str
    cure: str


Words = Mapping[type, Callable[[Any], Wording]]
"""By the type of facts, how a check words them."""


@dataclass(slots=True, kw_only=True)
class Told:
    """One thing that the log shows to be wrong.

    Attributes:
        code: Of the disease.
        message: A sentence, with the figures seen; empty: the check words the facts.
        facts: What there is to say, where the check words it.
        parties: At fault.
        ranks: At fault, told by number alone.
        exhibits: What proves it.
        hosts: At fault, or where it happened.
        severity: If it is another than its check's.
        certainty: How sure.
        cure: What to do about just this.
        details: More for machines.
    """

    code: str
    message: str = ""
    facts: object = None
    parties: Sequence[Party] = ()
    ranks: Iterable[int] = ()
    exhibits: Sequence[Event]
    hosts: Sequence[str] = ()
    severity: Severity | None = None
    certainty: Certainty = Certainty.PROVED
    cure: str = ""
    details: Mapping[str, object] = field(default_factory=dict)

    def finding(self, run: Run, words: Words) -> Finding:
        """The finding of a check.

        Args:
            run: The run that is judged.
            words: The check's.
        """
        wording = Wording(self.message, self.cure)
        if self.facts is not None:
            wording = words[type(self.facts)](self.facts)
        culprits = {one.key for one in self.parties if one.is_ranked} | {*self.ranks}
        culprits = {rank for rank in culprits if 0 <= rank < run.world_size}
        victims = [rank for rank in run.seen if rank not in culprits]
        hosts = list(self.hosts) or sorted({p.host for p in self.parties if p.host})
        first = next(
            (one for one in self.exhibits if isinstance(one, NcclComplaint)), None
        )
        extra: dict[str, object] = {"hosts": hosts, **self.details}
        if first is not None:
            extra["line"] = first.text
        if wording.cure:
            extra["cure"] = wording.cure
        return Finding(
            message=wording.message,
            exhibits=tuple(self.exhibits[:_MOST_EXHIBITS]),
            culprits=tuple(sorted(culprits)),
            victims=tuple(victims),
            locations=tuple(_locations(self.exhibits)),
            certainty=self.certainty,
            severity=self.severity,
            details=extra,
        )


def _locations(exhibits: Sequence[Event]) -> Iterator[Location]:
    places: dict[Place, list[int]] = {}
    for one in exhibits:
        if one.place is not None and getattr(one, "rank", -1) is not None:
            places.setdefault(one.place, []).append(getattr(one, "rank", -1))
    for place, ranks in list(places.items())[:3]:
        known = tuple(sorted({rank for rank in ranks if rank >= 0}))
        yield Location(place, known, Role.PARTY, "says so")


def parties_of(pairs: Iterable[tuple[Party, NcclComplaint]]) -> list[Party]:
    """Who complains, each once.

    Args:
        pairs: Parties, and what each says.
    """
    return list({party.key: party for party, _ in pairs}.values())


def spoken(name: str) -> str:
    """A communicator as a sentence names it.

    Args:
        name: As in `Communicator.comm`.
    """
    return "the communicator of all ranks" if name == "world" else name


def who(parties: Sequence[Party]) -> str:
    """Parties as a sentence names them: ranks where they are known, and hosts.

    Args:
        parties: At least one.
    """
    ranks = [one.key for one in parties if one.is_ranked]
    hosts = sorted({one.host for one in parties if one.host})
    shown = ", ".join(hosts[:_MOST_HOSTS])
    shown += f" and {len(hosts) - _MOST_HOSTS} more" * (len(hosts) > _MOST_HOSTS)
    where = f"host{'s' * (len(hosts) > 1)} {shown}"
    if not ranks:
        pids = sorted({p.process.pid for p in parties if p.process and p.process.pid})
        some = f"process{'es' * (len(pids) > 1)} {', '.join(map(str, pids[:8]))}"
        return (
            f"{some} on {where}" if pids and hosts else where if hosts else "a process"
        )
    return f"{named(ranks)} ({where})" if hosts else named(ranks)
