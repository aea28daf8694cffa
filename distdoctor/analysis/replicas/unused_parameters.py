"""Whether ranks part ways because DDP got no gradient for some parameters.

The rank whose loss left out a parameter never sends the bucket that holds it, and
its backward ends all the same. The others stay in the end of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

from distdoctor.analysis.causes import Cause, Divergence, at, where_of
from distdoctor.analysis.divergence.omitted_modules import omitted
from distdoctor.model.events import BLOCKED, Call, Event, Failure, Unreduced
from distdoctor.model.findings import Location
from distdoctor.model.run import Run

_REFUSAL = "Expected to have finished reduction in the prior iteration"
"""How DDP's next forward begins its error (torch 2.8 to 2.13, reducer.cpp)."""


@dataclass(frozen=True, slots=True)
class NoGradient:
    """Parameters for which DDP got no gradient in a backward pass.

    Attributes:
        ranks: On which.
        names: Of the parameters; empty if not known.
        waiting: Ranks that wait for these gradients.
        ops: In which operations.
        where: The place of that call in its group's sequence.
        refused: Ranks whose next forward pass was refused, where nobody waits.
    """

    ranks: tuple[int, ...]
    names: tuple[str, ...]
    waiting: tuple[int, ...]
    ops: tuple[str, ...]
    where: str
    refused: tuple[int, ...]


def unused_parameters(run: Run, found: list[Divergence]) -> list[Divergence]:
    """The divergences, with those that an unused parameter explains told as one.

    Args:
        run: The run that is judged.
        found: The divergences as they are known so far.

    Returns:
        The divergences, the same ones if no unused parameter explains them.
    """
    missing = {
        rank: events[-1] for rank in run.seen if (events := run.of(Unreduced, rank))
    }
    refused = {
        rank: failure
        for rank in run.seen
        for failure in run.of(Failure, rank)
        if failure.message.startswith(_REFUSAL)
    }
    for divergence in found or [_alone(tuple(refused))]:
        guilty = {*missing, *refused}
        if not refused:
            guilty &= _involved(divergence)
        if not guilty:
            continue
        waiting = _waiting(divergence, guilty)
        if not refused and not waiting:
            continue  # another backward may bring the rest: nobody waits for it
        explained = _explained(run, divergence, guilty, waiting, missing, refused)
        others = [d for d in found if not _involved(d) & {*guilty, *waiting}]
        return [explained, *others]
    return found


def _alone(ranks: tuple[int, ...]) -> Divergence:
    return Divergence(Cause.UNUSED, None, 0, {}, ranks, ())


def _involved(divergence: Divergence) -> set[int]:
    return {*divergence.culprits, *divergence.victims, *divergence.calls}


def _waiting(divergence: Divergence, guilty: set[int]) -> tuple[int, ...]:
    """Ranks that are in the end of a backward pass."""
    return tuple(
        rank
        for rank, call in divergence.calls.items()
        if rank not in guilty and _in_backward(call)
    )


def _in_backward(call: Call) -> bool:
    # Autograd's threads for GPUs have no frame of Python: neither line nor layer.
    by_autograd = call.layer == "backward" or call.place is None
    return by_autograd and call.state in BLOCKED


def _explained(
    run: Run,
    divergence: Divergence,
    guilty: set[int],
    waiting: tuple[int, ...],
    missing: dict[int, Unreduced],
    refused: dict[int, Failure],
) -> Divergence:
    ranks = tuple(sorted(guilty))
    everyone = guilty == set(run.seen)
    names = next((missing[r].parameters for r in ranks if r in missing), ())
    elsewhere: tuple[Location, ...] = ()
    for rank in ranks:
        for event, remark in (
            (missing.get(rank), "this backward pass left parameters out"),
            (refused.get(rank), "and here the next forward was refused"),
        ):
            if event is not None:
                elsewhere += at(event, (rank,), remark)
    around, led = omitted(run, names, ranks)
    cause: Event = next(
        event for r in ranks for event in (missing.get(r), refused.get(r)) if event
    )
    return Divergence(
        why=Cause.UNUSED,
        group=divergence.group,
        ordinal=divergence.ordinal,
        calls=divergence.calls,
        culprits=() if everyone else ranks,
        victims=ranks if everyone else tuple(set(run.seen) - guilty),
        remarks=led,
        facts=NoGradient(
            ranks,
            names,
            waiting,
            tuple(sorted({divergence.calls[rank].op for rank in waiting})),
            where_of(divergence),
            tuple(sorted(refused)),
        ),
        cause=cause,
        elsewhere=(*around, *elsewhere),
    )
