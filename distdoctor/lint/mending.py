"""The safe mends of findings, as a diff that `patch` and `git apply` take."""

from __future__ import annotations

import difflib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from distdoctor.lint.linting import Lint
from distdoctor.lint.source_findings import Insertion
from distdoctor.model.source_text import syntax_tree

_MAY_STAND = frozenset("\t\r\n\f\ufeff")


def diff(lint: Lint) -> str:
    """What would mend the findings that can be mended without a thought.

    A file is left out that would not be Python any more, whose text a diff cannot hold
    (it is not UTF-8, or has changed meanwhile), or would control a terminal by.

    Args:
        lint: What was found.

    Returns:
        A unified diff; empty: nothing can.
    """
    wanted: dict[str, dict[Insertion, None]] = defaultdict(dict)
    for finding in lint.findings:
        if finding.fix is not None:
            wanted[finding.fix.file][finding.fix] = None
    texts = {file.file: file.text for file in lint.code.files}
    parts: list[str] = []
    for file, fixes in sorted(wanted.items()):
        old = _lines(file, texts[file])
        new = _mended(old, fixes)
        if not old or syntax_tree("".join(new).removeprefix("\ufeff")) is None:
            continue
        name = _from_here(file)
        rows = [*difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")]
        if all(one.isprintable() or one in _MAY_STAND for one in "".join(rows)):
            parts += _ended(rows)
    return "".join(parts)


def _lines(file: str, text: str) -> list[str]:
    """A file's lines with their ends, as they are on disk; none: they are not known."""
    if Path(file).is_file():
        try:
            raw = Path(file).read_bytes().decode()
        except (OSError, UnicodeDecodeError):
            return []
        if raw.removeprefix("\ufeff").replace("\r\n", "\n") != text:
            return []
        text = raw
    return [f"{line}\n" for line in text.split("\n")[:-1]] + [
        last for last in text.split("\n")[-1:] if last
    ]


def _mended(old: Sequence[str], fixes: Iterable[Insertion]) -> list[str]:
    new = [*old]
    end = "\r\n" if old and old[0].endswith("\r\n") else "\n"
    for fix in sorted(fixes, key=lambda one: one.before, reverse=True):
        at = fix.before - 1
        if 0 < at <= len(new) and not new[at - 1].endswith("\n"):
            new[at - 1] += end
        new[at:at] = [f"{line}{end}" for line in fix.lines]
    return new


def _from_here(file: str) -> str:
    """A file's name from this folder, if it is in it: diffs have no root."""
    here = f"{Path.cwd()}{os.sep}"
    return str(Path(file)).removeprefix(here)


def _ended(rows: Iterable[str]) -> Iterator[str]:
    for row in rows:
        yield row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n"
