"""Runs several commands at once, one per rank, as users do by hand in several shells.

Runs as a process of its own, and belongs to the job:

    multi_command.py LABEL [NAME=value ...] program argument ... ::: program ...

Each command writes to pipes of its own, if the supervisor has them: it marks lines with
the label and the command's number. None is ended because another one failed: by hand,
nobody would. The exit status is that of the first command that failed, 128 + n if
signal n ended it; 0 if none did.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from distdoctor.probes.rank_output import channels_of

BETWEEN = ":::"
"""The word that separates the commands."""

_POLL_S = 0.05


def split(words: Sequence[str]) -> list[list[str]]:
    """The commands between the separators, without empty ones."""
    commands: list[list[str]] = [[]]
    for word in words:
        if word == BETWEEN:
            commands.append([])
        else:
            commands[-1].append(word)
    return [command for command in commands if command]


def settings(command: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The variables set before a program, as in a shell, and the rest.

    >>> settings(["RANK=0", "python", "train.py", "lr=1"])
    ({'RANK': '0'}, ['python', 'train.py', 'lr=1'])
    """
    variables: dict[str, str] = {}
    for position, word in enumerate(command):
        name, equals, value = word.partition("=")
        if not (equals and name.isidentifier()):
            return variables, list(command[position:])
        variables[name] = value
    return variables, []


def main(words: Sequence[str]) -> int:
    """Run the commands until they end, and return the exit status."""
    children: list[subprocess.Popen[bytes]] = []
    for number, command in enumerate(split(words)):
        variables, program = settings(command)
        channels = channels_of(number)
        stdout, stderr = channels or (None, None)
        children.append(
            subprocess.Popen(
                program,
                env=os.environ | variables,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        )
        for channel in channels:
            os.close(channel)
    # All at once: how a child ended is known only after its parent has asked.
    while any([child.poll() is None for child in children]):  # noqa: C419 - asks all
        time.sleep(_POLL_S)
    failed = [child.returncode for child in children if child.returncode]
    return _as_shell(failed[0]) if failed else 0


def _as_shell(status: int) -> int:
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
