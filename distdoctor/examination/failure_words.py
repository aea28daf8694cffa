"""How a job failed, in words, where no check names a disease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from signal import Signals

from distdoctor.model.cut_texts import first_line
from distdoctor.model.events import Call, Ended, Failure, Left, Quit
from distdoctor.model.run import Run, named

MOST_FAILURES_TOLD = 3
"""Different exceptions that are told of one job."""

_BY_SIGNAL = 128
"""What a shell adds to the signal's number in the status of a process."""

_SIGTERM_AS_SHELL = 143


def ending_failures(run: Run) -> list[Failure]:
    """The exceptions that ended ranks: causes, or else what followed from them."""
    failures = [
        failure
        for rank in run.seen
        for failure in run.of(Failure, rank)
        if failure.fatal
    ]
    return [failure for failure in failures if not failure.secondary] or failures


def fell_before(run: Run) -> bool:
    """Whether a rank ended by an exception before any had communicated or trained.

    Of a job that nobody watched, that is not known.
    """
    if "run" not in run.evidence:
        return False
    begun = run.has(Call) or any(run.steps.values())
    return not begun and any(
        failure.fatal for rank in run.seen for failure in run.of(Failure, rank)
    )


def in_words(failure: Failure) -> str:
    """An exception with its message, shortened, and where it was raised."""
    message = first_line(failure.message, 160)
    text = f": {message}" if message else ""
    return f"{failure.error}{text}" + (f" at {failure.place}" if failure.place else "")


def all_in_words(failures: Sequence[Failure]) -> str:
    """What ranks raised, said once for those that raised the same."""
    ranks: dict[str, list[int]] = {}
    for failure in failures:
        ranks.setdefault(in_words(failure), []).append(failure.rank)
    phrases = [f"{named(who)} raised {what}" for what, who in ranks.items()]
    more = len(phrases) - MOST_FAILURES_TOLD
    return "; ".join(phrases[:MOST_FAILURES_TOLD]) + f"; and {more} more" * (more > 0)


def failure_of_the_whole(run: Run) -> str:
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
        return (
            f"it left with {code}: {in_words(run.outside[0])} in a process without rank"
        )
    if ends and all(_was_over(run, rank) for rank in run.seen):
        by_signal = [rank for rank, end in ends.items() if end.status]
        if by_signal:
            number = (ends[by_signal[0]].status or 0) - _BY_SIGNAL
            return (
                f"it left with {code}: {named(by_signal)}, whose work was done, "
                f"ended by signal {number}"
            )
        return (
            f"all ranks ended in order, and the job left with {code}{last_words(run)}"
        )
    fallen = {
        rank: end
        for rank, end in ends.items()
        if not end.stopped and (end.status or 0) > _BY_SIGNAL
    }
    if fallen:
        return f"the job left with {code}: {_killed(run, fallen)}"
    return f"the job left with {code}{last_words(run)}"


def _killed(run: Run, fallen: Mapping[int, Ended]) -> str:
    """Which ranks signals ended, where no other rank was left to wait for them."""
    first, end = next(iter(fallen.items()))
    alike = [rank for rank, one in fallen.items() if one.status == end.status]
    number = (end.status or 0) - _BY_SIGNAL
    text = f"{named(alike)} ended by signal {number}"
    with suppress(ValueError):  # not all numbers have names
        text += f" ({Signals(number).name})"
    rows = run.rows_of(first)
    place = run.call(rows[-1]).place if rows else None
    if place is not None:
        text += f"; the last call of rank {first} that is known is at {place}"
    return text


def ended_alone(run: Run) -> str:
    """Which ranks ended by themselves, with an error and without an exception.

    Those that a launcher ended because of them are left out. Empty: there are none.
    """
    ends = {
        rank: end
        for rank in run.seen
        for end in run.of(Ended, rank)
        if end.status and not end.stopped and end.status != _SIGTERM_AS_SHELL
    }
    if not ends:
        return ""
    rank, end = next(iter(ends.items()))
    if (end.status or 0) > _BY_SIGNAL:
        return _killed(run, ends)
    alike = [other for other, one in ends.items() if one.status == end.status]
    text = f"{named(alike)} left with exit code {end.status}"
    if quits := [one for one in run.of(Quit, rank) if one.place is not None]:
        text += f" at {quits[-1].place}"
    return text


def _was_over(run: Run, rank: int) -> bool:
    """Whether a rank was done, if it ended by a signal, too: on its way out."""
    ends = run.of(Ended, rank)
    if any(0 < (event.status or 0) <= _BY_SIGNAL for event in ends):
        return False
    return bool(run.of(Left, rank)) or any(event.orderly for event in ends)


def last_words(run: Run) -> str:
    """The last line that the job printed, as a clause; empty if it printed none."""
    return f"; it last said: {run.last_words}" if run.last_words else ""
