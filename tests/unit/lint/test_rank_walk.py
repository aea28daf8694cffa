"""A rank's way through a text, and where the ways of ranks part."""

from __future__ import annotations

from textwrap import dedent

import pytest

from distdoctor.lint.linting import Lint, lint_texts
from distdoctor.lint.source_files import SourceText

HEAD = """
import sys
import torch
import torch.distributed as dist
"""


def read(body: str, **others: str) -> Lint:
    texts = {"train": HEAD + dedent(body), **others}
    return lint_texts(
        [SourceText(f"{name}.py", dedent(text)) for name, text in texts.items()]
    )


def told(body: str, **others: str) -> list[tuple[str, str]]:
    """By code, the line at fault."""
    texts = {"train.py": (HEAD + dedent(body)).splitlines()}
    texts |= {f"{name}.py": dedent(text).splitlines() for name, text in others.items()}
    return [
        (one.code, texts[one.at.file][one.at.line - 1].strip())
        for one in read(body, **others).findings
    ]


BARRIER = [("DD108", "dist.barrier()")]

PARTED = {
    "a branch": """
        def main():
            if dist.get_rank() == 0:
                dist.barrier()
    """,
    "an early return": """
        def main(rank):
            if rank != 0:
                return
            dist.barrier()
    """,
    "an early return of a rank that has a name": """
        def main():
            first = dist.get_rank() == 0
            if not first:
                return
            dist.barrier()
    """,
    "continue in a loop": """
        def main(rank, data):
            for one in data:
                if rank == 3:
                    continue
                dist.barrier()
    """,
    "a rank that is neither the first nor the last": """
        def main(rank):
            if rank != 1:
                dist.barrier()
    """,
    "break out of a loop": """
        def main(rank, data):
            while data:
                if rank == 3:
                    break
                dist.barrier()
    """,
    "a loop of as many rounds": """
        def main():
            for _ in range(dist.get_rank()):
                dist.barrier()
    """,
    "with": """
        def main(rank):
            with torch.no_grad():
                if rank == 0:
                    dist.barrier()
    """,
    "try": """
        def main(rank):
            try:
                if rank == 0:
                    dist.barrier()
            finally:
                print()
    """,
    "else of a try": """
        def main(rank):
            try:
                work()
            except ValueError:
                pass
            else:
                if rank == 0:
                    dist.barrier()
    """,
    "a conditional expression": """
        def main(rank):
            dist.barrier() if rank == 0 else None
    """,
    "and": """
        def main(rank):
            rank == 0 and dist.barrier()
    """,
    "or": """
        def main(rank):
            rank == 0 or dist.barrier()
    """,
    "and, two of them": """
        def main(rank, ready):
            rank == 0 and ready and dist.barrier()
    """,
    "the end of the process": """
        def main(rank):
            if rank > 1:
                sys.exit(0)
            dist.barrier()
    """,
    "a file's own lines": """
        rank = dist.get_rank()
        if rank == 0:
            dist.barrier()
    """,
    "a decorator": """
        from pytorch_lightning.utilities import rank_zero_only

        @rank_zero_only
        def save():
            dist.barrier()

        def main():
            save()
    """,
    "methods by self": """
        class Trainer:
            def __init__(self):
                self.rank = dist.get_rank()

            def meet(self):
                dist.barrier()

            def run(self):
                if self.rank == 0:
                    self.meet()
    """,
    "a nested function": """
        def main(rank):
            def meet():
                dist.barrier()
            if rank == 0:
                meet()
    """,
    "an argument": """
        def meet(do):
            if do:
                dist.barrier()

        def main(rank):
            meet(rank == 0)
    """,
    "what a function gives back": """
        def first():
            return dist.get_rank() == 0

        def main():
            if first():
                dist.barrier()
    """,
    "async": """
        async def main(rank):
            if rank == 0:
                dist.barrier()
    """,
}


@pytest.mark.parametrize("body", PARTED.values(), ids=PARTED.keys())
def test_ways_part_by(body: str) -> None:
    (finding,) = read(body).findings
    assert finding.code == "DD108"
    lines = (HEAD + dedent(body)).splitlines()
    places = [lines[one.line - 1] for one in (finding.at, *finding.related)]
    assert any("dist.barrier()" in place for place in places)


TOGETHER = {
    "both branches": """
        def main(rank):
            if rank == 0:
                dist.barrier()
            else:
                dist.barrier()
    """,
    "a test that all answer alike": """
        def main(args, rank):
            if args.sync:
                dist.barrier()
    """,
    "one before and one behind": """
        def main(rank):
            if rank != 0:
                dist.barrier()
            work()
            if rank == 0:
                dist.barrier()
    """,
    "an exception": """
        def main(rank):
            if rank == 0:
                raise ValueError
            dist.barrier()
    """,
    "the end of the process as failed": """
        def main(rank):
            if rank == 0:
                sys.exit(1)
            dist.barrier()
    """,
    "an assertion": """
        def main(rank):
            assert rank == 0
            dist.barrier()
    """,
    "an exception that is handled by all": """
        def main(rank):
            try:
                if rank == 0:
                    raise ValueError
            except ValueError:
                pass
            dist.barrier()
    """,
    "a group": """
        def main(rank, group):
            if rank == 0:
                dist.barrier(group)
    """,
    "a number that all have": """
        def main():
            for _ in range(dist.get_world_size()):
                dist.barrier()
    """,
    "a function that is not called": """
        def main(rank):
            def meet():
                dist.barrier()
            if rank == 0:
                register(meet)
    """,
    "a lambda": """
        def main(rank):
            if rank == 0:
                register(lambda: dist.barrier())
    """,
    "another's method of that name": """
        def main(rank, pool):
            if rank == 0:
                pool.barrier()
    """,
    "a job that is not distributed": """
        def main(rank, distributed):
            if not distributed:
                return
            dist.barrier()
    """,
}


