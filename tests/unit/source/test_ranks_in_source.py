"""What the source tells of ranks: conditions of a line, values by rank, callers."""

import ast
from textwrap import dedent

import pytest

from distdoctor.analysis.source.call_chains import chains_to
from distdoctor.analysis.source.conditions import ConditionKind, conditions
from distdoctor.analysis.source.program import Program
from distdoctor.analysis.source.rank_evaluation import RankReader
from distdoctor.model.events import Place

RANKS = 4


def line_of(text: str, what: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if what in line)


def who_comes_to(source: str, what: str = "HERE", **others: str) -> list[bool | None]:
    """By rank, whether it comes to the marked line of its function."""
    text = dedent(source)
    files = {f"{name}.py": dedent(other) for name, other in others.items()}
    program = Program({"t.py": text, **files})
    line = line_of(text, what)
    function = program.at("t.py", line)
    assert function is not None
    every = conditions(function, line)
    return [
        RankReader(program, rank, RANKS).all_hold(every).truth for rank in range(RANKS)
    ]


FIRST = [True, False, False, False]
REST = [False, True, True, True]


@pytest.mark.parametrize(
    "test",
    [
        "dist.get_rank() == 0",
        "not dist.get_rank()",
        "int(os.environ['RANK']) == 0",
        "int(os.environ.get('LOCAL_RANK', '0')) == 0",
        "os.getenv('RANK') == '0'",
        "hvd.rank() == 0",
        "ray.train.get_context().get_world_rank() == 0",
        "dist.is_initialized() and dist.get_rank() < 1",
        "not dist.is_initialized() or dist.get_rank() == 0",
        "dist.get_rank() in (0,)",
        "dist.get_rank() % dist.get_world_size() == 0",
        "accelerator.is_main_process",
        "trainer.is_global_zero",
        "args.local_rank == 0",
        "config['rank'] == 0",
        "(r := dist.get_rank()) == 0",
        "0 <= dist.get_rank() < 1",
        "(True if dist.get_rank() == 0 else False)",
    ],
)
def test_a_test_is_read_for_each_rank(test: str) -> None:
    assert who_comes_to(f"if {test}:\n    HERE()") == FIRST
    assert who_comes_to(f"if {test}:\n    pass\nelse:\n    HERE()") == REST
    assert who_comes_to(f"if {test}: raise SystemExit\nHERE()") == REST


@pytest.mark.parametrize(
    "source",
    [
        "rank = dist.get_rank()\nmain = rank == 0\nif main:\n    HERE()",
        "rank, size = dist.get_rank(), 4\nif rank == 0:\n    HERE()",
        "is_main = lambda: dist.get_rank() == 0\nif is_main():\n    HERE()",
        """
        def is_main():
            if not dist.is_initialized():
                return True
            return dist.get_rank() == 0
        if is_main():
            HERE()
        """,
        """
        class Trainer:
            def __init__(self, rank):
                self.rank = rank
            @property
            def is_chief(self):
                return self.rank == 0
            def log(self):
                if not self.is_chief:
                    return
                HERE()
        Trainer(int(os.environ["RANK"])).log()
        """,
        """
        def log(enabled):
            if enabled:
                HERE()
        log(dist.get_rank() == 0)
        """,
        """
        def train():
            verbose = False
            if dist.get_rank() == 0:
                verbose = True
            if not verbose:
                return
            HERE()
        """,
        """
        CHIEF = None
        def setup():
            global CHIEF
            CHIEF = dist.get_rank() == 0
        def log():
            return HERE() if CHIEF else None
        """,
        "dist.get_rank() == 0 and HERE()",
    ],
)
def test_a_rank_is_followed_through_the_program(source: str) -> None:
    assert who_comes_to(source) == FIRST


def test_a_rank_is_followed_across_files() -> None:
    source = "from tools import is_main, RANK\nif is_main():\n    HERE()"
    tools = "RANK = int(os.environ['RANK'])\ndef is_main():\n    return RANK == 0"
    assert who_comes_to(source, tools=tools) == FIRST


@pytest.mark.parametrize(
    "source",
    [
        "if loss.isfinite():\n    HERE()",
        "for rank in range(4):\n    if rank == 0:\n        HERE()",
        "bad = 0\nwhile True:\n    bad += 1\n    if bad > 2:\n        HERE()",
        "try:\n    load()\nexcept OSError:\n    HERE()",
        "match kind:\n    case 1:\n        HERE()",
        "def f(a):\n    return f(a)\nif f(1):\n    HERE()",
    ],
)
def test_what_the_source_does_not_tell_stays_unknown(source: str) -> None:
    assert who_comes_to(source) == [None] * RANKS


