"""Versions of Python, of torch and of other packages that differ between ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.analysis.environment.partitions import (
    Partition,
    partition_of,
    together,
)
from distdoctor.model.observations.environment import Software
from distdoctor.model.run import Run

PYTHON = "Python"
"""In place of a package: the interpreter."""

_CARRYING = frozenset({PYTHON, "torch", "tensorflow", "horovod"})
"""What makes the job one job: ranks speak its protocol and pickle its objects."""

_TOLD_ELSEWHERE = "torch.nccl"

_RELEASE = re.compile(r"(\D*\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class VersionDifference:
    """Packages whose versions part the ranks in the same way.

    Attributes:
        names: Of the packages.
        partitions: By package, who has which version.
        odd: Ranks in the minority, if there is one.
        is_grave: Whether releases of what carries the job differ, such as torch 2.12
            and 2.13, and not only patches or what the job may use without harm.
        executables: Who runs which interpreter, where that differs.
    """

    names: tuple[str, ...]
    partitions: dict[str, Partition]
    odd: tuple[int, ...]
    is_grave: bool
    executables: Partition


def version_differences_of(
    run: Run, passed_over: frozenset[str]
) -> Iterator[VersionDifference]:
    """Packages that ranks have imported in different versions.

    A package that one rank alone has imported differs from nothing.

    Args:
        run: The run that is judged.
        passed_over: Packages of which something else tells how they differ.
    """
    versions: dict[str, dict[int, str]] = {}
    executables: dict[int, str] = {}
    for rank in run.seen:
        for event in run.of(Software, rank):
            name = event.implementation
            python = f"{'' if name == 'cpython' else name + ' '}{event.python}"
            versions.setdefault(PYTHON, {}).setdefault(rank, python)
            executables.setdefault(rank, event.executable)
            for package, version in zip(event.packages, event.versions, strict=False):
                versions.setdefault(package, {}).setdefault(rank, version)
    differing = {
        name: partition
        for name, by_rank in versions.items()
        if name not in passed_over | {_TOLD_ELSEWHERE}
        and len(partition := partition_of(by_rank)) > 1
    }
    for names, odd in together(differing):
        grave = any(
            name in _CARRYING and len({_release(v) for v in differing[name]}) > 1
            for name in names
        )
        yield VersionDifference(
            names=tuple(sorted(names, key=lambda name: (name not in _CARRYING, name))),
            partitions={name: differing[name] for name in names},
            odd=odd,
            is_grave=grave,
            executables=partition_of(executables),
        )


def nccl_versions(run: Run) -> Partition:
    """Who has which version of NCCL, as torch tells it.

    Args:
        run: The run that is judged.
    """
    known = {
        rank: version
        for rank in run.seen
        for event in run.of(Software, rank)
        for package, version in zip(event.packages, event.versions, strict=False)
        if package == _TOLD_ELSEWHERE
    }
    return partition_of(known)


def _release(version: str) -> str:
    """Major and minor number, and whose Python it is."""
    found = _RELEASE.match(version)
    return found[1] if found else version
