"""Parts of a dataset that each rank made for itself, and one sampler divides."""

from dataclasses import replace

from distdoctor.analysis.data.coverage import CoverageCause, faults
from distdoctor.analysis.data.split_leaks import leaks
from distdoctor.model.drawing import sketch

DRAWING = """
    rank 0 | wrap=ddp:a  held(names=x,rows=7)  made(number=1,role=subset)@t.py:1
           | read(samples=0-5,made=1,replicas=2,length=20,steps=3)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=7)  made(number=1,role=subset)@t.py:1
           | read(samples=3-8,made=1,replicas=2,length=20,steps=3)@t.py:9
"""


def why(source: str, drawing: str = DRAWING) -> list[CoverageCause]:
    run = replace(sketch(drawing), sources={"t.py": source})
    return [one for one in CoverageCause if faults(run, one)]


def test_shares_of_unlike_parts_overlap_because_of_the_split() -> None:
    assert why("train, kept = random_split(data, [12, 8])\n") == [CoverageCause.SPLIT]


def test_a_part_that_is_no_split_is_told_by_its_shares() -> None:
    assert why("train = Subset(data, chosen)\n") == [CoverageCause.OVERLAP]


def test_parts_that_no_sampler_divides_may_be_meant_so() -> None:
    alone = DRAWING.replace("replicas=2,", "")
    assert not why("train, kept = random_split(data, [12, 8])\n", alone)


def test_a_leak_that_is_seen_is_told_once() -> None:
    leaking = """
    rank 0 | wrap=ddp:a  held(names=x,rows=7)  made(number=1,role=subset)@t.py:1
           | read(samples=0-5,made=1,replicas=2,length=20,steps=3)@t.py:9
           | read(number=1,samples=6-8,made=1,length=20)@t.py:20
    rank 1 | wrap=ddp:a  held(names=x,rows=7)  made(number=1,role=subset)@t.py:1
           | read(samples=3-8,made=1,replicas=2,length=20,steps=3)@t.py:9
           | read(number=1,samples=0-2,made=1,length=20)@t.py:20
    """
    run = replace(
        sketch(leaking), sources={"t.py": "a, b = random_split(d, [12, 8])\n"}
    )
    assert leaks(run)
    assert not faults(run, CoverageCause.SPLIT)
