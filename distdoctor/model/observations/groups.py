"""What ranks take process groups for."""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.values import value


@value(frozen=True, slots=True, kw_only=True)
class MembersListed(Observation):
    """Whom a rank takes for the members of a group; told where ranks disagree."""

    group: str = ""  # the name of which ranks have different lists
    # Global ranks; none: it made no such group where others did.
    ranks: tuple[int, ...] = ()


KINDS = (MembersListed,)
