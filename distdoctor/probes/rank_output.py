"""Lets what a rank writes go to the supervisor by a pipe or terminal of its own.

A launcher lets its ranks write where it writes itself, and nobody could tell who wrote
a line. The supervisor has a pipe, or a pseudo-terminal, for each rank, and names them
in an environment variable. Whatever fails here, the rank writes where it would have.

By the operating system's functions alone: nothing is imported that the job does not
have already.
"""

from __future__ import annotations

import os
from contextlib import suppress

from distdoctor.journal.environment import OUTPUT_VARIABLE

ANY = "any"
"""In place of an identity: a launcher has pipes of its own before its ranks."""


def take_over(number: int) -> None:
    """Put the rank's own channels behind stdout and stderr, if the job's are there.

    What a program that started this process has redirected stays as it is.

    Args:
        number: The rank.
    """
    given = os.environ.get(OUTPUT_VARIABLE, "").split()[1:3]
    for descriptor, channel in zip((1, 2), channels_of(number), strict=False):
        try:
            if given[descriptor - 1] in {ANY, identity(descriptor)}:
                os.dup2(channel, descriptor)
        except OSError:  # it is closed
            pass
        finally:
            os.close(channel)
    os.environ.pop(OUTPUT_VARIABLE, None)  # no matter of what this process starts


def channels_of(number: int) -> tuple[int, ...]:
    """Descriptors of a rank's stdout and stderr, to be closed by the caller.

    Args:
        number: The rank, or the number of a command.

    Returns:
        None if there are no such, or if they cannot be opened.
    """
    found: list[int] = []
    words = os.environ.get(OUTPUT_VARIABLE, "").split()
    with suppress(OSError, ValueError):
        for word in words[3 + 2 * number : 5 + 2 * number]:
            name, _, wanted = word.partition(":")
            # Without waiting, should the supervisor have gone and its number be taken.
            flags = os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
            found.append(os.open(f"/proc/{words[0]}/fd/{name}", flags))
            if identity(found[-1]) != wanted:
                raise ValueError(wanted)
            os.set_blocking(found[-1], True)
        return tuple(found)
    for descriptor in found:
        os.close(descriptor)
    return ()


def identity(descriptor: int) -> str:
    """What is the same for two descriptors if, and only if, they are of one file."""
    status = os.fstat(descriptor)
    return f"{status.st_dev}:{status.st_ino}"
