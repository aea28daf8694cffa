"""Tells what names in a source stand for, by the imports that bind them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence


def bound_names(
    nodes: Iterable[ast.AST], package: str, of_all: Sequence[str] = ()
) -> dict[str, str]:
    """Names that imports of a package bind, and what each is, with its modules.

    Args:
        nodes: All nodes of the source.
        package: The outermost one.
        of_all: Names that `import *` is taken to bind.
    """
    return {
        name: meant
        for node in nodes
        for name, meant in imports(node, of_all)
        if meant.partition(".")[0] == package
    }


def imports(node: ast.AST, of_all: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """The names that a statement binds by importing, and what they stand for.

    Args:
        node: Any.
        of_all: Names that `import *` is taken to bind.
    """
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name, alias.name
            if alias.asname is None and "." in alias.name:
                outermost = alias.name.partition(".")[0]
                yield outermost, outermost
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for alias in node.names:
            if alias.name == "*":
                for name in of_all:
                    yield name, f"{node.module}.{name}"
            else:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def full_name(node: ast.expr, bound: Mapping[str, str]) -> str:
    """What an expression names, with its modules; empty: nothing of the package.

    Args:
        node: Such as the function of a call.
        bound: As `bound_names` gives them.
    """
    name = written(node)
    if name in bound:
        return bound[name]
    owner, _, attribute = name.rpartition(".")
    last = owner.rpartition(".")[2]  # `self.hvd.init()`
    if meant := bound.get(owner) or bound.get(last):
        return f"{meant}.{attribute}"
    return ""


def written(node: ast.expr) -> str:
    """A name with its dots as it is written; empty for anything else."""
    if isinstance(node, ast.Attribute):
        owner = written(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return node.id if isinstance(node, ast.Name) else ""
