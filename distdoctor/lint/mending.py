"""The safe mends of findings, as a diff that `patch` and `git apply` take."""

from __future__ import annotations

import difflib
from collections import defaultdict

from distdoctor.lint.findings import Insertion
from distdoctor.lint.linting import Lint
from distdoctor.model.source_text import syntax_tree


def diff(lint: Lint) -> str:
    """What would mend the findings that can be mended without a thought.

    A file that would not be Python any more is left out.

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
        old = texts[file].splitlines(keepends=True)
        new = [*old]
        for fix in sorted(fixes, key=lambda one: one.before, reverse=True):
            at = fix.before - 1
            if 0 < at <= len(new) and not new[at - 1].endswith("\n"):
                new[at - 1] += "\n"
            new[at:at] = [f"{line}\n" for line in fix.lines]
        if syntax_tree("".join(new)) is None:
            continue
        parts += difflib.unified_diff(old, new, f"a/{file}", f"b/{file}")
    return "".join(
        part if part.endswith("\n") else f"{part}\n\\ No newline at end of file\n"
        for part in parts
    )
