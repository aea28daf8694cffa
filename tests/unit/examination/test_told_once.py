"""What a check finds at the same lines again is told once."""

from collections.abc import Iterator
from dataclasses import replace

from distdoctor.catalogue import every_check
from distdoctor.examination.examining import verdict
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place
from distdoctor.model.findings import Finding, Location, Role, Sick
from distdoctor.model.run import Run

HERE, THERE = Place("t.py", 3), Place("t.py", 4)


def found(*reported: tuple[str, Place, tuple[int, ...]]) -> list[str]:
    """Messages that are left of findings with their line and ranks."""

    def examine(_run: Run) -> Iterator[Finding]:
        for message, place, ranks in reported:
            at = Location(place, (0, 1), Role.PARTY, "here")
            yield Finding(message=message, exhibits=(), culprits=ranks, locations=(at,))

    check = replace(every_check()[0], needs=(), examine=examine)
    sick = verdict(sketch("rank 0 | barrier\nrank 1 | barrier"), check)
    assert isinstance(sick, Sick)
    return [one.message for one in sick.findings]


def test_what_is_found_at_the_same_lines_again_is_told_once() -> None:
    assert found(("0.1", HERE, ()), ("0.2", HERE, ())) == ["0.1"]


def test_other_lines_and_other_ranks_are_told() -> None:
    assert found(("a", HERE, ()), ("b", THERE, ())) == ["a", "b"]
    assert found(("a", HERE, (0,)), ("b", HERE, (1,))) == ["a", "b"]
