"""What Horovod says of ranks whose arguments do not fit, in the words of frameworks."""

import pytest

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.collectives.horovod_refusals import refused_by_horovod
from distdoctor.model.events import Failure, Place
from distdoctor.model.run import Run

WORDS = "Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [4]."
LINE = Place("/t.py", 9, "train")


def failed(error: str, message: str) -> Run:
    """A run whose ranks have all ended by the same exception."""
    told = {
        rank: [
            (
                0,
                Failure(
                    rank=rank, place=LINE, error=error, message=message, fatal=True
                ),
            )
        ]
        for rank in (0, 1)
    }
    return Run(world_size=2, life=told)


@pytest.mark.parametrize(
    ("error", "message", "name"),
    [
        ("HorovodInternalError", WORDS, ""),
        ("FailedPreconditionError", f"{{{{function_node x}}}} {WORDS} [Op:y]", ""),
        (
            "FailedPreconditionError",
            f"Graph execution error:\nDetected at node a/cond_3/b_0 defined\n{WORDS}",
            "a/cond_3/b_0",
        ),
    ],
)
def test_unlike_shapes_are_found(error: str, message: str, name: str) -> None:
    (found,) = refused_by_horovod(failed(error, message))
    assert found.why is Cause.NUMEL
    assert found.facts.name == name  # type: ignore[attr-defined]
    assert WORDS[:-1] in str(found.facts)
    assert [one.place for one in found.elsewhere] == [LINE]


@pytest.mark.parametrize(
    ("error", "message"),
    [("ValueError", WORDS), ("FailedPreconditionError", "The session is closed.")],
)
def test_other_errors_are_none_of_it(error: str, message: str) -> None:
    assert not list(refused_by_horovod(failed(error, message)))
