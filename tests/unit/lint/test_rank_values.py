"""Expressions have the worth that each rank would compute, as far as a text tells."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from distdoctor.lint.code_base import CodeBase
from distdoctor.lint.rank_values import (
    LOCAL,
    SIZE,
    UNKNOWN,
    Kind,
    MadeThing,
    RankFrame,
    Value,
    ValueReader,
)
from distdoctor.lint.source_files import SourceText

PROGRAM = """
import os
import math
import time
import torch
import torch.distributed as dist
import horovod.torch as hvd
from os import environ
from torch.distributed import get_rank, get_world_size
from torch.nn.parallel import DistributedDataParallel as DDP

FIRST = dist.get_rank() == 0
TWICE = read(); TWICE = other()

class Trainer:
    def __init__(self, rank):
        self.turn = dist.get_rank()
        self.model = DDP(make())

    def run(self):
        pass
"""


class NoCaller:
    """Functions of the program are not gone through."""

    def returned(self, call: ast.Call, frame: RankFrame) -> Value:
        """Nothing is known."""
        del call, frame
        return UNKNOWN


def worth(expression: str, rank: int, /, **values: Any) -> Value:
    code = CodeBase([SourceText("train.py", PROGRAM)])
    (file,) = code.files
    reader = ValueReader(rank, NoCaller(), {})
    node = ast.parse(expression, mode="eval").body
    (run,) = file.named("run")
    return reader.value(node, RankFrame(run, dict(values)))


ON_RANKS = [
    # What it is, on rank 0, on rank 3.
    ("dist.get_rank()", 0, 3),
    ("get_rank()", 0, 3),
    ("torch.distributed.get_rank()", 0, 3),
    ("hvd.rank()", 0, 3),
    ("hvd.size()", SIZE, SIZE),
    ("dist.get_rank(group)", UNKNOWN, UNKNOWN),
    ("dist.get_world_size()", SIZE, SIZE),
    ("rank", 0, 3),
    ("args.local_rank", 0, 3),
    ("args.world_size", SIZE, SIZE),
    ("is_main_process()", True, False),
    ("self.is_global_zero", True, False),
    ("FIRST", True, False),
    ("TWICE", UNKNOWN, UNKNOWN),
    ("self.turn", 0, 3),
    ("int(os.environ['RANK'])", 0, 3),
    ("int(environ['LOCAL_RANK'])", 0, 3),
    ("os.environ.get('RANK', '0')", "0", "3"),
    ("os.getenv('WORLD_SIZE')", str(SIZE), str(SIZE)),
    ("os.environ['HOME']", UNKNOWN, UNKNOWN),
    ("os.environ.get()", UNKNOWN, UNKNOWN),
    ("rank == 0", True, False),
    ("rank != 0", False, True),
    ("0 < rank < 3", False, False),
    ("0 <= rank <= 3", True, True),
    ("rank in (0, 1)", True, False),
    ("rank not in [0, 1]", False, True),
    ("rank in those", LOCAL, LOCAL),
    ("value in those", UNKNOWN, UNKNOWN),
    ("rank % 2 == 1", False, True),
    ("rank // 2", 0, 1),
    ("rank + 1 - 2 * 3", -5, -2),
    ("(rank + 1) % dist.get_world_size()", 1, 0),
    ("rank / 2", 0.0, 1.5),
    ("rank % 0", UNKNOWN, UNKNOWN),
    ("rank % per_node", LOCAL, LOCAL),
    ("rank ** 10 ** 9", UNKNOWN, UNKNOWN),
    ("'a' * 10 ** 9", UNKNOWN, UNKNOWN),
    ("-rank", 0, -3),
    ("not rank", True, False),
    ("not flag", UNKNOWN, UNKNOWN),
    ("rank == 0 and flag", UNKNOWN, False),
    ("flag and rank == 0", UNKNOWN, False),
    ("rank == 0 or flag", True, UNKNOWN),
    ("flag or rank == 0", True, UNKNOWN),
    ("rank == 0 and dist.get_world_size() > 1", True, False),
    ("'a' if rank == 0 else 'b'", "a", "b"),
    ("1 if flag else 2", UNKNOWN, UNKNOWN),
    ("bool(rank)", False, True),
    ("str(rank)", "0", "3"),
    ("int('x')", UNKNOWN, UNKNOWN),
    ("int(1e999)", UNKNOWN, UNKNOWN),
    ("range(rank)", range(0), range(3)),
    ("range(10 ** 12)", UNKNOWN, UNKNOWN),
    ("range(1, 2, 0)", UNKNOWN, UNKNOWN),
    ("(rank, 'x')", (0, "x"), (3, "x")),
    ("(rank, flag)", UNKNOWN, UNKNOWN),
    ("None is None", True, True),
    ("rank is None", False, False),
    ("rank < 'x'", UNKNOWN, UNKNOWN),
    ("time.time()", LOCAL, LOCAL),
    ("time.time() - begin > 60", LOCAL, LOCAL),
    ("dist.is_initialized()", True, True),
    ("DDP(net)", MadeThing(Kind.REPLICATED), MadeThing(Kind.REPLICATED)),
    ("self.model", MadeThing(Kind.REPLICATED), MadeThing(Kind.REPLICATED)),
    ("self.model.module", UNKNOWN, UNKNOWN),
    ("self.model is None", False, False),
    ("data[rank::dist.get_world_size()]", MadeThing(Kind.SHARE), MadeThing(Kind.SHARE)),
    ("data[::2]", UNKNOWN, UNKNOWN),
    ("(n := rank)", 0, 3),
    ("lambda: rank", UNKNOWN, UNKNOWN),
    ("[n for n in data]", UNKNOWN, UNKNOWN),
    ("f'{rank}'", UNKNOWN, UNKNOWN),
    ("await rank", UNKNOWN, UNKNOWN),
    ("unheard.of", UNKNOWN, UNKNOWN),
]


@pytest.mark.parametrize(("expression", "first", "last"), ON_RANKS)
def test_an_expression_is_worth_what_its_rank_makes_of_it(
    expression: str, first: Value, last: Value
) -> None:
    for rank, wanted in ((0, first), (3, last)):
        found = worth(expression, rank)
        assert found == wanted
        assert type(found) is type(wanted)


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("loss.item()", LOCAL),
        ("math.isnan(loss)", LOCAL),
        ("torch.isfinite(loss).all()", LOCAL),
        ("loss < 0.1", LOCAL),
        ("loss is None", False),
        ("known + 1", 5),
        ("rank", 7),
    ],
)
def test_variables_have_what_was_given_to_them(expression: str, wanted: Value) -> None:
    assert worth(expression, 0, loss=LOCAL, known=4, rank=7) == wanted


def test_a_number_that_happens_to_be_like_the_rank_is_not_the_rank() -> None:
    assert worth("0 in those", 0) is UNKNOWN
    assert worth("n in those", 3, n=3) is UNKNOWN


def test_an_expression_of_any_depth_is_worth_something() -> None:
    deep = "-" * 60 + "rank"
    assert worth(deep, 3) is UNKNOWN
    assert worth("-" * 30 + "rank", 3) == 3
