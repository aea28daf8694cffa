"""What each rank of a living job does: waits in a call, is stuck, moves, or is gone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from distdoctor.model.events import Place
from distdoctor.postmortem.living.source_questions import (
    awaited_operation,
    is_in_for_loop,
    source_line,
    waits_for_handle,
)
from distdoctor.postmortem.living.watched_process import WatchedProcess
from distdoctor.postmortem.stacks.frame_meanings import (
    InCall,
    call_of,
    doing,
    in_backward,
    takes_lock,
)
from distdoctor.postmortem.stacks.thread_stacks import (
    ThreadStack,
    place_of,
    users,
)

_TAKES_A_LOCK = re.compile(r"^\s*with\b|\.acquire\(")
_ASKS = re.compile(r"\b(input|breakpoint|set_trace)\(")


class RankState(StrEnum):
    """How a rank is."""

    WAITING = "waiting"  # surely in one and the same call all the time
    CALLING = "calling"  # in a call at each look; whether in the same is not known
    STUCK = "stuck"  # in the same functions of its own all the time
    STOPPED = "stopped"  # by a signal, or by a debugger
    MOVING = "moving"
    ENDED = "ended"
    UNSEEN = "unseen"  # its stacks could not be taken


@dataclass(frozen=True, slots=True)
class RankCondition:
    """How a rank is, and where.

    Attributes:
        condition: In one word.
        call: In which its main thread is; None: in none.
        place: The innermost line of the user's in its main thread; None: none is.
        doing: What it does, in words for readers.
        asleep: Its main thread has not run for a moment.
        other_call: In which another of its threads stood all the time.
        other_place: The line of the user's in that thread.
        lock: The line at which a thread of it takes a lock, all the time.
    """

    condition: RankState
    call: InCall | None = None
    place: Place | None = None
    doing: str = ""
    asleep: bool = False
    other_call: InCall | None = None
    other_place: Place | None = None
    lock: Place | None = None


def condition_of(watched: WatchedProcess, directory: str) -> RankCondition:
    """How a rank is, from several looks at its process.

    Args:
        watched: The looks.
        directory: Where the job runs.
    """
    main, facts = watched.main, watched.facts
    place = innermost(main, directory) if main is not None else None
    call = watched.call()
    if watched.is_gone:
        return RankCondition(RankState.ENDED, doing="its process has ended")
    if watched.is_stopped:
        words = "stopped by a signal: kill -CONT would let it go on"
        if facts.tracer:
            words = f"held by a debugger (process {facts.tracer})"
        return RankCondition(RankState.STOPPED, call, place, words)
    if not watched.is_seen or main is None:
        return RankCondition(RankState.UNSEEN, doing=_in_kernel(watched))
    asleep = watched.sleeps()
    if asleep and (call is None or not call.op):
        call = _inferred(watched, main, place, directory) or call
    other_call, other_place = _of_others(watched, directory)
    lock = _lock(watched, directory)
    words = call.words if call is not None else _doing(watched, main, place, directory)
    if call is not None:
        stands = watched.is_standing
        kind = RankState.WAITING if stands else RankState.CALLING
    elif watched.has_same_functions and not _is_at_work(watched, directory):
        kind = RankState.STUCK
    else:
        kind = RankState.MOVING
    return RankCondition(
        kind, call, place, words, asleep, other_call, other_place, lock
    )


def _is_at_work(watched: WatchedProcess, directory: str) -> bool:
    """Whether a process in the same functions all the time does something all the same.

    It reads or writes, is woken again and again, lets others work for it, or goes
    through a `for` loop, as its variables show.
    """
    if watched.moves_data or watched.has_working_helpers:
        return True
    if watched.wakes_per_s > _BUSY_WAKES_PER_S and "sleep()" not in watched.calls_seen:
        return True
    return any(
        is_in_for_loop(place_of(line, directory), directory)
        for line in watched.changing_lines
    )


_BUSY_WAKES_PER_S = 20.0
"""Of a thread that reads from the network, for one; who polls mostly sleeps longer."""


def _inferred(
    watched: WatchedProcess, main: ThreadStack, place: Place | None, directory: str
) -> InCall | None:
    """The call that a thread without a function of Python inside it sleeps in.

    On the CPU, backward runs in the main thread: if that sleeps, it waits for the
    gradients of others. Whoever sleeps in a line with `wait()` waits for a handle.
    """
    if in_backward(main) and not _uses_gpu(watched):
        return InCall("all_reduce", "backward, where gradients are exchanged")
    inner = next((line for line in main.lines if line.line), None)
    if place is None or inner is None or place_of(inner, directory) != place:
        return None
    if not waits_for_handle(place, directory):
        return None
    op = awaited_operation(place, directory)
    return InCall(op, f"wait() for {op}") if op else None


def _uses_gpu(watched: WatchedProcess) -> bool:
    """Whether it has opened a GPU's device: then backward runs in other threads."""
    return any("nvidia" in path or "/dev/kfd" in path for path in watched.devices)


def innermost(thread: ThreadStack, directory: str = "") -> Place | None:
    """The innermost line of the user's own source in a stack.

    Args:
        thread: The stack.
        directory: Where the job runs.
    """
    for _, line in users(thread.lines):
        return place_of(line, directory)
    return None


def _in_kernel(watched: WatchedProcess) -> str:
    facts = watched.facts
    if watched.waits_for_device:
        what = facts.call or "a call"
        where = f" ({facts.wchan})" if facts.wchan else ""
        return f"in an uninterruptible {what} of the kernel{where}"
    return facts.call


def _doing(
    watched: WatchedProcess, main: ThreadStack, place: Place | None, directory: str
) -> str:
    if watched.waits_for_device:
        return _in_kernel(watched)
    if words := doing(main.lines):
        return words
    call = watched.facts.call
    if call and watched.is_idle:
        asks = "of /dev/pts/" in call or "of /dev/tty" in call
        return f"waiting for input: {call}" if asks else f"in {call}"
    if place is not None and watched.is_idle:
        text = source_line(place, directory)
        if _ASKS.search(text):
            return "waiting for input"
        if _TAKES_A_LOCK.search(text):
            return "waiting for a lock, as it seems"
    return "waiting for something" if watched.is_idle else "working"


def _of_others(
    watched: WatchedProcess, directory: str
) -> tuple[InCall | None, Place | None]:
    """A call in which a thread other than the main one stands all the time."""
    assert watched.last is not None
    for thread in watched.last.others:
        call = call_of(thread)
        place = innermost(thread, directory)
        if call is not None and place is not None and _stands(watched, thread):
            return call, place
    return None, None


def _lock(watched: WatchedProcess, directory: str) -> Place | None:
    """Where a thread takes a lock, and has not run for a moment."""
    assert watched.last is not None
    for thread in watched.last.threads:
        place = innermost(thread, directory)
        if place is None or call_of(thread) is not None:
            continue
        inner = next(iter(thread.lines), None)
        of_user = inner is not None and place_of(inner, directory) == place
        takes = takes_lock(thread.lines) or (
            of_user and _TAKES_A_LOCK.search(source_line(place, directory)) is not None
        )
        if takes and _stands(watched, thread):
            return place
    return None


def _stands(watched: WatchedProcess, thread: ThreadStack) -> bool:
    is_main = watched.main is thread
    if not is_main and not thread.thread_id:
        return False
    return watched.sleeps(0 if is_main else thread.thread_id)
