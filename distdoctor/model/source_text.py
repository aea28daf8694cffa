"""Reads source texts of the user's, whatever they are: large, deep, or no Python."""

from __future__ import annotations

import ast

LARGEST_SOURCE = 400_000
"""Characters of a file that is read: ten thousand lines. Larger ones hold data."""

_DEEPEST = 200
"""Levels of a tree: what walks it calls itself up to three times for each, and Python
allows 1,000 calls. Expressions of so many terms, and chains of `elif`, are deeper."""


def syntax_tree(text: str | bytes) -> ast.Module | None:
    """The syntax tree of a text.

    Returns:
        None: it is no Python, or too large to be read here.
    """
    if len(text) > LARGEST_SOURCE:
        return None
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def shallow_tree(text: str | bytes) -> ast.Module | None:
    """The syntax tree of a text, for what walks it by calling itself.

    Returns:
        None: as of `syntax_tree`, or it is too deep.
    """
    tree = syntax_tree(text)
    return None if tree is None or _is_deep(tree) else tree


def _is_deep(tree: ast.AST) -> bool:
    level = [tree]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True
