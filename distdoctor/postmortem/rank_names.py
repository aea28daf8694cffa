"""Which rank a file of a job is about, as the names of all its files tell together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

_RANK = re.compile(
    r"(?:^|[^a-z])(?:global[-_ ]?)?rank[-_.= ]?(\d{1,6})(?!\d)", re.IGNORECASE
)
_LOCAL = re.compile(r"local[-_ ]?rank", re.IGNORECASE)
_SHORT = re.compile(r"(?:^|[-_. /])r(\d{1,6})(?=[-_. ]|$)", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,9}")


def rank_of(path: str) -> int | None:
    """The rank that a file's name, or that of its folder, says.

    Args:
        path: Of the file.

    Returns:
        None if it says none.
    """
    parts = PurePath(path).parts
    for part in (parts[-1:] + parts[-2:-1]) if parts else ():
        found = [m for m in _RANK.finditer(part) if not _is_local(part, m.start(1))]
        if found:
            return int(found[-1][1])
        if match := _SHORT.search(part):
            return int(match[1])
    return None


def _is_local(part: str, at: int) -> bool:
    return bool(_LOCAL.search(part[max(0, at - 12) : at]))


def ranks_of(paths: Sequence[str]) -> dict[str, int]:
    """The ranks that files are about.

    Their names say "rank 3"; or they differ in one number that counts them from 0; or
    in two, the machine and the rank on it, with as many on each.

    Args:
        paths: Of all files, each once.

    Returns:
        By path; empty if nothing tells them all apart.
    """
    named = {path: rank_of(path) for path in paths}
    reported = [rank for rank in named.values() if rank is not None]
    if reported:
        return {path: rank for path, rank in named.items() if rank is not None}
    if len(paths) < 2:
        return {}
    return _counted(paths)


def _counted(paths: Sequence[str]) -> dict[str, int]:
    names = {path: "/".join(PurePath(path).parts[-2:]) for path in paths}
    shapes = {_NUMBER.sub("#", name) for name in names.values()}
    if len(shapes) != 1:
        return {}
    numbers = {
        path: [int(number) for number in _NUMBER.findall(name)]
        for path, name in names.items()
    }
    columns = list(zip(*numbers.values(), strict=True))
    varying = [at for at, column in enumerate(columns) if len(set(column)) > 1]
    if len(varying) == 1:
        found = {path: of[varying[0]] for path, of in numbers.items()}
    elif len(varying) == 2:
        hosts = sorted({of[varying[0]] for of in numbers.values()})
        size = len({of[varying[1]] for of in numbers.values()})
        found = {
            path: hosts.index(of[varying[0]]) * size + of[varying[1]]
            for path, of in numbers.items()
        }
    else:
        return {}
    everyone = sorted(found.values()) == list(range(len(paths)))
    return found if everyone else {}
