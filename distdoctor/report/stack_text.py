"""The merged stacks of all ranks as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.model.outside_view import StackBranch
from distdoctor.model.run import named
from distdoctor.report.plain_text import plain

_MOST_LINES = 40
_MOST_DEEP = 60


def stack_lines(tops: Sequence[StackBranch]) -> list[str]:
    """The tree, a line for each fork: its ranks, and the user's lines up to the next.

    Lines of libraries are left out, but for the innermost one.

    Args:
        tops: Outermost lines.

    Returns:
        Lines without control characters; the last says how many are left out.
    """
    lines = list(_lines(tops, ""))
    if len(lines) > _MOST_LINES:
        rest = len(lines) - _MOST_LINES
        lines = [*lines[:_MOST_LINES], f"… {rest} more lines (--format json has all)"]
    return lines


def _lines(
    branches: Sequence[StackBranch], indent: str, deep: int = 0
) -> Iterator[str]:
    for at, branch in enumerate(branches):
        shown, end = _straight(branch)
        last = at == len(branches) - 1
        fork = "" if not deep else "└ " if last else "├ "
        below = "" if not deep else "  " if last else "│ "
        yield plain(f"{indent}{fork}{named(branch.ranks)}: {' › '.join(shown)}")
        if deep >= _MOST_DEEP:
            yield f"{indent}{below}…"
            continue
        inner = indent + below
        for words, ranks in end.ending:
            if not words:
                continue
            who = "" if ranks == end.ranks else f"{named(ranks)} "
            yield plain(f"{inner}    {who}({words})")
        yield from _lines(end.branches, inner, deep + 1)


def _straight(branch: StackBranch) -> tuple[list[str], StackBranch]:
    """The lines from a branch to the next fork or end, and the last of them."""
    path = [branch]
    while len(path[-1].branches) == 1 and not path[-1].ending:
        path.append(path[-1].branches[0])
    shown = [one for one in path if one.is_users]
    if not path[-1].branches and not path[-1].is_users:
        called = next((n for n in range(len(path) - 1, -1, -1) if path[n].is_users), -1)
        shown += path[called + 1 :][-1:]
    shown = shown or path[-1:]
    return [_words(one) for one in shown], path[-1]


def _words(one: StackBranch) -> str:
    at = f"{one.file}:{one.line}" if one.line else one.file
    return f"{one.function} {at}" if one.function else at
