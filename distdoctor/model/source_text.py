"""Reads source texts of the user's, whatever they are: large, deep, or no Python."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

LARGEST_SOURCE = 400_000
"""Characters of a file that is read: ten thousand lines. Larger ones hold data."""

_DEEPEST = 200
"""Levels of a tree: what walks it calls itself up to three times for each, and Python
allows 1,000 calls. Expressions of so many terms, and chains of `elif`, are deeper."""


def is_notebook(file: str | Path) -> bool:
    """Whether a file is a notebook, by its name."""
    return str(file).endswith(".ipynb")


def conversion(notebook: str | Path) -> str:
    """The command that makes a script of a notebook."""
    return shlex.join(["jupyter", "nbconvert", "--to", "script", str(notebook)])


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


def why_no_tree(text: str) -> str:
    """Why a text has no syntax tree, in words; "": it has one."""
    if len(text) > LARGEST_SOURCE:
        return f"it is larger than {LARGEST_SOURCE:,} characters"
    try:
        ast.parse(text)
    except SyntaxError as error:
        at = f"line {error.lineno}, column {error.offset}: " * bool(error.lineno)
        return f"it is no Python of this version: {at}{error.msg}"
    except (ValueError, RecursionError, MemoryError):
        return "it is no Python of this version"
    return ""


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
