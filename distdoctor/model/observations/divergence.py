"""In what order a rank goes through things that have names."""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.values import value


@value(frozen=True, slots=True, kw_only=True)
class Turn(Observation):
    """The call before this was made in a loop over names; its place: the loop's line.

    Told of collectives that a line of the user's own makes in the body of the loop, the
    first ones of each line.
    """

    variables: tuple[str, ...] = ()  # of the loop's, those that are texts
    names: tuple[str, ...] = ()  # what they are
    ordinal: int = 0  # of the call, on its group


KINDS = (Turn,)
