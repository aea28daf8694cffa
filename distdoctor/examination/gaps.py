"""What was not examined or not seen of a run, and why: the sentences of a report.

A gap that could hide a disease makes a run without findings unknown, and not well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from distdoctor.analysis.deadlock.ranks_behind import ranks_behind
from distdoctor.analysis.deadlock.recorded_waits import recorded_waits
from distdoctor.analysis.deadlock.stalled import stalled, whereabouts
from distdoctor.analysis.failures.open_negotiations import called, open_negotiations
from distdoctor.analysis.optimizer_step.untrained import NEVER_CALLED, untrained
from distdoctor.analysis.rendezvous.addresses import misdirections
from distdoctor.examination.causality import CAUSES, WHY_RANKS_WAIT
from distdoctor.examination.failure_words import (
    all_in_words,
    ended_alone,
    ending_failures,
    failure_of_the_whole,
    fell_before,
    in_words,
    last_words,
)
from distdoctor.model.events import (
    BLOCKED,
    DATA_PARALLEL,
    Call,
    Ended,
    Failure,
    Observation,
    Started,
    Wrapped,
)
from distdoctor.model.findings import Severity, Sick, Unknown, Verdict
from distdoctor.model.observations.comparison import REFERENCE, RESUME, Compared
from distdoctor.model.operations import CODE_OF, OPERATIONS
from distdoctor.model.run import Run, named
from distdoctor.model.shortened_epochs import Shortening, shortenings
from distdoctor.model.stop_reasons import BY_REQUEST, STANDSTILLS, Stop
from distdoctor.model.substitutes import SUBSTITUTES


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that was not examined."""

    what: str
    why: str
    hides: bool = True  # it could hide a disease: without findings, all is unknown
    ranks: tuple[int, ...] = ()  # of which it was not examined; empty: all, or none


def gaps_of(
    run: Run, verdicts: Sequence[Verdict], ignored: Sequence[str] = ()
) -> Iterator[Gap]:
    """What was not examined or not seen, in the order of the report.

    Args:
        run: The run.
        verdicts: What the checks say of it: a failure that one explains is no gap.
        ignored: Codes of findings that are ignored, and not among the verdicts.
    """
    started = [rank for rank in run.seen if run.of(Started, rank)]
    if "run" not in run.evidence:
        yield from _unwatched_job(run, verdicts, ignored)
        return
    for what, why in run.unread:
        yield Gap(f"what {what} tells", why)
    if not started:
        yield from _nothing_started(run)
        return
    yield from _nothing_trained(run)
    yield from _led_elsewhere(run)
    if not any(map(is_error, verdicts)):
        if not run.simulated:  # then it is told as a part not seen
            yield from _failed(run, verdicts)
        yield from _unnamed_standstill(run, ignored)
        yield from _stalled(run)
    if any(one.backend == DATA_PARALLEL for n in started for one in run.of(Started, n)):
        yield Gap(
            "what DataParallel does between devices",
            "its replicas are threads of one process",
            hides=False,
        )
    elif run.world_size == 1:
        yield Gap("everything between ranks", "the job ran on one rank; try -n 2")
    elif not run.has(Call) and not fell_before(run):
        yield Gap(
            "everything between ranks", "the ranks never communicated in this run"
        )
    if run.simulated:
        yield from _simulated(run)
    if run.missing:
        for why, ranks in _by_reason({rank: run.unseen[rank] for rank in run.missing}):
            yield Gap(named(ranks), why, ranks=tuple(ranks))
    for why, ranks in _by_reason(run.partial):
        yield Gap(f"part of what {named(ranks)} did", why, ranks=tuple(ranks))
    if run.groups_apart:
        what = f"{run.groups_apart} more groups of Ray's workers"
        yield Gap(what, "they trained beside the first, and one at a time is watched")
    yield from _undecided(run, verdicts, ignored)
    yield from _not_compared(run)
    yield from _left_out(run)
    yield from _ended_early(run)
    yield from _substituted(run)
    if Observation in run.unwatched:
        what = "what ranks did beside communicating (data, weights, gradients)"
        yield Gap(what, run.unwatched[Observation], hides=False)


