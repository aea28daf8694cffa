"""Where the ranks of a run part ways, and what explains it.

A divergence is the first meeting of a group that not all members made, or not alike.
It gets exactly one explanation, the most specific one the evidence carries, so that one
fault is one finding; each check asks for the explanation it is named for.

The reference is the majority, never rank 0. With a tie (two ranks, mostly) the side
that does something new decides, if only one side does: it calls from a line that the
other has never called from, while the other does what both have done before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from distdoctor.analysis import loops
from distdoctor.analysis.alignment import Alignment, Meeting, alignments
from distdoctor.analysis.wait_for import Wait, gone, standstill
from distdoctor.model.events import (
    Batch,
    Busy,
    Call,
    Ended,
    Event,
    Failure,
    Left,
    Place,
    State,
)
from distdoctor.model.findings import Certainty, Finding, Location, Role
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Group, Run, named

_LARGEST_ALL_TO_ALL = 256  # pairs grow with the square of the ranks


class Why(StrEnum):
    """What explains a divergence."""

    OPERATION = "another operation"
    NUMEL = "another number of elements"
    DTYPE = "another dtype"
    REDUCE_OP = "another reduce op"
    ROOT = "another root"
    SPLITS = "splits or lists that do not fit"
    ORDER = "another order"
    SKIPPED = "skipped or added"
    UNEVEN = "fewer rounds"
    FINISHED = "finished"
    DIED = "died"
    CIRCLE = "a circle of waits"
    MESSAGES = "a circle of messages"
    BUSY = "stuck in its own code"


@dataclass(frozen=True, slots=True)
class Divergence:
    """One place where ranks part ways.

    Attributes:
        why: The explanation.
        group: The group they part in; None if no call had to be made in vain.
        ordinal: Which call on it, from 1; 0 with a circle.
        calls: By rank, the call it stands at: at this ordinal, or, for a rank that
            never came there, where it waits instead.
        culprits: Ranks at fault; empty if none can be told from the others.
        victims: Ranks that wait or were led astray.
        cause: The event that explains it, where there is one.
        story: What happened, as one sentence.
        certainty: How sure the explanation is.
        elsewhere: Further lines that tell the story.
    """

    why: Why
    group: Group | None
    ordinal: int
    calls: dict[int, Call]
    culprits: tuple[int, ...]
    victims: tuple[int, ...]
    story: str
    cause: Event | None = None
    certainty: Certainty = Certainty.PROVED
    elsewhere: tuple[Location, ...] = field(default=())


def divergences(run: Run) -> list[Divergence]:
    """All independent divergences of a run, worked out once."""
    if "divergences" not in run.memory:
        run.memory["divergences"] = _Explainer(run).all()
    result: list[Divergence] = run.memory["divergences"]
    return result


def findings(run: Run, *reasons: Why) -> Iterator[Finding]:
    """The divergences with one of these explanations, as findings."""
    for divergence in divergences(run):
        if divergence.why in reasons:
            yield finding(divergence)


def finding(divergence: Divergence) -> Finding:
    """A divergence as a finding: who stood where."""
    culprits = set(divergence.culprits)
    by_line: dict[tuple[Place, Role, str], list[int]] = {}
    for rank, call in divergence.calls.items():
        if call.place is not None:
            if rank in culprits:
                role = Role.CULPRIT
            else:
                role = Role.VICTIM if culprits else Role.PARTY
            by_line.setdefault((call.place, role, str(call)), []).append(rank)
    locations = [
        Location(place, tuple(sorted(ranks)), role, text)
        for (place, role, text), ranks in by_line.items()
    ]
    order = {Role.CULPRIT: 0, Role.PARTY: 1, Role.VICTIM: 2}
    locations.sort(key=lambda location: (order[location.role], location.ranks))
    exhibits: list[Event] = [divergence.calls[r] for r in sorted(divergence.calls)]
    if divergence.cause is not None:
        exhibits.insert(0, divergence.cause)
    details: dict[str, object] = {"explanation": str(divergence.why)}
    if divergence.group is not None:
        details |= {"group": divergence.group.name, "ordinal": divergence.ordinal}
    return Finding(
        message=divergence.story,
        exhibits=tuple(exhibits),
        culprits=tuple(sorted(divergence.culprits)),
        victims=tuple(sorted(divergence.victims)),
        locations=(*divergence.elsewhere, *locations),
        certainty=divergence.certainty,
        details=details,
    )


def where(group: Group, ordinal: int) -> str:
    """A call's place in a group's sequence, for readers."""
    return f"call {ordinal} on {group.name}"


@dataclass(frozen=True, slots=True)
class _Side:
    """Ranks that made the same call at a meeting, and that call on one of them."""

    ranks: tuple[int, ...]
    rank: int
    row: int
    call: Call


class _Explainer:
    """Explains the divergences of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.gone = gone(run)
        self.stuck = standstill(run)

    def all(self) -> list[Divergence]:
        found: list[Divergence] = []
        for alignment in alignments(self.run):
            fault = alignment.first_fault(self.run)
            uneven_splits = self._splits(alignment, fault)
            if uneven_splits is not None:
                found.append(uneven_splits)
            elif fault is not None and len(self._sides(fault)) > 1:
                found.append(self._mismatch(fault))
            else:
                found += self._swapped_unseen(alignment)
                if fault is not None:
                    found += self._absence(fault)
        if not found:
            found += self._deaths()
        if not found:
            found += self._circle()
        if not found:
            found += self._busy()
        return found

    # --- who stands where ---

    def _calls(self, meeting: Meeting) -> dict[int, Call]:
        return {rank: self.run.call(row) for rank, row in meeting.rows.items()}

    def _sides(self, meeting: Meeting) -> list[_Side]:
        """The camps at a meeting, largest first."""
        camps: dict[int, list[int]] = {}
        for rank, row in meeting.rows.items():
            camps.setdefault(int(self.run.calls["signature"][row]), []).append(rank)
        sides = [
            _Side(tuple(ranks), ranks[0], row, self.run.call(row))
            for ranks in map(sorted, camps.values())
            for row in [meeting.rows[ranks[0]]]
        ]
        return sorted(sides, key=lambda side: (-len(side.ranks), side.rank))

    def _knows(self, rank: int, before_row: int, other_row: int) -> bool:
        """Whether a rank had made such a call, from that line, before."""
        calls = self.run.calls
        start = self.run.rows_of(rank).start
        past, other = calls[start:before_row], calls[other_row]
        same = (past["site"] == other["site"]) & (past["op"] == other["op"])
        return bool((same & (past["group"] == other["group"])).any())

    def _knows_exactly(self, rank: int, before_row: int, other_row: int) -> bool:
        calls = self.run.calls
        past = calls[self.run.rows_of(rank).start : before_row]
        other = calls[other_row]
        same = (past["site"] == other["site"]) & (
            past["signature"] == other["signature"]
        )
        return bool((same & (past["group"] == other["group"])).any())

    def _next(self, row: int) -> int | None:
        """The rank's next collective on the same group."""
        calls = self.run.calls
        for later in range(row + 1, self.run.rows_of(int(calls["rank"][row])).stop):
            if (
                calls["group"][later] == calls["group"][row]
                and calls["ordinal"][later] > 0
            ):
                return later
        return None

    def _same(self, row: int | None, other: int) -> bool:
        calls = self.run.calls
        return row is not None and bool(
            calls["signature"][row] == calls["signature"][other]
        )

    # --- calls that do not match ---

    def _mismatch(self, meeting: Meeting) -> Divergence:
        sides = self._sides(meeting)
        tie = len(sides[0].ranks) == len(sides[1].ranks)
        major, minor = sides[0], sides[1]
        calls = self._calls(meeting)
        base = Divergence(
            why=Why.OPERATION,
            group=meeting.group,
            ordinal=meeting.ordinal,
            calls=calls,
            culprits=tuple(sorted(rank for side in sides[1:] for rank in side.ranks)),
            victims=major.ranks,
            story="",
        )
        if len(sides) == 2:
            if (died := self._on_the_way_down(base, sides, tie)) is not None:
                return died
            if tie:
                major, minor, tie = self._deviating(major, minor)
            base = replace(
                base,
                culprits=() if tie else minor.ranks,
                victims=tuple(calls) if tie else major.ranks,
            )
            if (sequence := self._sequence(base, major, minor, tie)) is not None:
                return sequence
        return self._arguments(base, sides, tie)

    def _on_the_way_down(
        self, base: Divergence, sides: list[_Side], tie: bool
    ) -> Divergence | None:
        """A rank met the others in the wrong call because an exception led it there."""
        suspects = sides if tie else sides[1:]
        failing = [
            side
            for side in suspects
            if side.call.failing and self._failure(side.rank) is not None
        ]
        if len(failing) != 1:
            return None
        side = failing[0]
        failure = self._failure(side.rank)
        assert failure is not None
        others = [rank for rank in base.calls if rank not in side.ranks]
        other = base.calls[others[0]]
        return replace(
            base,
            why=Why.DIED,
            culprits=side.ranks,
            victims=tuple(others),
            cause=failure,
            elsewhere=_at(failure, side.ranks, f"raised {failure.error}"),
            story=f"{_failed(side.ranks, failure)}; on its way up the exception led "
            f"into {side.call.op} at {side.call.place}, while {named(others)} "
            f"{_wait(others)} in {other.op} ({where_of(base)}).",
        )

    def _failure(self, rank: int) -> Failure | None:
        """The first exception of a rank that was not a peer's fault."""
        failures = [f for f in self.run.of(Failure, rank) if not f.secondary]
        return failures[0] if failures else None

    def _deviating(self, a: _Side, b: _Side) -> tuple[_Side, _Side, bool]:
        """Of two camps of one size, the one that does as before, and the other.

        Returns:
            Both, and whether nothing decides between them.
        """
        a_is_old = self._knows(b.rank, b.row, a.row)
        b_is_old = self._knows(a.rank, a.row, b.row)
        if a_is_old and not b_is_old:
            return a, b, False
        if b_is_old and not a_is_old:
            return b, a, False
        if a_is_old and b_is_old:
            if self._rounds(a, b) is not None and self._rounds(b, a) is None:
                return a, b, False
            if self._rounds(b, a) is not None and self._rounds(a, b) is None:
                return b, a, False
        return a, b, True

    def _sequence(
        self, base: Divergence, major: _Side, minor: _Side, tie: bool
    ) -> Divergence | None:
        """An explanation by calls that came too early, too late or not at all."""
        if (swapped := self._swap(base, major, minor, tie)) is not None:
            return swapped
        if tie:
            return None
        same_line = (
            major.call.op == minor.call.op and major.call.place == minor.call.place
        )
        if (rounds := self._rounds(major, minor)) is not None and not same_line:
            return replace(base, why=Why.UNEVEN, **rounds)  # type: ignore[arg-type]
        did_before = self._knows(minor.rank, minor.row, major.row)
        known = self._knows(major.rank, major.row, minor.row)
        if same_line or (major.call.op == minor.call.op and not (did_before or known)):
            return None
        if did_before and not known and not self._passed_over(major, minor):
            return replace(
                base,
                why=Why.SKIPPED,
                story=f"{_capital(named(minor.ranks))} alone "
                f"call{_s(minor.ranks)} {minor.call.op} ({where_of(base)}); "
                f"{named(major.ranks)} went on to {major.call.op}, as before.",
            )
        if known or did_before:
            place = major.call.place
            here = () if place is None else (place,)
            return replace(
                base,
                why=Why.SKIPPED,
                elsewhere=tuple(
                    Location(at, minor.ranks, Role.CULPRIT, "skipped this call")
                    for at in here
                ),
                story=f"{_capital(named(minor.ranks))} skipped {major.call.op} "
                f"({where_of(base)}) and went on to {minor.call.op}; "
                f"{named(major.ranks)} {_wait(major.ranks)} in it.",
            )
        return None

    def _swap(
        self, base: Divergence, major: _Side, minor: _Side, tie: bool
    ) -> Divergence | None:
        """The same calls, the other way round."""
        ahead = self._same(self._next(minor.row), major.row)
        behind = self._same(self._next(major.row), minor.row)
        one_line = minor.call.place == major.call.place
        familiar = self._knows_exactly(
            major.rank, major.row, minor.row
        ) and self._knows_exactly(minor.rank, minor.row, major.row)
        if ahead or (one_line and (behind or familiar)):
            certainty = Certainty.PROVED if ahead and behind else Certainty.LIKELY
            first, second = sorted([minor, major], key=lambda side: side.rank)
            return replace(
                base,
                why=Why.ORDER,
                certainty=certainty,
                story=f"{_capital(named(minor.ranks))} make{_s(minor.ranks)} the calls "
                f"on {base.group.name if base.group else ''} in another order than "
                f"{named(major.ranks)}: call {base.ordinal} is {first.call} on "
                f"{named(first.ranks)} and {second.call} on {named(second.ranks)}.",
                culprits=() if tie else minor.ranks,
            )
        return None

    def _rounds(self, major: _Side, minor: _Side) -> dict[str, object] | None:
        """Evidence that one camp went through fewer rounds of a loop than the other."""
        batches = self._ended_loader(minor.rank, minor.row)
        if batches is not None:
            others = [
                event
                for event in self.run.of(Batch, major.rank)
                if event.place == batches.place and not event.ended
            ]
            if others and others[-1].count > batches.count:
                return {
                    "cause": batches,
                    "elsewhere": _at(batches, minor.ranks, "its loader ended here"),
                    "story": f"{_capital(named(minor.ranks))} had {batches.count} "
                    f"batches from the loader at {batches.place}; "
                    f"{named(major.ranks)} {_have(major.ranks)} begun batch "
                    f"{others[-1].count} and wait{_s(major.ranks)} in "
                    f"{major.call.op} for a partner that is at {minor.call.op}.",
                }
            if others:
                return None  # as many batches: it skipped the call, not the round
        if self._kept_pace(major, minor):
            return None
        loop = loops.left(self.run, major.rank, minor.rank)
        if loop is None or loop[1]:
            return None
        place = loop[0].place
        return {
            "elsewhere": (
                Location(place, minor.ranks, Role.CULPRIT, "left this loop"),
            ),
            "story": f"{_capital(named(minor.ranks))} left the loop at {place} and "
            f"{'are' if len(minor.ranks) > 1 else 'is'} at {minor.call.op} "
            f"({minor.call.place}); {named(major.ranks)} "
            f"{'are' if len(major.ranks) > 1 else 'is'} still in it and "
            f"wait{_s(major.ranks)} in {major.call.op}.",
        }

    def _passed_over(self, major: _Side, minor: _Side) -> bool:
        """Whether a camp left the other's loop with as many forward passes made."""
        return (
            self._kept_pace(major, minor)
            and loops.left(self.run, major.rank, minor.rank) is not None
        )

    def _kept_pace(self, major: _Side, minor: _Side) -> bool:
        """Whether a camp made as many forward passes as the other up to here.

        Then it went through the round and left out its calls. Counted in nodes of the
        autograd graph: half a round's worth is the margin.
        """
        theirs, mine = self._nodes(major.row), self._nodes(minor.row)
        if theirs is None or mine is None:
            return False
        round_nodes = self._nodes_of_a_round(major)
        return round_nodes > 0 and theirs - mine < round_nodes / 2

    def _nodes(self, row: int) -> int | None:
        """Autograd nodes made between a rank's first call and this one."""
        calls = self.run.calls
        first = self.run.rows_of(int(calls["rank"][row])).start
        if calls["thread"][first] != calls["thread"][row]:
            return None
        return int(calls["nodes"][row]) - int(calls["nodes"][first])

    def _nodes_of_a_round(self, side: _Side) -> int:
        """What a forward pass adds, typically: the median of all increases."""
        nodes = self.run.calls["nodes"][
            self.run.rows_of(side.rank).start : side.row + 1
        ]
        added = np.diff(nodes)
        return int(np.median(added[added > 0])) if (added > 0).any() else 0

    def _ended_loader(self, rank: int, row: int) -> Batch | None:
        """The loader that ended between a rank's last call and the one at `row`."""
        position = row - self.run.rows_of(rank).start
        ended = [
            event
            for at, event in self.run.life.get(rank, ())
            if isinstance(event, Batch) and event.ended and at == position
        ]
        return ended[-1] if ended else None

    def _arguments(self, base: Divergence, sides: list[_Side], tie: bool) -> Divergence:
        """The same position, and calls that differ in what they ask for."""
        a, b = sides[0].call, sides[1].call
        why, words = _difference(a, b)
        said = "; ".join(
            f"{named(side.ranks)} {_with(side.call, why)}" for side in sides
        )
        undecided = " (no majority)" if tie else ""
        story = f"{_capital(words)} at {where_of(base)}{undecided}: {said}."
        return replace(base, why=why, story=story)

    # --- what no signature shows ---

    def _splits(self, alignment: Alignment, fault: Meeting | None) -> Divergence | None:
        """The first all-to-all in which a rank expects what its peer does not send."""
        run, size = self.run, len(alignment.group.ranks)
        if size > _LARGEST_ALL_TO_ALL:
            return None
        ops = [n for n, op in enumerate(OPERATIONS) if "all_to_all" in op.name]
        used = np.isin(run.calls["op"][alignment.rows[alignment.starts]], ops)
        used &= (alignment.counts == size) & alignment.equal
        for n in np.flatnonzero(used):
            meeting = alignment.meeting(run, int(n))
            if fault is not None and meeting.ordinal >= fault.ordinal:
                return None
            calls = self._calls(meeting)
            wrong = [
                (sender, receiver, sent, expected)
                for sender, receiver, sent, expected in _pairs(
                    alignment.group.ranks, calls
                )
                if sent != expected
            ]
            if wrong:
                sender, receiver, sent, expected = wrong[0]
                return Divergence(
                    why=Why.SPLITS,
                    group=alignment.group,
                    ordinal=meeting.ordinal,
                    calls=calls,
                    culprits=_common_party(wrong),
                    victims=tuple(sorted({pair[1] for pair in wrong})),
                    story=f"In {calls[sender].op} "
                    f"({where(alignment.group, meeting.ordinal)}) rank {sender} sends "
                    f"{sent} elements to rank {receiver}, which expects {expected}"
                    + (
                        f"; {len(wrong) - 1} more pairs disagree." if wrong[1:] else "."
                    ),
                )
        return None

    def _swapped_unseen(self, alignment: Alignment) -> Iterator[Divergence]:
        """Two calls that look alike, made in opposite order: they pair up wrongly."""
        run = self.run
        calls, group = run.calls, alignment.group
        full = (alignment.counts == len(group.ranks)) & alignment.equal
        if not full.any():
            return
        sites = calls["site"][alignment.rows]
        lowest = np.minimum.reduceat(sites, alignment.starts)
        differ = lowest != np.maximum.reduceat(sites, alignment.starts)
        for n in np.flatnonzero(differ[:-1] & differ[1:] & full[:-1] & full[1:]):
            first = alignment.meeting(run, int(n))
            second = alignment.meeting(run, int(n) + 1)
            if not OPERATIONS[calls["op"][next(iter(first.rows.values()))]].payload:
                continue
            swapped = _crossed(run, first, second)
            if swapped:
                others = [rank for rank in first.rows if rank not in swapped]
                here = self._calls(first)
                yield Divergence(
                    why=Why.ORDER,
                    group=group,
                    ordinal=first.ordinal,
                    calls=here,
                    culprits=() if 2 * len(swapped) == len(here) else swapped,
                    victims=tuple(others),
                    certainty=Certainty.LIKELY,
                    story=f"{_capital(named(swapped))} make{_s(swapped)} calls "
                    f"{first.ordinal} and {second.ordinal} on {group.name} from the "
                    f"same two lines as {named(others)}, in the opposite order; they "
                    "are of one size, so tensors that do not belong together were "
                    "combined without an error.",
                )
                return

    # --- calls that were not made ---

    def _absence(self, meeting: Meeting) -> Iterator[Divergence]:
        """Members are missing at a meeting: where they are explains it."""
        absent = [rank for rank in meeting.absent if rank not in self.run.unseen]
        ended = [rank for rank in absent if rank in self.gone]
        if not ended or not meeting.rows:
            return  # they wait elsewhere, or are on their way
        side = self._sides(meeting)[0]
        calls = self._calls(meeting)
        base = Divergence(
            why=Why.FINISHED,
            group=meeting.group,
            ordinal=meeting.ordinal,
            calls=calls,
            culprits=tuple(ended),
            victims=side.ranks,
            story="",
        )
        dead = [rank for rank in ended if self._died(rank)]
        if dead:
            yield self._dead(base, dead, side)
            return
        finished = [rank for rank in ended if not self._victim(rank)]
        if not finished:
            return
        if self._added(side, finished):
            yield replace(
                base,
                why=Why.SKIPPED,
                culprits=side.ranks,
                victims=tuple(finished),
                story=f"{_capital(named(side.ranks))} alone call{_s(side.ranks)} "
                f"{side.call.op} ({where_of(base)}); {named(finished)} finished "
                "without it and never called it before.",
            )
            return
        yield self._finished(base, finished, side)

    def _finished(
        self, base: Divergence, finished: list[int], side: _Side
    ) -> Divergence:
        culprits = tuple(finished)
        rank = finished[0]
        last = len(self.run.rows_of(rank))
        batches = [
            event
            for at, event in self.run.life.get(rank, ())
            if isinstance(event, Batch) and event.ended and at == last
        ]
        begun = [
            event
            for event in self.run.of(Batch, side.rank)
            if batches and event.place == batches[-1].place and not event.ended
        ]
        if batches and begun and begun[-1].count > batches[-1].count:
            return replace(
                base,
                why=Why.UNEVEN,
                culprits=culprits,
                cause=batches[-1],
                elsewhere=_at(batches[-1], culprits, "its loader ended here"),
                story=f"{_capital(named(finished))} had {batches[-1].count} batches "
                f"from the loader at {batches[-1].place} and finished; "
                f"{named(side.ranks)} {_have(side.ranks)} begun batch "
                f"{begun[-1].count} and wait{_s(side.ranks)} in {side.call.op} "
                f"({where_of(base)}).",
            )
        left = [event for event in self.run.of(Left, rank) if event.place]
        over = self.run.of(Ended, rank)
        cause: Event | None = left[-1] if left else over[-1] if over else None
        how = f"left the job at {left[-1].place}" if left else "ended"
        return replace(
            base,
            culprits=culprits,
            cause=cause,
            elsewhere=_at(left[-1], culprits, "left the job here") if left else (),
            story=f"{_capital(named(side.ranks))} "
            f"wait{_s(side.ranks)} in {side.call.op} ({where_of(base)}) for "
            f"{named(finished)}, which {how} after "
            f"{self._made(base.group, rank)} calls on it and will never come.",
        )

    def _made(self, group: Group | None, rank: int) -> int:
        rows = self.run.rows_of(rank)
        part = self.run.calls[rows.start : rows.stop]
        if group is None:
            return len(part)
        index = self.run.groups.index(group)
        return int(part["ordinal"][part["group"] == index].max(initial=0))

    def _added(self, side: _Side, finished: list[int]) -> bool:
        """Whether the call is the waiting ranks' own, not one the others left out."""
        if len(side.ranks) > len(finished):
            return False
        rank = finished[0]
        end = self.run.rows_of(rank).stop
        if self._knows(rank, end, side.row):
            return False
        # With a tie, something the waiting ranks alone have made a habit of is theirs.
        return len(side.ranks) < len(finished) or not self._uneven_end(rank, side)

    def _uneven_end(self, rank: int, side: _Side) -> bool:
        return any(
            event.ended and event.place is not None
            for event in self.run.of(Batch, rank)
        ) and any(not event.ended for event in self.run.of(Batch, side.rank))

    # --- ranks that died ---

    def _died(self, rank: int) -> bool:
        """Whether a rank ended by its own fault: an exception, a signal, an abort."""
        return self._fatal(rank) is not None or self._killed(rank) is not None

    def _fatal(self, rank: int) -> Failure | None:
        fatal = [
            failure
            for failure in self.run.of(Failure, rank)
            if failure.fatal and not failure.secondary
        ]
        return fatal[0] if fatal else None

    def _killed(self, rank: int) -> Ended | None:
        for event in self.run.of(Ended, rank):
            if event.stopped or event.orderly or self.run.of(Failure, rank):
                continue
            if self.run.of(Left, rank):
                continue  # it had left the job: what happens at exit harms nobody
            if event.status is None or event.status > 128:
                return event
        return None

    def _victim(self, rank: int) -> bool:
        """Whether a rank ended because of another: broken connection or signal."""
        failures = self.run.of(Failure, rank)
        return any(failure.secondary for failure in failures) or any(
            event.stopped for event in self.run.of(Ended, rank)
        )

    def _dead(self, base: Divergence, dead: list[int], side: _Side) -> Divergence:
        failure, killed = self._fatal(dead[0]), self._killed(dead[0])
        if failure is not None:
            how, elsewhere = (
                _failed(dead, failure),
                _at(failure, tuple(dead), f"raised {failure.error}"),
            )
        else:
            assert killed is not None
            how, elsewhere = _killed(dead, killed), self._last_line(dead)
        return replace(
            base,
            why=Why.DIED,
            culprits=tuple(dead),
            cause=failure or killed,
            elsewhere=elsewhere,
            story=f"{how}; {named(side.ranks)} wait{_s(side.ranks)} for it in "
            f"{side.call.op} ({where_of(base)}).",
        )

    def _last_line(self, dead: Iterable[int]) -> tuple[Location, ...]:
        """The line of the last call a killed rank is known to have made."""
        for rank in dead:
            rows = self.run.rows_of(rank)
            if rows and (place := self.run.call(rows[-1]).place) is not None:
                remark = "the last call before it was killed"
                return (Location(place, (rank,), Role.CULPRIT, remark),)
        return ()

    def _deaths(self) -> Iterator[Divergence]:
        """Ranks that died while nobody waited for them yet."""
        dead = [rank for rank in self.run.seen if self._died(rank)]
        others = [
            rank
            for rank in self.run.seen
            if rank not in dead and (self._victim(rank) or rank not in self.gone)
        ]
        if not dead or not others:
            return
        failure, killed = self._fatal(dead[0]), self._killed(dead[0])
        if failure is not None:
            how = _failed(dead, failure)
            elsewhere = _at(failure, tuple(dead), f"raised {failure.error}")
        else:
            assert killed is not None
            how, elsewhere = _killed(dead, killed), self._last_line(dead)
        yield Divergence(
            why=Why.DIED,
            group=None,
            ordinal=0,
            calls={},
            culprits=tuple(dead),
            victims=tuple(others),
            cause=failure or killed,
            elsewhere=elsewhere,
            story=f"{how}; {named(others)} could not go on without it.",
        )

    # --- ranks that wait for each other, or for one that does not come ---

    def _circle(self) -> Iterator[Divergence]:
        waits = self.stuck.waits
        circle = _first_circle(waits)
        if not circle:
            return
        calls = {wait.rank: self.run.call(wait.row) for wait in circle}
        messages = any(
            OPERATIONS[self.run.calls["op"][wait.row]].is_point_to_point
            for wait in circle
        )
        steps = "; ".join(
            f"rank {wait.rank} waits in {calls[wait.rank].op} on "
            f"{calls[wait.rank].group} for {named(wait.missing)}"
            for wait in circle
        )
        victims = tuple(sorted(set(waits) - set(calls)))
        yield Divergence(
            why=Why.MESSAGES if messages else Why.CIRCLE,
            group=None,
            ordinal=0,
            calls=calls,
            culprits=(),
            victims=victims,
            story=f"{_capital(named(calls))} wait in a circle: {steps}.",
        )

    def _busy(self) -> Iterator[Divergence]:
        """A rank that keeps others waiting and moves nowhere in its own code."""
        for rank in self.run.seen:
            busy = self.run.of(Busy, rank)
            if not busy:
                continue
            waiting = {
                int(row_rank): int(row)
                for row in np.flatnonzero(self.run.calls["state"] == State.WAITING)
                for row_rank in [self.run.calls["rank"][row]]
            }
            if not waiting or rank in waiting:
                continue
            calls = {other: self.run.call(row) for other, row in waiting.items()}
            seen = busy[-1]
            function = seen.place.function or "its own code"
            doing = "working" if seen.cpu > 0.5 else "waiting for something"
            yield Divergence(
                why=Why.BUSY,
                group=None,
                ordinal=0,
                calls=calls,
                culprits=(rank,),
                victims=tuple(sorted(waiting)),
                cause=seen,
                certainty=Certainty.LIKELY,
                elsewhere=(
                    *_at(
                        seen, (rank,), f"{doing}, in {seen.looks} of {seen.looks} looks"
                    ),
                    *self._stack(rank),
                ),
                story=f"Rank {rank} has been in {function} "
                f"({seen.place}) for {seen.seconds:.0f} s, {doing}, while "
                f"{named(waiting)} wait{_s(waiting)} for it in "
                f"{next(iter(calls.values())).op}; a very long computation would look "
                "the same.",
            )

    def _stack(self, rank: int) -> tuple[Location, ...]:
        frames = self.run.stacks.get(rank, ())[1:3]
        return tuple(
            Location(frame.place, (rank,), Role.CULPRIT, "called from here")
            for frame in frames
        )


