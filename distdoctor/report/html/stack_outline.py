"""The merged stacks as an outline: where the ranks' stacks part, and what they do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distdoctor.model.outside_view import StackBranch
from distdoctor.model.run import Run, named
from distdoctor.report.html.shown_text import shown

_MOST_NODES = 400
_MOST_DEEP = 40
NO_STACKS = (
    "No stacks were taken: distdoctor takes them of a job that it is asked to look at "
    "while it hangs, and reads those that a job left."
)


@dataclass(frozen=True, slots=True)
class OutlineLine:
    """A line of a stack."""

    function: str
    at: str
    is_users: bool


@dataclass(frozen=True, slots=True)
class StackNode:
    """Lines that the same ranks have, down to where these part.

    Attributes:
        ranks: In words.
        share: Of all ranks with a stack, in percent.
        lines: Outermost first.
        doing: What ranks do whose stacks end here, each with the ranks.
        inner: What follows, for parts of the ranks.
    """

    ranks: str
    share: int
    lines: tuple[OutlineLine, ...]
    doing: tuple[tuple[str, str], ...]
    inner: tuple[StackNode, ...]


@dataclass(frozen=True, slots=True)
class StackOutline:
    """All of them, and how many nodes were left out."""

    nodes: tuple[StackNode, ...]
    left_out: int


def stack_outline(run: Run) -> StackOutline | str:
    """The outline of a run's stacks.

    Args:
        run: What was examined.

    Returns:
        The outline, or why there is none.
    """
    if not run.stack_tree:
        return NO_STACKS
    everyone = {rank for top in run.stack_tree for rank in top.ranks}
    outline = _Outline(max(len(everyone), 1))
    nodes = tuple(outline.nodes(run.stack_tree, 0))
    return StackOutline(nodes, outline.left_out)


class _Outline:
    """Makes nodes, as many as there is room for."""

    def __init__(self, everyone: int) -> None:
        self._everyone = everyone
        self._made = 0
        self.left_out = 0

    def nodes(self, branches: Sequence[StackBranch], deep: int) -> Iterator[StackNode]:
        for branch in branches:
            if self._made >= _MOST_NODES or deep >= _MOST_DEEP:
                self.left_out += 1
                continue
            self._made += 1
            path = [branch]
            while len(path[-1].branches) == 1 and not path[-1].ending:
                path.append(path[-1].branches[0])
            yield StackNode(
                ranks=named(branch.ranks),
                share=round(100 * len(branch.ranks) / self._everyone),
                lines=tuple(map(_line, path)),
                doing=tuple(
                    (named(ranks), shown(words))
                    for words, ranks in path[-1].ending
                    if words
                ),
                inner=tuple(self.nodes(path[-1].branches, deep + 1)),
            )


def _line(one: StackBranch) -> OutlineLine:
    at = f"{one.file}:{one.line}" if one.line else one.file
    return OutlineLine(shown(one.function, 200), shown(at, 300), one.is_users)
