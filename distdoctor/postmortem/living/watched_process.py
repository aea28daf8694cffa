"""What several looks at one process tell: what moves is told from what stands.

A rank counts as standing in a call only if its thread has not run at all between two
looks: the kernel counts how often a thread was given a processor. A healthy job waits
at the same line again and again, and its threads run meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from distdoctor.postmortem.living.looks import JobLook, seconds_of
from distdoctor.postmortem.living.process_facts import ProcessFacts, devices_of
from distdoctor.postmortem.living.worker_servers import WORKER_SERVER
from distdoctor.postmortem.stacks.frame_meanings import InCall, call_of
from distdoctor.postmortem.stacks.thread_stacks import (
    ProcessStacks,
    StackLine,
    ThreadStack,
    is_library,
)

_MISSED_LOOKS = 2
_IDLE_BYTES = 64 * 1024  # between two looks: a heartbeat file, a line of log
_IDLE_SHARE = 0.05  # of a core


@dataclass(slots=True)
class WatchedProcess:
    """What several looks tell of one process.

    Attributes:
        pid: Its number.
        looks: From the first to the last.
        helpers: Processes that it has started.
    """

    pid: int
    looks: Sequence[JobLook]
    helpers: Sequence[int] = ()
    _stacks: list[ProcessStacks] = field(default_factory=list)

    def __post_init__(self) -> None:
        found = (one.dumps.stacks.get(self.pid) for one in self.looks)
        self._stacks = [stacks for stacks in found if stacks is not None]

    @property
    def last(self) -> ProcessStacks | None:
        """Its stacks at the last look that had any."""
        return self._stacks[-1] if self._stacks else None

    @property
    def main(self) -> ThreadStack | None:
        """Its main thread at that look."""
        return self.last.main if self.last else None

    @property
    def facts(self) -> ProcessFacts:
        """What was known at the end."""
        return self.looks[-1].after[self.pid]

    @property
    def seconds(self) -> float:
        """For how long it was looked at; see `seconds_of`."""
        return seconds_of(self.looks)

    @property
    def is_seen(self) -> bool:
        """Whether all looks but a few have stacks of it, with a main thread.

        py-spy may meet the interpreter in the midst of a change, and fail.
        """
        enough = max(2, len(self.looks) - _MISSED_LOOKS)
        return len(self._stacks) >= enough and all(
            one.main is not None for one in self._stacks
        )

    @property
    def is_gone(self) -> bool:
        """Whether it has ended."""
        return self.facts.state in {"", "Z", "X"}

    @property
    def is_stopped(self) -> bool:
        """Whether a signal, or a debugger, has held it still at all looks."""
        return all(
            one.before[self.pid].state in {"T", "t"}
            and one.after[self.pid].state in {"T", "t"}
            for one in self.looks
        )

    @property
    def refusals(self) -> list[str]:
        """Why looks have no stacks of it, in words, the last look's first."""
        found = (one.dumps.refusals.get(self.pid) for one in reversed(self.looks))
        return [why for why in found if why]

    @property
    def asked_server(self) -> bool:
        """Whether its own worker server told the stacks, and not py-spy."""
        return any(one.taken_by == WORKER_SERVER for one in self._stacks)

    @property
    def waits_for_device(self) -> bool:
        """Whether it was in an uninterruptible wait of the kernel at all looks."""
        return all(
            one.before[self.pid].state == "D" and one.after[self.pid].state == "D"
            for one in self.looks
        )

    @property
    def cpu(self) -> float:
        """Share of one core that it used from the first look to the last."""
        first, last = self.looks[0], self.looks[-1]
        used = last.after[self.pid].cpu_s - first.after[self.pid].cpu_s
        seconds = last.ended_s - first.ended_s
        return max(0.0, used) / seconds if seconds > 0 else 0.0

    def call(self) -> InCall | None:
        """The call that its main thread is in, at the last look."""
        if self.main is None:
            return None
        if (call := call_of(self.main)) is not None:
            return call
        first = self._stacks[0].main  # the one look with native functions
        same = first is not None and _exactly(first) == _exactly(self.main)
        return call_of(first) if first is not None and same else None

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that it has opened."""
        return devices_of(self.pid)

    def sleeps(self, thread_id: int = 0) -> bool:
        """Whether a thread has not run for a moment between any two looks.

        Args:
            thread_id: As the kernel knows it; 0: the main thread.
        """
        number = thread_id or self.pid
        pairs = zip(self.looks, self.looks[1:], strict=False)
        return len(self.looks) > 1 and all(
            _is_same(
                one.after[self.pid].threads.get(number),
                two.before[self.pid].threads.get(number),
            )
            for one, two in pairs
        )

    @property
    def has_same_lines(self) -> bool:
        """Whether its main thread was at the same lines, with the same variables."""
        return self.is_seen and len({_exactly(one.main) for one in self._stacks}) == 1

    @property
    def has_same_functions(self) -> bool:
        """Whether its main thread was in the same functions at all looks."""
        return self.is_seen and (
            len({_functions(one.main) for one in self._stacks}) == 1
        )

    @property
    def has_same_number(self) -> bool:
        """Whether it was in a call with one number, of which each call has its own."""
        calls = [call_of(one.main) for one in self._stacks if one.main is not None]
        numbers = {call.number if call is not None else "" for call in calls}
        return self.is_seen and len(numbers) == 1 and numbers != {""}

    @property
    def is_standing(self) -> bool:
        """Whether it surely stood in one and the same call all the time.

        A large message on a slow network is read and written meanwhile.
        """
        if not self.has_same_functions or self.moves_data:
            return False
        return (self.sleeps() and self.has_same_lines) or self.has_same_number

    @property
    def moves_data(self) -> bool:
        """Whether it read or wrote between two looks: then it is at work."""
        return self._has_traffic(self.pid)

    @property
    def has_working_helpers(self) -> bool:
        """Whether what it has started used a processor, or read or wrote."""
        first, last = self.looks[0], self.looks[-1]
        seconds = last.ended_s - first.ended_s
        for pid in self.helpers:
            used = last.after[pid].cpu_s - first.after[pid].cpu_s
            if used > _IDLE_SHARE * seconds or self._has_traffic(pid):
                return True
        return False

    def _has_traffic(self, pid: int) -> bool:
        pairs = zip(self.looks, self.looks[1:], strict=False)
        return any(
            two.before[pid].traffic_bytes - one.after[pid].traffic_bytes > _IDLE_BYTES
            for one, two in pairs
        )

    @property
    def wakes_per_s(self) -> float:
        """How often its main thread went to sleep by itself, in a second."""
        first = self.looks[0].after[self.pid].threads.get(self.pid)
        last = self.looks[-1].before[self.pid].threads.get(self.pid)
        seconds = self.looks[-1].at_s - self.looks[0].ended_s
        if first is None or last is None or seconds <= 0:
            return 0.0
        return (last.wakes - first.wakes) / seconds

    @property
    def calls_seen(self) -> set[str]:
        """System calls that its main thread was found in."""
        return {facts.call for one in self.looks for facts in self._facts(one)}

    def _facts(self, one: JobLook) -> tuple[ProcessFacts, ProcessFacts]:
        return one.before[self.pid], one.after[self.pid]

    @property
    def changing_lines(self) -> list[StackLine]:
        """The user's lines at the last look whose variables have changed meanwhile."""
        if not self.has_same_functions or self.main is None:
            return []
        threads = [one.main for one in self._stacks if one.main is not None]
        each = [[*_by_line(thread)] for thread in threads]
        return [
            line
            for at, (line, now) in enumerate(each[-1])
            if not is_library(line.file) and any(one[at][1] != now for one in each)
        ]

    @property
    def is_idle(self) -> bool:
        """Whether it used next to no processor time."""
        return self.cpu < _IDLE_SHARE


def _is_same(one: object, two: object) -> bool:
    """Whether a thread has the counters that it had."""
    known = getattr(one, "switches", -1) >= 0
    return one is not None and known and one == two


def _exactly(thread: ThreadStack | None) -> tuple[object, ...]:
    if thread is None:
        return ()
    variables = tuple(tuple(sorted(one.items())) for one in thread.variables)
    native = tuple(line for line in thread.lines if line.line)
    return native, tuple(one for one in variables if one)


def _by_line(
    thread: ThreadStack,
) -> Iterator[tuple[StackLine, tuple[tuple[str, str], ...]]]:
    """Lines of Python, each with its variables."""
    for at, line in enumerate(thread.lines):
        if line.line:
            of = thread.variables[at] if at < len(thread.variables) else {}
            yield line, tuple(sorted(of.items()))


def _functions(thread: ThreadStack | None) -> tuple[tuple[str, str], ...]:
    if thread is None:
        return ()
    return tuple((line.file, line.function) for line in thread.lines if line.line)
