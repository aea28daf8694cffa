"""Merges the stacks of all ranks into a tree, each line with the ranks that have it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from distdoctor.model.outside_view import StackBranch
from distdoctor.postmortem.stacks.thread_stacks import StackLine, is_library

_MOST_BRANCHES = 2_000
"""Stacks that are told apart; ranks with others are left out of the tree."""


@dataclass(slots=True)
class _Node:
    line: StackLine
    ranks: list[int] = field(default_factory=list)
    inner: dict[StackLine, _Node] = field(default_factory=dict)
    ending: dict[str, list[int]] = field(default_factory=dict)


def merged(
    stacks: Mapping[int, Sequence[StackLine]],
    doing: Mapping[int, str] | None = None,
    directory: str = "",
) -> tuple[StackBranch, ...]:
    """The merged stacks of ranks, outermost lines first.

    Args:
        stacks: By rank, the lines of its main thread, innermost first.
        doing: By rank, what it does where its stack ends, in words.
        directory: Where the job ran; its files are named from there.

    Returns:
        The outermost lines, those of the most ranks first.
    """
    alike: dict[tuple[tuple[StackLine, ...], str], list[int]] = {}
    for rank in sorted(stacks):
        key = (tuple(stacks[rank]), (doing or {}).get(rank, ""))
        alike.setdefault(key, []).append(rank)
    tops: dict[StackLine, _Node] = {}
    largest = sorted(alike.items(), key=lambda item: -len(item[1]))[:_MOST_BRANCHES]
    for (lines, words), ranks in largest:
        level, node = tops, None
        for line in reversed(lines):
            node = level.get(line)
            if node is None:
                node = level[line] = _Node(line)
            node.ranks += ranks
            level = node.inner
        if node is not None:
            node.ending.setdefault(words, []).extend(ranks)
    return _branches(tops, directory)


def _branches(
    nodes: Mapping[StackLine, _Node], directory: str
) -> tuple[StackBranch, ...]:
    """Values of nodes; a path without a fork may be hundreds of lines long."""
    done: dict[int, StackBranch] = {}
    order: list[_Node] = []
    fresh = list(nodes.values())
    while fresh:
        node = fresh.pop()
        order.append(node)
        fresh += node.inner.values()
    for node in reversed(order):
        inner = tuple(done.pop(id(one)) for one in node.inner.values())
        done[id(node)] = StackBranch(
            file=shown(node.line.file, directory),
            line=node.line.line,
            function=node.line.function,
            ranks=tuple(sorted(node.ranks)),
            is_users=not is_library(node.line.file),
            branches=_sorted(inner),
            ending=tuple(
                (words, tuple(sorted(ranks)))
                for words, ranks in sorted(node.ending.items())
            ),
        )
    return _sorted(tuple(done[id(node)] for node in nodes.values()))


def _sorted(branches: tuple[StackBranch, ...]) -> tuple[StackBranch, ...]:
    return tuple(sorted(branches, key=lambda one: (-len(one.ranks), one.ranks)))


_INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/|^.*/lib(?:64)?/python\d[\d.]*/")


def shown(file: str, directory: str = "") -> str:
    """A file's name as a reader knows it: a package's, or from the job's directory on.

    Args:
        file: Its whole name.
        directory: Where the job ran.
    """
    if is_library(file):
        return _INSTALLED.sub("", file)
    return file.removeprefix(directory.rstrip("/") + "/") if directory else file
