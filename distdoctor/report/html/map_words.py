"""What a map of ranks and calls shows, in words."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from distdoctor.analysis.collectives.alignment import Alignment
from distdoctor.model.run import Run, named, ranges
from distdoctor.report.html.shown_text import shown

_MOST_KINDS = 4  # of calls told of one meeting


def summary(run: Run, aligned: Alignment) -> str:
    """What a map shows, for those who do not see it.

    Args:
        run: What was examined.
        aligned: The collectives of a group.
    """
    members = [rank for rank in aligned.group.ranks if rank not in run.unseen]
    unlike = np.flatnonzero(~aligned.equal)
    short = np.flatnonzero(aligned.counts < len(members))
    group = shown(aligned.group.name, 80)
    count = len(aligned.ordinals)
    head = f"{count:,} collective{'s' * (count != 1)} on {group} can be compared"
    if not len(unlike) and not len(short):
        return f"{head}; all {len(members):,} seen ranks made all of them alike."
    parts = [head]
    if len(unlike):
        ordinal = int(aligned.ordinals[unlike[0]])
        kinds = "; ".join(_kinds(run, aligned, int(unlike[0])))
        first = f"the first is call {ordinal:,}: {kinds}" if kinds else ""
        verb = "was" if len(unlike) == 1 else "were"
        parts.append(f"{len(unlike):,} {verb} not made alike, {first}")
    if len(short):
        meeting = aligned.meeting(run, int(short[0]))
        absent = [rank for rank in meeting.absent if rank not in run.unseen]
        came = f"the first is call {meeting.ordinal:,}, of {named(absent)}"
        verb = "was" if len(short) == 1 else "were"
        parts.append(f"{len(short):,} {verb} not seen of all, {came}")
    return "; ".join(parts) + "."


def _kinds(run: Run, aligned: Alignment, n: int) -> Iterator[str]:
    """Who made which call at a meeting, those of most ranks first."""
    sides: dict[int, list[int]] = {}
    meeting = aligned.meeting(run, n)
    for row in meeting.rows.values():
        sides.setdefault(int(run.calls["signature"][row]), []).append(row)
    ordered = sorted(sides.values(), key=len, reverse=True)
    for rows in ordered[:_MOST_KINDS]:
        call = run.call(rows[0])
        ranks = ranges(run.calls["rank"][rows].tolist())
        yield f"{shown(str(call), 160)} on {'rank' + 's' * (len(rows) > 1)} {ranks}"
    if len(ordered) > _MOST_KINDS:
        yield f"and {len(ordered) - _MOST_KINDS} more kinds"
