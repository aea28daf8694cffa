"""One look as plain text, and as JSON: for scripts, pipes and terminals of no kind."""

from __future__ import annotations

import msgspec

from distdoctor.journal.folder import as_text as with_escapes
from distdoctor.report.json import indented
from distdoctor.report.plain_text import plain
from distdoctor.watching.folded_ranks import FEW_RANKS, rows_of
from distdoctor.watching.rank_table import table_of
from distdoctor.watching.snapshot import Snapshot
from distdoctor.watching.snapshot_words import has_steps, job_line, outcome
from distdoctor.watching.wait_tree import wait_lines

MOST_ROWS = 200
"""Of ranks that are written out."""

_WIDTH = 160


def as_plain(snapshot: Snapshot) -> str:
    """The look as text, with a new line at its end.

    Args:
        snapshot: The look.
    """
    lines = [job_line(snapshot)]
    if words := outcome(snapshot):
        lines.append(words)
    elif snapshot.job.folder:
        lines.append(f"record: {plain(snapshot.job.folder)}")
    lines += map(plain, snapshot.remarks)
    rows = rows_of(snapshot.ranks, folded=len(snapshot.ranks) > FEW_RANKS)
    if rows:
        table = table_of(
            rows[:MOST_ROWS],
            _WIDTH,
            by_steps=has_steps(snapshot),
            of_record=bool(snapshot.job.folder),
        )
        lines += ["", *map(str.rstrip, map("  ".join, table))]
    if len(rows) > MOST_ROWS:
        left = sum(len(row.ranks) for row in rows[MOST_ROWS:])
        lines.append(f"… and {left} ranks more")
    if waits := wait_lines(snapshot, 40):
        lines += ["", "who waits for whom, now", *waits]
    return "\n".join(lines) + "\n"


def as_json(snapshot: Snapshot) -> str:
    """The look as JSON, `distdoctor.watch/1`, with a new line at its end.

    Args:
        snapshot: The look.
    """
    return indented(with_escapes(msgspec.to_builtins(snapshot)))
