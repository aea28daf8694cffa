"""Where to look in a program that ran, by its text alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from distdoctor.lint.linting import lint_texts
from distdoctor.lint.source_files import SourceText
from distdoctor.report.schema import HintData

_MOST = 5
_LARGEST = 2_000_000  # characters of all files: a second's reading


def hints_of(sources: Mapping[str, str], told: Iterable[str]) -> list[HintData]:
    """What stands in a program's files, and was not seen to happen.

    Args:
        sources: Text of each file by its name.
        told: Codes of what was seen to happen, which need no hint.

    Returns:
        A few, in the order of files and lines; none if there is too much to read.
    """
    if sum(map(len, sources.values())) > _LARGEST:
        return []
    known = {*told}
    found = lint_texts(SourceText(file, text) for file, text in sources.items())
    return [
        HintData(code=one.code, file=one.at.file, line=one.at.line, what=one.message)
        for one in found.findings
        if one.code not in known
    ][:_MOST]
