"""Run → verdicts: asks every check, lets none of them guess, and sums up."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from signal import Signals

from distdoctor.analysis.deadlock.stalled import stalled, whereabouts
from distdoctor.analysis.optimizer_step.untrained import untrained
from distdoctor.analysis.rendezvous.addresses import misdirections
from distdoctor.errors import MissingEvidence
from distdoctor.model.declare import Check
from distdoctor.model.events import (
    BLOCKED,
    Call,
    Ended,
    Failure,
    Left,
    Started,
    Wrapped,
)
from distdoctor.model.findings import (
    Certainty,
    Finding,
    NotApplicable,
    Severity,
    Sick,
    Unknown,
    Verdict,
    Well,
)
from distdoctor.model.observations.comparison import RESUME, Compared
from distdoctor.model.run import Run, named
from distdoctor.model.shortened_epochs import Shortening, shortenings
from distdoctor.model.substitutes import SUBSTITUTES

_STANDSTILLS = {"deadlock", "refused", "stuck"}
"""Why a run was stopped whose ranks could never go on."""


def examine(run: Run, checks: Iterable[Check]) -> list[Verdict]:
    """One verdict per check, in the order of the checks."""
    return [verdict(run, check) for check in checks]


def verdict(run: Run, check: Check) -> Verdict:
    """What one check says of a run.

    A check whose needs were not watched for is not asked. What is proven stands:
    findings made before the evidence ran out make the verdict sick. What is found at
    the same lines again, as in each trial of a search, is told once.
    """
    for kind in check.needs:
        if kind in run.unwatched:
            return Unknown(check.code, run.unwatched[kind])
    by_identity: dict[object, Finding] = {}
    missing = None
    try:
        for finding in check.examine(run):  # and what came before a raise is kept
            by_identity.setdefault((finding.culprits, _identity(finding)), finding)
    except MissingEvidence as error:
        missing = str(error)
    except Exception:  # noqa: BLE001 - one broken check must not silence the others
        return Unknown(check.code, traceback.format_exc(), internal=True)
    findings = [*by_identity.values()]
    stood = run.stopped in _STANDSTILLS and Call in check.needs
    if run.faltered and not stood:  # calls that could not meet are no such fault
        findings = [_doubted(finding, check, run.faltered) for finding in findings]
    if findings:
        return Sick(
            check.code,
            check.disease,
            check.severity,
            tuple(findings),
            check.manual.remedy(),
        )
    if missing is not None:
        return Unknown(check.code, missing)
    for kind in check.needs:
        if not run.has(kind):
            return NotApplicable(check.code, f"the run has no {kind.__name__} events")
    return Well(check.code)


def together(
    last: Sequence[Verdict], earlier: Sequence[Sequence[Verdict]]
) -> list[Verdict]:
    """One verdict per check on a job whose ranks were started several times.

    Args:
        last: Verdicts on the last start.
        earlier: Those on the starts before it, of the same checks.
    """
    starts = len(earlier) + 1
    return [
        _joined(verdict, [of[n] for of in earlier], starts)
        for n, verdict in enumerate(last)
    ]


def _joined(last: Verdict, earlier: Sequence[Verdict], starts: int) -> Verdict:
    """The worst of what a check says of several starts, and all it has found."""
    known = set(map(_identity, last.findings)) if isinstance(last, Sick) else set()
    found: list[Finding] = []
    sick = last
    for number, verdict in enumerate(earlier, start=1):
        if isinstance(verdict, Sick):
            sick = sick if isinstance(sick, Sick) else verdict
            for finding in verdict.findings:
                if _identity(finding) not in known:
                    known.add(_identity(finding))
                    found.append(_of_start(finding, number, starts))
    if isinstance(sick, Sick):
        own = last.findings if isinstance(last, Sick) else ()
        return replace(sick, findings=(*found, *own))
    every = [last, *earlier]
    for kind in (Unknown, Well):
        if told := [verdict for verdict in every if isinstance(verdict, kind)]:
            return told[0]
    return last


def _identity(finding: Finding) -> object:
    """What two findings of the same thing, seen twice, have in common."""
    return (
        tuple((one.place, one.remark) for one in finding.locations) or finding.message
    )


def _of_start(finding: Finding, number: int, starts: int) -> Finding:
    return replace(
        finding,
        message=f"{finding.message.rstrip('.')} (at start {number} of {starts} of the "
        "ranks).",
        details={**finding.details, "start": number},
    )


def _doubted(finding: Finding, check: Check, faltered: Set[int]) -> Finding:
    """A finding of a run in which probes went wrong: what they missed may be why.

    Nobody is told to be sick for a fault of ours; what was found is still worth a look.
    """
    severity = finding.severity or check.severity
    whose = "a probe" if len(faltered) == 1 else "probes"
    return replace(
        finding,
        message=f"{finding.message.rstrip('.')} ({whose} of {named(faltered)} failed "
        "in this run; it may only look so)",
        certainty=Certainty.LIKELY,
        severity=Severity.WARNING if severity is Severity.ERROR else severity,
    )


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that was not examined."""

    what: str
    why: str
    hides: bool = True  # it could hide a disease: without findings, all is unknown


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that ended the job, as far as no finding tells of it.

    Attributes:
        failure: One of those who raised it.
        ranks: All of them; none: a process that had no rank, such as their parent.
    """

    failure: Failure
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The whole: "sick", "well" or "unknown", and what was not seen."""

    verdict: str
    gaps: tuple[Gap, ...]
    raised: tuple[Raised, ...] = ()