# --- small questions ---


def _difference(a: Call, b: Call) -> tuple[Why, str]:
    """What two calls at one position differ in."""
    if a.op != b.op:
        return Why.OPERATION, "different operations"
    if len(a.tensors) != len(b.tensors):
        return Why.SPLITS, f"lists of different length in {a.op}"
    if [tensor.numel for tensor in a.tensors] != [t.numel for t in b.tensors]:
        return Why.NUMEL, f"different numbers of elements in {a.op}"
    if [tensor.dtype for tensor in a.tensors] != [t.dtype for t in b.tensors]:
        return Why.DTYPE, f"different dtypes in {a.op}"
    if a.reduce_op != b.reduce_op:
        return Why.REDUCE_OP, f"different reduce ops in {a.op}"
    if a.root != b.root:
        return Why.ROOT, f"different roots in {a.op}"
    return Why.OPERATION, f"different arguments in {a.op}"


def _with(call: Call, why: Why) -> str:
    match why:
        case Why.OPERATION:
            return f"in {call}"
        case Why.NUMEL:
            sizes = "+".join(str(tensor.numel) for tensor in call.tensors)
            shapes = "+".join(
                "x".join(map(str, tensor.shape)) or "scalar" for tensor in call.tensors
            )
            return f"with {sizes} ({shapes})" if shapes != sizes else f"with {sizes}"
        case Why.DTYPE:
            return f"with {'+'.join(tensor.dtype for tensor in call.tensors)}"
        case Why.REDUCE_OP:
            return f"with {call.reduce_op}"
        case Why.ROOT:
            return f"with root {call.root}"
    return f"with {len(call.tensors)}"