def _unwatched_job(
    run: Run, verdicts: Sequence[Verdict], ignored: Sequence[str]
) -> Iterator[Gap]:
    """What cannot be known of a job that ran without our probes."""
    how = "ran without distdoctor: this is judged from what it left"
    if not run.closed:
        how = "runs: this is judged from outside"
    yield Gap(
        "what ranks did beside communicating (data, weights, gradients, random state)",
        f"the job {how}",
    )
    if run.missing:
        for why, ranks in _by_reason({rank: run.unseen[rank] for rank in run.missing}):
            yield Gap(named(ranks), why, ranks=tuple(ranks))
    for why, ranks in _by_reason(run.unrecorded):
        yield Gap(f"the calls of {named(ranks)}", why, ranks=tuple(ranks))
    in_part = {n: why for n, why in run.partial.items() if n not in run.unseen}
    for why, ranks in _by_reason(in_part):
        yield Gap(f"part of what {named(ranks)} did", why, ranks=tuple(ranks))
    for what, why in run.set_aside:
        yield Gap(what, why, hides=False)
    if not any(map(is_error, verdicts)):
        yield from _failed(run, verdicts)
        yield from _recorded_waits(run)
        yield from _open_negotiations(run)
        yield from _stalled(run)
    yield from _undecided(run, verdicts, ignored)


def _open_negotiations(run: Run) -> Iterator[Gap]:
    """What ranks had not all come to where Horovod's timeline ends."""
    for held in open_negotiations(run)[:_MOST_LINES]:
        came = named(held.negotiation.came) if held.negotiation.came else ""
        seen = f"{came} had come" if came else "it does not tell who had come"
        if held.absent:
            seen += f", and {named(held.absent)} had not"
            seen += ", but for one at most" if held.is_unsure else ""
        yield Gap(
            f"whether all ranks came to {called(held.negotiation)}",
            f"where Horovod's timeline ends, {seen}; a timeline of a job that ended by "
            "itself lacks its last events, so that this proves no hang",
        )


def _recorded_waits(run: Run) -> Iterator[Gap]:
    """What stood open in the records of a job, and nothing tells for how long."""
    if run.calls_from == "run":
        return
    for behind in ranks_behind(run)[:_MOST_LINES]:
        call = behind.call
        where = f"{call.op}, call {behind.ordinal} on {call.group}"
        if OPERATIONS[CODE_OF[call.op]].is_point_to_point:
            where = f"{call.op} on {call.group}"
        yield Gap(
            f"whether {named(behind.ranks)} {'is' if len(behind.ranks) == 1 else 'are'}"
            " late, stuck or gone",
            f"{named(behind.waiting)} wait{'s' * (len(behind.waiting) == 1)} for "
            f"{named(behind.ranks)} ({where}); the records do not tell for how long",
            ranks=behind.ranks,
        )
    waiting = recorded_waits(run)
    if waiting.complete and not waiting.waits:
        call = run.call(waiting.complete[0])
        yield Gap(
            "whether the last calls would have completed",
            f"{call.op}, call {call.ordinal} on {call.group}, was open when the "
            "records were made, and all members had made it alike",
        )


def _substituted(run: Run) -> Iterator[Gap]:
    """What only GPUs show; a job that is well on the CPU is well as far as it goes."""
    known = [SUBSTITUTES[kind] for kind in SUBSTITUTES if kind in run.substituted]
    if hidden := "; ".join(one.hides for one in known if one.hides):
        yield Gap("what only GPUs show", hidden, hides=False)


def _by_reason(whys: Mapping[int, str]) -> list[tuple[str, list[int]]]:
    ranks: dict[str, list[int]] = {}
    for rank, why in whys.items():
        ranks.setdefault(why, []).append(rank)
    return list(ranks.items())


