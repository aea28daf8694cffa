"""What was seen of a job on one machine, as a file: written there, and judged anywhere.

Such a file has no more in it than a report would tell: no text of variables, and no
environment but the rank; secrets in command lines are masked.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

import distdoctor
from distdoctor.errors import LeavingsMissing
from distdoctor.journal.folder import as_text
from distdoctor.journal.private_files import replace_private
from distdoctor.journal.secret_masking import masked_text
from distdoctor.model.events import MOST_RANKS
from distdoctor.model.run import named
from distdoctor.postmortem.job_evidence import STACK, Evidence, SourceRead
from distdoctor.postmortem.leavings import DAMAGES, Leaving
from distdoctor.postmortem.living.living_evidence import tell_seen
from distdoctor.postmortem.living.rank_views import RankView
from distdoctor.postmortem.living.seen_job import JobPart, SeenJob
from distdoctor.postmortem.readers import Reader

KIND = "look at a node"
SCHEMA = "distdoctor.node-look/1"

_MARK = b'{"schema":"distdoctor.node-look/'
_LARGEST_BYTES = 1 << 28
_LARGEST_INTEGER = 1 << 31  # of what becomes a column
_LONGEST_S = 1e9


class _SavedPart(msgspec.Struct, kw_only=True):
    schema: str
    distdoctor: str
    part: JobPart


def save(part: JobPart, folder: Path) -> Path:
    """Write a file, of its own for each machine of a job.

    Args:
        part: What was seen on this machine.
        folder: Where; it is made if it is not there.

    Returns:
        The file.

    Raises:
        LeavingsMissing: It cannot be written.
    """
    host = part.host or os.uname().nodename
    path = folder / f"{host}-{min(part.views, default=0)}.json"
    views = {rank: _masked(view) for rank, view in part.views.items()}
    told = _SavedPart(
        schema=SCHEMA,
        distdoctor=distdoctor.__version__,
        part=replace(part, host=host, views=views, script=masked_text(part.script)),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        data = msgspec.json.encode(as_text(msgspec.to_builtins(told, str_keys=True)))
        replace_private(path, data)
    except OSError as error:
        raise LeavingsMissing(
            f"{path} cannot be written: {error.strerror or error}; give another folder"
        ) from error
    return path


def _masked(view: RankView) -> RankView:
    return replace(view, helpers=tuple(map(masked_text, view.helpers)))


def recognises(name: str, head: bytes) -> bool:
    """Whether a file is one of these.

    Args:
        name: Of the file.
        head: Its first bytes.
    """
    del name
    return head.startswith(_MARK)


def read(leavings: Sequence[Leaving], evidence: Evidence) -> None:
    """Read what was seen on the nodes of a job, and judge it as one.

    Args:
        leavings: The files.
        evidence: What is known of the job; it is added to.
    """
    found: list[tuple[str, JobPart]] = []
    for leaving in leavings:
        try:
            found.append((leaving.path, _part_in(leaving)))
        except (*DAMAGES, ValueError, RecursionError) as error:
            evidence.unreadable.append((leaving.path, str(error)[:200]))
    parts = [part for _, part in _of_one_job(found, evidence)]
    if parts:
        tell_seen(SeenJob(parts), evidence)


READER = Reader(KIND, recognises, read)


def _part_in(leaving: Leaving) -> JobPart:
    """What a file tells.

    Raises:
        ValueError: It is not as we write it.
    """
    with leaving.open() as file:
        data = file.read(_LARGEST_BYTES + 1)
    if len(data) > _LARGEST_BYTES:
        raise ValueError(f"it is larger than {_LARGEST_BYTES >> 20} MiB")
    try:
        saved = msgspec.json.decode(data, type=_SavedPart)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"it is damaged, or of another release: {error}") from error
    if saved.schema != SCHEMA:
        raise ValueError(f"it is {saved.schema[:40]!r}, and this release has {SCHEMA}")
    part = saved.part
    if not _is_sound(part):
        raise ValueError("it has numbers in it that none of ours has")
    return part


def _is_sound(part: JobPart) -> bool:
    ranks = [*part.views, *part.identities]
    calls = [
        call
        for view in part.views.values()
        for call in (view.condition.call, view.condition.other_call)
        if call is not None
    ]
    places = [
        place
        for view in part.views.values()
        for place in (
            view.condition.place,
            view.condition.other_place,
            view.condition.lock,
        )
        if place is not None
    ]
    integers = [call.tag for call in calls] + [place.line for place in places]
    integers += [line.line for v in part.views.values() if v.main for line in v.lines]
    integers += [view.status or 0 for view in part.views.values()]
    integers += [status for _, status in part.dead]
    seconds = [part.seconds, *(view.cpu for view in part.views.values())]
    return (
        0 <= part.world_size <= MOST_RANKS
        and all(0 <= rank < min(part.world_size, MOST_RANKS) for rank in ranks)
        and all(0 <= one < _LARGEST_INTEGER for one in integers)
        and all(0 <= one < _LONGEST_S for one in seconds)
        and math.isfinite(part.begun_s)
        and 0 <= part.begun_s < 1e11
    )


def _of_one_job(
    found: Sequence[tuple[str, JobPart]], evidence: Evidence
) -> Iterator[tuple[str, JobPart]]:
    """The parts of one job, each rank in one of them; others are set aside."""
    if not found:
        return
    sizes: dict[tuple[str, int], int] = {}
    for _, part in found:
        sizes[_job(part)] = sizes.get(_job(part), 0) + len(part.views)
    job = max(sizes, key=lambda one: sizes[one])
    taken: set[int] = set()
    is_first = True
    for path, part in sorted(found, key=lambda one: -one[1].begun_s):
        why = ""
        if _job(part) != job:
            why = "it is of another job than the others"
        elif not part.job and not is_first:
            why = "nothing in the environment of its ranks tells the job"
        elif taken & part.views.keys():
            why = f"a later look has {named(sorted(taken & part.views.keys()))} as well"
        if why:
            evidence.set_aside.append((f"{KIND}, {part.host} at {_time(part)}", why))
            evidence.left_out.append((path, why))
            continue
        is_first = False
        taken |= part.views.keys()
        evidence.sources.append(
            SourceRead(
                path=path,
                kind=KIND,
                evidence=STACK,
                ranks=tuple(sorted(part.views)),
                remark=f"on {part.host} from {_time(part)} for {part.seconds:.0f} s",
            )
        )
        yield path, part


def _job(part: JobPart) -> tuple[str, int]:
    return part.job, part.world_size


def _time(part: JobPart) -> str:
    """When it was begun, as a clock tells; in UTC, whatever machine reads it."""
    return datetime.fromtimestamp(part.begun_s, UTC).strftime("%H:%M:%S UTC")
