"""Where the source makes a value that is not the same on all ranks."""

from textwrap import dedent

import pytest

from distdoctor.analysis.source.dealt_loops import shares
from distdoctor.analysis.source.program import Program
from distdoctor.analysis.source.rank_origins import guarded, origins
from distdoctor.model.events import Place


def lines(source: str) -> list[int]:
    """Lines that make the learning rate of the program's optimizer."""
    text = dedent(source).strip() + "\n"
    (made,) = (n for n, line in enumerate(text.splitlines(), start=1) if "SGD(" in line)
    return [
        place.line
        for place in origins(Program({"t.py": text}), Place("t.py", made), "lr", 1)
    ]


@pytest.mark.parametrize(
    "source",
    [
        """
        lr = random.uniform(1e-3, 1e-1)
        opt = SGD(model.parameters(), lr=lr)
        """,
        """
        rate = 10 ** np.random.uniform(-3, -1)
        opt = SGD(model.parameters(), rate)
        """,
        """
        class Config: lr: float = random.choice([0.1, 0.2])
        def build(model, cfg):
            return SGD(model.parameters(), lr=cfg.lr)
        """,
        """
        parser.add_argument("--lr", default=float(os.environ.get("LR", 0.1)))
        args = parser.parse_args()
        opt = SGD(model.parameters(), lr=args.lr)
        """,
        """
        def draw(): return float(torch.empty(1).uniform_(0, 1))
        def optimizer(model, lr):
            return SGD(model.parameters(), lr=lr)
        optimizer(model, draw())
        """,
        """
        settings = {"lr": 0.1 * (1 + dist.get_rank()), "momentum": 0.9}
        opt = SGD(model.parameters(), lr=settings["lr"])
        """,
        """
        settings = {"momentum": 0.9, "lr": random.random()}
        opt = SGD([{"params": model.parameters(), "lr": settings["lr"]}])
        """,
    ],
)
def test_the_line_that_makes_the_difference_is_found(source: str) -> None:
    assert lines(source) == [1]


def test_who_computes_with_the_rank_is_named_and_not_who_asks_for_it() -> None:
    source = """
    r = int(os.environ["RANK"])
    lr = 0.1
    lr = lr / (1 + r)
    opt = SGD(model.parameters(), lr=lr)
    """
    assert lines(source) == [3]


def test_a_value_that_one_rank_alone_is_given_is_found() -> None:
    source = """
    lr = 0.1
    if rank == 0:
        lr = 0.2
    opt = SGD(model.parameters(), lr=lr)
    """
    assert lines(source) == [3]


def test_a_constant_has_no_such_line() -> None:
    assert lines("lr = 0.1\nopt = SGD(model.parameters(), lr=lr)") == []


def test_the_caller_under_a_test_of_the_rank_is_found() -> None:
    source = """
    class Average:
        def update(self, model):
            self.mean.lerp_(model, 0.1)
    def train(model, mean):
        if dist.get_rank() == 0:
            mean.update(model)
        other.update(model)
    """
    program = Program({"t.py": dedent(source).strip() + "\n"})
    found = guarded(program, Place("t.py", 3, "Average.update"), 0, [1], 2)
    assert found is not None
    assert found.line == 6


def guard(test: str, rank: int, others: list[int]) -> int | None:
    """The line under a test by which a trainer comes to change weights, if any."""
    source = f"""
    class Trainer:
        def __init__(self):
            self.rank = dist.get_rank()
            self.is_main = self.rank == 0
            self.world = dist.get_world_size()
        def clip(self):
            self.weight.clamp_(-1, 1)
        def train(self, steps):
            if {test}:
                self.clip()
    Trainer().train(9)
    """
    program = Program({"t.py": dedent(source).strip() + "\n"})
    found = guarded(program, Place("t.py", 7), rank, others, 2)
    return None if found is None else found.line


@pytest.mark.parametrize("test", ["self.is_main", "steps % 2 and self.is_main"])
def test_a_test_of_what_the_rank_has_a_part_in_is_a_guard(test: str) -> None:
    assert guard(test, 0, [1]) == 10


