"""Texts of a job as a page may show them: masked, and without control characters."""

from __future__ import annotations

from functools import lru_cache

from distdoctor.journal.secret_masking import masked_text
from distdoctor.model.events import Place
from distdoctor.report.plain_text import plain

_LONGEST = 2_000


@lru_cache(maxsize=1 << 14)
def shown(text: str, most: int = _LONGEST) -> str:
    r"""A text from the job, as it may be shown.

    What turns the order of letters round is spelled out, as all that cannot be seen is.

    >>> shown("a\u202eb")
    'a\\u202eb'

    Args:
        text: It may quote anything.
        most: Characters of it that are shown.

    Returns:
        One line, without secrets; what is left out at its end is told.
    """
    said = plain(masked_text(text))
    if len(said) <= most:
        return said
    return f"{said[:most]}… ({len(said) - most:,} more characters)"


def shown_place(place: Place | None) -> str:
    """A line of the user's source; empty where there is none.

    Args:
        place: The line.

    Returns:
        `file:line`.
    """
    return shown(str(place)) if place is not None else ""


def counted(count: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "rank"), counted(2_000, "call")
    ('1 rank', '2,000 calls')

    Args:
        count: How many.
        noun: Of one of them.
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
