"""By which statement a rank left a loop, from drawings with their source."""

from dataclasses import replace
from inspect import cleandoc

import pytest

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.divergence.loop_departures import departed
from distdoctor.analysis.sentences import sentence
from distdoctor.model.drawing import sketch

BUDGET = """
class Budget:
    def __init__(self):
        self.used = 0
    def spend(self, n):
        self.used += n
    @property
    def exhausted(self):
        return self.used >= 900
def optimize(batch):
    all_reduce(gradients)
def fit(data):
    budget = Budget()
    while not budget.exhausted:
        batch, lengths = data.take()
        optimize(batch)
        budget.spend(int(lengths.sum()))
class Data:
    def take(self):
        return rand(4), randint(9)
fit(Data())
destroy_process_group()
"""

AGREED = BUDGET.replace(
    "        self.used += n",
    "        total = tensor(n)\n        all_reduce(total)\n        self.used += total",
)

LEAVES = """
rank 0 | all_reduce(4)@t.py:{0}  all_reduce(4)@t.py:{0}...
rank 1 | all_reduce(4)@t.py:{0}  all_reduce(4)@t.py:{0}...
rank 2 | all_reduce(4)@t.py:{0}  leave@t.py:{1}  exit=0
"""

GOES_ON = """
rank 0 | all_reduce(4)@t.py:{0}  barrier@t.py:{1}  all_reduce(4)@t.py:{0}!
rank 1 | all_reduce(4)@t.py:{0}  barrier@t.py:{1}  all_reduce(4)@t.py:{0}!
rank 2 | all_reduce(4)@t.py:{0}  barrier@t.py:{1}  barrier@t.py:{1}...
"""


def line(source: str, word: str) -> int:
    """The last line of a source with a word, from 1."""
    lines = cleandoc(source).splitlines()
    return max(n for n, text in enumerate(lines, 1) if word in text)


def divergence_of(
    source: str, drawing: str = LEAVES, end: str = "destroy"
) -> Divergence:
    drawing = drawing.format(line(source, "all_reduce("), line(source, end))
    run = replace(sketch(drawing), sources={"t.py": cleandoc(source)})
    (divergence,) = divergences(run)
    return divergence


def words(divergence: Divergence) -> str:
    return sentence(divergence).partition("most likely left ")[2].split("(t.py")[0]


def test_a_loop_above_the_call_is_left_by_its_head() -> None:
    found = divergence_of(BUDGET)
    assert (found.why, found.culprits) == (Cause.FINISHED, (2,))
    assert [one.place.line for one in found.elsewhere][:3] == [13, 5, 8]
    assert words(found) == "the loop by `while not budget.exhausted` "


def test_what_a_collective_agreed_on_parts_nobody() -> None:
    lines = cleandoc(AGREED).splitlines()
    call = lines.index("    all_reduce(gradients)") + 1
    drawing = LEAVES.format(call, len(lines))
    run = replace(sketch(drawing), sources={"t.py": cleandoc(AGREED)})
    assert not words(divergences(run)[0])


TRAIN = """
def train(loader, steps):
    best, bad = 9, 0
    for step in range(steps):
        loss = forward(randn(4))
        all_reduce(gradients)
        {}
    barrier()
train(loader, parse_args().steps)
destroy_process_group()
"""


def trained(*inside: str) -> str:
    return TRAIN.replace("{}", "\n        ".join(inside))


@pytest.mark.parametrize(
    ("inside", "way"),
    [
        (["if loss < 0.1: break"], "if loss < 0.1: break"),
        (["if loss < 0.1:", "    print(step)", "    return"], "if loss < 0.1: return"),
        (["if loss > best:", "    bad += 1", "if bad > 3: break"], "if bad > 3: break"),
        (["if time() > 60: break"], "if time() > 60: break"),
    ],
)
def test_a_jump_by_what_only_a_rank_knows_is_named(inside: list[str], way: str) -> None:
    found = divergence_of(trained(*inside))
    assert words(found) == f"the loop by `{way}` "


