"""Files of the user's own that are not the same on all ranks.

Ranks of one job may run several programs on purpose, each with modules of its own, and
one program may find other modules on another rank. What is meant to be the same is told
by the text: two versions of a file share lines, two files of one name hardly do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.analysis.environment.partitions import (
    Partition,
    partition_of,
    together,
)
from distdoctor.model.observations.environment import DIGITS, Sources
from distdoctor.model.run import Run

PROGRAM = "__main__"
"""Name of the module that was started."""

_OF_VERSIONS = 0.25
"""Part of lines that versions of a module share at least; of programs it is twice that,
because any two of them begin alike."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as a rank had it.

    Attributes:
        path: Where.
        text: Its fingerprint.
        lines: Fingerprints of some of its lines.
        is_constant: It defines no function and no class.
    """

    path: str
    text: str
    lines: frozenset[str]
    is_constant: bool

    def likeness(self, other: SourceFile) -> float:
        """The part of their lines that two files share, about.

        Args:
            other: The other file.
        """
        # Of both together, the smallest: else the longer text would count for less.
        both = sorted(self.lines | other.lines)[
            : max(len(self.lines), len(other.lines))
        ]
        shared = self.lines & other.lines
        return sum(line in shared for line in both) / len(both) if both else 0.0


@dataclass(frozen=True, slots=True)
class SourceDifference:
    """Modules of which ranks of one program have different texts.

    Attributes:
        modules: Their full names, or `PROGRAM`.
        files: By module and rank, the file.
        partitions: By module, who has which text.
        odd: Ranks in the minority, if there is one.
        is_grave: They are versions of one file, with code in it: not settings, and not
            two things of one name.
        is_certain: Nothing else can be meant.
    """

    modules: tuple[str, ...]
    files: Mapping[str, Mapping[int, SourceFile]]
    partitions: Mapping[str, Partition]
    odd: tuple[int, ...]
    is_grave: bool
    is_certain: bool


def source_differences(run: Run) -> Iterator[SourceDifference]:
    """Modules whose texts differ between ranks, those that are so in one way together.

    Args:
        run: The run that is judged.
    """
    known = {rank: files for rank in run.seen if (files := _files_of(run, rank))}
    for ranks in _of_one_program(known):
        by_module: dict[str, dict[int, SourceFile]] = {}
        for rank in ranks:
            for module, file in known[rank].items():
                by_module.setdefault(module, {})[rank] = file
        is_one_program = _is_one(by_module[PROGRAM])
        differing: dict[bool, dict[str, Partition]] = {True: {}, False: {}}
        for module, holders in by_module.items():
            partition = partition_of({rank: one.text for rank, one in holders.items()})
            if len(partition) > 1:
                differing[_are_versions(holders, partition)][module] = partition
        for grave, partitions in differing.items():
            for modules, odd in together(partitions):
                yield SourceDifference(
                    modules=modules,
                    files={module: by_module[module] for module in modules},
                    partitions={module: partitions[module] for module in modules},
                    odd=odd,
                    is_grave=grave,
                    is_certain=grave and is_one_program,
                )


def _files_of(run: Run, rank: int) -> dict[str, SourceFile]:
    found: dict[str, SourceFile] = {}
    for event in run.of(Sources, rank):
        columns = zip(
            event.modules, event.files, event.texts, event.lines, strict=False
        )
        constants = frozenset(event.constants)
        for position, (module, path, text, lines) in enumerate(columns):
            marks = (lines[at : at + DIGITS] for at in range(0, len(lines), DIGITS))
            is_constant = position in constants
            file = SourceFile(path, text, frozenset(marks), is_constant)
            found.setdefault(module, file)
    return found


def _of_one_program(
    known: Mapping[int, Mapping[str, SourceFile]],
) -> Iterator[list[int]]:
    """Ranks that run one program, perhaps in several versions.

    Of a rank whose program is no file, as of `python -c`, nobody can tell.
    """
    by_text: dict[str, list[int]] = {}
    for rank, files in known.items():
        if PROGRAM in files:
            by_text.setdefault(files[PROGRAM].text, []).append(rank)
    programs: list[list[int]] = []
    for ranks in by_text.values():
        file = known[ranks[0]][PROGRAM]
        for others in programs:
            other = known[others[0]][PROGRAM]
            is_named_alike = os.path.basename(file.path) == os.path.basename(other.path)  # noqa: PTH119
            if is_named_alike and file.likeness(other) >= 2 * _OF_VERSIONS:
                others += ranks
                break
        else:
            programs.append(list(ranks))
    yield from (sorted(ranks) for ranks in programs)


def _are_versions(files: Mapping[int, SourceFile], partition: Partition) -> bool:
    first, *others = [files[ranks[0]] for ranks in partition.values()]
    return not first.is_constant and all(
        not one.is_constant and first.likeness(one) >= _OF_VERSIONS for one in others
    )


def _is_one(programs: Mapping[int, SourceFile]) -> bool:
    """Whether ranks have one text of their program, or have it at one path."""
    texts = {file.text for file in programs.values()}
    return len(texts) == 1 or len({file.path for file in programs.values()}) == 1
