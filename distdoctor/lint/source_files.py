"""The files that are to be read: what is Python under some paths, and its text."""

from __future__ import annotations

import ast
import os
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distdoctor.errors import SourceMissing
from distdoctor.model.source_text import conversion, is_notebook, syntax_tree

_LEFT_OUT = frozenset(
    {"__pycache__", "node_modules", "site-packages", "build", "dist", "venv"}
)
"""Folders that hold nothing a user wrote; those that begin with a dot are left out,
too, if they were not named themselves."""


@dataclass(frozen=True, slots=True)
class SourceText:
    """The text of a file, or why there is none.

    Attributes:
        file: As it was named, or as it was come to from a folder that was.
        text: What it holds; "" where it cannot be read.
        why: Why it cannot be read; "": it was.
        is_named: It was asked for by its own name, and not by its folder's.
    """

    file: str
    text: str
    why: str = ""
    is_named: bool = False


def read_sources(paths: Iterable[str]) -> Iterator[SourceText]:
    """The texts of files and of all Python files in folders, each once.

    Args:
        paths: Files, whatever their names, and folders.

    Raises:
        SourceMissing: A path is not there.
    """
    seen: set[str] = set()
    for path in paths:
        if not os.path.lexists(path):
            raise SourceMissing(f"{path} does not exist; give files or folders")
        is_named = not Path(path).is_dir()
        for file in [path] if is_named else _files(path):
            resolved = os.path.realpath(file)
            if resolved not in seen:
                seen.add(resolved)
                yield replace(_read(file), is_named=is_named)


def without_python(paths: Iterable[str]) -> list[str]:
    """Those of some paths that are folders without a Python file."""
    return [path for path in paths if Path(path).is_dir() and not any(_files(path))]


def beside(sources: Sequence[SourceText]) -> Iterator[SourceText]:
    """Modules that files import from their own folders, and those that these import.

    Args:
        sources: The files; what they import of each other is left out.
    """
    seen = {os.path.realpath(one.file) for one in sources}
    fresh = [*sources]
    while fresh and len(seen) < _MOST_BESIDE:
        source = fresh.pop()
        for file in _imported(source):
            resolved = os.path.realpath(file)
            if resolved not in seen:
                seen.add(resolved)
                found = _read(file)
                yield found
                fresh.append(found)


def _imported(source: SourceText) -> Iterator[str]:
    """Files beside one that its import statements may mean."""
    tree = syntax_tree(source.text)
    folder = Path(source.file).parent
    for node in ast.walk(tree) if tree is not None else ():
        modules: list[str] = []
        place = folder
        if isinstance(node, ast.Import):
            modules = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = node.module or ""
            modules = [start, *(f"{start}.{one.name}" for one in node.names)]
            for _ in range(1, node.level):
                place = place.parent
        for module in modules:
            base = place.joinpath(*filter(None, module.split(".")))
            if base != place:
                for file in (base.with_suffix(".py"), base / "__init__.py"):
                    if file.is_file():
                        yield str(file)


_MOST_BESIDE = 200  # files


def _files(path: str) -> Iterator[str]:
    """The Python files in a folder."""
    for folder, inner, names in os.walk(path):
        inner[:] = sorted(
            name for name in inner if name not in _LEFT_OUT and name[:1] != "."
        )
        for name in sorted(names):
            if name.endswith(".py"):
                yield os.path.normpath(Path(folder) / name)


def _read(file: str) -> SourceText:
    if not Path(file).is_file():  # to open a pipe or a device may take for ever
        return SourceText(file, "", "it is no regular file")
    if is_notebook(file):
        how = f"make a script of it by `{conversion(file)}`"
        return SourceText(file, "", f"it is a notebook; {how}")
    try:
        with tokenize.open(file) as opened:  # in the encoding that it says
            return SourceText(file, opened.read())
    except OSError as error:
        return SourceText(file, "", str(error.strerror))
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return SourceText(file, "", "it is not text in the encoding that it says")
