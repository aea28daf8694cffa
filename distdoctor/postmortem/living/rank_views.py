"""What the looks at the process of a rank come to, without the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from distdoctor.postmortem.living.dump_taking import REFUSED
from distdoctor.postmortem.living.listed_processes import LivingProcess
from distdoctor.postmortem.living.process_facts import exit_status_of, peers_of
from distdoctor.postmortem.living.rank_conditions import RankCondition, RankState
from distdoctor.postmortem.living.watched_process import WatchedProcess
from distdoctor.postmortem.stacks.frame_meanings import call_of
from distdoctor.postmortem.stacks.thread_stacks import StackLine, ThreadStack

_MOST_HELPERS = 16
_LONGEST_COMMAND = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """What was seen of a rank.

    Attributes:
        pid: Of its process, on its machine.
        condition: How it is, and where.
        main: Its main thread at the last look, with those of its variables alone that
            are whole numbers; None: it was not seen.
        looks: How often it was looked at.
        cpu: Share of one core that it used.
        is_idle: Whether that was next to nothing.
        is_last_known: Whether its threads were seen at all.
        has_other_calls: Another thread than the main one was in a call.
        refusal: Why its stacks could not be taken; empty: they were.
        is_refused: The kernel did not let them be taken.
        asked_server: Its worker server told them.
        kernel: What it waits for in the kernel; empty: not known.
        memory_bytes: Resident.
        peers: Whom it is connected to.
        helpers: Processes that it has started, in words.
        status: With which it has ended; None: it has not, or that is not known.
        dump: Of its flight recorder, if nothing was called meanwhile; empty: none.
    """

    pid: int
    condition: RankCondition
    main: ThreadStack | None = None
    looks: int = 0
    cpu: float = 0.0
    is_idle: bool = False
    is_last_known: bool = False
    has_other_calls: bool = False
    refusal: str = ""
    is_refused: bool = False
    asked_server: bool = False
    kernel: str = ""
    memory_bytes: int = 0
    peers: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    status: int | None = None
    dump: bytes = b""

    @property
    def lines(self) -> tuple[StackLine, ...]:
        """The lines of its main thread, innermost first.

        Native functions are left out where there are lines of Python: ranks in one call
        are at many places of its library.
        """
        if self.main is None:
            return ()
        return tuple(line for line in self.main.lines if line.line) or self.main.lines


def view_of(
    watched: WatchedProcess,
    condition: RankCondition,
    helpers: Sequence[LivingProcess] = (),
    dump: bytes = b"",
) -> RankView:
    """What looks at a process come to.

    Args:
        watched: The looks.
        condition: How it is.
        helpers: What it has started.
        dump: Of its flight recorder.
    """
    facts, last = watched.facts, watched.last
    has_ended = condition.condition is RankState.ENDED
    return RankView(
        pid=watched.pid,
        condition=condition,
        main=_with_numbers(watched.main),
        looks=len(watched.looks),
        cpu=watched.cpu,
        is_idle=watched.is_idle,
        is_last_known=last is not None,
        has_other_calls=last is not None and any(map(call_of, last.others)),
        refusal=next(iter(watched.refusals), ""),
        is_refused=REFUSED in watched.refusals,
        asked_server=watched.asked_server,
        kernel=" in ".join(part for part in (facts.call, facts.wchan) if part),
        memory_bytes=facts.memory_bytes,
        peers=peers_of(watched.pid),
        helpers=in_words(helpers),
        status=exit_status_of(watched.pid) if has_ended else None,
        dump=dump,
    )


def in_words(helpers: Sequence[LivingProcess]) -> tuple[str, ...]:
    """Processes that a rank has started, the first few, in words.

    Args:
        helpers: Which.
    """
    words = [
        f"{one.pid} {' '.join(one.command)[:_LONGEST_COMMAND]}".strip()
        for one in helpers[:_MOST_HELPERS]
    ]
    if len(helpers) > _MOST_HELPERS:
        words.append(f"and {len(helpers) - _MOST_HELPERS} more")
    return tuple(words)


def _with_numbers(thread: ThreadStack | None) -> ThreadStack | None:
    """A stack without variables that may be anybody's secrets."""
    if thread is None:
        return None
    kept: list[Mapping[str, str]] = [
        {name: text for name, text in of.items() if _is_number(text)}
        for of in thread.variables
    ]
    return replace(thread, variables=kept)


def _is_number(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True
