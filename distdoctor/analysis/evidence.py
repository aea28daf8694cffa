"""Whether a run was seen whole."""

from __future__ import annotations

from distdoctor.analysis.memoize import memoize
from distdoctor.errors import MissingEvidence
from distdoctor.model.events import Ended, Failure
from distdoctor.model.run import Run, named


def require_whole(run: Run) -> None:
    """Raise MissingEvidence if a rank, or part of what it did, was not seen.

    To be called after all that is proven has been yielded.

    Args:
        run: The run that is judged.

    Raises:
        MissingEvidence: It says which rank, and why.
    """
    if run.missing:
        raise MissingEvidence(_of_missing(run))
    if run.partial:
        rank, why = next(iter(run.partial.items()))
        raise MissingEvidence(f"of rank {rank}, {why}")


@memoize
def _of_missing(run: Run) -> str:
    return f"no journal from {named(run.missing)}; it may have strayed"


def ended_well(run: Run, rank: int) -> bool:
    """Whether nothing is known of a rank but that it came to its end.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        Whether it raised nothing, and each of its processes ended in order, with status
        0, and was not stopped.
    """
    ends = run.of(Ended, rank)
    raised = any(failure.caught is None for failure in run.of(Failure, rank))
    return not raised and all(
        end.orderly and not end.status and not end.stopped for end in ends
    )
