"""The board under two processes that write at the same moment."""

import subprocess
import sys
from pathlib import Path

DEADLINE_S = 180.0  # for two processes that wait for each other on a busy machine


RACER = """
import mmap, os, sys, threading
from pathlib import Path
from distdoctor.probes.collectives.board import Board, local_cells

folder, me, rounds, signature = Path(sys.argv[1]), *map(int, sys.argv[2:])
with (folder / "gate").open("r+b") as file:
    gate = memoryview(mmap.mmap(file.fileno(), 16)).cast("Q")
board, lock = Board(folder / "boards", "g", 2, me), threading.Lock()
answers = bytearray()
for ordinal in range(1, rounds + 1):
    gate[me] = ordinal
    while gate[1 - me] < ordinal:
        os.sched_yield()
    with lock:
        board.write(ordinal, signature)
    answers.append(board.agrees(ordinal, signature))
(folder / f"answers-{me}").write_bytes(answers)
"""


ROUNDS = 20_000  # several times around the rows of a board


def race(folder: Path, signatures: tuple[int, int]) -> list[tuple[int, int]]:
    """What two processes that write at the same moment say, round by round."""
    (folder / "gate").write_bytes(bytes(16))
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(folder), str(me), str(ROUNDS), str(what)]
        )
        for me, what in enumerate(signatures)
    ]
    try:
        assert [racer.wait(DEADLINE_S) for racer in racers] == [0, 0]
    finally:
        for racer in racers:
            racer.kill()
            racer.wait(DEADLINE_S)
    first, second = ((folder / f"answers-{me}").read_bytes() for me in (0, 1))
    return list(zip(first, second, strict=True))


def test_of_two_that_disagree_at_the_same_moment_one_notices(tmp_path: Path) -> None:
    answers = race(tmp_path, (7, 8))
    assert len(answers) == ROUNDS
    assert [n for n, pair in enumerate(answers, start=1) if all(pair)] == []


def test_of_two_that_agree_at_the_same_moment_none_is_refused(tmp_path: Path) -> None:
    answers = race(tmp_path, (7, 7))
    assert [n for n, pair in enumerate(answers, start=1) if not all(pair)] == []
