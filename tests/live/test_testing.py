"""What the assertions for tests tell, on ranks."""

from __future__ import annotations

import math
import multiprocessing as mp
from collections.abc import Callable
from multiprocessing.queues import Queue
from pathlib import Path

import torch
import torch.distributed as dist

from distdoctor.testing import assert_same_across_ranks

DEADLINE_S = 200.0


WORLD = 4


def base() -> torch.Tensor:
    return torch.arange(6, dtype=torch.float32).reshape(2, 3)


def healthy(_rank: int) -> object:
    return base()


def nan(_rank: int) -> object:
    return torch.tensor([math.nan, -0.0, 1.0])


def scalar(_rank: int) -> object:
    return torch.tensor(3)


def empty(_rank: int) -> object:
    return torch.empty(0, 3)


def sparse(_rank: int) -> object:
    return base().to_sparse()


def narrow(_rank: int) -> object:
    return torch.ones(3, dtype=torch.bfloat16)[::2]


def values(rank: int) -> object:
    tensor = base()
    if rank == 2:
        tensor[1, 0] += 0.5
        tensor[1, 2] -= 2.0
    return tensor


def zeros(rank: int) -> object:
    return torch.tensor([1.0, -0.0 if rank == 1 else 0.0])


def one_nan(rank: int) -> object:
    return torch.tensor([math.nan if rank == 3 else 1.0, 2.0])


def halves(rank: int) -> object:
    return torch.full((3,), rank // 2)


def forms(rank: int) -> object:
    return (base(), base(), base().reshape(3, 2).double(), "text")[rank]


def nothing(_rank: int) -> object:
    return None


def unread(_rank: int) -> object:
    return torch.empty(3, device="meta")


MADE: list[tuple[Callable[[int], object], str]] = [
    (healthy, ""),
    (nan, ""),
    (scalar, ""),
    (empty, ""),
    (sparse, ""),
    (narrow, ""),
    (
        values,
        "w differs across ranks: rank 2 from ranks {0-1,3}\n"
        "  rank 2: 2 of 6 elements differ, first at [1, 0]: 3.5 instead of 3.0; at "
        "most by 2",
    ),
    (
        zeros,
        "w differs across ranks: rank 1 from ranks {0,2-3}\n"
        "  rank 1: 1 of 2 elements differ, first at [1]: -0.0 instead of 0.0; at most "
        "by 0",
    ),
    (
        one_nan,
        "w differs across ranks: rank 3 from ranks {0-2}\n"
        "  rank 3: 1 of 2 elements differ, first at [0]: nan instead of 1.0",
    ),
    (
        halves,
        "w differs across ranks; ranks {2-3} compared with ranks {0-1}, which are no "
        "majority\n"
        "  ranks {2-3}: 3 of 3 elements differ, first at [0]: 1 instead of 0; at most "
        "by 1",
    ),
    (
        forms,
        "w differs across ranks: ranks {2-3} from ranks {0-1}\n"
        "  rank 2: shape [3, 2] instead of [2, 3], dtype float64 instead of float32\n"
        "  rank 3: str instead of a tensor",
    ),
    (
        nothing,
        "w cannot be compared across ranks\n"
        "  ranks {0-3}: NoneType instead of a tensor",
    ),
]


def play(rank: int, store: str, answers: Queue[tuple[int, list[str]]]) -> None:
    """All cases, on one rank; and what it was told each time."""
    torch.set_num_threads(1)  # threads of OpenMP do not live on in a fork
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD
    )
    messages = []
    for make, _ in [*MADE, (unread, "")]:
        try:
            assert_same_across_ranks(make(rank), "w")  # type: ignore[arg-type]
            messages.append("")
        except AssertionError as error:
            messages.append(str(error))
    pair = dist.new_group([1, 3])
    if rank in (1, 3):
        try:
            assert_same_across_ranks(torch.tensor([rank]), group=pair)
        except AssertionError as error:
            messages.append(str(error))
    dist.barrier()
    answers.put((rank, messages))
    dist.destroy_process_group()


def test_ranks_that_differ_are_named_on_every_rank_alike(tmp_path: Path) -> None:
    context = mp.get_context("fork")
    answers: Queue[tuple[int, list[str]]] = context.Queue()
    arguments = (str(tmp_path / "store"), answers)
    played = [context.Process(target=play, args=(n, *arguments)) for n in range(WORLD)]
    for process in played:
        process.start()
    try:
        messages = dict(answers.get(timeout=DEADLINE_S) for _ in played)
    finally:
        for process in played:
            process.kill()
            process.join()
    for rank in range(WORLD):
        expected = [text for _, text in MADE]
        assert messages[rank][: len(MADE)] == expected
        assert "a tensor that cannot be read" in messages[rank][len(MADE)]
    assert messages[1][-1] == messages[3][-1]
    assert messages[1][-1].startswith(
        "the tensor differs across ranks; rank 3 compared"
    )
    assert len(messages[0]) == len(MADE) + 1
