"""Whether ranks average their weights now and then, and not the gradients (local SGD).

Source: Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019.
"""

from __future__ import annotations

from itertools import combinations

from distdoctor.model.observations.replicas import Trail
from distdoctor.model.run import Run

_MOST_RANKS = 8
"""That are compared with each other."""


def meet_again(run: Run) -> bool:
    """Whether weights of two ranks differed before a step, and were equal later.

    Args:
        run: The job.
    """
    trails = {rank: _before(run, rank) for rank in run.seen[:_MOST_RANKS]}
    for one, other in combinations(trails.values(), 2):
        common = sorted(one.keys() & other.keys())
        apart = [key for key in common if one[key] != other[key]]
        if any(
            one[key] == other[key] and key[0] == parted[0] and key > parted
            for parted in apart[:1]
            for key in common
        ):
            return True
    return False


def _before(run: Run, rank: int) -> dict[tuple[int, int], int]:
    """Fingerprints of the first weights by model and step."""
    return {
        (trail.model, trail.first + n): seen
        for trail in run.of(Trail, rank)
        for n, seen in enumerate(trail.before)
    }
