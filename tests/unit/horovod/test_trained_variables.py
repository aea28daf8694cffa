"""VariablePrints of Keras' optimizers, compared among ranks by their fingerprints."""

import pytest

from distdoctor.analysis.horovod.trained_variables import (
    different_starts,
    never_reduced,
)
from distdoctor.model.drawing import sketch

REDUCED = """
    rank 0 | variable_prints(names=w,sizes=40,prints=1,wrapped)  all_reduce(40)
           | variable_prints(step=1,names=w,sizes=40,prints=2,wrapped)  all_reduce(40)
           | variable_prints(step=2,names=w,sizes=40,prints=4,wrapped)
    rank 1 | variable_prints(names=w,sizes=40,prints=1,wrapped)  all_reduce(40)
           | variable_prints(step=1,names=w,sizes=40,prints=2,wrapped)  all_reduce(40)
           | variable_prints(step=2,names=w,sizes=40,prints=4,wrapped)
"""

EACH_ITS_OWN = """
    rank 0 | variable_prints(names=w,sizes=40,prints=1)
           | variable_prints(step=1,names=w,sizes=40,prints=2)
           | variable_prints(step=2,names=w,sizes=40,prints=4)
    rank 1 | variable_prints(names=w,sizes=40,prints=7)
           | variable_prints(step=1,names=w,sizes=40,prints=3)
           | variable_prints(step=2,names=w,sizes=40,prints=5)
"""

UNCLEAR = """
    rank 0 | variable_prints(names=w,sizes=40,prints=1,wrapped)
           | graph_unclear(function=step,operations=4)
           | variable_prints(step=1,names=w,sizes=40,prints=2,wrapped)
           | variable_prints(step=2,names=w,sizes=40,prints=4,wrapped)
    rank 1 | variable_prints(names=w,sizes=40,prints=1,wrapped)
           | graph_unclear(function=step,operations=4)
           | variable_prints(step=1,names=w,sizes=40,prints=3,wrapped)
           | variable_prints(step=2,names=w,sizes=40,prints=5,wrapped)
"""

BROADCAST_LATE = """
    rank 0 | variable_prints(names=w,sizes=40,prints=1)  all_reduce(40)
           | variable_prints(step=1,names=w,sizes=40,prints=3)
           | broadcast(40)  all_reduce(40)
           | variable_prints(step=2,names=w,sizes=40,prints=5)
    rank 1 | variable_prints(names=w,sizes=40,prints=2)  all_reduce(40)
           | variable_prints(step=1,names=w,sizes=40,prints=4)
           | broadcast(40)  all_reduce(40)
           | variable_prints(step=2,names=w,sizes=40,prints=5)
"""

ONE_OF_ITS_OWN = """
    rank 0 | variable_prints(names=w+v,sizes=40+30,prints=1+1)  all_reduce(40)
           | variable_prints(step=1,names=w+v,sizes=40+30,prints=3+3)  all_reduce(40)
           | variable_prints(step=2,names=w+v,sizes=40+30,prints=5+5)
    rank 1 | variable_prints(names=w+v,sizes=40+30,prints=1+2)  all_reduce(40)
           | variable_prints(step=1,names=w+v,sizes=40+30,prints=3+4)  all_reduce(40)
           | variable_prints(step=2,names=w+v,sizes=40+30,prints=5+6)
"""

AVERAGED_WEIGHTS = """
    rank 0 | broadcast(40)  variable_prints(names=w,sizes=40,prints=1)
           | variable_prints(step=1,names=w,sizes=40,prints=2)  all_reduce(40)
           | variable_prints(step=2,names=w,sizes=40,prints=4)
    rank 1 | broadcast(40)  variable_prints(names=w,sizes=40,prints=1)
           | variable_prints(step=1,names=w,sizes=40,prints=3)  all_reduce(40)
           | variable_prints(step=2,names=w,sizes=40,prints=5)
"""

UNSEEN = """
    rank 0 | variable_prints(names=w,sizes=40,prints=1,wrapped)
           | variable_prints(step=1,names=w,sizes=40,prints=2,wrapped)
           | variable_prints(step=2,names=w,sizes=40,prints=4,wrapped)
    rank 1 | ?
"""


@pytest.mark.parametrize(
    "drawing",
    [
        *(REDUCED, EACH_ITS_OWN, UNCLEAR, BROADCAST_LATE, ONE_OF_ITS_OWN),
        *(AVERAGED_WEIGHTS, UNSEEN),
    ],
)
def test_nothing_is_said_where_nothing_is_wrong_or_it_is_not_known(
    drawing: str,
) -> None:
    run = sketch(drawing)
    assert not list(never_reduced(run))
    assert not list(different_starts(run))


def test_gradients_of_replicas_without_a_wrapper_are_told_as_likely() -> None:
    run = sketch(
        """
        rank 0 | broadcast(40)  variable_prints(names=w,sizes=40,prints=1)
               | variable_prints(step=1,names=w,sizes=40,prints=2)  all_reduce(1)
               | variable_prints(step=2,names=w,sizes=40,prints=4)
        rank 1 | broadcast(40)  variable_prints(names=w,sizes=40,prints=1)
               | variable_prints(step=1,names=w,sizes=40,prints=3)  all_reduce(1)
               | variable_prints(step=2,names=w,sizes=40,prints=5)
        """
    )
    (found,) = never_reduced(run)
    assert (found.positions, found.wrapped) == ((0,), False)