@pytest.mark.parametrize("test", ["self.world > 1", "steps > 3", "self.rank >= 0"])
def test_what_all_ranks_come_through_is_no_guard(test: str) -> None:
    assert guard(test, 0, [1]) is None


def test_a_guard_that_keeps_the_rank_out_explains_nothing() -> None:
    assert guard("self.is_main", 1, [0]) is None


@pytest.mark.parametrize(
    ("wrapper", "rank", "line"),
    [
        ("if dist.get_rank() == 0: return f(*args)", 0, 7),
        ("if dist.get_rank() == 0: return f(*args)", 1, None),
        ("return f(*args)", 0, None),
    ],
)
@pytest.mark.parametrize("called", ["", "()"])
def test_a_decorator_that_asks_for_the_rank_is_a_guard(
    wrapper: str, called: str, rank: int, line: int | None
) -> None:
    source = f"""
    def rank_zero_only(f=None):
        @functools.wraps(f)
        def inner(*args):
            {wrapper}
        return inner
    class Average:
        @rank_zero_only{called}
        def update(self, model):
            self.mean.lerp_(model, 0.1)
    """
    program = Program({"t.py": dedent(source).strip() + "\n"})
    found = guarded(program, Place("t.py", 9, "Average.update"), rank, [1 - rank], 2)
    assert (None if found is None else found.line) == line


@pytest.mark.parametrize(("name", "line"), [("rank_zero_only", 1), ("no_grad", None)])
def test_decorators_of_libraries_are_known_by_name(name: str, line: int | None) -> None:
    source = f"@tools.{name}\ndef update(mean, model):\n    mean.lerp_(model, 0.1)\n"
    found = guarded(Program({"t.py": source}), Place("t.py", 3, "update"), 0, [1], 2)
    assert (None if found is None else found.line) == line


def dealt(source: str) -> list[int]:
    """Lines by which what the loop `for batch in` goes through is dealt out."""
    text = dedent(source).strip() + "\n"
    rows = enumerate(text.splitlines(), start=1)
    (loop,) = (n for n, line in rows if "for batch in" in line)
    return [one.line for one in shares(Program({"t.py": text}), Place("t.py", loop))]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (
            """
            def load(rank, world):
                docs = read()
                docs = docs[rank::world]
                return [one for one in docs if len(one) > 8]
            for batch in batches(load(rank, world), epoch, rank):
                step(batch)
            """,
            3,
        ),
        (
            """
            def batches(docs):
                for start in range(0, len(docs), 8):
                    yield docs[start : start + 8]
            mine = islice(read(), dist.get_rank(), None, dist.get_world_size())
            for batch in batches(list(mine)):
                step(batch)
            """,
            4,
        ),
        (
            """
            def read(path, rank, world):
                for i, line in enumerate(open(path)):
                    if i % world == rank:
                        yield line.split()
            for batch in read("docs", rank, world):
                step(batch)
            """,
            4,
        ),
        (
            """
            def main():
                me, size = dist.get_rank(), dist.get_world_size()
                part = read()[me::size]
                for batch in batches(part, me):
                    step(batch)
            """,
            3,
        ),
        (
            """
            class Reader:
                def __init__(self, files, args):
                    self.files = files[args.rank]
            reader = Reader(files, args)
            for batch in reader.files:
                step(batch)
            """,
            3,
        ),
    ],
    ids=["a stride", "a slice of an iterator", "in turn", "a name", "a file each"],
)
def test_where_what_a_loop_goes_through_is_dealt_out_is_found(
    source: str, line: int
) -> None:
    assert line in dealt(source)


@pytest.mark.parametrize(
    "source",
    [
        "docs = read()\nfor batch in batches(docs, 8):\n    step(batch)",
        "docs = shuffled(read(), rank)\nfor batch in docs:\n    step(batch)",
        "for batch in range(10):\n    if batch % world == rank:\n        step(batch)",
    ],
    ids=["all of it", "a seed", "no round less"],
)
def test_what_all_ranks_go_through_has_no_such_line(source: str) -> None:
    assert dealt(source) == []
