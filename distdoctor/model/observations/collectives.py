"""By which lines a rank issued asynchronous calls and waited for them."""

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


KINDS = (Awaited,)
