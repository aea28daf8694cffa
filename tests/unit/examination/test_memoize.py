"""Answers that are kept with a run."""

from distdoctor.analysis.memoize import memoize
from distdoctor.model.drawing import sketch
from distdoctor.model.run import Run


def test_a_run_is_asked_once_and_each_by_itself() -> None:
    asked: list[Run] = []

    @memoize
    def ranks(run: Run) -> list[int]:
        asked.append(run)
        return list(run.seen)

    one, two = sketch("rank 0 | barrier"), sketch("rank 0 | barrier\nrank 1 | barrier")
    assert ranks(one) is ranks(one)
    assert (ranks(one), ranks(two)) == ([0], [0, 1])
    assert asked == [one, two]
