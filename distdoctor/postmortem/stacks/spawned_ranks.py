"""The rank of a process whose environment tells none, as its stack tells it."""

from __future__ import annotations

import re

from distdoctor.postmortem.stacks.thread_stacks import ProcessStacks

_SPAWN = re.compile(r"(^|/)torch/multiprocessing/spawn\.py$")


def rank_in(stacks: ProcessStacks) -> int | None:
    """The rank of a process that a parent has spawned.

    `torch.multiprocessing.spawn` numbers what it starts (`_wrap`, argument `i`), and
    these are ranks on one machine. Whoever starts processes otherwise mostly has a
    variable `rank`.

    Args:
        stacks: Of the process, with local variables.

    Returns:
        None if nothing tells it.
    """
    main = stacks.main
    if main is None:
        return None
    for at, line in enumerate(main.lines):
        if _SPAWN.search(line.file) and line.function == "_wrap":
            return _number(main.variable(at, "i"))
    for at in range(len(main.lines) - 1, -1, -1):  # the outermost knows it first
        if (rank := _number(main.variable(at, "rank"))) is not None:
            return rank
    return None


def _number(text: str) -> int | None:
    known = text.isascii() and text.isdigit() and len(text) < 7
    return int(text) if known else None
