"""How a fault of reading is told: each line once, as what it is."""

from dataclasses import replace

from distdoctor.analysis.data.orders import repeats
from distdoctor.analysis.data.passes import passes
from distdoctor.analysis.data.readers import LOOP, locations
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place
from distdoctor.model.observed.data import LOADER, SAMPLER, SUBSET

EPOCHS = """
    rank 0 | made(number=1,role=loader,kind=DataLoader)@t.py:7
           | made(number=2,role=sampler,kind=BatchSampler)@t.py:7
           | made(number=3,role=sampler,kind=DistributedSampler)@t.py:5
           | read(made=1+2+3,samples=7+0-6,steps=4,shuffled)@t.py:9
           | read(number=1,made=1+2+3,samples=7+0-6,steps=4,shuffled)@t.py:9
"""


def test_the_sampler_that_a_loader_made_for_itself_is_the_loader() -> None:
    run = sketch(EPOCHS)
    (repeat,) = repeats(run)
    told = locations(run, repeat.passes, [SAMPLER, LOADER, LOOP, SAMPLER], repeat.ranks)
    assert [(one.place.line, one.remark) for one in told] == [
        (5, "made its sampler"),
        (7, "made the loader"),
        (9, "goes through the loader"),
    ]


def test_a_line_is_named_once_though_it_counts_twice() -> None:
    """By what was observed there, and by what its text says."""
    drawing = "rank 0 | made(number=1,role=subset)@t.py:2  read(made=1,steps=4)@t.py:9"
    source = "def share():\n    return random_split(data, [80, 40])\n"
    run = replace(sketch(drawing), sources={"t.py": source})
    (one,) = passes(run, 0)
    made = replace(one.made[0], place=Place("t.py", 2, "share"))
    told = locations(run, [replace(one, made=(made,))], [SUBSET, "ordering"], [0])
    assert [location.remark for location in told] == ["made the subset it reads"]
