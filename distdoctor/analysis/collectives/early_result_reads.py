"""Results of asynchronous calls that are read before the wait, by the user's source.

No probe sees a read. What was seen are the lines by which a thread came to the call and
to the wait for it; what surely runs between them, the source tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.source.possible_waits import Awaiting
from distdoctor.analysis.source.rank_evaluation import RankReader
from distdoctor.analysis.source.result_reads import read_early
from distdoctor.analysis.source.tensor_flow import Settings
from distdoctor.model.events import Call, Place
from distdoctor.model.observations.collectives import Awaited, step_of
from distdoctor.model.run import Run

_MOST_ASKED = 64  # ranks for which the source is read, where it asks for the rank

_FROM_ROOT = frozenset({"broadcast", "scatter"})
"""What the root of these has is only read, or there from the start."""

_RECEIVED = {"recv_any": "recv"}


@dataclass(frozen=True, slots=True)
class EarlyRead:
    """A line that reads the result of a call before that is waited for.

    Attributes:
        ranks: That do so, ascending.
        op: Name of the call.
        read: The line that reads.
        issued: That of the call.
        waited: That of the wait.
        cause: What was seen of it on the first of the ranks.
    """

    ranks: list[int]
    op: str
    read: Place
    issued: Place
    waited: Place
    cause: Awaited


@memoize
def reads(run: Run) -> list[EarlyRead]:
    """Lines that read results early, those of one call once.

    Args:
        run: The run that is judged.

    Returns:
        One for each call, by its line.
    """
    found: dict[Place, EarlyRead] = {}
    for rank, awaited, issued, waited in _ways(run):
        call = _call(run, rank, issued[-1])
        if call is None or not _is_given(run, call):
            continue
        place = _read(run, call, issued, waited)
        if place is None:
            continue
        known = found.get(issued[-1])
        if known is None:
            found[issued[-1]] = EarlyRead(
                [rank], call.op, place, issued[-1], waited[-1], awaited
            )
        elif rank not in known.ranks and place == known.read:
            known.ranks.append(rank)
    return list(found.values())


_Way = tuple[Place, ...]


def _ways(run: Run) -> Iterator[tuple[int, Awaited, _Way, _Way]]:
    if not run.sources:
        return
    for rank in run.seen:
        for awaited in run.of(Awaited, rank):
            issued = tuple(map(step_of, awaited.issued))
            waited = tuple(map(step_of, awaited.waited))
            if issued and waited and None not in {*issued, *waited}:
                yield (
                    rank,
                    awaited,
                    tuple(place for place in issued if place is not None),
                    tuple(place for place in waited if place is not None),
                )


def _call(run: Run, rank: int, place: Place) -> Call | None:
    """One of the calls of a line; None if they differ in what counts here."""
    if place not in run.sites:
        return None
    rows = run.rows_of(rank)
    mine = run.calls[rows.start : rows.stop]
    here = (mine["site"] == run.sites.index(place)).nonzero()[0]
    if not len(here) or any(len(set(mine[name][here])) > 1 for name in ("op", "peer")):
        return None
    return run.call(rows.start + int(here[0]))


def _is_given(run: Run, call: Call) -> bool:
    """Whether the rank is one that the call gives its result to."""
    if call.op not in _FROM_ROOT | {"reduce"}:
        return True
    group = next(one for one in run.groups if one.name == call.group)
    root = call.root if call.root is not None else -1
    is_root = 0 <= root < len(group.ranks) and group.ranks[root] == call.rank
    return is_root is (call.op == "reduce")


def _read(
    run: Run, call: Call, issued: Sequence[Place], waited: Sequence[Place]
) -> Place | None:
    known = _known(run)
    key = (tuple(issued), tuple(waited))
    if key in known:
        return known[key]
    program, readers = program_of(run), _readers(run)
    if call.rank not in readers:
        if len(readers) >= _MOST_ASKED:
            return None
        readers[call.rank] = RankReader(program, call.rank, run.world_size)
    dtypes = {tensor.dtype for tensor in call.tensors}
    dtype = dtypes.pop() if len(dtypes) == 1 else ""
    settings = Settings(program, readers[call.rank], _awaiting(run), dtype)
    place = read_early(settings, _RECEIVED.get(call.op, call.op), issued, waited)
    if not settings.ranked:
        known[key] = place
    return place


@memoize
def _known(_run: Run) -> dict[tuple[_Way, _Way], Place | None]:
    """What was found that holds for all ranks."""
    return {}


@memoize
def _readers(_run: Run) -> dict[int, RankReader]:
    return {}


@memoize
def _awaiting(run: Run) -> Awaiting:
    return Awaiting(program_of(run))
