"""Which exceptions are told beside the findings."""

from dataclasses import replace

import pytest

from distdoctor.examination.concluding import conclude
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Failure, Place
from distdoctor.model.findings import Finding, Severity, Sick
from distdoctor.model.observations.equivalence import Property

WHY = "gradients are 2.00 x too large"
BROKEN = f"a step is not equivalent to one rank's: {WHY} (DD551)\n  smallest example"


def raised(message: str) -> list[str]:
    """What is told of a job that raised this, beside DD551."""
    failure = Failure(rank=-1, error="Broken", message=message, place=AT)
    run = replace(
        sketch("rank 0 | barrier\nrank 1 | barrier"), exit_code=1, outside=(failure,)
    )
    told = Property(rank=0, name="ranks", why=WHY)
    finding = Finding(message="they differ", exhibits=(told,))
    sick = Sick("DD551", "equivalence broken", Severity.ERROR, (finding,), "")
    return [one.failure.error for one in conclude(run, [sick]).raised]


AT = Place("test_train.py", 54)


def test_an_exception_that_a_finding_tells_of_is_not_told_again() -> None:
    assert raised(BROKEN) == []


@pytest.mark.parametrize(
    "message", ["no such file", WHY, "gradients are 3.00 x too large (DD551)"]
)
def test_any_other_exception_is_told(message: str) -> None:
    assert raised(message) == ["Broken"]


@pytest.mark.parametrize(
    ("code", "severity", "is_told"),
    [
        ("DD605", None, False),
        ("DD602", Severity.NOTE, True),  # another matter, which ended nobody
        ("DD301", None, True),
    ],
)
def test_what_nccl_tells_explains_the_calls_that_it_failed(
    code: str, severity: Severity | None, is_told: bool
) -> None:
    failed = "rank {} | fail=DistBackendError^  exit=1"
    run = replace(sketch("\n".join(map(failed.format, (0, 1)))), exit_code=1)
    run = replace(
        run,
        outside=(
            Failure(rank=0, error="DistBackendError", message="", secondary=True),
        ),
    )
    finding = Finding(message="the port is down", exhibits=(), severity=severity)
    sick = Sick(code, "network error", Severity.ERROR, (finding,), "")
    assert bool(conclude(run, [sick]).raised) is is_told
