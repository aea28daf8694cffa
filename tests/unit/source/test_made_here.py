"""Where the source makes what a call is given, its order, or what a test asks for."""

from textwrap import dedent

import pytest

from distdoctor.analysis.source.conditions import conditions
from distdoctor.analysis.source.program import Program
from distdoctor.analysis.source.rank_choices import gone_through
from distdoctor.analysis.source.rank_origins import (
    asked_for,
    chosen_operation,
    is_looped_root,
    made,
    numbered,
)
from distdoctor.model.events import Place


def read(source: str) -> tuple[Program, Place]:
    """A program, and the line of its call."""
    text = dedent(source).strip() + "\n"
    line = next(n for n, one in enumerate(text.splitlines(), 1) if "# call" in one)
    return Program({"t.py": text}), Place("t.py", line)


THROUGH_A_LOADER = """
    def collate(records):
        weight = torch.tensor([r["weight"] for r in records])
        return weight, 1
    def loss(weight):
        norm = weight.sum()
        all_reduce(norm)  # call
    for weight, _ in DataLoader(data, collate_fn=collate):
        loss(weight)
"""

SPLITS = """
    def counts_of(ids):
        counts = torch.bincount(ids)
        return ids, counts.tolist()
    def fetch(rows, given):
        got = torch.empty(9)
        all_to_all_single(got, rows, given, given)  # call
    def main():
        ids, given = counts_of(draw())
        fetch(ids, given)
"""

STARRED = """
    def collect():
        rows = [torch.zeros(3)]
        return 1, torch.stack(rows)
    def ship(head, rows):
        send(rows, dst=0)  # call
    ship(*collect())
"""


@pytest.mark.parametrize(
    ("source", "lines"),
    [(THROUGH_A_LOADER, [2]), (SPLITS, [2]), (STARRED, [3])],
    ids=["by a loader's function", "splits alone", "given with a star"],
)
def test_a_tensor_is_followed_to_the_line_that_makes_it(
    source: str, lines: list[int]
) -> None:
    assert [place.line for place in made(*read(source))] == lines


def test_a_root_is_followed_to_what_computes_it() -> None:
    program, place = read("""
        class Coordinator:
            def elect(self):
                return self.contributed % self.world
            def merge(self, packed):
                root = self.elect()
                reduce(packed, dst=root)  # call
    """)
    assert [one.line for one in numbered(program, place)] == [3]
    assert not is_looped_root(program, place)


def test_what_a_rank_stores_of_its_own_is_told_behind_what_computes() -> None:
    program, place = read("""
        class Scoreboard:
            def share(self, value):
                scores = gather(value)
                scores[self.rank] = value
                return scores
            def leader(self, value):
                return int(self.share(value).argmin())
        def adopt(root):
            broadcast(flat, src=root)  # call
        adopt(board.leader(value))
    """)
    assert [one.line for one in numbered(program, place)] == [7, 4]


def test_a_reduce_op_is_followed_to_the_test_that_chose_it() -> None:
    program, place = read("""
        class Usage:
            def kind_of(self, name, counts):
                if name not in self._kind:
                    self._kind[name] = "max" if counts.max() <= 1 else "sum"
                return self._kind[name]
            def combine(self, name, counts):
                op = {"max": MAX, "sum": SUM}[self.kind_of(name, counts)]
                all_reduce(counts, op=op)  # call
    """)
    assert [one.line for one in chosen_operation(program, place)] == [4]
    plain = read("all_reduce(counts, op=SUM)  # call")
    assert not chosen_operation(*plain)


def test_a_loop_through_the_roots_is_an_order() -> None:
    assert is_looped_root(
        *read("""
        def publish():
            for root in order:
                broadcast(parts[root], src=root)  # call
    """)
    )


def test_a_call_in_a_loop_over_a_generator_has_the_order_of_its_loop() -> None:
    found = gone_through(
        *read("""
        class Optimizer:
            def named(self, index):
                yield "first", self.first
                for name in index:
                    yield name, self.parts[name]
            def step(self, index):
                for name, part in self.named(index):
                    all_reduce(part)  # call
    """)
    )
    assert [one.line for one in found] == [4, 7]


BY_PROPERTY = """
    class Grid:
        @property
        def colour(self):
            return (self.rank // self.columns) % 2
    def shift(grid):
        if grid.colour == 0:
            recv(ghost)  # call
"""

DROPPED = """
    class Model:
        def forward(self, x, y=None):
            if y is not None:
                x = x + self.label(y)  # call
            return x
    def maybe(y):
        if coin() < 0.1:
            y = None
        return y
    def loss(model, x, y):
        return model(x, maybe(y))
"""


@pytest.mark.parametrize(
    ("source", "lines"),
    [(BY_PROPERTY, [4]), (DROPPED, [8])],
    ids=["a property", "what a module is called with"],
)
def test_what_a_branch_asks_for_is_followed_to_its_making(
    source: str, lines: list[int]
) -> None:
    program, place = read(source)
    function = program.at("t.py", place.line)
    assert function is not None
    (condition,) = conditions(function, place.line)
    assert [one.line for one in asked_for(program, condition)] == lines


def test_a_constant_is_made_nowhere() -> None:
    assert not made(*read("barrier()  # call"))
    assert not numbered(*read("broadcast(x, src=0)  # call"))