@pytest.mark.parametrize(
    "inside",
    [
        ["pass"],
        ["if step >= 7: break"],
        ["bad += 1", "if bad >= 7: break"],
        ["flag = tensor(loss)", "dist.broadcast(flag, 0)", "if flag.item(): break"],
    ],
)
def test_what_all_decide_alike_is_not_named(inside: list[str]) -> None:
    found = divergence_of(trained(*inside))
    assert not words(found)


def test_who_goes_on_behind_the_loop_left_it() -> None:
    source = trained("if loss < 0.1:", "    break")
    found = divergence_of(source, GOES_ON, "barrier(")
    assert found.culprits == (2,)
    assert words(found) == "the loop by `if loss < 0.1: break` "
    assert [one.place.line for one in found.elsewhere][:2] == [6, 7]


def test_who_is_in_the_loop_has_not_left_it() -> None:
    source = """
    def train():
        while not enough(rand()):
            all_reduce(gradients)
            if odd(rand()): barrier()
    train()
    """
    drawing = GOES_ON.format(3, 4)
    run = replace(sketch(drawing), sources={"t.py": cleandoc(source)})
    for divergence in divergences(run):
        assert "left the loop" not in sentence(departed(run, divergence))


def test_a_round_cut_short_explains_it_as_well() -> None:
    source = """
    def train(data):
        for batch in data:
            if not batch.any():
                continue
            all_reduce(gradients)
    train(read(urandom()))
    destroy_process_group()
    """
    found = divergence_of(source)
    assert "left the loop, or a round of it, by `for batch in data`" in sentence(found)
    assert "`if not (not batch.any()): continue`" not in sentence(found)


def test_the_batches_tell_which_it_was() -> None:
    source = """
    def train(loader):
        for batch in loader:
            if randint() == 3: continue
            all_reduce(gradients)
            if time() > 9: break
    train(loader)
    destroy_process_group()
    """
    drawing = """
    rank 0 | all_reduce(4)@t.py:4  batches=2@t.py:2...  all_reduce(4)@t.py:4...
    rank 1 | all_reduce(4)@t.py:4  batches=2@t.py:2...  all_reduce(4)@t.py:4...
    rank 2 | all_reduce(4)@t.py:4  batches={}@t.py:2...  leave@t.py:7  exit=0
    """
    text = cleandoc(source)
    fewer = replace(sketch(drawing.format(1)), sources={"t.py": text})
    assert words(divergences(fewer)[0]) == "the loop by `if time() > 9: break` "
    as_many = replace(sketch(drawing.format(2)), sources={"t.py": text})
    assert "left out the round by `if randint() == 3: continue`" in (
        sentence(divergences(as_many)[0])
    )


def test_who_never_came_to_the_call_left_no_loop_of_it() -> None:
    drawing = """
    rank 0 | all_reduce(4)@t.py:10...
    rank 1 | all_reduce(4)@t.py:10...
    rank 2 | leave@t.py:20  exit=0
    """
    run = replace(sketch(drawing), sources={"t.py": cleandoc(BUDGET)})
    assert not words(divergences(run)[0])


def test_of_many_ways_none_is_named() -> None:
    jumps = [f"if loss < {n}: break" for n in range(4)]
    assert not words(divergence_of(trained(*jumps)))


SKIPS = """
def average(model):
    for parameter in model.parameters():
        all_reduce(parameter.grad)
def fit(data):
    for batch in data:
        loss = model(batch)
        if not isfinite(loss):
            continue
        loss.backward()
        average(model)
fit(data)
destroy_process_group()
"""


def test_a_round_may_be_cut_short_above_the_call() -> None:
    found = divergence_of(SKIPS)
    remarks = {one.place.line: one.remark for one in found.elsewhere}
    assert remarks[line(SKIPS, "continue")] == "a way to cut a round short"
