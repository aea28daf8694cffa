"""A healthy program as operators see it: its source, and which lines each rank ran."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Counts = dict[int, int]
"""How often each line was begun."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What one rank ran of its script.

    Attributes:
        counts: By line, from 1.
        grouped: Lines that were first begun within the life of a process group.
        meeting: Lines in which, or in what they call, ranks met: in a collective, or a
            forward of DDP.
    """

    counts: Counts
    grouped: frozenset[int]
    meeting: frozenset[int]


def trace_of(content: dict[str, Any]) -> Trace:
    """A trace, from its JSON."""
    counts = {int(line): count for line, count in content["counts"].items()}
    return Trace(counts, frozenset(content["grouped"]), frozenset(content["meeting"]))


@dataclass(frozen=True)
class Base:
    """A healthy program on a number of ranks.

    Attributes:
        name: The program's.
        text: Its source.
        ranks: How many.
        traces: Of each rank, from a run of the program as it is.
    """

    name: str
    text: str
    ranks: int
    traces: Sequence[Trace] = field(repr=False)

    @cached_property
    def tree(self) -> ast.Module:
        """The source, parsed."""
        return ast.parse(self.text)

    @cached_property
    def lines(self) -> list[str]:
        """The source, by line."""
        return self.text.splitlines()

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """What each node stands in."""
        return {
            child: node
            for node in ast.walk(self.tree)
            for child in ast.iter_child_nodes(node)
        }

    @cached_property
    def get_rank(self) -> str:
        """How this program would ask for its rank; "" if it does not know how."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for name in node.names:
                    if name.name == "torch.distributed":
                        return f"{name.asname or name.name}.get_rank()"
            if isinstance(node, ast.ImportFrom) and node.module == "torch":
                for name in node.names:
                    if name.name == "distributed":
                        return f"{name.asname or name.name}.get_rank()"
        return ""

    def source(self, node: ast.AST) -> str:
        """A node's own text."""
        return ast.get_source_segment(self.text, node) or ""

    def count(self, node: ast.stmt, rank: int) -> int:
        """How often a rank began a statement."""
        return self.traces[rank].counts.get(node.lineno, 0)

    def runs(self, node: ast.stmt, at_least: int = 1) -> bool:
        """Whether all ranks ran a statement, each as often as any, in a group."""
        counts = {self.count(node, rank) for rank in range(self.ranks)}
        grouped = all(node.lineno in trace.grouped for trace in self.traces)
        return len(counts) == 1 and min(counts) >= at_least and grouped

    def meets(self, node: ast.stmt) -> bool:
        """Whether ranks met, each of them, in a statement or in what it calls."""
        assert node.end_lineno is not None
        lines = set(range(node.lineno, node.end_lineno + 1))
        return all(lines & trace.meeting for trace in self.traces)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node stands in, from the inside out."""
        while (found := self.parents.get(node)) is not None:
            yield found
            node = found

    def statements(self) -> Iterator[ast.stmt]:
        """Statements that stand alone on their lines."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.stmt) and self._stands_alone(node):
                yield node

    def _stands_alone(self, node: ast.stmt) -> bool:
        if node.end_lineno is None or node.end_col_offset is None:
            return False
        before = self.lines[node.lineno - 1].encode()[: node.col_offset]
        after = self.lines[node.end_lineno - 1].encode()[node.end_col_offset :]
        return not before.strip() and (
            not after.strip() or after.strip().startswith(b"#")
        )

    def blocks(self) -> Iterator[list[ast.stmt]]:
        """Lists of statements that follow each other."""
        for node in ast.walk(self.tree):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list) and block:
                    yield block

    def block_of(self, node: ast.stmt) -> list[ast.stmt]:
        """The statements among which one stands."""
        return next(block for block in self.blocks() if node in block)

    def after(self, node: ast.stmt) -> ast.stmt | None:
        """What follows a statement in its block."""
        block = self.block_of(node)
        at = block.index(node) + 1
        return block[at] if at < len(block) else None

    def loops(self, node: ast.AST) -> list[ast.For | ast.While]:
        """Loops of the same function around a node, from the inside out."""
        found: list[ast.For | ast.While] = []
        for above in self.above(node):
            if isinstance(above, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
                break
            if isinstance(above, (ast.For, ast.While)):
                found.append(above)
        return found

    def iterates(self, loop: ast.For | ast.While) -> bool:
        """Whether all ranks went round a loop more than once, on average."""
        for rank in range(self.ranks):
            body = self.count(loop.body[0], rank)
            # The head is begun once per round, and once more at the end.
            if body <= max(1, self.count(loop, rank) - body):
                return False
        return True


@dataclass(frozen=True, slots=True)
class Edited:
    """A changed source.

    Attributes:
        text: All of it.
        first: The first changed line.
        last: The last one.
    """

    text: str
    first: int
    last: int


def replaced(base: Base, node: ast.stmt, lines: Sequence[str]) -> Edited:
    """The source with a statement replaced.

    Args:
        base: The program.
        node: The statement, alone on its lines.
        lines: What takes its place, without its indentation.
    """
    assert node.end_lineno is not None
    return _spliced(base, node.lineno - 1, node.end_lineno, node.col_offset, lines)


def inserted(base: Base, node: ast.stmt, lines: Sequence[str]) -> Edited:
    """The source with something before a statement."""
    start = node.lineno - 1
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.decorator_list:
        start = node.decorator_list[0].lineno - 1
    return _spliced(base, start, start, node.col_offset, lines)


def appended(base: Base, node: ast.stmt, lines: Sequence[str]) -> Edited:
    """The source with something behind a statement."""
    assert node.end_lineno is not None
    return _spliced(base, node.end_lineno, node.end_lineno, node.col_offset, lines)


def _spliced(
    base: Base, start: int, end: int, column: int, lines: Sequence[str]
) -> Edited:
    new = [line and " " * column + line for line in lines]
    text = "\n".join([*base.lines[:start], *new, *base.lines[end:]]) + "\n"
    return Edited(text, start + 1, start + max(1, len(new)))


def swapped(base: Base, node: ast.expr, expression: str) -> Edited:
    """The source with an expression replaced by another one, on one line."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    first, last = node.lineno - 1, node.end_lineno - 1
    before = base.lines[first].encode()[: node.col_offset].decode()
    after = base.lines[last].encode()[node.end_col_offset :].decode()
    line = before + expression + after
    lines = [*base.lines[:first], line, *base.lines[last + 1 :]]
    return Edited("\n".join(lines) + "\n", first + 1, first + 1)


def own_lines(base: Base, node: ast.stmt) -> list[str]:
    """A statement's lines, without its indentation."""
    assert node.end_lineno is not None
    lines = base.lines[node.lineno - 1 : node.end_lineno]
    return textwrap.dedent("\n".join(lines)).split("\n")


def indented(lines: Sequence[str]) -> list[str]:
    """Lines, one level further in."""
    return [line and "    " + line for line in lines]