@pytest.mark.parametrize(
    "source",
    [
        "print()\nHERE()",
        "with open('x'):\n    HERE()",
        "if __name__ == '__main__': HERE()",
    ],
)
def test_what_all_come_to_is_no_question(source: str) -> None:
    assert who_comes_to(source) == [True] * RANKS


def test_a_way_to_leave_before_a_line_is_a_condition_of_it() -> None:
    text = dedent(
        """
        def step(loss):
            for x in loss:
                if x < 0:
                    if x < -1:
                        continue
                HERE()
        """
    )
    (function,) = Program({"t.py": text}).named("step")
    loop, leaving = conditions(function, line_of(text, "HERE"))
    assert (loop.kind, loop.line) == (ConditionKind.LOOP, 3)
    assert (leaving.kind, leaving.leaves, leaving.leaves_at) == (
        ConditionKind.LEAVING,
        "continue",
        6,
    )
    assert str(leaving) == "if x < 0 and x < -1: continue"


def test_a_loop_inside_keeps_its_own_ways_to_leave() -> None:
    text = dedent(
        """
        for x in y:
            for z in x:
                if z: break
            HERE()
        """
    )
    program = Program({"t.py": text})
    module = program.module_of("t.py")
    assert module is not None
    every = conditions(module, line_of(text, "HERE"))
    assert [condition.kind for condition in every] == [ConditionKind.LOOP]


def test_callers_make_a_chain() -> None:
    text = dedent(
        """
        class Log:
            def flush(self):
                HERE()
        def report(log):
            log.flush()
        def main():
            report(Log())
        main()
        """
    )
    program = Program({"t.py": text})
    (chain,) = chains_to(program, Place("t.py", 4, "Log.flush"))
    assert [place.line for place in chain] == [9, 8, 6, 4]


def test_a_function_that_is_called_from_two_places_has_two_chains() -> None:
    text = "def f():\n    HERE()\nf()\nf()\ndef g():\n    h()\n    f()"
    found = chains_to(Program({"t.py": text}), Place("t.py", 2, "f"))
    assert [chain[0].line for chain in found] == [3, 4, 7]


def test_files_that_cannot_be_read_are_left_out() -> None:
    program = Program({"t.py": "def broken(", "u.py": "def fine(): pass"})
    assert program.at("t.py", 1) is None
    assert program.named("fine")


def test_a_program_that_leads_everywhere_is_given_up_in_time() -> None:
    """Every name rests on all others, many times: without a bound this takes years."""
    names = [f"n{i}" for i in range(12)]
    lines = [f"{a} = {' + '.join(names)}" for a in names for _ in range(4)]
    source = "\n".join([*lines, "if n0 + get_rank():", "    HERE()"])
    assert who_comes_to(source) == [None] * RANKS


def test_what_a_library_offers_is_no_function_of_the_users() -> None:
    text = dedent("""
        import torch
        from parts import io
        from torch import nn
        def save(): pass
        torch.save(1)
        io.save(1)
        nn.save(1)
        self.save(1)
        save()
    """)
    program = Program({"t.py": text, "parts.py": ""})
    found = {
        use.line
        for use in program.calls["save"]
        if isinstance(use.node, ast.Call) and program.is_library(use.node, use.function)
    }
    assert found == {line_of(text, "torch.save"), line_of(text, "nn.save")}
    callers = {chain[0].line for chain in chains_to(program, Place("t.py", 5, "save"))}
    assert callers.isdisjoint(found)


def test_what_is_applied_comes_to_the_forward_of_an_autograd_function() -> None:
    text = dedent("""
        class Exchange(Function):
            @staticmethod
            def forward(ctx, x):
                return x
        class Other(Function):
            @staticmethod
            def forward(ctx, x):
                return x
        def step(x):
            return Exchange.apply(x)
    """)
    program = Program({"t.py": text})
    inside = Place("t.py", 5, "Exchange.forward")
    assert [[one.line for one in chain] for chain in chains_to(program, inside)] == [
        [line_of(text, "apply"), 5]
    ]
    other = Place("t.py", 9, "Other.forward")
    assert chains_to(program, other) == [(other,)]
