"""The way of a value, from its use back to where it comes from."""

from textwrap import dedent

import pytest

from distdoctor.analysis.source.program import Program
from distdoctor.analysis.source.value_flow import ValueFlow
from distdoctor.model.events import Place


def lines(source: str, rank: int = 1, **files: str) -> list[int]:
    """Last lines of the way of a sampler's rank, the one it comes from first."""
    text = dedent(source).strip() + "\n"
    used = [n for n, one in enumerate(text.splitlines(), start=1) if "Sampler(" in one]
    texts = {"t.py": text} | {f"{name}.py": dedent(one) for name, one in files.items()}
    ways = ValueFlow(Program(texts), rank, 4)
    way = ways.argument(Place("t.py", used[0]), "rank", 2, "Sampler")
    return [] if way is None else [place.line for place in way.last(2)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            """
            @dataclass
            class Shard:
                count: int
                index: int
                @classmethod
                def from_env(cls):
                    return cls(
                        count=int(os.environ["WORLD_SIZE"]),
                        index=int(os.environ["GROUP_RANK"]),
                    )
            def main():
                c, shard = Conf(), Shard.from_env()
                Sampler(data, shard.count, shard.index)
            """,
            [9],
        ),
        (
            """
            class Shard(NamedTuple):
                count: int
                index: int = 0
            shard = Shard(2,
                          node())
            Sampler(data, rank=shard.index)
            """,
            [5],
        ),
        (
            """
            class Shard(NamedTuple):
                count: int
                index: int = 0
            shard = Shard(2)
            Sampler(data, rank=shard.index)
            """,
            [3, 4],
        ),
        (
            """
            class Job:
                def __init__(self, index):
                    self.index = index
                def loader(self):
                    return Sampler(data, rank=self.index)
            Job(int(os.environ["NODE"])).loader()
            """,
            [6, 3],
        ),
        (
            """
            def settings(rank):
                return {"rank": 0, **COMMON, **TABLE[rank]}
            COMMON = {"seed": 3}
            TABLE = [
                {"rank": 1},
                {"rank": 7},
                {"rank": 1},
            ]
            s = settings(dist.get_rank())
            Sampler(data, rank=s["rank"])
            """,
            [6],
        ),
        (
            """
            parser.add_argument("--local-rank",
                default=0)
            args = parser.parse_args()
            Sampler(data, rank=args.local_rank)
            """,
            [2],
        ),
        (
            """
            def ranks():
                return dist.get_world_size(), node()
            world, me = ranks()
            Sampler(data, world, me)
            """,
            [2, 3],
        ),
        (
            """
            def sampler(data, rank=0):
                return Sampler(data, rank=rank)
            sampler(train)
            """,
            [1, 3],
        ),
        (
            """
            def sampler(data, rank):
                return Sampler(data, rank=rank)
            me = node()
            sampler(train, me)
            sampler(test, rank=me)
            """,
            [3, 4],
        ),
        (
            """
            s = {}
            s = dict(rank=3, other=4)
            s["rank"] = 5
            s["other"] = 6
            Sampler(data, rank=s.get("rank", 0))
            """,
            [3],
        ),
        (
            """
            me = 0
            if dist.get_rank() == 1:
                me = 5
            Sampler(data, rank=me)
            """,
            [3],
        ),
    ],
)
def test_a_plain_way_is_followed(source: str, expected: list[int]) -> None:
    found = lines(source)
    assert found[:1] == expected[:1]
    assert set(found) <= set(expected)


@pytest.mark.parametrize(
    "source",
    [
        # Either assignment may be meant.
        "me = 0\nif far:\n    me = 5\nSampler(data, rank=me)",
        # Two calls give different values.
        """
        def sampler(data, rank):
            return Sampler(data, rank=rank)
        sampler(train, 0)
        sampler(test, 1)
        """,
        # Either object may be meant.
        """
        class Job:
            def __init__(self, index):
                self.index = index
            def loader(self):
                return Sampler(data, rank=self.index)
        Job(1).loader()
        Job(2).loader()
        """,
        # A method of the same name may be meant.
        """
        class A:
            def me(self):
                return 1
        class B:
            def me(self):
                return 2
        Sampler(data, rank=made().me())
        """,
        # It is changed from outside.
        """
        class Conf:
            index: int = 0
        def late(conf):
            conf.index = 3
        c = Conf()
        Sampler(data, rank=c.index)
        """,
        # A dictionary is changed, nobody knows how.
        "s = {'rank': 0}\ns.update(read())\nSampler(data, rank=s['rank'])",
        # Nobody knows what is merged.
        "s = {'rank': 0, **read()}\nSampler(data, rank=s['rank'])",
        "for me in range(3):\n    Sampler(data, rank=me)",
        "Sampler(data)",
        "Sampler(data, rank=dist.get_rank())",
        "def f(me):\n    return f(me)\nSampler(data, rank=f(f))",
        "a = b\nb = a\nSampler(*data, rank=c)",
    ],
)
def test_a_way_that_forks_is_not_followed(source: str) -> None:
    assert lines(source) == []


def test_each_rank_has_an_entry_of_its_own() -> None:
    source = """
    TABLE = {
        0: 5,
        1: 6,
    }
    Sampler(data, rank=TABLE[dist.get_rank()])
    """
    assert [lines(source, rank) for rank in range(3)] == [[2], [3], []]


def test_a_value_may_come_from_another_file() -> None:
    assert lines("import conf\nSampler(data, rank=conf.ME)", conf="a = 1\nME = 3") == [
        2
    ]


def test_a_way_that_forks_again_and_again_is_given_up() -> None:
    """Its steps double with each of the methods: there would be thousands."""
    methods = "".join(
        f"    def f{n}(self, a):\n"
        f"        self.v{n} = self.f{n - 1}(a.v{n - 1}).v{n - 1}\n"
        f"        return self.f{n - 1}(self.v{n - 1}).v{n - 1}\n"
        for n in range(1, 14)
    )
    source = (
        "class A:\n    def f0(self, a):\n        self.v0 = a\n        return a\n"
        f"{methods}use(A().f13(A()).v3)\n"
    )
    ways = ValueFlow(Program({"t.py": source}), 0, 2)
    last = len(source.splitlines())
    assert ways.argument(Place("t.py", last, "<module>"), "x", 0, "use") is None
    assert ways.steps <= 1_001