def conclude(run: Run, verdicts: Sequence[Verdict]) -> Conclusion:
    """Sum up: sick by any error, unknown if a gap could hide one, else well."""
    gaps = tuple(_gaps(run, verdicts))
    raised = tuple(_raised(run, verdicts))
    if any(map(_is_error, verdicts)):
        return Conclusion("sick", gaps, raised)
    verdict = "unknown" if any(gap.hides for gap in gaps) else "well"
    return Conclusion(verdict, gaps, raised)


def _raised(run: Run, verdicts: Sequence[Verdict]) -> Iterator[Raised]:
    """The exceptions that ended the job and are not told by a finding."""
    if run.exit_code == 0 or run.simulated:
        return
    alike: dict[str, list[Failure]] = {}
    for failure in _primary(run):
        alike.setdefault(_told(failure), []).append(failure)
    if not alike:
        whole = [one for one in run.outside if one.error not in _ECHOES]
        for failure in whole or run.outside:
            alike.setdefault(_told(failure), []).append(failure)
    told = {
        location.place
        for verdict in verdicts
        if isinstance(verdict, Sick)
        for finding in verdict.findings
        for location in finding.locations
    }
    every = [one for failures in alike.values() for one in failures]
    if all(one.secondary for one in every) and any(one.place in told for one in every):
        return  # calls that failed on several ranks, and one finding tells why
    for failures in [*alike.values()][:_MOST_FAILURES_TOLD]:
        if failures[0].place is None or failures[0].place not in told:
            ranks = sorted({one.rank for one in failures if one.rank >= 0})
            yield Raised(failures[0], tuple(ranks))


_ECHOES = {"ProcessRaisedException", "ProcessExitedException", "CalledProcessError"}
"""By these a parent tells that a child of its failed."""


def _gaps(run: Run, verdicts: Sequence[Verdict]) -> Iterator[Gap]:
    started = [rank for rank in run.seen if run.of(Started, rank)]
    if not started:
        yield from _nothing_started(run)
        return
    yield from _nothing_trained(run)
    yield from _led_elsewhere(run)
    if not any(map(_is_error, verdicts)):
        if not run.simulated:  # then it is told as a part not seen
            yield from _failed(run, verdicts)
        yield from _unnamed_standstill(run)
        yield from _stalled(run)
    if run.world_size == 1:
        yield Gap("everything between ranks", "the job ran on one rank; try -n 2")
    elif not run.has(Call) and not _fell_before(run):
        yield Gap(
            "everything between ranks", "the ranks never communicated in this run"
        )
    if run.simulated:
        yield from _simulated(run)
    if run.missing:
        for why, ranks in _by_reason({rank: run.unseen[rank] for rank in run.missing}):
            yield Gap(named(ranks), why)
    for why, ranks in _by_reason(run.partial):
        yield Gap(f"part of what {named(ranks)} did", why)
    yield from _undecided(run, verdicts)
    yield from _not_compared(run)
    yield from _left_out(run)
    yield from _ended_early(run)
    yield from _substituted(run)


def _substituted(run: Run) -> Iterator[Gap]:
    """What only GPUs show; a job that is well on the CPU is well as far as it goes."""
    known = [SUBSTITUTES[kind] for kind in SUBSTITUTES if kind in run.substituted]
    if hidden := "; ".join(one.hides for one in known if one.hides):
        yield Gap("what only GPUs show", hidden, hides=False)


