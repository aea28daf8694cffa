"""The words for what was seen, the same on the screen and in plain text.

Every text is made harmless here: what a job calls its files, groups and functions may
hold anything.
"""

from __future__ import annotations

from collections.abc import Iterable

from distdoctor.model.run import named, ranges
from distdoctor.report.plain_text import plain
from distdoctor.watching.folded_ranks import RankRow
from distdoctor.watching.snapshot import (
    JobState,
    RankDoing,
    Snapshot,
    WatchedCall,
    WatchedRank,
    WatchProof,
)

_MOST_ON = 8  # runs of ranks that are written out

_STOPPED = {
    "deadlock": "ended by distdoctor: a deadlock is proved",
    "refused": "ended by distdoctor: ranks made calls that do not match",
    "stuck": "ended by distdoctor: a rank that others wait for stood still",
    "budget": "ended by distdoctor: the budget was over",
    "steps": "ended by distdoctor after the steps that were asked for",
    "interrupted": "interrupted",
    "timeout": "ended by distdoctor: a time limit was over",
    "failed": "ended by distdoctor: it had failed",
    "node lost": "ended by distdoctor: a node was lost",
}


def seconds(value: float | None) -> str:
    """A time for readers: "0.4 s", "75 s", "12 min", "3.1 h"; empty: not known."""
    if value is None:
        return ""
    if value < 10:
        return f"{value:.1f} s"
    if value < 600:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def memory(value: float | None) -> str:
    """An amount of memory; empty: not known."""
    if value is None:
        return ""
    mib = value / 2**20
    return f"{mib:.0f} MiB" if mib < 1000 else f"{mib / 1024:.1f} GiB"


def called(call: WatchedCall | None) -> str:
    """A call by its name and number: "all_reduce (call 57 on world)"."""
    if call is None:
        return ""
    op = plain(call.op) or "a call"
    if call.group in {"", "set-up", "set_up", "store"}:
        return op
    number = f"call {call.ordinal} on " if call.ordinal else "on "
    return f"{op} ({number}{plain(call.group)})"


def at(call: WatchedCall | None) -> str:
    """The line of a call."""
    return "" if call is None else plain(call.place)


def job_line(snapshot: Snapshot) -> str:
    """The job in one line: its name, who is alive, how long it has been running."""
    job = snapshot.job
    parts = [plain(job.name) or "a job"]
    if job.by:
        parts.append(job.by)
    if job.run > 1:
        parts.append(f"start {job.run} of the ranks")
    parts.append(
        "no rank has come yet"
        if job.state is JobState.STARTING
        else f"{job.alive} of {job.ranks} ranks alive"
    )
    if job.elapsed_s is not None:
        of = f" of {job.budget_s:.0f} s" if job.budget_s is not None else ""
        parts.append(f"{seconds(job.elapsed_s)}{of}")
    return " · ".join(parts)


def outcome(snapshot: Snapshot) -> str:
    """What came of the job, once it is over; empty: it is not."""
    job = snapshot.job
    if job.state is not JobState.OVER:
        return ""
    words = [_STOPPED.get(job.stopped, plain(job.stopped))] if job.stopped else []
    if not job.stopped:
        words = ["over"]
        if job.exit_code is not None:
            words = [f"over with exit status {job.exit_code}"]
    if job.verdict:
        words.append(f"verdict: {plain(job.verdict)}")
    elif job.by == "check" and job.folder:
        words.append("no verdict so far")
    if job.folder:
        command = "autopsy" if job.by == "record" else "examine"
        words.append(f"report: distdoctor {command} {plain(job.folder)}")
    return " · ".join(words)


def doing_words(one: WatchedRank) -> str:
    """What a rank does, in a word or two, and how it ended."""
    if one.doing in {RankDoing.DIED, RankDoing.ENDED} and one.detail:
        return f"{one.doing.value}, {plain(one.detail)}"
    return one.doing.value


def spread_text(pair: tuple[float, float] | None, form: str) -> str:
    """The least and the most of a number, as "3" or "3–7"; empty: not known."""
    if pair is None:
        return ""
    low, high = (format(one, form) for one in pair)
    return low if low == high else f"{low}–{high}"


def has_steps(snapshot: Snapshot) -> bool:
    """Whether optimizers have made steps: then the pace is told by them."""
    return any(one.steps for one in snapshot.ranks)


def pace(row: RankRow, by_steps: bool) -> str:
    """How fast ranks are: optimizer steps in a second, or else calls."""
    if by_steps:
        return spread_text(row.spread("steps_per_s"), ".1f")
    return spread_text(row.spread("calls_per_s"), ".0f")


def memory_of(row: RankRow) -> str:
    """Memory of ranks, the most of any."""
    pair = row.spread("memory_bytes")
    return "" if pair is None else memory(pair[1])


def since_of(row: RankRow) -> str:
    """For how long ranks have been doing what they do, the longest."""
    pair = row.spread("since_s")
    return "" if pair is None else seconds(pair[1])


def call_of_row(row: RankRow) -> str:
    """The last call of ranks: "all_reduce 57", with the group where it is not world."""
    call = row.first.call
    if call is None or call == WatchedCall(
        op="", place=call.place, function=call.function
    ):
        return plain(row.first.detail)
    low, high = row.ordinals
    number = "" if not high else f" {low}" if low == high else f" {low}–{high}"
    on = "" if call.group in {"", "world", "set-up", "set_up"} else plain(call.group)
    return f"{plain(call.op) or 'a call'}{number}{f' on {on}' if on else ''}"


def some(ranks: Iterable[int]) -> str:
    """Ranks with their noun, not too many of them."""
    listed = sorted(set(ranks))
    if ranges(listed).count(",") < _MOST_ON:
        return named(listed)
    return f"{len(listed)} ranks, from {listed[0]} to {listed[-1]}"


def proof_words(proof: WatchProof) -> str:
    """What is proved, in a sentence."""
    gone = f"; {some(proof.gone)} will make no further call" if proof.gone else ""
    return f"proved: {some(proof.ranks)} can never go on{gone}"