def _pairs(
    ranks: tuple[int, ...], calls: dict[int, Call]
) -> Iterator[tuple[int, int, int, int]]:
    """Sender, receiver, elements sent, elements expected."""
    for i, sender in enumerate(ranks):
        for j, receiver in enumerate(ranks):
            sent, expected = calls[sender].splits, calls[receiver].splits
            if sent is not None and expected is not None:
                yield sender, receiver, sent[0][j], expected[1][i]


def _common_party(wrong: list[tuple[int, int, int, int]]) -> tuple[int, ...]:
    """The one rank that is in every disagreeing pair, if there is just one."""
    common = set(wrong[0][:2])
    for pair in wrong[1:]:
        common &= set(pair[:2])
    return tuple(common) if len(wrong) > 1 and len(common) == 1 else ()


def _crossed(run: Run, first: Meeting, second: Meeting) -> tuple[int, ...]:
    """Ranks that visit two lines in the opposite order of the majority."""
    orders: dict[tuple[int, int], list[int]] = {}
    for rank, row in first.rows.items():
        pair = (int(run.calls["site"][row]), int(run.calls["site"][second.rows[rank]]))
        orders.setdefault(pair, []).append(rank)
    if len(orders) != 2:
        return ()
    (a, ranks_a), (b, ranks_b) = orders.items()
    if a != b[::-1]:
        return ()
    return tuple(ranks_b if len(ranks_b) <= len(ranks_a) else ranks_a)