def _is_error(verdict: Verdict) -> bool:
    return isinstance(verdict, Sick) and any(
        verdict.severity_of(finding) is Severity.ERROR for finding in verdict.findings
    )


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


def _undecided(run: Run, verdicts: Sequence[Verdict]) -> Iterator[Gap]:
    """Checks that could not decide; what was not seen at all is told above already."""
    by_reason: dict[str, list[str]] = {}
    for verdict in verdicts:
        if isinstance(verdict, Unknown) and verdict.internal:
            last = verdict.reason.strip().splitlines()[-1]
            by_reason.setdefault(f"the check itself failed: {last}", []).append(
                verdict.code
            )
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
                yield Gap(what, one.why)


def _nothing_started(run: Run) -> Iterator[Gap]:
    failures = [
        failure
        for rank in run.seen
        for failure in [f for f in run.of(Failure, rank) if f.fatal][:1]
    ]
    left = untrained(run)
    why = "the script never called torch.distributed.init_process_group"
    if failures:
        why = _all_told(failures) + " before init_process_group"
    elif run.outside:
        first = _told(run.outside[0])
        n = sum(_told(failure) == first for failure in run.outside)
        who = "a process" if n == 1 else f"{n} processes"
        why = f"{who} raised {first} before init_process_group{_although(run)}"
    elif run.stopped:
        why = f"the run was ended ({run.stopped}) before init_process_group was called"
        if at := whereabouts(run):
            why += f"; it stood {at}"
    elif left is not None:
        why = f"{left.why}, and the job left with exit code 0: nothing was trained "
        why += f"together (DD614){_last_words(run)}"
    elif run.exit_code:
        why += f" and left with exit code {run.exit_code}{_last_words(run)}"
    yield Gap("everything", why)


def _although(run: Run) -> str:
    """That a job is green whose processes failed."""
    green = run.exit_code == 0
    return ", and the job left with exit code 0 all the same" if green else ""


def _last_words(run: Run) -> str:
    return f"; it last said: {run.last_words}" if run.last_words else ""


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


def _primary(run: Run) -> list[Failure]:
    """The exceptions that ended ranks: causes, or else what followed from them."""
    failures = [
        failure
        for rank in run.seen
        for failure in run.of(Failure, rank)
        if failure.fatal
    ]
    return [failure for failure in failures if not failure.secondary] or failures


def _failed(run: Run, verdicts: Sequence[Verdict]) -> Iterator[Gap]:
    """The job ended in failure and no check named a disease."""
    primary = _primary(run)
    before = _fell_before(run)
    what = "everything" if before else "what comes after the failure"
    if primary:
        why = _all_told(primary) + (" before anything was trained" if before else "")
        yield Gap(what, why)
    elif run.exit_code and not _is_explained(verdicts):
        yield Gap("why the job failed", _failure_of_the_whole(run))


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


def _failure_of_the_whole(run: Run) -> str:
    """That a job left with an error, and what is known of it."""
    ends = {rank: event for rank in run.seen for event in run.of(Ended, rank)}
    ours = [
        rank
        for rank, end in ends.items()
        if end.stopped and end.status not in {None, _SIGTERM_AS_SHELL}
    ]
    if ours:
        return (
            f"{named(ours)} ended by the signal by which distdoctor asks for stacks: "
            "not the job's fault"
        )
    code = f"exit code {run.exit_code}"
    if run.outside:
        return f"it left with {code}: {_told(run.outside[0])} in a process without rank"
    if ends and all(_was_over(run, rank) for rank in run.seen):
        by_signal = [rank for rank, end in ends.items() if end.status]
        if by_signal:
            number = (ends[by_signal[0]].status or 0) - _BY_SIGNAL
            return (
                f"it left with {code}: {named(by_signal)}, whose work was done, "
                f"ended by signal {number}"
            )
        return (
            f"all ranks ended in order, and the job left with {code}{_last_words(run)}"
        )
    fallen = {
        rank: end
        for rank, end in ends.items()
        if not end.stopped and (end.status or 0) > _BY_SIGNAL
    }
    if fallen:
        return f"the job left with {code}: {_killed(run, fallen)}"
    return f"the job left with {code}{_last_words(run)}"