OF_TWO_MODES = """
    def evaluate(batches, args, rank):
        {test}:
            dist.broadcast(batches, src=0)
        {asks}

    def main(batches, args, rank):
        if rank == 0:
            evaluate(batches, args, rank)
"""


@pytest.mark.parametrize(
    ("test", "asks", "finds"),
    [
        ("if args.sharded", "return batches if rank == 0 else None", False),
        ("if args.sharded and args.distributed", "show(rank)", False),
        ("if args.distributed", "return batches if rank == 0 else None", True),
        ("if args.strategy == 'sharded'", "show(rank)", False),
        ("if getattr(args, 'sharded', False)", "show(rank)", False),
        ("if len(batches) > 0", "return batches if rank == 0 else None", True),
        ("if args.step % 10 == 0", "show(rank)", True),
        ("while True", "return batches if rank == 0 else None", True),
    ],
)
def test_a_function_of_two_modes_is_called_by_all_in_one_of_them(
    test: str, asks: str, finds: bool
) -> None:
    body = OF_TWO_MODES.format(test=test, asks=asks)
    assert bool(told(body)) is finds


def test_a_setting_in_a_function_that_asks_for_no_rank_is_no_mode() -> None:
    body = """
        def mean(loss, args):
            if args.average:
                dist.all_reduce(loss)
            return loss

        def main(loss, args, rank):
            if rank == 0:
                mean(loss, args)
    """
    assert [code for code, _ in told(body)] == ["DD108"]


@pytest.mark.parametrize("body", TOGETHER.values(), ids=TOGETHER.keys())
def test_ways_do_not_part_by(body: str) -> None:
    assert told(body) == []


def test_a_helper_in_another_file_is_gone_into() -> None:
    main = """
        from helpers import meet

        def main(rank):
            if rank == 0:
                meet()
    """
    helpers = """
        import torch.distributed as dist

        def meet():
            dist.barrier()
    """
    (finding,) = read(main, helpers=helpers).findings
    assert (finding.code, finding.at.file) == ("DD108", "train.py")
    assert finding.at.line == len(HEAD.splitlines()) + 6
    assert ("helpers.py", 5) in {(line.file, line.line) for line in finding.related}


def test_functions_that_call_themselves_come_to_an_end() -> None:
    body = """
        def down(rank, n):
            if n:
                down(rank, n - 1)
                up(rank, n)
            if rank == 0:
                dist.barrier()

        def up(rank, n):
            down(rank, n)

        def main():
            down(dist.get_rank(), 3)
    """
    assert told(body) == BARRIER


def test_a_call_that_is_too_deep_is_not_followed() -> None:
    links = "".join(f"def f{n}():\n    f{n + 1}()\n" for n in range(30))
    last = "def f30():\n    dist.barrier()\ndef main(rank):\n    if rank == 0:\n"
    assert told(links + last + "        f25()\n") == [("DD108", "f25()")]
    assert told(links + last + "        f0()\n") == []


def test_a_function_that_is_too_long_is_left_alone() -> None:
    parted = "    if rank == 0:\n        dist.barrier()\n"
    many = "    x = 1\n" * 7000
    assert told("def main(rank):\n" + parted) == BARRIER
    assert told("def main(rank):\n" + many + parted) == []


def test_the_other_order_is_told_as_such() -> None:
    (finding,) = read("""
        def main(rank, one, other):
            if rank == 0:
                dist.all_reduce(one)
                dist.broadcast(other, 0)
            else:
                dist.broadcast(other, 0)
                dist.all_reduce(one)
    """).findings
    assert finding.code in {"DD101", "DD107"}
    assert "all_reduce" in finding.message
    assert "broadcast" in finding.message


def test_who_parts_is_named_with_the_test() -> None:
    (finding,) = read(PARTED["an early return"]).findings
    assert "rank 0 alone" in finding.message
    assert "`rank != 0`" in finding.message


@pytest.mark.parametrize(
    ("statement", "test"),
    [
        ("rank == 0 and dist.barrier()", "rank == 0"),
        ("rank != 0 or dist.barrier()", "rank != 0"),
        ("ready and rank == 0 and dist.barrier()", "rank == 0"),
        ("rank == 0 and ready and dist.barrier()", "rank == 0"),
    ],
)
def test_the_test_before_an_and_is_named(statement: str, test: str) -> None:
    (finding,) = read(f"def main(rank, ready):\n    {statement}\n").findings
    assert f" by `{test}` (line " in finding.message


def test_a_decorator_that_parts_is_named() -> None:
    (finding,) = read(PARTED["a decorator"]).findings
    assert " by `rank_zero_only` (line " in finding.message