def _first_circle(waits: dict[int, tuple[Wait, ...]]) -> list[Wait]:
    """A shortest way around, if stuck ranks wait for each other; empty if none does."""
    for start in sorted(waits):
        path: dict[int, Wait] = {}
        rank = start
        while rank in waits and rank not in path:
            wait = waits[rank][0]
            path[rank] = wait
            among = sorted(wait.missing & set(waits))
            if not among:
                break
            rank = next((other for other in among if other in path), among[0])
        else:
            if rank in path:
                ranks = list(path)
                return [path[other] for other in ranks[ranks.index(rank) :]]
    return []


def where_of(base: Divergence) -> str:
    """A divergence's place in its group's sequence, for readers."""
    return "" if base.group is None else where(base.group, base.ordinal)


def _at(
    event: Batch | Busy | Failure | Left, ranks: Iterable[int], remark: str
) -> tuple[Location, ...]:
    if event.place is None:
        return ()
    return (Location(event.place, tuple(sorted(ranks)), Role.CULPRIT, remark),)


def _failed(ranks: Iterable[int], failure: Failure) -> str:
    message = f" ({failure.message.splitlines()[0][:120]})" if failure.message else ""
    at = f" at {failure.place}" if failure.place else ""
    return f"{_capital(named(ranks))} raised {failure.error}{message}{at}"


def _killed(ranks: Iterable[int], ended: Ended) -> str:
    how = "ended without a word"
    if ended.status is not None:
        how = f"was killed by signal {ended.status - 128}"
    return f"{_capital(named(ranks))} {how}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _s(ranks: Iterable[int]) -> str:
    """Ending of a verb whose subject is these ranks."""
    return "s" if len(set(ranks)) == 1 else ""


def _wait(ranks: Iterable[int]) -> str:
    return "waits" if len(set(ranks)) == 1 else "wait"


def _have(ranks: Iterable[int]) -> str:
    return "has" if len(set(ranks)) == 1 else "have"
