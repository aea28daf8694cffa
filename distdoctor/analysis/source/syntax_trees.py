"""The syntax tree of a text of the user's, whatever the text is."""

from __future__ import annotations

import ast
from functools import lru_cache

from distdoctor.model.source_text import shallow_tree


@lru_cache(maxsize=64)
def parsed(text: str) -> ast.Module:
    """The tree of a file; one without statements if it is no Python.

    It is shared by all who ask, and must not be changed.
    """
    return shallow_tree(text) or ast.Module([], [])


def simple_name(node: ast.AST) -> str:
    """A name, or the last part of an attribute; else ""."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def last_name(node: ast.AST) -> str:
    """Likewise, or a key of text."""
    match node:
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
    return simple_name(node)
