"""Tells in a snapshot what is known of a run that is followed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from distdoctor.journal.layout import LOCK_FILE
from distdoctor.watching.followed_rank import BlockedCall, FollowedRank, as_call
from distdoctor.watching.followed_run import MOST_RANKS, FollowedRun
from distdoctor.watching.running_records import RunningRecord
from distdoctor.watching.snapshot import (
    JobState,
    RankDoing,
    Snapshot,
    WatchedJob,
    WatchedRank,
    WatchedWait,
)
from distdoctor.watching.standing_proof import StandingProof
from distdoctor.watching.waits_now import Arrivals, HeldWait, waits_of

_MOST_WAITS = 200


class RunTeller:
    """Tells of one run.

    Args:
        run: The run.
    """

    def __init__(self, run: FollowedRun) -> None:
        self._run = run
        self._proof = StandingProof(run.folder)

    def removed(self, top: Path, writer: RunningRecord | None) -> Snapshot:
        """Tell that the record is gone.

        Args:
            top: The record folder that was asked for.
            writer: Who had started the run.
        """
        why = (
            f"{top} is gone. `distdoctor check` removes the record of a job that it "
            "found well, unless --record names a folder; its report stands where it "
            "was started"
        )
        job = WatchedJob(
            name=self._run.manifest.script,
            state=JobState.REMOVED,
            by=writer.by if writer else "",
            folder=str(top),
            ranks=len(self._run.newest),
        )
        return Snapshot(job=job, ranks=[], remarks=[why])

    def look(self, top: Path, writes: bool, writer: RunningRecord | None) -> Snapshot:
        """Tell what is known now.

        Args:
            top: The record folder that was asked for.
            writes: Somebody who has started the run watches it.
            writer: Who that is, or was.
        """
        now_ns = time.monotonic_ns()
        manifest, ranks = self._run.manifest, self._run.newest
        is_over = manifest.exit_code is not None or bool(manifest.stopped)
        is_over = is_over and not (manifest.recorded and writes)
        living = [one for one in ranks if not one.over]
        size = max(
            [manifest.ranks if self._run.count == 1 else 0]
            + [one.tail.header.world_size for one in ranks]
            + [one.rank + 1 for one in ranks],
        )
        state = JobState.RUNNING if ranks else JobState.STARTING
        if is_over and not living:
            state = JobState.OVER
        elif not writes and self._run.is_local and not is_over:
            state = JobState.BROKEN_OFF if (top / LOCK_FILE).exists() else state
            if state is not JobState.BROKEN_OFF and not living:
                state = JobState.OVER
        pending = {one.rank: one.pending() for one in living}
        calls = {one.rank: one.last_call() for one in ranks}
        self._run.name_groups(size)
        lines = [
            self._line(one, pending.get(one.rank, []), calls[one.rank], now_ns)
            for one in ranks
        ]
        known = {one.rank for one in lines}
        expected = range(min(size, MOST_RANKS)) if ranks or not is_over else ()
        lines += [
            WatchedRank(
                rank=rank,
                doing=RankDoing.UNHEARD,
                detail="it has not joined yet"
                if state in {JobState.RUNNING, JobState.STARTING}
                else "it never joined",
            )
            for rank in expected
            if rank not in known
        ]
        remarks = list(self._remarks(state, living))
        waits, proof = [], None
        is_open = state in {JobState.RUNNING, JobState.BROKEN_OFF}
        if is_open and self._run.is_local and not self._run.simulates():
            waits = self._waits(pending, now_ns)
            journals = [one.tail.path for one in ranks]
            self._proof.look(ranks, manifest, journals, now_ns)
            proof = self._proof.proof
            if self._proof.remark:
                remarks.append(self._proof.remark)
        job = WatchedJob(
            name=manifest.script,
            state=state,
            by=writer.by if writer else ("record" if manifest.recorded else ""),
            folder=str(top),
            run=self._run.count,
            ranks=size,
            alive=len(living),
            elapsed_s=self._elapsed_s(state),
            budget_s=self._run.budget_s(),
            stopped=manifest.stopped,
            exit_code=manifest.exit_code,
            verdict=manifest.verdict,
            last_words=manifest.last_words,
        )
        return Snapshot(
            job=job,
            ranks=sorted(lines, key=lambda one: one.rank),
            waits=waits,
            proof=proof,
            remarks=remarks,
        )

    def _line(
        self,
        one: FollowedRank,
        pending: Sequence[BlockedCall],
        last: BlockedCall | None,
        now_ns: int,
    ) -> WatchedRank:
        call = pending[0] if pending else last
        steps_per_s, calls_per_s = one.paces()
        doing, detail = self._doing(one, pending)
        since_ns = pending[0].since_ns if pending else one.tail.last_ns
        knows_time = self._run.is_local and not one.over and not one.fault
        return WatchedRank(
            rank=one.rank,
            doing=doing,
            detail=detail,
            since_s=round(max(0, now_ns - since_ns) / 1e9, 2) if knows_time else None,
            call=None
            if call is None
            else as_call(call, self._run.tables, self._run.labels),
            steps=one.tail.header.steps,
            calls=one.tail.calls,
            steps_per_s=None if one.over else _rounded(steps_per_s),
            calls_per_s=None if one.over else _rounded(calls_per_s),
            memory_bytes=one.glance.memory_bytes or None if not one.over else None,
            pid=one.pid if one.is_here else None,
            host=os.uname().nodename if one.is_here and self._run.is_local else "",
        )

    def _doing(
        self, one: FollowedRank, pending: Sequence[BlockedCall]
    ) -> tuple[RankDoing, str]:
        if one.over:
            when = ""
            if self._run.manifest.stopped and one.pid in self._run.manifest.alive:
                when = "interrupted" if self._run.manifest.recorded else "by distdoctor"
            return one.ending(self._run.exits, when)
        if one.fault:
            return RankDoing.UNREADABLE, one.fault
        if one.glance.is_stopped:
            return RankDoing.STOPPED, "by a signal, or a debugger"
        if one.is_blocked() and pending:
            return pending[0].doing, ""
        if one.tail.has_left:
            return RankDoing.LEFT, ""
        if pending:
            return RankDoing.OWN_CODE, "another thread of it is in a call"
        return RankDoing.OWN_CODE, ""

    def _waits(
        self, pending: dict[int, list[BlockedCall]], now_ns: int
    ) -> list[WatchedWait]:
        reached: dict[int, dict[int, int]] = {}
        for one in self._run.newest:
            for group, ordinal in one.reached():
                reached.setdefault(group, {})[one.rank] = ordinal
        whole = frozenset(one.rank for one in self._run.newest if one.tail.is_whole)
        here = {one.rank for one in self._run.newest}
        unheard = frozenset(range(max(here, default=0))) - here
        arrivals = Arrivals(self._run.groups, reached, whole | unheard)
        calls = [call for each in pending.values() for call in each]
        found = waits_of(calls, arrivals, now_ns)
        return [self._as_wait(one, now_ns) for one in found[:_MOST_WAITS]]

    def _as_wait(self, wait: HeldWait, now_ns: int) -> WatchedWait:
        return WatchedWait(
            ranks=sorted(set(wait.ranks)),
            call=as_call(wait.call, self._run.tables, self._run.labels),
            on=sorted(wait.on),
            any_of=wait.any_of,
            unlike=sorted(wait.unlike),
            since_s=round((now_ns - wait.call.since_ns) / 1e9, 2),
        )

    def _remarks(
        self, state: JobState, living: Sequence[FollowedRank]
    ) -> Iterator[str]:
        if state is JobState.BROKEN_OFF:
            yield (
                "distdoctor, which had started the job, has ended without a word"
                + ("; ranks live on" if living else "")
            )
        if not self._run.is_local:
            yield (
                "the record is written on another machine: how long ranks have waited, "
                "their memory and proofs are told there"
            )
        if self._run.simulates():
            yield "the ranks are simulated one by one: none waits for another one"
        faults = [
            why for name, why in self._run.faults.items() if name.startswith("rank")
        ]
        if len(faults) > 0 and state is not JobState.STARTING:
            yield f"journals that cannot be read: {len(faults)}; {faults[0]}"
        if self._run.is_full:
            yield f"only the first {MOST_RANKS} journals are followed"
        # While somebody writes, each node stands there, for the case that he is killed.
        nodes = self._run.manifest.lost_nodes if state is not JobState.RUNNING else []
        for node in nodes[:4]:
            yield f"node {node.host} was lost: {node.why}"

    def _elapsed_s(self, state: JobState) -> float | None:
        if self._run.manifest.seconds and state is JobState.OVER:
            return self._run.manifest.seconds
        with suppress(ValueError, TypeError):
            started = datetime.fromisoformat(self._run.manifest.started)
            if state in {JobState.RUNNING, JobState.STARTING}:
                return round((datetime.now(UTC) - started).total_seconds(), 1)
        return None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