def _simulated(run: Run) -> Iterator[Gap]:
    """What ranks that each ran alone can not show, however well all went."""
    if len(run.seen) < 2:
        yield Gap("everything between ranks", "one rank was simulated; name two")
    if others := set(range(run.world_size)) - run.simulated:
        yield Gap(
            named(others),
            f"{len(run.seen)} of {run.world_size} ranks were simulated",
            hides=False,
        )
    yield Gap(
        "values, waiting and speed",
        "each rank ran alone, with stand-ins for what others send; only the order and "
        "the arguments of their calls were compared",
        hides=False,
    )


def _undecided(
    run: Run, verdicts: Sequence[Verdict], ignored: Sequence[str]
) -> Iterator[Gap]:
    """Checks that could not decide; what was not seen at all is told above already."""
    found = {one.code for one in verdicts if isinstance(one, Sick)}.union(ignored)
    by_reason: dict[str, list[str]] = {}
    for verdict in verdicts:
        if isinstance(verdict, Unknown) and verdict.internal:
            last = verdict.reason.strip().splitlines()[-1]
            by_reason.setdefault(f"the check itself failed: {last}", []).append(
                verdict.code
            )
        elif isinstance(verdict, Unknown) and verdict.seen:
            if found.isdisjoint(CAUSES.get(verdict.code, ())):
                by_reason.setdefault(verdict.reason, []).append(verdict.code)
        elif isinstance(verdict, Unknown) and not (run.missing or run.partial):
            by_reason.setdefault(verdict.reason, []).append(verdict.code)
    for why, codes in by_reason.items():
        yield Gap(", ".join(codes), why)


def _not_compared(run: Run) -> Iterator[Gap]:
    """A proof that was asked for and came to nothing."""
    for rank in run.seen:
        for one in run.of(Compared, rank):
            if one.why:
                what = "whether a second run does the same"
                if one.how == RESUME:
                    what = "whether the job resumes as it was"
                if one.how == REFERENCE:
                    what = "whether the job computes what its reference does"
                yield Gap(what, one.why)


def _nothing_started(run: Run) -> Iterator[Gap]:
    failures = [
        failure
        for rank in run.seen
        for failure in [f for f in run.of(Failure, rank) if f.fatal][:1]
    ]
    left = untrained(run)
    why = NEVER_CALLED
    if run.clusters:
        why = (
            f"the job used a cluster of Ray that was there before it "
            f"({', '.join(run.clusters)}), whose workers are not seen; with "
            "RAY_ADDRESS=local it starts one of its own"
        )
    elif failures:
        why = all_in_words(failures) + " before joining the others"
    elif run.outside:
        first = in_words(run.outside[0])
        n = sum(in_words(failure) == first for failure in run.outside)
        who = "a process" if n == 1 else f"{n} processes"
        why = f"{who} raised {first} before joining the others{_although(run)}"
    elif run.stopped:
        why = f"the run was ended ({run.stopped}) before any rank had joined the others"
        if at := whereabouts(run):
            why += f"; it stood {at}"
    elif left is not None:
        why = f"{left.why}, and the job left with exit code 0: nothing was trained "
        why += f"together (DD614){last_words(run)}"
    elif alone := ended_alone(run):
        why = f"{alone}, before any rank had joined the others"
    elif run.exit_code:
        why += f" and left with exit code {run.exit_code}{last_words(run)}"
    yield Gap("everything", why)


def _although(run: Run) -> str:
    """That a job is green whose processes failed."""
    green = run.exit_code == 0
    return ", and the job left with exit code 0 all the same" if green else ""


def _nothing_trained(run: Run) -> Iterator[Gap]:
    left = untrained(run)
    if left is not None:
        why = f"{left.why}, and the job left with exit code 0 (DD614)"
        yield Gap("training", why)


def _led_elsewhere(run: Run) -> Iterator[Gap]:
    """What the probes changed so that the ranks of this machine could meet."""
    for wrong in misdirections(run, "elsewhere", "interface"):
        what = "address" if wrong.fault == "elsewhere" else "network interface"
        at = f" at {wrong.place}" if wrong.place is not None else ""
        yield Gap(
            f"the {what} {wrong.address}",
            f"this machine has no such {what}: {named(wrong.ranks)} used loopback{at}",
            hides=False,
        )


