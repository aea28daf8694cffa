"""Jobs that end well and have trained nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distdoctor.model.events import Batch, Ended, Event, Failure, Started, Wrapped
from distdoctor.model.layers import LAYER_MASK, LAYER_SHIFT, LAYERS
from distdoctor.model.operations import CODE_OF, SETUP_CODES
from distdoctor.model.run import Run, named

NEVER_CALLED = (
    "the script never called torch.distributed.init_process_group or hvd.init"
)
"""Why nothing is known of a job whose processes never became ranks."""

_WRAPPERS = [LAYERS.index("ddp"), LAYERS.index("fsdp")]
_BARRIERS = [CODE_OF["barrier"], CODE_OF["monitored_barrier"]]


@dataclass(frozen=True, slots=True)
class Untrained:
    """Why nothing was trained, and the events that show it."""

    why: str
    exhibits: tuple[Event, ...] = ()


def untrained(run: Run) -> Untrained | None:
    """What is known of a job that left with exit code 0 and trained nothing.

    None if it was not so: a job that only communicates, or only evaluates, has done
    its work without a step.

    Args:
        run: The run that is judged.

    Returns:
        The reason in words, with what else is known.
    """
    if run.exit_code != 0 or run.stopped or run.simulated:
        return None
    if not run.seen:
        return Untrained(
            "the script never called torch.distributed.init_process_group or hvd.init"
        )
    if any(_failed(run, rank) for rank in run.seen):
        return None
    ends = [event for rank in run.seen for event in run.of(Ended, rank)]
    joined = [
        event for rank in run.seen for event in run.of(Started, rank) if event.joined
    ]
    if not joined:
        return Untrained(_never_joined(run), tuple(ends))
    steps = sum(run.steps.values())
    batches = [event for rank in run.seen for event in run.of(Batch, rank)]
    if steps or any(event.count for event in batches):
        return None
    if batches:
        why = "no DataLoader gave a batch, and no optimizer made a step"
        return Untrained(why, (*batches, *joined))
    wrapped = [event for rank in run.seen for event in run.of(Wrapped, rank)]
    if wrapped and not _communicates(run):
        why = "the model was wrapped, and no batch was read and no step made"
        return Untrained(why, (*wrapped, *joined))
    return None


def _failed(run: Run, rank: int) -> bool:
    failures = [failure for failure in run.of(Failure, rank) if failure.fatal]
    return bool(failures) or any(event.status for event in run.of(Ended, rank))


def _never_joined(run: Run) -> str:
    alone = [rank for rank in run.seen if run.steps.get(rank, 0)]
    if alone:
        most = max(run.steps.values())
        return (
            f"{named(run.seen)} never called init_process_group or hvd.init; "
            f"{named(alone)} made up to {most} optimizer steps, each for itself"
        )
    return (
        f"{named(run.seen)} left without having called init_process_group or hvd.init"
    )


def _communicates(run: Run) -> bool:
    """Whether ranks exchanged more than a wrapper does while it is made."""
    layers = run.column("flags") >> LAYER_SHIFT & LAYER_MASK
    own = ~np.isin(layers, _WRAPPERS)
    return bool((own & ~np.isin(run.column("op"), [*SETUP_CODES, *_BARRIERS])).any())
