"""How a fault of reading is told: each line once, as what it is."""

from dataclasses import replace

import pytest

from distdoctor.analysis.data.passes import passes
from distdoctor.analysis.data.reading_findings import (
    LOOP,
    locations,
    shares_come_from,
    unheard,
)
from distdoctor.analysis.data.repeated_orders import repeats
from distdoctor.analysis.data.sample_origins import LISTING, calls
from distdoctor.catalogue import every_check
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place
from distdoctor.model.observations.data import LOADER, SAMPLER, SUBSET

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
    named = locations(
        run, repeat.passes, [SAMPLER, LOADER, LOOP, SAMPLER], repeat.ranks
    )
    assert [(one.place.line, one.remark) for one in named] == [
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
    named = locations(run, [replace(one, made=(made,))], [SUBSET, "ordering"], [0])
    assert [location.remark for location in named] == ["made the subset it reads"]


def test_a_list_of_files_counts_unless_it_is_sorted_or_counted() -> None:
    source = (
        "names = sorted(os.listdir(root))\n"
        "later = list(Path(root).glob('*.pt'))\n"
        "later.sort()\n"
        "kinds = {name[:3] for name in names}\n"
        "count = len(set(names))\n"
        "files = [name for name in os.listdir(root)]\n"
    )
    run = replace(sketch("rank 0 | ."), sources={"t.py": source})
    assert [place.line for place in calls(run, "t.py", LISTING)] == [4, 6]


UNHEARD = """
    rank 0 | made(number=1,role=sampler,kind=DistributedSampler)@t.py:5
           | read(made=1,samples=7+0-6,steps=4,shuffled,replicas=2)@t.py:9
           | read(number=1,made=1,samples=7+0-6,steps=4,shuffled,replicas=2)@t.py:9
"""

GUARDED = """
def start(loader, epoch):
    if hasattr(loader.batch_sampler, "set_epoch"):
        loader.batch_sampler.set_epoch(epoch)
"""


def speaking(drawing: str, source: str) -> list[tuple[int, str]]:
    run = replace(sketch(drawing), sources={"t.py": source})
    named = unheard(run, passes(run, 0), [0])
    return [(location.place.line, location.remark) for location in named]


def test_where_no_epoch_came_to_a_sampler_the_lines_that_speak_of_it_are_told() -> None:
    remark = "does not reach the sampler read at line 9"
    assert speaking(UNHEARD, GUARDED) == [(3, remark), (4, remark)]
    assert speaking(UNHEARD, "for epoch in range(9):\n    pass\n") == []


def test_what_an_epoch_reached_is_not_told_so() -> None:
    reached = UNHEARD.replace("made=1", "made=1+2").replace(
        "rank 0 |", "rank 0 | made(number=2,role=epoch)@t.py:4\n           |"
    )
    assert speaking(reached, GUARDED) == []


def test_a_sampler_of_the_users_own_may_have_heard() -> None:
    own = "class DistributedSampler:\n    def set_epoch(self, epoch): pass\n"
    assert speaking(UNHEARD, own + GUARDED) == []


def test_torchs_sampler_behind_one_of_the_users_own_has_not_heard() -> None:
    own = "class Batches:\n    def set_epoch(self, epoch): pass\n"
    reached = UNHEARD.replace("made=1", "made=1+2").replace(
        "rank 0 |",
        "rank 0 | made(number=2,role=sampler,kind=Batches)@t.py:6\n           |",
    )
    assert [line for line, _ in speaking(reached, own + GUARDED)] == [5, 6]
    alone = UNHEARD.replace("kind=DistributedSampler", "kind=Batches")
    assert speaking(alone, own + GUARDED) == []


SAME = """
    rank 0 | wrap=ddp:a
           | made(number=1,role=sampler,kind=DistributedSampler)@t.py:5
           | read(made=1,samples=0+2,steps=2,replicas=2)@t.py:9
    rank 1 | wrap=ddp:a
           | made(number=1,role=sampler,kind=DistributedSampler)@t.py:5
           | read(made=1,samples=0+2,steps=2,replicas=2)@t.py:9
"""


def coming_from(index: str, count: str = "2") -> list[int]:
    source = (
        f"\nINDEX = {index}\nCOUNT = {count}\n\n"
        "sampler = DistributedSampler(data, COUNT, rank=INDEX)\n"
    )
    run = replace(sketch(SAME), sources={"t.py": source})
    named = shares_come_from(run, [*passes(run, 0), *passes(run, 1)], [])
    return [location.place.line for location in named]


def test_where_a_share_comes_from_is_told() -> None:
    assert coming_from("int(os.environ['GROUP_RANK'])") == [2]
    assert coming_from("dist.get_rank() // 2") == [2]
    assert coming_from("0", count="len(nodes)") == [2]


def test_what_asks_for_the_rank_is_as_it_should_be() -> None:
    assert coming_from("dist.get_rank()") == []
    assert coming_from("int(os.environ.get('RANK', 0))") == []
    assert coming_from("int(os.environ['RANK'])") == []


def test_the_number_of_shares_is_told_where_it_is_not_that_of_the_readers() -> None:
    source = "\nCOUNT = 2\n\n\nsampler = DistributedSampler(data, COUNT)\n"
    run = replace(sketch(SAME), sources={"t.py": source})
    (one,) = passes(run, 0)
    named = shares_come_from(run, [one], [0])
    assert [location.place.line for location in named] == [2]


def test_what_is_kept_from_before_the_group_is_told_where_it_is_kept() -> None:
    """The function would answer rightly, and its first answer is kept."""
    source = """
@cache
def topology():
    if is_initialized():
        return Topology(get_rank(), get_world_size())
    return Topology(0, 1)
class Topology(NamedTuple):
    rank: int
    size: int
sampler = DistributedSampler(data, topology().size, topology().rank)
"""
    drawing = SAME.replace("replicas=2", "replicas=1").replace("t.py:5", "t.py:10")
    run = replace(sketch(drawing), sources={"t.py": source})
    named = shares_come_from(run, [*passes(run, 0), *passes(run, 1)], [])
    assert [location.place.line for location in named] == [2, 6]
    right = replace(sketch(SAME.replace("t.py:5", "t.py:10")), sources=run.sources)
    assert not shares_come_from(right, [*passes(right, 0), *passes(right, 1)], [])


BY_WORKER = """
rank 0 | wrap=ddp:a  read(contents=11-14+11-14,steps=3,iterable,workers=2)@t.py:9
rank 1 | wrap=ddp:a  read(contents=21-24+21-24,steps=3,iterable,workers=2)@t.py:9
"""


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("def __iter__():\n    seed(get_worker_info().seed)", [2]),
        ("def __iter__():\n    yield 1", []),
        ("def f():\n" + "    get_worker_info()\n" * 3, []),
    ],
)
def test_who_asks_for_the_worker_and_does_not_split_is_located(
    source: str, lines: list[int]
) -> None:
    check = next(one for one in every_check() if one.code == "DD305")
    run = replace(sketch(BY_WORKER), sources={"t.py": source})
    (found,) = check.examine(run)
    asking = [one for one in found.locations if "asks for" in one.remark]
    assert [one.place.line for one in asking] == lines
