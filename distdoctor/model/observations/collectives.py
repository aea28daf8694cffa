"""By which lines a rank waited for asynchronous calls, and what calls cost of a step.

The latter is told by traces of torch.profiler.
"""

from __future__ import annotations

from distdoctor.model.events import Observation, Place
from distdoctor.model.values import value

_LONGEST_NUMBER = 9  # letters of that of a line


@value(frozen=True, slots=True, kw_only=True)
class Awaited(Observation):
    """A thread waited for a call that it had issued; its place: the call's line.

    Told once for each pair of ways. A way is the user's lines by which the thread came
    there, outermost first, each as `file:line:function`.
    """

    issued: tuple[str, ...] = ()
    waited: tuple[str, ...] = ()


def step_text(place: Place) -> str:
    """A line of a way.

    Args:
        place: The line.

    Returns:
        `file:line:function`.
    """
    return f"{place.file}:{place.line}:{place.function}"


def step_of(text: str) -> Place | None:
    """The line that a text of a way tells; None if it tells none.

    Args:
        text: As `step_text` writes it; a file's name may hold colons.

    Returns:
        The line, or None.
    """
    before, _, function = text.rpartition(":")
    file, _, line = before.rpartition(":")
    if not (line.isascii() and line.isdigit() and len(line) <= _LONGEST_NUMBER):
        return None
    return Place(file, int(line), function)


@value(frozen=True, slots=True, kw_only=True)
class TracedSteps(Observation):
    """A rank's steps: their time, that of communication, and what overlaps it.

    The tuples have a value for each step, in microseconds; where steps are not
    annotated, one for each of some equal parts of the trace.
    """

    kernels: bool = False  # seen on a GPU; else on CPUs, by torch's operators
    annotated: bool = False  # steps are those of the profiler's `step()`
    calls: int = 0  # collectives
    step_us: tuple[int, ...] = ()
    calls_us: tuple[int, ...] = ()  # a collective ran
    exposed_us: tuple[int, ...] = ()  # … and no kernel or operator of computation
    waiting_us: tuple[int, ...] = ()  # … and another member had not come; none: unknown
    why: str = ""  # the waiting is not known


@value(frozen=True, slots=True, kw_only=True)
class TracedLateness(Observation):
    """Others waited in collectives for this rank, which came last.

    By how much it was late is in the median of the others.
    """

    times: int = 0  # collectives to which it came last
    joint: int = 0  # collectives that all members' traces tell of
    waited_us: int = 0  # by all others together
    late_us: int = 0  # by how much it was late, all times together
    computing_us: int = 0  # of that, while it computed


KINDS = (Awaited, TracedSteps, TracedLateness)
