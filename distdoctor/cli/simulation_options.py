"""What the options that simulate ranks of a larger job mean, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from distdoctor.errors import LaunchRefused
from distdoctor.launch.command import Launcher, command_for, starts_torchrun
from distdoctor.launch.horovodrun import starts_horovodrun

_LARGEST_WORLD = 131_072


def command_alone(
    script: Path | None, given: Sequence[str], launcher: str, ranks_given: bool
) -> list[str]:
    """The command that plays one rank.

    Raises:
        LaunchRefused: The other options ask for something else.
    """
    if script is None:
        raise LaunchRefused(
            "--world-size simulates ranks of a script, not of a command after `--`: "
            "give the script (`distdoctor check train.py --world-size 8`)"
        )
    if ranks_given:
        raise LaunchRefused(
            "-n starts real ranks and --world-size simulates them: give one of the two"
        )
    command = command_for(script, given, 1, Launcher(launcher), Path())
    if starts_horovodrun(command):
        raise LaunchRefused(
            f"{script} would be started by horovodrun, and Horovod cannot play a rank "
            "without the others: only a script whose ranks torchrun starts can be "
            "simulated"
        )
    if not starts_torchrun(command):
        raise LaunchRefused(
            f"{script} would be started as plain python, with ranks of its own: only a "
            "script whose ranks torchrun starts can be simulated (--launcher torchrun "
            "if it is one)"
        )
    return [sys.executable, str(script), *given]


def ranks_to_play(world_size: int | None, as_rank: str | None) -> tuple[int, ...]:
    """The ranks that `--as-rank` names, or the usual ones.

    Raises:
        LaunchRefused: There are no such ranks.
    """
    from distdoctor.launch.rank_simulation import usual_ranks

    if world_size is None:
        raise LaunchRefused(
            "--as-rank plays ranks of a larger job: give its --world-size as well"
        )
    if not 2 <= world_size <= _LARGEST_WORLD:
        raise LaunchRefused(
            f"--world-size {world_size}: give the number of ranks of the job, from 2 "
            f"to {_LARGEST_WORLD}"
        )
    if as_rank is None:
        return usual_ranks(world_size)
    if as_rank.strip() == "all":
        return tuple(range(world_size))
    ranks: set[int] = set()
    for part in as_rank.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise LaunchRefused(
                f"--as-rank {as_rank}: give ranks such as 0,1,513 or 0-7,513, or all"
            )
        low, high = int(first), int(last or first)
        if low > high:
            raise LaunchRefused(
                f"--as-rank {part.strip()}: the range is empty; give the lower "
                "rank first"
            )
        if high >= world_size:
            raise LaunchRefused(
                f"--as-rank {part.strip()}: the ranks of a job of {world_size} are 0 "
                f"to {world_size - 1}; give one of these"
            )
        ranks.update(range(low, high + 1))
    return tuple(sorted(ranks))
