"""Finds the user's own files that a file imports, without running them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

from distdoctor.model.source_text import syntax_tree

_INSTALLED = {"site-packages", "dist-packages"}


def imported(
    files: list[Path], top: Path, read: Callable[[Path], str | None], most: int
) -> Iterator[tuple[Path, str]]:
    """The user's files that these import, directly or indirectly, and their texts.

    What is looked for lies beside the file that imports it, or where a package that
    holds that file, or the program, has its top. Installed packages are not followed.

    Args:
        files: Where to begin; they are not given again.
        top: The working directory.
        read: Gives the text of a file; None: it is not to be read.
        most: How many files to give.
    """
    known = {path.resolve() for path in files}
    waiting = list(files)
    roots = [top, *dict.fromkeys(path.parent for path in files)]
    while waiting:
        path = waiting.pop(0)
        text = read(path)
        for module in _modules(text or ""):
            for found in _files_of(module, path, roots):
                if found.resolve() in known:
                    continue
                known.add(found.resolve())
                text_of_it = read(found)
                if text_of_it is None:
                    continue
                yield found, text_of_it
                most -= 1
                if most <= 0:
                    return
                waiting.append(found)


def _modules(text: str) -> Iterator[tuple[int, str]]:
    """How many packages up, and the dotted name, of all that a text imports."""
    tree = syntax_tree(text)
    if tree is None:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            yield node.level, base
            yield from (
                (node.level, f"{base}.{alias.name}".lstrip("."))
                for alias in node.names
                if alias.name != "*"
            )


def _files_of(
    module: tuple[int, str], importer: Path, roots: list[Path]
) -> Iterator[Path]:
    """The files that may be a module, and the packages it is in."""
    level, name = module
    parts = [part for part in name.split(".") if part]
    bases = roots
    if level:
        bases = [importer.parents[level - 1]] if level <= len(importer.parents) else []
    for base in bases:
        for n in range(len(parts) + 1):
            inner = base.joinpath(*parts[:n])
            found = [inner / "__init__.py"]
            if n:
                found.append(inner.with_name(inner.name + ".py"))
            yield from (path for path in found if _is_users(path))


def _is_users(path: Path) -> bool:
    return not _INSTALLED & set(PurePath(path).parts) and path.is_file()