def _failed(run: Run, verdicts: Sequence[Verdict]) -> Iterator[Gap]:
    """The job ended in failure and no check named a disease."""
    primary = ending_failures(run)
    before = fell_before(run)
    what = "everything" if before else "what comes after the failure"
    if primary:
        why = all_in_words(primary) + (" before anything was trained" if before else "")
        yield Gap(what, why)
    elif run.exit_code and not _is_explained(verdicts):
        yield Gap("why the job failed", failure_of_the_whole(run))


def _is_explained(verdicts: Sequence[Verdict]) -> bool:
    """Whether a finding, if only a note, tells of a process that ended badly."""
    shown = (
        exhibit
        for verdict in verdicts
        if isinstance(verdict, Sick)
        for finding in verdict.findings
        for exhibit in finding.exhibits
    )
    return any(isinstance(one, Ended) and one.status for one in shown)


def _unnamed_standstill(run: Run, ignored: Sequence[str]) -> Iterator[Gap]:
    if run.stopped in STANDSTILLS:
        waiting = {
            rank
            for rank in run.seen
            for row in run.rows_of(rank)[-1:]
            if run.calls["state"][row] in BLOCKED
        }
        known = sorted({code for code in ignored if code in WHY_RANKS_WAIT})
        who, codes = named(waiting), " and ".join(known)
        why = f"{who} can never go on, and no check knows the reason"
        if known:
            why = f"{who} can never go on, and the reason that {codes} found is ignored"
        yield Gap("why the job stands still", why)


def _stalled(run: Run) -> Iterator[Gap]:
    """The run was ended while nothing moved: it may have hung."""
    if run.stopped not in STANDSTILLS and (why := stalled(run)):
        lives = "run" not in run.evidence and not run.closed
        what = "will ever go on" if lives else "would ever have gone on"
        yield Gap(f"whether the job {what}", why)


_MOST_LINES = 3


def _left_out(run: Run) -> Iterator[Gap]:
    """What shortened epochs can not show."""
    lines = shortenings(run)
    if not lines:
        return
    phrases = [_shortening_in_words(line) for line in lines[:_MOST_LINES]]
    if len(lines) > _MOST_LINES:
        phrases.append(f"{len(lines) - _MOST_LINES} others likewise")
    what = "what takes many batches"
    if any(line.length is None for line in lines):
        what += ", and where each rank's stream of data ends"
    yield Gap(
        what,
        "epochs were shortened so that the job ends within --budget: "
        f"{'; '.join(phrases)}; --full leaves nothing out",
        hides=False,
    )


def _shortening_in_words(line: Shortening) -> str:
    fewest, most = line.kept
    given = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
    whole = "" if line.length is None else f" of {line.length:,}"
    at = f" at {line.place}" if line.place else ""
    passes = f"in {line.shortened} of {line.passes} passes"
    return f"the loader{at} gave {given}{whole} batches {passes}"


def _ended_early(run: Run) -> Iterator[Gap]:
    if run.stopped in BY_REQUEST:
        done = min(run.steps.values(), default=0)
        untried = not done and run.has(Wrapped)
        yield Gap(
            "what comes later in the job",
            f"the run was ended by --{run.stopped} after {done} steps"
            + "; a larger --budget would reach the first" * untried,
            hides=untried or not run.has(Call),
        )
    elif run.stopped == Stop.INTERRUPTED:
        yield Gap("what comes later in the job", "the run was interrupted")
    elif run.stopped == Stop.TIMEOUT:
        yield Gap("why the run did not end", "it was ended at its timeout")
    elif run.stopped:
        yield Gap(
            "what comes later in the job", "the run ended at the fault", hides=False
        )


def is_error(verdict: Verdict) -> bool:
    """Whether a check found a disease that is an error, and not only advice."""
    return isinstance(verdict, Sick) and any(
        verdict.severity_of(finding) is Severity.ERROR for finding in verdict.findings
    )
