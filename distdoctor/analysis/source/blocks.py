"""The blocks of statements that a call stands in."""

from __future__ import annotations

import ast
from collections.abc import Sequence

Block = tuple[ast.stmt | None, str, Sequence[ast.stmt], int]
"""A block around a line: what it belongs to, by which name, its statements, and which
of them the line is in."""


def around(body: Sequence[ast.stmt], call: ast.Call) -> list[Block]:
    """The blocks around a call, outermost first.

    Args:
        body: The statements of a function, or of a file.
        call: A call in them, the very node.

    Returns:
        The blocks, each with the position of the statement that the call is in.
    """
    blocks: list[Block] = []
    owner: ast.stmt | None = None
    name, block = "body", body
    while True:
        at = next(
            (
                n
                for n, one in enumerate(block)
                if any(part is call for part in ast.walk(one))
            ),
            None,
        )
        if at is None:
            return blocks
        blocks.append((owner, name, block, at))
        owner = block[at]
        name, block = _part_with(owner, call)
        if not block:
            return blocks


def _part_with(owner: ast.stmt, call: ast.Call) -> tuple[str, Sequence[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(owner, name, [])
        if any(part is call for one in block for part in ast.walk(one)):
            return name, block
    for name in ("handlers", "cases"):
        for branch in getattr(owner, name, []):
            if any(part is call for one in branch.body for part in ast.walk(one)):
                return name, branch.body
    return "", []