def _killed(run: Run, fallen: Mapping[int, Ended]) -> str:
    """Which ranks signals ended, where no other rank was left to wait for them."""
    first, end = next(iter(fallen.items()))
    alike = [rank for rank, one in fallen.items() if one.status == end.status]
    number = (end.status or 0) - _BY_SIGNAL
    told = f"{named(alike)} ended by signal {number}"
    with suppress(ValueError):  # not all numbers have names
        told += f" ({Signals(number).name})"
    rows = run.rows_of(first)
    place = run.call(rows[-1]).place if rows else None
    if place is not None:
        told += f"; the last call of rank {first} that is known is at {place}"
    return told


def _fell_before(run: Run) -> bool:
    """Whether a rank ended by an exception before any had communicated or trained."""
    begun = run.has(Call) or any(run.steps.values())
    return not begun and any(
        failure.fatal for rank in run.seen for failure in run.of(Failure, rank)
    )


def _all_told(failures: Sequence[Failure]) -> str:
    """What ranks raised, said once for those that raised the same."""
    ranks: dict[str, list[int]] = {}
    for failure in failures:
        ranks.setdefault(_told(failure), []).append(failure.rank)
    told = [f"{named(who)} raised {what}" for what, who in ranks.items()]
    more = len(told) - _MOST_FAILURES_TOLD
    return "; ".join(told[:_MOST_FAILURES_TOLD]) + f"; and {more} more" * (more > 0)


_MOST_FAILURES_TOLD = 3


def _was_over(run: Run, rank: int) -> bool:
    """Whether a rank was done, if it ended by a signal, too: on its way out."""
    ends = run.of(Ended, rank)
    if any(0 < (event.status or 0) <= _BY_SIGNAL for event in ends):
        return False
    return bool(run.of(Left, rank)) or any(event.orderly for event in ends)


_BY_SIGNAL = 128
_SIGTERM_AS_SHELL = 143


def _unnamed_standstill(run: Run) -> Iterator[Gap]:
    if run.stopped in _STANDSTILLS:
        waiting = {
            rank
            for rank in run.seen
            for row in run.rows_of(rank)[-1:]
            if run.calls["state"][row] in BLOCKED
        }
        yield Gap(
            "why the job stands still",
            f"{named(waiting)} can never go on, and no check knows the reason",
        )


def _stalled(run: Run) -> Iterator[Gap]:
    """The run was ended while nothing moved: it may have hung."""
    if run.stopped not in _STANDSTILLS and (why := stalled(run)):
        yield Gap("whether the job would ever have gone on", why)


_MOST_LINES = 3


def _left_out(run: Run) -> Iterator[Gap]:
    """What shortened epochs can not show."""
    lines = shortenings(run)
    if not lines:
        return
    told = [_told_line(line) for line in lines[:_MOST_LINES]]
    if len(lines) > _MOST_LINES:
        told.append(f"{len(lines) - _MOST_LINES} others likewise")
    what = "what takes many batches"
    if any(line.length is None for line in lines):
        what += ", and where each rank's stream of data ends"
    yield Gap(
        what,
        "epochs were shortened so that the job ends within --budget: "
        f"{'; '.join(told)}; --full leaves nothing out",
        hides=False,
    )


def _told_line(line: Shortening) -> str:
    fewest, most = line.kept
    given = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
    whole = "" if line.length is None else f" of {line.length:,}"
    at = f" at {line.place}" if line.place else ""
    passes = f"in {line.shortened} of {line.passes} passes"
    return f"the loader{at} gave {given}{whole} batches {passes}"


def _ended_early(run: Run) -> Iterator[Gap]:
    if run.stopped in {"budget", "steps"}:
        done = min(run.steps.values(), default=0)
        untried = not done and run.has(Wrapped)
        yield Gap(
            "what comes later in the job",
            f"the run was ended by --{run.stopped} after {done} steps"
            + "; a larger --budget would reach the first" * untried,
            hides=untried or not run.has(Call),
        )
    elif run.stopped == "interrupted":
        yield Gap("what comes later in the job", "the run was interrupted")
    elif run.stopped == "timeout":
        yield Gap("why the run did not end", "it was ended at its timeout")
    elif run.stopped:
        yield Gap(
            "what comes later in the job", "the run ended at the fault", hides=False
        )


def _told(failure: Failure) -> str:
    message = failure.message.splitlines()
    said = f": {message[0][:160]}" if message else ""
    return f"{failure.error}{said}" + (f" at {failure.place}" if failure.place else "")
